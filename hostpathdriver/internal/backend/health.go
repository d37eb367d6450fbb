package backend

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/longshore-csi/longshore/hostpathdriver/internal/volume"
)

// Reasons of conditions.
const (
	reasonContentsMissing     = "ContentsMissing"
	reasonContentsTruncated   = "ContentsTruncated"
	reasonContentsUnreachable = "ContentsUnreachable"
	reasonDiskFull            = "DiskFull"
	reasonMountLost           = "MountLost"
	reasonReadOnly            = "FileSystemReadOnly"
	reasonMountUnreadable     = "MountUnreadable"
	reasonStorageUnreachable  = "StorageUnreachable"
	reasonLowSpace            = "LowSpace"
	reasonLowInodes           = "LowInodes"
)

// lowPercent is the percentage of free space or inodes below which a disk is degraded.
const lowPercent = 5

// Health implements volume.Service.
func (v *Volumes) Health(_ context.Context, id volume.ID) (volume.Health, error) {
	found, err := v.volumes.catalog.get(id)
	if err != nil {
		return volume.Health{}, err
	}
	return v.health(found, v.disks()), nil
}

// ListHealth implements volume.Service. It checks volumes until the page is full,
// and holds no lock while it accesses the disk.
func (v *Volumes) ListHealth(ctx context.Context, req volume.ListRequest) (*volume.HealthPage, error) {
	at, err := v.volumes.catalog.start(req)
	if err != nil {
		return nil, err
	}
	const chunk = 256
	disk, page := v.disks(), &volume.HealthPage{}
	for {
		list := v.volumes.catalog.after(at, chunk, nil)
		for _, one := range list {
			health := v.health(one.object, disk)
			if len(health.Conditions) > 0 {
				if req.Max > 0 && len(page.Entries) == req.Max {
					page.Next = v.volumes.catalog.encode(at)
					return page, nil
				}
				page.Entries = append(page.Entries, health)
			}
			at.after = one.seq
		}
		if len(list) < chunk || ctx.Err() != nil {
			return page, ctx.Err()
		}
	}
}

func (v *Volumes) health(found *volume.Volume, disk disks) volume.Health {
	return volume.Health{ID: found.ID, Conditions: append(contentsConditions(v.volumes.contents(found), found), disk.of(found.Home)...)}
}

// disks are the disks that volumes share, by home; each is checked once.
type disks struct {
	root  string
	found map[string][]volume.Condition
}

func (v *Volumes) disks() disks {
	return disks{root: v.cfg.StateDir, found: map[string][]volume.Condition{}}
}

func (d disks) of(home string) []volume.Condition {
	found, known := d.found[home]
	if !known {
		found = diskConditions(cmp.Or(home, d.root))
		d.found[home] = found
	}
	return found
}

// diskConditions returns the conditions of the disk that volumes share.
func diskConditions(path string) []volume.Condition {
	free, err := freeOf(path)
	switch {
	case err != nil:
		return []volume.Condition{{Severity: volume.Inaccessible, Reason: reasonStorageUnreachable, Message: err.Error()}}
	case free.bytes == 0:
		return []volume.Condition{{Severity: volume.Degraded, Reason: reasonDiskFull, Message: "the disk that the volumes share has no space left; writes fail"}}
	}
	return nil
}

// contentsConditions returns the conditions of the contents of a volume.
func contentsConditions(c *Contents, found *volume.Volume) []volume.Condition {
	form := found.Form()
	path := c.Place(found.ID, form)
	info, err := os.Lstat(path)
	switch {
	case found.Filling:
		return nil // not in use yet
	case errors.Is(err, fs.ErrNotExist) && gone(c.data):
		return []volume.Condition{{Severity: volume.Inaccessible, Reason: reasonContentsUnreachable, Message: checkDir(c.data).Error()}}
	case errors.Is(err, fs.ErrNotExist):
		return []volume.Condition{{Severity: volume.DataLoss, Reason: reasonContentsMissing, Message: path + " does not exist"}}
	case err != nil:
		return []volume.Condition{{Severity: volume.Inaccessible, Reason: reasonContentsUnreachable, Message: err.Error()}}
	case form.Disk && info.Size() < found.Capacity:
		return []volume.Condition{{Severity: volume.DataLoss, Reason: reasonContentsTruncated,
			Message: fmt.Sprintf("%s has %d bytes, the volume %d", path, info.Size(), found.Capacity)}}
	}
	return nil
}

// Health implements volume.NodeService. For a volume that is not used on the node
// only its contents are checked.
func (n *Node) Health(ctx context.Context, id volume.ID, paths ...string) (volume.Health, error) {
	known := n.get(id)
	health := volume.Health{ID: id}
	if known == nil || known.Ephemeral == nil {
		persistent, err := n.lookupPersistent(id)
		if err != nil {
			return volume.Health{}, err
		}
		health.Conditions = contentsConditions(n.persistentContents(persistent.Home), persistent)
	}
	if known == nil {
		return health, nil
	}
	for _, path := range paths {
		if known.At(path) {
			health.Conditions = append(health.Conditions, n.mountConditions(ctx, known, path)...)
		}
	}
	return health, nil
}

func (n *Node) mountConditions(ctx context.Context, known *volume.NodeVolume, path string) []volume.Condition {
	there, err := n.mounted(ctx, known, path)
	broken := false
	if err == nil && there {
		broken, err = n.becameReadOnly(ctx, known, path)
	}
	switch {
	case err != nil:
		return []volume.Condition{{Severity: volume.Inaccessible, Reason: reasonMountUnreadable, Message: err.Error()}}
	case !there:
		return []volume.Condition{{Severity: volume.Inaccessible, Reason: reasonMountLost,
			Message: "what is mounted at " + path + " is not the volume any more"}}
	case broken:
		return []volume.Condition{{Severity: volume.Degraded, Reason: reasonReadOnly,
			Message: "the file system at " + path + " became read-only; writes fail"}}
	}
	return nil
}

// StorageHealth implements volume.NodeService: it checks the disks that volumes share.
func (n *Node) StorageHealth(context.Context) []volume.Condition {
	var found []volume.Condition
	for _, dir := range append([]string{n.cfg.StateDir}, slices.Sorted(maps.Values(n.cfg.PoolDirs))...) {
		var disk unix.Statfs_t
		if err := unix.Statfs(dir, &disk); err != nil {
			found = append(found, volume.Condition{Severity: volume.Inaccessible, Reason: reasonStorageUnreachable,
				Message: fmt.Sprintf("look at %s: %v", dir, err)})
			continue
		}
		found = append(found, spaceConditions(dir, &disk)...)
	}
	return found
}

// spaceConditions reports low space and low inodes. Some file systems have no fixed
// number of inodes.
func spaceConditions(dir string, disk *unix.Statfs_t) []volume.Condition {
	var found []volume.Condition
	if low(disk.Bavail, disk.Blocks) {
		found = append(found, volume.Condition{Severity: volume.Degraded, Reason: reasonLowSpace,
			Message: fmt.Sprintf("%s: less than %d%% of the space is left", dir, lowPercent)})
	}
	if low(disk.Ffree, disk.Files) {
		found = append(found, volume.Condition{Severity: volume.Degraded, Reason: reasonLowInodes,
			Message: fmt.Sprintf("%s: less than %d%% of the inodes are left", dir, lowPercent)})
	}
	return found
}

func low(left, total uint64) bool {
	return total > 0 && left < total/100*lowPercent
}
