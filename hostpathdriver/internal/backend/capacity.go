package backend

import (
	"cmp"
	"context"
	"fmt"
	"math/bits"

	"golang.org/x/sys/unix"
	"k8s.io/klog/v2"

	"github.com/longshore-csi/longshore/driverkit"
	"github.com/longshore-csi/longshore/hostpathdriver/internal/volume"
)

// Capacity returns what the pools have left. Without pools, and for a pool without a size, it is the free space of the disk, which volumes share and
// nothing reserves. A scheduler prefers the size of the largest volume to what is available, so that neither is more than there is.
func (c *Controller) Capacity(ctx context.Context, req *driverkit.CapacityRequest) (*driverkit.Capacity, error) {
	parameters, err := volume.ParseParameters(req.Parameters)
	if err != nil {
		return nil, err
	}
	served := true
	if len(req.Capabilities) > 0 {
		_, err := volume.ChooseForm(parameters, req.Capabilities, nil)
		served = err == nil
	}
	own := c.own(ctx)
	if elsewhere := c.cfg.Topology && own != "" && req.Topology != nil && req.Topology[volume.TopologyKey] != own; elsewhere || !served {
		return &driverkit.Capacity{}, nil
	}
	pools := c.pools(own)
	left, err := pools.Capacity(parameters.Pool)
	if err != nil {
		return nil, err
	}
	answer := &driverkit.Capacity{Available: left.Available, LargestVolume: min(left.Largest, c.cfg.MaxSize)}
	unlimited := pools.Unlimited(parameters.Pool)
	if !pools.Configured() {
		unlimited = []string{""}
	}
	for _, pool := range unlimited {
		free, err := freeOf(cmp.Or(c.cfg.root(pool), c.cfg.StateDir))
		if err != nil {
			klog.FromContext(ctx).Error(err, "A pool that cannot be used has no capacity")
			continue
		}
		left := rounded(free.bytes)
		answer.Available, answer.LargestVolume = answer.Available+left, max(answer.LargestVolume, min(left, c.cfg.MaxSize))
	}
	return answer, nil
}

// rounded is a little less, at most a 32nd. What is free on a disk changes with each line of a log, and each different answer is published again.
func rounded(free int64) int64 {
	const digits = 6
	unimportant := max(0, bits.Len64(uint64(free))-digits)
	return free >> unimportant << unimportant
}

// freeSpace is what the file system of a path still takes, for everybody.
type freeSpace struct{ bytes, inodes int64 }

func freeOf(path string) (freeSpace, error) {
	var disk unix.Statfs_t
	if err := unix.Statfs(path, &disk); err != nil {
		return freeSpace{}, fmt.Errorf("read free space of %s: %w", path, err)
	}
	return freeSpace{bytes: int64(disk.Bavail) * disk.Bsize, inodes: int64(disk.Ffree)}, nil // What a disk has fits.
}
