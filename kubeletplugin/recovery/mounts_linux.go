package recovery

import (
	"fmt"
	"path/filepath"
	"strings"

	"github.com/moby/sys/mountinfo"
)

// HostMounts lists the mounts below a directory in this process's mount namespace. The kernel knows
// them by paths without links; they are returned as paths below dir as it was given.
func HostMounts(dir string) ([]Mount, error) {
	resolved, err := filepath.EvalSymlinks(dir)
	if err != nil {
		return nil, fmt.Errorf("list mounts below %q: %w", dir, err)
	}
	found, err := mountinfo.GetMounts(mountinfo.PrefixFilter(resolved))
	if err != nil {
		return nil, fmt.Errorf("list mounts below %q: %w", dir, err)
	}
	all := make([]Mount, 0, len(found))
	for _, m := range found {
		point := filepath.Join(dir, strings.TrimPrefix(m.Mountpoint, resolved))
		all = append(all, Mount{Point: point, Source: fmt.Sprintf("%d:%d%s", m.Major, m.Minor, m.Root)})
	}
	return all, nil
}
