package filesystem

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
	mountutils "k8s.io/mount-utils"
	utilexec "k8s.io/utils/exec"

	"github.com/longshore-csi/longshore/driverkit/mount"
)

// Kernel is the Filesystems of the machine. It needs CAP_SYS_ADMIN, and
// CAP_SYS_RESOURCE to make ext3 and ext4 grow (ext4_resize_begin in Linux,
// fs/ext4/resize.c).
type Kernel struct {
	types []string
}

var _ Filesystems = Kernel{}

// NewKernel looks for the programs once.
func NewKernel() Kernel {
	var types []string
	for _, k := range kinds() {
		if installed("blkid", "fsck", "mount") && installed(k.programs...) {
			types = append(types, k.name)
		}
	}
	return Kernel{types: types}
}

func installed(names ...string) bool {
	return !slices.ContainsFunc(names, func(name string) bool {
		_, err := exec.LookPath(name)
		return err != nil
	})
}

// Types implements Filesystems.
func (k Kernel) Types() []string {
	return slices.Clone(k.types)
}

// Mount implements Filesystems.
func (k Kernel) Mount(ctx context.Context, device, target string, o Options) error {
	err := k.mount(ctx, device, target, o)
	if err == nil && o.Grow && !o.readOnly() {
		err = grow(ctx, device, target)
	}
	if err != nil {
		return fmt.Errorf("mount %s at %s, type %q, flags %s, read-only %t: %w", device, target, o.Type, flagNames(o.Flags), o.readOnly(), err)
	}
	return nil
}

func (k Kernel) mount(ctx context.Context, device, target string, o Options) error {
	kind, err := o.check(k.types)
	if err != nil {
		return err
	}
	shown, readOnly, err := k.IsMountOf(ctx, device, target)
	if err != nil {
		return err
	}
	mounted, err := mount.Kernel{}.Mounted(ctx, target)
	if err != nil {
		return err
	}
	if missing, err := o.decide(shown, readOnly, mounted); err != nil || !missing {
		return err
	}
	p := newPrograms(ctx)
	d, err := prepare(p, device, kind, o)
	if err != nil {
		return err
	}
	library := mountutils.NewSafeFormatAndMount(mounter{programs: p}, p)
	err = p.cause(library.FormatAndMountSensitiveWithFormatOptions(device, target, kind.name, o.mountFlags(kind), nil, slices.Concat(kind.format, o.FormatOptions)))
	if err != nil && d.readOnly {
		return fmt.Errorf("%w (where changes wait in the journal, it has to be mounted from a writable device first)", err)
	}
	return err
}

// prepare looks at a device, and makes it ready to be formatted or mounted.
func prepare(p *programs, device string, k kind, o Options) (*disk, error) {
	d, err := look(p, device)
	if err != nil {
		return nil, err
	}
	if err := d.prepare(k, o); err != nil {
		return nil, err
	}
	if o.Grow && !o.readOnly() && !GrowsMounted() {
		return d, d.growUnmounted(p)
	}
	return d, nil
}

// look looks at a device. It does not rely on blkid alone, which ends with the
// same exit status when a device is blank and when it cannot be read.
func look(p *programs, device string) (*disk, error) {
	f, err := os.OpenFile(device, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	locked, err := unix.IoctlGetInt(int(f.Fd()), unix.BLKROGET)
	if err != nil {
		return nil, fmt.Errorf("%s must be a block device: %w", device, err)
	}
	d := &disk{path: device, readOnly: locked != 0}
	if err := d.read(f); err != nil {
		return nil, err
	}
	d.found, err = mountutils.NewSafeFormatAndMount(nil, p).GetDiskFormat(device)
	if exit, ok := errors.AsType[utilexec.ExitError](err); ok && exit.ExitStatus() == blkidAmbivalent {
		return nil, fmt.Errorf("%w: %w", ErrForeign, err)
	}
	return d, err
}

// blkidAmbivalent is the exit status of blkid(8) when it finds several things.
const blkidAmbivalent = 8

// growUnmounted makes ext3 and ext4 as large as the device before they are
// mounted, which needs no capability. Growing them while they are mounted is
// preferred, as only then the journal protects the change.
func (d *disk) growUnmounted(p *programs) error {
	if !strings.HasPrefix(d.found, "ext") || d.extSize() >= d.size {
		return nil
	}
	_, err := p.run("fsck."+d.found, "-f", "-p", d.path)
	if found, ok := errors.AsType[failure](err); ok && found.ExitStatus() == fsckMended {
		err = nil
	}
	if err == nil {
		_, err = p.run("resize2fs", d.path)
	}
	return err
}

// fsckMended is the exit status of fsck(8) when it has found errors, and none
// is left.
const fsckMended = 1

// Grow implements Filesystems.
func (k Kernel) Grow(ctx context.Context, device, target string) error {
	shown, readOnly, err := k.IsMountOf(ctx, device, target)
	if err == nil {
		err = checkGrow(shown, readOnly)
	}
	if err == nil {
		err = grow(ctx, device, target)
	}
	if err != nil {
		return fmt.Errorf("grow the file system of %s at %s: %w", device, target, err)
	}
	return nil
}

func grow(ctx context.Context, device, target string) error {
	p := newPrograms(ctx)
	_, err := mountutils.NewResizeFs(p).Resize(device, target)
	err = p.cause(err)
	if err != nil && !GrowsMounted() {
		return fmt.Errorf("%w (ext3 and ext4 need CAP_SYS_RESOURCE to grow, which this process lacks)", err)
	}
	return err
}

// GrowsMounted reports whether this process may make ext3 and ext4 larger that are
// mounted.
func GrowsMounted() bool {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if err := unix.Capget(&header, &data[0]); err != nil {
		return false
	}
	return data[unix.CAP_SYS_RESOURCE/32].Effective&(1<<(unix.CAP_SYS_RESOURCE%32)) != 0
}

// IsMountOf implements Filesystems: files of a file system have the number of its device.
func (k Kernel) IsMountOf(ctx context.Context, device, target string) (shown, readOnly bool, err error) {
	shown, readOnly, err = isMountOf(ctx, device, target)
	if err != nil {
		return false, false, fmt.Errorf("look whether %s is mounted at %s: %w", device, target, err)
	}
	return shown, readOnly, nil
}

func isMountOf(ctx context.Context, device, target string) (shown, readOnly bool, err error) {
	mounted, err := mount.Kernel{}.Mounted(ctx, target)
	if err != nil || !mounted {
		return false, false, err
	}
	var node, root unix.Stat_t
	if err := unix.Stat(device, &node); err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			return false, false, nil
		}
		return false, false, err
	}
	if err := unix.Stat(target, &root); err != nil {
		return false, false, err
	}
	if node.Mode&unix.S_IFMT != unix.S_IFBLK || node.Rdev != root.Dev {
		return false, false, nil
	}
	var about unix.Statfs_t
	if err := unix.Statfs(target, &about); err != nil {
		return false, false, err
	}
	return true, about.Flags&unix.ST_RDONLY != 0, nil
}

// DeviceAt implements Filesystems. A device is called by the name with which it was mounted, as long as that is its name.
func (k Kernel) DeviceAt(ctx context.Context, target string) (string, error) {
	device, err := "", ctx.Err()
	if err == nil {
		device, err = deviceAt(target)
	}
	if err != nil {
		return "", fmt.Errorf("look for the device that is mounted at %s: %w", target, err)
	}
	return device, nil
}

func deviceAt(target string) (string, error) {
	resolved, err := filepath.EvalSymlinks(target)
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	found, err := mountinfo.GetMounts(func(info *mountinfo.Info) (skip, stop bool) { return info.Mountpoint != resolved, false })
	if err != nil || len(found) == 0 {
		return "", err
	}
	top := found[len(found)-1]
	if top.Root != "/" || !filepath.IsAbs(top.Source) {
		return "", nil
	}
	var node unix.Stat_t
	if err := unix.Stat(top.Source, &node); err != nil || node.Mode&unix.S_IFMT != unix.S_IFBLK {
		return "", nil //nolint:nilerr // the name is not that of a device, or not any more
	}
	// Major is 0 for file systems of several devices, such as btrfs.
	if number := unix.Mkdev(uint32(top.Major), uint32(top.Minor)); top.Major != 0 && number != node.Rdev { //nolint:gosec // the numbers of the kernel
		return "", nil
	}
	return top.Source, nil
}

// Usage implements Filesystems.
func (k Kernel) Usage(ctx context.Context, target string) (Usage, error) {
	mounted, err := mount.Kernel{}.Mounted(ctx, target)
	if err == nil && !mounted {
		// It would be that of the disk below.
		err = errors.New("nothing is mounted there")
	}
	var about unix.Statfs_t
	if err == nil {
		err = unix.Statfs(target, &about)
	}
	if err != nil {
		return Usage{}, fmt.Errorf("measure the file system at %s: %w", target, err)
	}
	space := func(total, free, available, unit uint64) Space {
		return Space{Total: int64(total * unit), Used: int64((total - free) * unit), Available: int64(available * unit)}
	}
	return Usage{
		Bytes:  space(about.Blocks, about.Bfree, about.Bavail, uint64(about.Frsize)),
		Inodes: space(about.Files, about.Ffree, about.Ffree, 1),
	}, nil
}
