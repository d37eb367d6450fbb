// Command livenessprobe answers HTTP liveness probes with the health of a CSI
// driver.
package main

import (
	"os"

	"github.com/longshore-csi/longshore/csikit/command"
	"github.com/longshore-csi/longshore/livenessprobe"
)

func main() {
	os.Exit(command.New("livenessprobe", livenessprobe.NewOptions, livenessprobe.Run).OnOneProcessor().Main())
}
