package backend

import (
	"os"
	"path/filepath"
	"strings"

	"github.com/longshore-csi/longshore/driverkit/state"
	"github.com/longshore-csi/longshore/hostpathdriver/internal/volume"
)

// Shown is what /debug/state shows of the controller.
type Shown struct {
	Volumes   []*volume.Volume   `json:"volumes,omitempty"`
	Snapshots []*volume.Snapshot `json:"snapshots,omitempty"`
	Groups    []*volume.Group    `json:"groups,omitempty"`
}

// Show returns the volumes, snapshots and groups. It reads the records on disk, so that each of several controllers shows the same, also one that does not
// lead.
func (c *Config) Show() Shown {
	return Shown{
		Volumes:   readAll[volume.Volume](c.StateDir, recordsDir, volumeKind),
		Snapshots: readAll[volume.Snapshot](c.StateDir, snapshotRecordsDir, snapshotKind),
		Groups:    readAll[volume.Group](c.StateDir, groupRecordsDir, groupKind),
	}
}

// readAll returns the records of a directory that can be read.
func readAll[T any](stateDir, name, kind string) (all []*T) {
	dir := filepath.Join(stateDir, name)
	entries, _ := os.ReadDir(dir) // Before the first start there is no directory.
	records := state.View[T](dir, kind)
	for _, entry := range entries {
		id, isRecord := strings.CutSuffix(entry.Name(), ".json")
		if !isRecord {
			continue
		}
		if found, err := records.Get(id); err == nil {
			all = append(all, &found)
		}
	}
	return all
}
