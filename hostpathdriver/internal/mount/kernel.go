package mount

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
)

// Kernel is the Mounter of the machine. It needs CAP_SYS_ADMIN.
type Kernel struct{}

var _ Mounter = Kernel{}

// flag is one mount flag: bits to set and bits to clear.
type flag struct {
	name  string
	set   uintptr
	clear uintptr
}

func flagTable() []flag {
	const atime = unix.MS_NOATIME | unix.MS_RELATIME | unix.MS_STRICTATIME
	return []flag{
		{name: "ro", set: unix.MS_RDONLY},
		{name: "rw"},
		{name: "nosuid", set: unix.MS_NOSUID},
		{name: "suid", clear: unix.MS_NOSUID},
		{name: "nodev", set: unix.MS_NODEV},
		{name: "dev", clear: unix.MS_NODEV},
		{name: "noexec", set: unix.MS_NOEXEC},
		{name: "exec", clear: unix.MS_NOEXEC},
		{name: "noatime", set: unix.MS_NOATIME, clear: atime},
		{name: "relatime", set: unix.MS_RELATIME, clear: atime},
		{name: "strictatime", set: unix.MS_STRICTATIME, clear: atime},
		{name: "nodiratime", set: unix.MS_NODIRATIME},
		{name: "diratime", clear: unix.MS_NODIRATIME},
	}
}

// Bind implements Mounter. Flags that the source's mount has are kept: inside
// a user namespace they cannot be dropped.
func (k Kernel) Bind(ctx context.Context, source, target string, o Options) error {
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("bind mount %s at %s: %w", source, target, err)
	}
	if err := unix.Mount(source, target, "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("bind mount %s at %s: %w", source, target, err)
	}
	if !o.ReadOnly && len(o.Flags) == 0 {
		return nil
	}
	err := remount(target, o)
	if err != nil {
		err = errors.Join(err, unmount(target))
	}
	return err
}

func remount(target string, o Options) error {
	var inherited unix.Statfs_t
	if err := unix.Statfs(target, &inherited); err != nil {
		return fmt.Errorf("read mount flags of %s: %w", target, err)
	}
	bits, err := mountBits(inheritedBits(inherited.Flags), o)
	if err != nil {
		return err
	}
	if err := unix.Mount("", target, "", bits|unix.MS_BIND|unix.MS_REMOUNT, ""); err != nil {
		return fmt.Errorf("remount %s with flags %v, read-only %t: %w", target, o.Flags, o.ReadOnly, err)
	}
	return nil
}

// mountBits applies options to the bits of the source's mount.
func mountBits(bits uintptr, o Options) (uintptr, error) {
	table := flagTable()
	for _, name := range o.Flags {
		i := slices.IndexFunc(table, func(f flag) bool { return f.name == name })
		if i < 0 {
			return 0, fmt.Errorf("mount flag %q: must be one of %v", name, Flags())
		}
		bits = bits&^table[i].clear | table[i].set
	}
	if o.ReadOnly {
		bits |= unix.MS_RDONLY
	}
	return bits, nil
}

// inheritedBits translates statfs(2) flags, which differ from mount(2) flags
// in one bit.
func inheritedBits(statfs int64) uintptr {
	const same = unix.ST_RDONLY | unix.ST_NOSUID | unix.ST_NODEV | unix.ST_NOEXEC | unix.ST_NOATIME | unix.ST_NODIRATIME
	bits := uintptr(statfs) & same
	if statfs&unix.ST_RELATIME != 0 {
		bits |= unix.MS_RELATIME
	}
	return bits
}

// Unmount implements Mounter. It never detaches lazily: a busy mount is an
// error, so that nobody deletes what a process still writes to.
func (k Kernel) Unmount(ctx context.Context, target string) error {
	mounted, err := k.Mounted(ctx, target)
	if err != nil || !mounted {
		return err
	}
	return unmount(target)
}

func unmount(target string) error {
	err := unix.Unmount(target, unix.UMOUNT_NOFOLLOW)
	if err != nil && !errors.Is(err, unix.EINVAL) {
		return fmt.Errorf("unmount %s: %w", target, err)
	}
	return nil
}

// Mounted implements Mounter.
func (k Kernel) Mounted(ctx context.Context, target string) (bool, error) {
	if err := ctx.Err(); err != nil {
		return false, fmt.Errorf("look up mount at %s: %w", target, err)
	}
	mounted, err := mountinfo.Mounted(target)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("look up mount at %s: %w", target, err)
	}
	return mounted, nil
}

// Below implements Mounter.
func (k Kernel) Below(ctx context.Context, dir string) ([]string, error) {
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("list mounts below %s: %w", dir, err)
	}
	resolved, err := filepath.EvalSymlinks(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list mounts below %s: %w", dir, err)
	}
	infos, err := mountinfo.GetMounts(mountinfo.PrefixFilter(resolved))
	if err != nil {
		return nil, fmt.Errorf("list mounts below %s: %w", dir, err)
	}
	var points []string
	for _, info := range infos {
		if info.Mountpoint != resolved {
			points = append(points, info.Mountpoint)
		}
	}
	slices.Sort(points)
	return points, nil
}
