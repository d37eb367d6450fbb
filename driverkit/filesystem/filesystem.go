// Package filesystem makes, mounts, grows and measures file systems on block
// devices: the interface between a driver and programs such as mkfs, fsck and
// mount. Kernel implements it for machines, Fake for tests without privileges.
// Package mount unmounts and makes bind mounts. File systems without a device,
// and devices that others use, too, are not supported.
package filesystem

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/longshore-csi/longshore/driverkit/mount"
)

// ErrForeign says that a device has other contents than the requested file
// system; the error that wraps it names them. Nothing was written to the device.
var ErrForeign = errors.New("the device is not blank, and is never formatted")

// ErrLost says that a device with Options.Formatted has no file system.
var ErrLost = errors.New("the file system that was on the device is not there")

// ErrOccupied is mount.ErrOccupied.
var ErrOccupied = mount.ErrOccupied

// Options of a mounted file system.
type Options struct {
	// Type is one of Types().
	Type string
	// Flags are passed to mount(8) with -o. CheckFlags has their rule.
	Flags []string
	// ReadOnly mounts for reading alone. A blank device is refused, and where
	// the journal has changes to replay, a read-only device is, too: without
	// the replay the files would be outdated or inconsistent. One mount for
	// writing, or the use of the writable device, replays the journal.
	ReadOnly bool
	// Grow makes the file system as large as its device, which may have been
	// restored from a smaller one. It does nothing with ReadOnly.
	Grow bool
	// Formatted says that a file system was made on the device. Then nothing is
	// formatted, whatever is read: blocks that were lost read as zeros, and the
	// rest of the files may be had back. A device without it is an ErrLost.
	Formatted bool
	// FormatOptions are further arguments of mkfs.
	FormatOptions []string
}

// Usage of a file system.
type Usage struct {
	// Bytes of contents.
	Bytes Space
	// Inodes are the number of files, directories and links.
	Inodes Space
}

// Space is the total of bytes or inodes, the used part of it, and the part that
// unprivileged users can still use.
type Space struct {
	// Total is used and unused space, in bytes or inodes.
	Total int64
	// Used is the part in use.
	Used int64
	// Available is what unprivileged users can still use.
	Available int64
}

// Filesystems makes, mounts, grows and measures file systems on devices.
// Paths are absolute. Calls for one device come one after the other.
type Filesystems interface {
	// Types are the types whose programs are installed here, sorted.
	Types() []string
	// Mount mounts the file system of device at the existing directory
	// target, and makes it first where the device is blank. A device that has
	// another file system, or anything else, is ErrForeign. A file system that
	// Mount left half-made because the process or the machine died is made
	// again. A repeated call is no error; a target that is a mount point of
	// something else is one, as is a mount that is not read-only, or writable,
	// as requested. After an error the device may be mounted; the same call
	// then completes the work. A program that checks, makes or enlarges a file
	// system is not cut short when ctx ends, so that Mount may take longer.
	Mount(ctx context.Context, device, target string, o Options) error
	// Grow makes the file system of device, mounted at target for writing,
	// as large as the device. A repeated call is no error.
	Grow(ctx context.Context, device, target string) error
	// IsMountOf reports whether target is a mount of device's file system, and if
	// so, whether that mount is read-only. A missing device or target is no
	// error. A bind mount of the mount that Mount made counts, too.
	IsMountOf(ctx context.Context, device, target string) (shown, readOnly bool, err error)
	// DeviceAt returns the device whose whole file system is mounted at target;
	// empty if nothing is, or what is mounted there has no device, or is a part
	// of a file system, such as a bind mount of a directory.
	DeviceAt(ctx context.Context, target string) (device string, err error)
	// Usage of the file system that is mounted at target; it is an error if there
	// is none.
	Usage(ctx context.Context, target string) (Usage, error)
}

const mib = 1 << 20

// kind describes one type of file system.
type kind struct {
	name string
	// programs are the ones that only this type needs.
	programs []string
	// minSize of the device in bytes.
	minSize int64
	// format are options of mkfs.
	format []string
	// flags are mount flags that every mount of the type has.
	flags []string
}

// kinds are all types, sorted. There is no btrfs: for the kernel, copies of one
// image, such as clones, are one file system.
func kinds() []kind {
	return []kind{
		// Below 2 MiB there is no space for a journal.
		{name: "ext3", programs: []string{"mkfs.ext3", "fsck.ext3", "resize2fs"}, minSize: 2 * mib},
		// The journal of a sparse file is zeros without being written.
		{
			name: "ext4", programs: []string{"mkfs.ext4", "fsck.ext4", "resize2fs"}, minSize: 2 * mib,
			format: []string{"-E", "lazy_journal_init=1"},
		},
		// mkfs.xfs refuses less since version 5.19. Copies of one image have
		// one UUID, of which xfs mounts only one at a time without nouuid.
		{
			name: "xfs", programs: []string{"mkfs.xfs", "fsck.xfs", "xfs_growfs"}, minSize: 300 * mib,
			flags: []string{"nouuid"},
		},
	}
}

// MinSize is the size in bytes below which no file system of that type can be
// made; 0 for an unknown type.
func MinSize(fsType string) int64 {
	for _, k := range kinds() {
		if k.name == fsType {
			return k.minSize
		}
	}
	return 0
}

// CheckFlags refuses malformed mount flags, and those that make mount(8) do
// something else than to mount the file system of that device at that target.
// The kernel decides which of the other flags a file system supports.
func CheckFlags(flags []string) error {
	for i, flag := range flags {
		if rule := broken(flag); rule != "" {
			return fmt.Errorf("mount flag %d of %d, %s: %s", i+1, len(flags), flagNames([]string{flag}), rule)
		}
	}
	return nil
}

const (
	// flagChars are the characters of flags. A comma would separate two flags; a
	// quote or a backslash would hide a comma.
	flagChars = nameChars + ":=/@%+"
	// nameChars are those of the name of a flag.
	nameChars = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-."
)

// IsContext reports whether a flag is a context of SELinux for all files of a
// file system, as a kubelet sends it (KEP-1710):
// context="system_u:object_r:container_file_t:s0:c1,c2".
func IsContext(flag string) bool {
	name, _, _ := strings.Cut(flag, "=")
	return slices.Contains([]string{"context", "fscontext", "defcontext", "rootcontext"}, name)
}

// unquoted takes the quotes from a context of SELinux, in which commas separate
// nothing.
func unquoted(flag string) string {
	name, value, _ := strings.Cut(flag, "=")
	if !IsContext(flag) || len(value) < 2 || value[0] != '"' || value[len(value)-1] != '"' {
		return flag
	}
	return name + "=" + strings.ReplaceAll(value[1:len(value)-1], ",", "")
}

// flagNames are the names of flags, whose values may be secrets (CSI v1.13,
// "VolumeCapability": mount_flags).
func flagNames(flags []string) string {
	names := make([]string, 0, len(flags))
	for _, flag := range flags {
		name, _, hasValue := strings.Cut(flag, "=")
		switch {
		case strings.Trim(name, nameChars) != "":
			name = "(malformed)"
		case hasValue:
			name += "=..."
		}
		names = append(names, name)
	}
	return strings.Join(names, ",")
}

// broken returns the rule that a flag breaks.
func broken(flag string) string {
	if plain := unquoted(flag); plain == "" || plain[0] == '-' || strings.Trim(plain, flagChars) != "" {
		return "must be one flag, of letters, digits and _-.:=/@%+, and not begin with a dash; only contexts of SELinux may be in quotes, and have commas there"
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

// readOnly reports whether the options ask for a read-only mount, by ReadOnly or
// by a flag.
func (o Options) readOnly() bool {
	return o.ReadOnly || slices.Contains(o.Flags, flagReadOnly)
}

// check returns the requested kind, or an error for invalid options.
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

// mountFlags are those of the type, the requested ones, and ro or rw.
func (o Options) mountFlags(k kind) []string {
	last := flagReadWrite
	if o.readOnly() {
		last = flagReadOnly
	}
	asked := slices.DeleteFunc(slices.Clone(o.Flags), func(f string) bool { return f == flagReadOnly || f == flagReadWrite })
	return slices.Concat(k.flags, asked, []string{last})
}

// decide reports whether a mount is still to be made, from the results of
// IsMountOf and Mounted for the target.
func (o Options) decide(shown, readOnly, mounted bool) (missing bool, err error) {
	switch {
	case shown && readOnly != o.readOnly():
		return false, fmt.Errorf("it is mounted there already, read-only %t", readOnly)
	case mounted && !shown:
		return false, ErrOccupied
	}
	return !shown, nil
}

// checkGrow refuses a file system that cannot grow online. resize2fs would change
// a device that it takes for unmounted, even if another process has mounted it.
func checkGrow(shown, readOnly bool) error {
	switch {
	case !shown:
		return errors.New("it is not mounted there")
	case readOnly:
		return errors.New("it is mounted read-only")
	}
	return nil
}
