package recovery

import (
	"fmt"
	"path/filepath"
	"strings"

	"github.com/moby/sys/mountinfo"

	"github.com/longshore-csi/longshore/kubeletplugin/volume"
)

// HostMounts lists the mounts below a directory in this process's mount namespace. The kernel knows
// them by paths without links; they are returned as paths below dir as it was given.
func HostMounts(dir string) ([]volume.MountPoint, error) {
	resolved, err := filepath.EvalSymlinks(dir)
	if err != nil {
		return nil, fmt.Errorf("list mounts below %q: %w", dir, err)
	}
	found, err := mountinfo.GetMounts(mountinfo.PrefixFilter(resolved))
	if err != nil {
		return nil, fmt.Errorf("list mounts below %q: %w", dir, err)
	}
	all := make([]volume.MountPoint, 0, len(found))
	for _, m := range found {
		point := filepath.Join(dir, strings.TrimPrefix(m.Mountpoint, resolved))
		all = append(all, volume.MountPoint{Point: point, Source: fmt.Sprintf("%d:%d%s", m.Major, m.Minor, m.Root)})
	}
	return all, nil
}
