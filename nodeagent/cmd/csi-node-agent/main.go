// Command csi-node-agent mounts CSI volumes for the pods of a node that has no kubelet; see docs/flags.md.
package main

import (
	"os"

	"github.com/longshore-csi/longshore/csikit/command"
	"github.com/longshore-csi/longshore/nodeagent"
)

func main() {
	os.Exit(command.New("csi-node-agent", nodeagent.NewOptions, nodeagent.Run).Main())
}
