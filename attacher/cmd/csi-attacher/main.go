// Command csi-attacher attaches and detaches volumes for the CSI driver next to it; see docs/flags.md.
package main

import (
	"os"

	"github.com/longshore-csi/longshore/attacher"
	"github.com/longshore-csi/longshore/csikit/command"
)

func main() {
	os.Exit(command.New("csi-attacher", attacher.NewOptions, attacher.Run).OnOneProcessor().Main())
}
