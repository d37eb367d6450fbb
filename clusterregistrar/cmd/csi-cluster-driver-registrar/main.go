// Command csi-cluster-driver-registrar keeps the CSIDriver object of the CSI driver next to it; see docs/flags.md.
package main

import (
	"os"

	"github.com/longshore-csi/longshore/clusterregistrar"
	"github.com/longshore-csi/longshore/csikit/command"
)

func main() {
	os.Exit(command.New("csi-cluster-driver-registrar", clusterregistrar.NewOptions, clusterregistrar.Run).OnOneProcessor().Main())
}
