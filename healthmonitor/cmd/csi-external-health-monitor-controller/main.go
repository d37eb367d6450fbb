// Command csi-external-health-monitor-controller reports the health of the volumes of the CSI driver next to it; see docs/flags.md.
package main

import (
	"os"

	"github.com/longshore-csi/longshore/csikit/command"
	"github.com/longshore-csi/longshore/healthmonitor"
)

func main() {
	os.Exit(command.New("csi-external-health-monitor-controller", healthmonitor.NewOptions, healthmonitor.Run).OnOneProcessor().Main())
}
