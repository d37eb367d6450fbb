package backend

import (
	"cmp"
	"context"
	"fmt"
	"math/bits"

	"golang.org/x/sys/unix"
	"k8s.io/klog/v2"

	"github.com/longshore-csi/longshore/hostpathdriver/internal/volume"
)

// Capacity implements volume.Service. Without pools, and of one without a size,
// it is about the free space of the disk, which volumes share and nothing
// reserves. A scheduler prefers the size of the largest volume to what is available,
// so that neither is more than there is.
func (v *Volumes) Capacity(ctx context.Context, req *volume.CapacityRequest) (volume.Capacity, error) {
	attributes, err := volume.ParseParameters(req.Parameters)
	if err != nil {
		return volume.Capacity{}, err
	}
	own := v.cfg.Placement.Own
	served := true
	if len(req.Capabilities) > 0 {
		_, err := v.chooseForm(req.Capabilities, attributes, nil)
		served = err == nil
	}
	elsewhere := v.cfg.Placement.Enabled && own != "" && req.Topology != nil && req.Topology[volume.TopologyKey] != own
	if elsewhere || !served {
		return volume.Capacity{}, nil
	}
	c, err := v.cfg.Pools.Capacity(attributes.Pool)
	if err != nil {
		return volume.Capacity{}, err
	}
	c.Largest = min(c.Largest, v.cfg.MaxSize)
	unlimited := v.cfg.Pools.Unlimited(attributes.Pool)
	if !v.cfg.Pools.Configured() {
		unlimited = []string{""}
	}
	for _, pool := range unlimited {
		free, err := v.freeOf(ctx, pool)
		if err != nil {
			klog.FromContext(ctx).Error(err, "A pool that cannot be used has no capacity")
			continue
		}
		left := rounded(free.bytes)
		c.Available, c.Largest = c.Available+left, max(c.Largest, min(left, v.cfg.MaxSize))
	}
	return c, nil
}

// freeOf is what the disk of a pool still takes.
func (v *Volumes) freeOf(ctx context.Context, pool string) (freeSpace, error) {
	path, err := v.homes.of(ctx, pool)
	if err != nil {
		return freeSpace{}, err
	}
	return freeOf(cmp.Or(path, v.cfg.StateDir))
}

// rounded is a little less, at most a 32nd. What is free on a disk changes with
// each line of a log, and each different answer is published again.
func rounded(free int64) int64 {
	const digits = 6
	unimportant := max(0, bits.Len64(uint64(free))-digits)
	return free >> unimportant << unimportant
}

// freeSpace is what the file system of a path still takes, for everybody.
type freeSpace struct {
	bytes  int64
	inodes int64
}

func freeOf(path string) (freeSpace, error) {
	var disk unix.Statfs_t
	if err := unix.Statfs(path, &disk); err != nil {
		return freeSpace{}, fmt.Errorf("read free space of %s: %w", path, err)
	}
	return freeSpace{bytes: int64(disk.Bavail) * disk.Bsize, inodes: int64(disk.Ffree)}, nil // what a disk has fits
}
