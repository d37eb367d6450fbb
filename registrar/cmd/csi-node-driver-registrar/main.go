// Command csi-node-driver-registrar registers a CSI driver with its node.
package main

import (
	"os"

	"github.com/longshore-csi/longshore/csikit/command"
	"github.com/longshore-csi/longshore/registrar"
)

func main() {
	os.Exit(command.New("csi-node-driver-registrar", registrar.NewOptions, registrar.Run).OnOneProcessor().Main())
}
