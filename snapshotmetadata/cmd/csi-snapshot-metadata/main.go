// Command csi-snapshot-metadata serves the metadata of snapshots of the CSI driver next to it; see docs/flags.md.
package main

import (
	"os"

	"github.com/longshore-csi/longshore/csikit/command"
	"github.com/longshore-csi/longshore/snapshotmetadata"
)

func main() {
	os.Exit(command.New("csi-snapshot-metadata", snapshotmetadata.NewOptions, snapshotmetadata.Run).Main())
}
