package backend

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"

	"github.com/longshore-csi/longshore/driverkit"
	"github.com/longshore-csi/longshore/hostpathdriver/internal/volume"
)

// lowPercent is the percentage of free space or inodes below which a disk is degraded.
const lowPercent = 5

// Health is the health of volumes and of the storage, which any process can report.
type Health struct{ Config *Config }

// VolumeHealth looks at the contents of a volume, and at their disk. The health of mounts is that of driverkit.
func (h Health) VolumeHealth(_ context.Context, req *driverkit.HealthRequest) (*driverkit.Health, error) {
	c := h.Config
	if req.OnNode && c.uses(c.NodeID).Exists(req.ID) {
		if known, err := c.uses(c.NodeID).Get(req.ID); err == nil && known.Inline != nil {
			return &driverkit.Health{}, nil
		}
	}
	found, err := c.View(req.ID)
	if err != nil {
		return nil, err
	}
	return &driverkit.Health{Conditions: append(c.contentsConditions(found), diskConditions(cmp.Or(found.Root, c.StateDir))...)}, nil
}

// contentsConditions returns the problems of the contents of a volume.
func (c *Config) contentsConditions(v *volume.Volume) []driverkit.Condition {
	store := c.contentsOf(v)
	path := store.Place(v.ID, v.Form())
	info, err := os.Lstat(path)
	unreachable := store.CheckReachable()
	switch {
	case errors.Is(err, fs.ErrNotExist) && unreachable != nil:
		return []driverkit.Condition{{Severity: driverkit.Inaccessible, Reason: "ContentsUnreachable", Message: unreachable.Error()}}
	case errors.Is(err, fs.ErrNotExist):
		return []driverkit.Condition{{Severity: driverkit.DataLoss, Reason: "ContentsMissing", Message: path + " does not exist"}}
	case err != nil:
		return []driverkit.Condition{{Severity: driverkit.Inaccessible, Reason: "ContentsUnreachable", Message: err.Error()}}
	case v.Form().Disk && info.Size() < cmp.Or(v.Before, v.Capacity):
		return []driverkit.Condition{{Severity: driverkit.DataLoss, Reason: "ContentsTruncated",
			Message: fmt.Sprintf("%s has %d bytes, the volume %d", path, info.Size(), v.Capacity)}}
	}
	return nil
}

// diskConditions returns the problems of the disk that volumes share.
func diskConditions(path string) []driverkit.Condition {
	free, err := freeOf(path)
	switch {
	case err != nil:
		return []driverkit.Condition{{Severity: driverkit.Inaccessible, Reason: "StorageUnreachable", Message: err.Error()}}
	case free.bytes == 0:
		return []driverkit.Condition{{Severity: driverkit.Degraded, Reason: "DiskFull", Message: "the disk that the volumes share has no space left; writes fail"}}
	}
	return nil
}

// StorageHealth checks the disks that volumes share.
func (h Health) StorageHealth(context.Context, *driverkit.StorageHealthRequest) (*driverkit.Health, error) {
	c := h.Config
	var found []driverkit.Condition
	for _, dir := range c.roots(c.StateDir) {
		var disk unix.Statfs_t
		if err := unix.Statfs(dir, &disk); err != nil {
			found = append(found, driverkit.Condition{Severity: driverkit.Inaccessible, Reason: "StorageUnreachable", Message: fmt.Sprintf("look at %s: %v", dir, err)})
			continue
		}
		if low(disk.Bavail, disk.Blocks) {
			found = append(found, driverkit.Condition{Severity: driverkit.Degraded, Reason: "LowSpace",
				Message: fmt.Sprintf("%s: less than %d%% of the space is left", dir, lowPercent)})
		}
		if low(disk.Ffree, disk.Files) {
			found = append(found, driverkit.Condition{Severity: driverkit.Degraded, Reason: "LowInodes",
				Message: fmt.Sprintf("%s: less than %d%% of the inodes are left", dir, lowPercent)})
		}
	}
	return &driverkit.Health{Conditions: found}, nil
}

// low reports whether less than lowPercent is left. Some file systems have no fixed number of inodes.
func low(left, total uint64) bool { return total > 0 && left < total/100*lowPercent }
