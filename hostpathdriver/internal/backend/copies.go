package backend

import (
	"fmt"

	"github.com/longshore-csi/longshore/driverkit"
)

// volumeCopy, snapshotCopy and groupCopies are the keys of copies in progress. Each call that makes an object waits for its copy first, also where the record is there already: when the call has
// succeeded, the source is not in use any more.
func volumeCopy(name string) string   { return fmt.Sprintf("volume %q", name) }
func snapshotCopy(name string) string { return fmt.Sprintf("snapshot %q", name) }
func groupCopies(name string) string  { return fmt.Sprintf("group %q", name) }

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
