// Package filesystem makes, mounts, grows and measures file systems on block
// devices: the seam between the driver and mkfs, fsck, mount and their like.
// Behind it stand Kernel, for machines, and Fake, for tests without
// privileges. It does not unmount, nor bind: that is package mount. It is not
// for file systems without a device, nor for devices that others use, too.
package filesystem

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
)

// ErrForeign says that a device holds something else than the file system
// that was asked for; the error that carries it names what. Nothing was
// written to the device.
var ErrForeign = errors.New("the device is not blank, and is never formatted")

// ErrOccupied says that something else is mounted at the target, which stays.
var ErrOccupied = errors.New("something else is mounted there")

// Options of a mounted file system.
type Options struct {
	// Type is one of Types().
	Type string
	// Flags are passed to mount(8) with -o. CheckFlags has their rule.
	Flags []string
	// ReadOnly mounts for reading alone. A blank device is refused, and where
	// changes wait in the journal, a device that takes no writes is, too:
	// without them the files would be those of an earlier moment, or half of
	// each. Mounting once for writing, or the writable device, cures it.
	ReadOnly bool
	// Grow makes the file system as large as its device, which may have been
	// restored from a smaller one. It does nothing with ReadOnly.
	Grow bool
}

// Usage of a file system.
type Usage struct {
	Bytes  Space
	Inodes Space
}

// Space is how much there is of something, and of that how much is used, and
// how much everybody can still have.
type Space struct {
	Total, Used, Available int64
}

// Filesystems makes, mounts, grows and measures file systems on devices.
// Paths are absolute. Calls for one device come one after the other.
type Filesystems interface {
	// Types are the types whose programs are installed here, sorted.
	Types() []string
	// Mount mounts the file system of device at the existing directory
	// target, and makes it first where the device is blank. A device that has
	// another file system, or anything else, is ErrForeign. What Mount has
	// left half-made because the process or the machine died is made again.
	// No change is no error; a target that is a mount point of something else
	// is one, as is one that is mounted, but not as read-only as it should be.
	// After an error the device may be mounted: the same call goes on.
	Mount(ctx context.Context, device, target string, o Options) error
	// Grow makes the file system of device, mounted at target for writing,
	// as large as the device. No change is no error.
	Grow(ctx context.Context, device, target string) error
	// Shows reports whether target is a mount of device's file system, and if
	// so, whether it is read-only there. No device and no target are no
	// errors. A bind mount of the one that Mount has made is as good.
	Shows(ctx context.Context, device, target string) (shown, readOnly bool, err error)
	// Usage of the file system that is mounted at target.
	Usage(ctx context.Context, target string) (Usage, error)
}

const mib = 1 << 20

// kind is what is particular to one type.
type kind struct {
	name string
	// programs are those it takes beside the ones that every type takes.
	programs []string
	// minSize of the device in bytes.
	minSize int64
	// format are options of mkfs.
	format []string
	// flags are mount flags it always has.
	flags []string
}

// kinds are all types, sorted. There is no btrfs: the kernel takes copies of
// one image, which is what clones are, for one file system.
func kinds() []kind {
	return []kind{
		// Below 2 MiB there is no room for a journal.
		{name: "ext3", programs: []string{"mkfs.ext3", "fsck.ext3", "resize2fs"}, minSize: 2 * mib},
		// The journal of a sparse file is zeros without being written.
		{
			name: "ext4", programs: []string{"mkfs.ext4", "fsck.ext4", "resize2fs"}, minSize: 2 * mib,
			format: []string{"-E", "lazy_journal_init=1"},
		},
		// mkfs.xfs refuses less since version 5.19. Copies of one image have
		// one UUID, of which xfs mounts only one at a time unless told.
		{
			name: "xfs", programs: []string{"mkfs.xfs", "fsck.xfs", "xfs_growfs"}, minSize: 300 * mib,
			flags: []string{"nouuid"},
		},
	}
}

// MinSize is the size in bytes below which no file system of that type can be
// made; 0 for a type that nobody knows.
func MinSize(fsType string) int64 {
	for _, k := range kinds() {
		if k.name == fsType {
			return k.minSize
		}
	}
	return 0
}

// CheckFlags refuses mount flags that are none, or that make mount(8) do
// something else than to mount the file system of that device at that target.
// Which of the others a file system knows is the kernel's to say.
func CheckFlags(flags []string) error {
	for _, flag := range flags {
		if rule := broken(flag); rule != "" {
			return fmt.Errorf("mount flag %q: %s", flag, rule)
		}
	}
	return nil
}

// flagChars are the characters of flags. There is no comma, which separates
// them, and no quote and no backslash, which hide one.
const flagChars = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-.:=/@%+"

// broken returns the rule that a flag breaks.
func broken(flag string) string {
	if flag == "" || flag[0] == '-' || strings.Trim(flag, flagChars) != "" {
		return "must be one flag, of letters, digits and _-.:=/@%+, and not begin with a dash"
	}
	name, _, _ := strings.Cut(flag, "=")
	prefixed := func(prefix string) bool { return strings.HasPrefix(name, prefix) }
	switch {
	case slices.Contains([]string{
		// Another operation than a mount (mount(8)).
		"bind", "rbind", "move", "remount",
		"shared", "rshared", "slave", "rslave", "private", "rprivate", "unbindable", "runbindable",
		// Another device, or other programs.
		"loop", "offset", "sizelimit", "encryption", "helper", "uhelper", "source",
		"journal_dev", "journal_path", "logdev", "rtdev",
		// A device that is missing would be no error.
		"nofail",
	}, name), prefixed("make-"), prefixed("x-"), prefixed("X-"), prefixed("verity."):
		return "must not change what is mounted, or how"
	}
	return ""
}

const (
	flagReadOnly  = "ro"
	flagReadWrite = "rw"
)

// readOnly reports whether the options ask for a read-only mount, in whichever
// way.
func (o Options) readOnly() bool {
	return o.ReadOnly || slices.Contains(o.Flags, flagReadOnly)
}

// check returns the kind that is asked for, or what is wrong with the options.
func (o Options) check(types []string) (kind, error) {
	if err := CheckFlags(o.Flags); err != nil {
		return kind{}, err
	}
	if slices.Contains(types, o.Type) {
		for _, k := range kinds() {
			if k.name == o.Type {
				return k, nil
			}
		}
	}
	return kind{}, fmt.Errorf("file system type %q: must be one of %v, of which the programs are installed", o.Type, types)
}

// mountFlags are those of the type, those that were asked for, and the one
// that decides about writing.
func (o Options) mountFlags(k kind) []string {
	last := flagReadWrite
	if o.readOnly() {
		last = flagReadOnly
	}
	asked := slices.DeleteFunc(slices.Clone(o.Flags), func(f string) bool { return f == flagReadOnly || f == flagReadWrite })
	return slices.Concat(k.flags, asked, []string{last})
}

// decide reports whether a mount is still to be made, by what Shows and Mounted
// say of the target.
func (o Options) decide(shown, readOnly, mounted bool) (missing bool, err error) {
	switch {
	case shown && readOnly != o.readOnly():
		return false, fmt.Errorf("it is mounted there already, read-only %t", readOnly)
	case mounted && !shown:
		return false, ErrOccupied
	}
	return !shown, nil
}

// checkGrow refuses what does not grow online. resize2fs would work on a
// device that it takes for unmounted, also where somebody else has mounted it.
func checkGrow(shown, readOnly bool) error {
	switch {
	case !shown:
		return errors.New("it is not mounted there")
	case readOnly:
		return errors.New("it is mounted read-only")
	}
	return nil
}
