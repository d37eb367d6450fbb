package mount

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
)

// Kernel is the Mounter of the machine. It needs CAP_SYS_ADMIN.
type Kernel struct{}

var _ Mounter = Kernel{}

// noFollow has open(2) refuse a symbolic link.
const noFollow = unix.O_NOFOLLOW

// flag is one mount flag: attributes to set and to clear.
type flag struct {
	name  string
	set   uint64
	clear uint64
}

func flagTable() []flag {
	return []flag{
		{name: flagReadOnly, set: unix.MOUNT_ATTR_RDONLY},
		{name: "rw"},
		{name: "nosuid", set: unix.MOUNT_ATTR_NOSUID},
		{name: "suid", clear: unix.MOUNT_ATTR_NOSUID},
		{name: "nodev", set: unix.MOUNT_ATTR_NODEV},
		{name: "dev", clear: unix.MOUNT_ATTR_NODEV},
		{name: "noexec", set: unix.MOUNT_ATTR_NOEXEC},
		{name: "exec", clear: unix.MOUNT_ATTR_NOEXEC},
		{name: "noatime", set: unix.MOUNT_ATTR_NOATIME, clear: unix.MOUNT_ATTR__ATIME},
		{name: "relatime", set: unix.MOUNT_ATTR_RELATIME, clear: unix.MOUNT_ATTR__ATIME},
		{name: "strictatime", set: unix.MOUNT_ATTR_STRICTATIME, clear: unix.MOUNT_ATTR__ATIME},
		{name: "nodiratime", set: unix.MOUNT_ATTR_NODIRATIME},
		{name: "diratime", clear: unix.MOUNT_ATTR_NODIRATIME},
	}
}

// attributes are what the options change in a copy of the source's mount.
func attributes(o Options) (*unix.MountAttr, error) {
	if err := o.check(); err != nil {
		return nil, err
	}
	table := flagTable()
	var attr unix.MountAttr
	for _, name := range o.Flags {
		i := slices.IndexFunc(table, func(f flag) bool { return f.name == name })
		// A later flag wins over an earlier one that contradicts it.
		attr.Attr_set = attr.Attr_set&^table[i].clear | table[i].set
		attr.Attr_clr = attr.Attr_clr&^table[i].set | table[i].clear
	}
	if o.ReadOnly {
		attr.Attr_set |= unix.MOUNT_ATTR_RDONLY
	}
	return &attr, nil
}

// Bind implements Mounter. The mount gets its attributes before it gets its
// place, so that no crash leaves it writable. It needs Linux 5.12.
func (k Kernel) Bind(ctx context.Context, source, target string, o Options) error {
	attr, err := attributes(o)
	if err == nil {
		err = ctx.Err()
	}
	if err == nil {
		err = bind(source, target, attr)
	}
	if err != nil {
		return fmt.Errorf("bind mount %s at %s, flags %v, read-only %t: %w", source, target, o.Flags, o.ReadOnly, err)
	}
	return nil
}

func bind(source, target string, attr *unix.MountAttr) (err error) {
	// A program that is started now would have the descriptor until it is
	// executed, and keep the mount busy although it is closed here.
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	tree, err := unix.OpenTree(unix.AT_FDCWD, source, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
	if err != nil {
		return fmt.Errorf("open_tree: %w", err)
	}
	defer func() { err = errors.Join(err, unix.Close(tree)) }()
	if attr.Attr_set|attr.Attr_clr != 0 {
		if err := unix.MountSetattr(tree, "", unix.AT_EMPTY_PATH, attr); err != nil {
			return fmt.Errorf("mount_setattr: %w", err)
		}
	}
	if err := unix.MoveMount(tree, "", unix.AT_FDCWD, target, unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
		return fmt.Errorf("move_mount: %w", err)
	}
	return nil
}

// IsMountOf implements Mounter: a bind mount and its source are one file.
func (k Kernel) IsMountOf(ctx context.Context, source, target string, o Options) (bool, error) {
	mounted, err := k.Mounted(ctx, target)
	if err != nil || !mounted {
		return false, err
	}
	wanted, err := os.Stat(source)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("look at source of mount %s: %w", target, err)
	}
	shown, err := os.Stat(target)
	if err != nil {
		return false, fmt.Errorf("look at mount %s: %w", target, err)
	}
	if !os.SameFile(wanted, shown) {
		return false, nil
	}
	var flags unix.Statfs_t
	if err := unix.Statfs(target, &flags); err != nil {
		return false, fmt.Errorf("read mount flags of %s: %w", target, err)
	}
	return !o.readOnly() || flags.Flags&unix.ST_RDONLY != 0, nil
}

// ReadOnly implements Mounter.
func (k Kernel) ReadOnly(ctx context.Context, target string) (bool, error) {
	err := ctx.Err()
	var flags unix.Statfs_t
	var root unix.Stat_t
	if err == nil {
		err = unix.Statfs(target, &flags)
	}
	if err == nil {
		err = unix.Stat(target, &root)
	}
	readOnly := flags.Flags&unix.ST_RDONLY != 0
	if err == nil && !readOnly {
		readOnly, err = stoppedByError(root.Dev)
	}
	if err != nil {
		return false, fmt.Errorf("read mount flags of %s: %w", target, err)
	}
	return readOnly, nil
}

// stoppedByError reports whether the file system of a device refuses writes since an error. Since Linux 6.15 ext4 has an option for that in the mount
// table (6.12 to 6.14 have nothing), and no mount flag (Linux, fs/ext4/super.c, _ext4_show_options).
func stoppedByError(device uint64) (bool, error) {
	found, err := mountinfo.GetMounts(func(info *mountinfo.Info) (skip, stop bool) {
		same := unix.Mkdev(uint32(info.Major), uint32(info.Minor)) == device // device numbers fit
		return !same, same
	})
	if err != nil || len(found) == 0 {
		return false, err
	}
	options := strings.Split(found[0].VFSOptions, ",")
	return slices.Contains(options, "emergency_ro") || slices.Contains(options, "shutdown"), nil
}

// Uses implements Mounter.
func (k Kernel) Uses(ctx context.Context, device string) (bool, error) {
	var node unix.Stat_t
	err := ctx.Err()
	if err == nil {
		err = unix.Stat(device, &node)
	}
	var found []*mountinfo.Info
	if err == nil {
		found, err = mountinfo.GetMounts(func(info *mountinfo.Info) (skip, stop bool) {
			used := unix.Mkdev(uint32(info.Major), uint32(info.Minor)) == node.Rdev || isMountOfNode(info, device, node.Rdev) // device numbers fit
			return !used, used
		})
	}
	if err != nil {
		return false, fmt.Errorf("look for mounts of %s: %w", device, err)
	}
	return len(found) > 0, nil
}

// isMountOfNode reports whether a mount is a bind mount of the node of a device.
func isMountOfNode(info *mountinfo.Info, device string, number uint64) bool {
	var shown unix.Stat_t
	return filepath.Base(info.Root) == filepath.Base(device) && unix.Stat(info.Mountpoint, &shown) == nil && shown.Rdev == number
}

// busyTime is how long Unmount waits for a mount that is in use to become free.
// A program that another call starts has every open file of the driver until its
// exec, close-on-exec or not: a file closed just now may keep a mount busy for a moment.
const busyTime = time.Second

// Unmount implements Mounter. It never detaches lazily: a mount that stays busy
// is an error, so that no caller deletes files that a process still writes to.
func (k Kernel) Unmount(ctx context.Context, target string) error {
	return k.unmountWithin(ctx, target, busyTime)
}

func (k Kernel) unmountWithin(ctx context.Context, target string, limit time.Duration) error {
	const pause = 10 * time.Millisecond
	mounted, err := k.Mounted(ctx, target)
	if err != nil || !mounted {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	for {
		err := unmount(target)
		if !errors.Is(err, unix.EBUSY) {
			return err
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(pause):
		}
	}
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
	if err != nil { // A file system whose device or server is gone cannot be looked at, and must be unmounted nevertheless.
		mounted, err = inTable(target)
	}
	if err != nil {
		return false, fmt.Errorf("look up mount at %s: %w", target, err)
	}
	return mounted, nil
}

// inTable looks a target up in the mount table, without a look at the target itself.
func inTable(target string) (bool, error) {
	parent, err := filepath.EvalSymlinks(filepath.Dir(target))
	if err != nil {
		return false, err
	}
	found, err := mountinfo.GetMounts(mountinfo.SingleEntryFilter(filepath.Join(parent, filepath.Base(target))))
	return len(found) > 0, err
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
