package backend

import (
	"fmt"

	"github.com/longshore-csi/longshore/driverkit"
)

// checkSource refuses to change what is being copied, with an ErrInUse.
func (c *Controller) checkSource(key string) error {
	if by := c.copies.User(key); by != "" {
		return fmt.Errorf("%s is being copied to %s: %w", key, by, driverkit.ErrInUse)
	}
	return nil
}

// volumeKey and snapshotKey name sources.
func volumeKey(id string) string   { return driverkit.Source{Volume: id}.String() }
func snapshotKey(id string) string { return driverkit.Source{Snapshot: id}.String() }
