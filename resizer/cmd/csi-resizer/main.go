// Command csi-resizer expands and modifies volumes for the CSI driver next to it; see docs/flags.md.
package main

import (
	"os"

	"github.com/longshore-csi/longshore/csikit/command"
	"github.com/longshore-csi/longshore/resizer"
)

func main() {
	os.Exit(command.New("csi-resizer", resizer.NewOptions, resizer.Run).OnOneProcessor().Main())
}
