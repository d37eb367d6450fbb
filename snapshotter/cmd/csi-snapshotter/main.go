// Command csi-snapshotter takes and deletes snapshots with the CSI driver next to it; see docs/flags.md.
package main

import (
	"os"

	"github.com/longshore-csi/longshore/csikit/command"
	"github.com/longshore-csi/longshore/snapshotter"
)

func main() {
	os.Exit(command.New("csi-snapshotter", snapshotter.NewOptions, snapshotter.Run).OnOneProcessor().Main())
}
