// Command snapshot-controller binds the snapshots of a cluster to their contents; see docs/flags.md.
package main

import (
	"os"

	"github.com/longshore-csi/longshore/csikit/command"
	"github.com/longshore-csi/longshore/snapshotcontroller"
)

func main() {
	os.Exit(command.New("snapshot-controller", snapshotcontroller.NewOptions, snapshotcontroller.Run).OnOneProcessor().Main())
}
