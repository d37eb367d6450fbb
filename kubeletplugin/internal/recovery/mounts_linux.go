package recovery

import (
	"fmt"

	"github.com/moby/sys/mountinfo"
)

// HostMounts lists the mounts below a directory in this process's mount namespace.
func HostMounts(dir string) ([]Mount, error) {
	found, err := mountinfo.GetMounts(mountinfo.PrefixFilter(dir))
	if err != nil {
		return nil, fmt.Errorf("list mounts below %q: %w", dir, err)
	}
	all := make([]Mount, 0, len(found))
	for _, m := range found {
		all = append(all, Mount{Point: m.Mountpoint, Source: fmt.Sprintf("%d:%d%s", m.Major, m.Minor, m.Root)})
	}
	return all, nil
}
