package recovery

import (
	"fmt"

	"github.com/moby/sys/mountinfo"
)

// HostMounts lists the mount points below a directory in this process's mount namespace.
func HostMounts(dir string) ([]string, error) {
	found, err := mountinfo.GetMounts(mountinfo.PrefixFilter(dir))
	if err != nil {
		return nil, fmt.Errorf("list mounts below %q: %w", dir, err)
	}
	points := make([]string, 0, len(found))
	for _, m := range found {
		points = append(points, m.Mountpoint)
	}
	return points, nil
}
