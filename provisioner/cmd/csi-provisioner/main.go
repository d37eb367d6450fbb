// Command csi-provisioner makes volumes for PersistentVolumeClaims by the CSI driver next to it; see
// docs/flags.md. To run it inside another program, use package provisioner.
package main

import (
	"os"

	"github.com/longshore-csi/longshore/csikit/command"
	"github.com/longshore-csi/longshore/provisioner"
)

func main() {
	os.Exit(command.New("csi-provisioner", provisioner.NewOptions, provisioner.Run).OnOneProcessor().Main())
}
