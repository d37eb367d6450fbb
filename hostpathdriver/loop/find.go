package loop

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// device is what the kernel says of one that shows a file.
type device struct {
	number   int
	readOnly bool
	dying    bool // given up, and cleared on the last close
}

// alive returns the device of a kind that is there to stay, and the one with
// the lowest number where others have made a second.
func alive(found []device, readOnly bool) (device, bool) {
	i := slices.IndexFunc(found, func(d device) bool { return d.readOnly == readOnly && !d.dying })
	if i < 0 {
		return device{}, false
	}
	return found[i], true
}

func anyDying(found []device, readOnly bool) bool {
	return slices.ContainsFunc(found, func(d device) bool { return d.readOnly == readOnly && d.dying })
}

// shows reports whether a device shows the whole of a file.
func shows(info *unix.LoopInfo64, id Identity) bool {
	return info.Device == id.Dev && info.Inode == id.Ino && info.Offset == 0 && info.Sizelimit == 0
}

// find returns the devices that show a file, by number. Only the kernel's own
// answer counts: /sys names a path, which is another one in each container.
func (k Kernel) find(id Identity) ([]device, error) {
	numbers, err := k.bound()
	if err != nil {
		return nil, err
	}
	var found []device
	for _, number := range numbers {
		info, err := k.status(number)
		if err != nil {
			return nil, err
		}
		if info != nil && shows(info, id) {
			found = append(found, device{
				number:   number,
				readOnly: info.Flags&unix.LO_FLAGS_READ_ONLY != 0,
				dying:    info.Flags&unix.LO_FLAGS_AUTOCLEAR != 0,
			})
		}
	}
	return found, nil
}

// List implements Devices.
func (k Kernel) List(ctx context.Context) ([]Shown, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	numbers, err := k.bound()
	if err != nil {
		return nil, err
	}
	var list []Shown
	for _, number := range numbers {
		info, err := k.status(number)
		if err != nil {
			return nil, err
		}
		if info == nil || info.Offset != 0 || info.Sizelimit != 0 || info.Flags&unix.LO_FLAGS_AUTOCLEAR != 0 {
			continue
		}
		file, deleted := k.backingFile(number)
		list = append(list, Shown{
			Device: k.node(number), ReadOnly: info.Flags&unix.LO_FLAGS_READ_ONLY != 0,
			ID: Identity{Dev: info.Device, Ino: info.Inode}, File: file, Deleted: deleted,
		})
	}
	return list, nil
}

// backingFile is the path that the kernel has for the file of a device; empty
// when the device shows nothing any more.
func (k Kernel) backingFile(number int) (path string, deleted bool) {
	text, err := os.ReadFile(filepath.Join(k.sysDir(), name(number), "loop", "backing_file"))
	if err != nil {
		return "", false
	}
	return strings.CutSuffix(strings.TrimSuffix(string(text), "\n"), " (deleted)")
}

// Release implements Devices.
func (k Kernel) Release(ctx context.Context, shown Shown, orphaned func() (bool, error)) error {
	number, ok := parseName(filepath.Base(shown.Device))
	if !ok {
		return fmt.Errorf("release %s: it is no loop device", shown.Device)
	}
	err := whileLocked(shown, orphaned, func() error {
		return k.control(number, shown.ID, clearDevice)
	})
	if err == nil {
		err = until(ctx, func() (bool, error) {
			info, err := k.status(number)
			return info == nil || !shows(info, shown.ID) || info.Flags&unix.LO_FLAGS_AUTOCLEAR == 0, err
		})
	}
	if err != nil {
		return fmt.Errorf("release %s of %s: %w", shown.Device, shown.File, err)
	}
	return nil
}

// bound lists the numbers of the devices that show some file, ascending.
func (k Kernel) bound() ([]int, error) {
	entries, err := os.ReadDir(k.sysDir())
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%w: %s is missing: mount sysfs at /sys", ErrUnavailable, k.sysDir())
	}
	if err != nil {
		return nil, fmt.Errorf("list loop devices: %w", err)
	}
	var numbers []int
	for _, entry := range entries {
		if number, ok := parseName(entry.Name()); ok && k.isBound(number) {
			numbers = append(numbers, number)
		}
	}
	slices.Sort(numbers)
	return numbers, nil
}

func (k Kernel) isBound(number int) bool {
	_, err := os.Stat(filepath.Join(k.sysDir(), name(number), "loop"))
	return err == nil
}

// status asks one device what it shows; nil when it shows nothing any more.
func (k Kernel) status(number int) (*unix.LoopInfo64, error) {
	node, err := k.open(number, os.O_RDONLY)
	if errors.Is(err, unix.ENXIO) || errors.Is(err, ErrUnavailable) && !k.isBound(number) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer node.Close()
	info, err := unix.IoctlLoopGetStatus64(int(node.Fd()))
	if errors.Is(err, unix.ENXIO) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("ask %s for its file: %w", node.Name(), err)
	}
	if info.Number != uint32(number) {
		return nil, fmt.Errorf("%w: %s is loop device %d: in a container, mount the host's /dev at /dev", ErrUnavailable, node.Name(), info.Number)
	}
	return info, nil
}

// control calls act with a device if it still shows the file; it may have
// been cleared, and have got another one, since it was found.
func (k Kernel) control(number int, id Identity, act func(fd int) error) error {
	node, err := k.open(number, os.O_RDONLY)
	if errors.Is(err, unix.ENXIO) {
		return nil
	}
	if err != nil {
		return err
	}
	defer node.Close()
	// Being open, the device cannot change hands any more.
	info, err := unix.IoctlLoopGetStatus64(int(node.Fd()))
	if err == nil && shows(info, id) {
		err = act(int(node.Fd()))
	}
	if errors.Is(err, unix.ENXIO) {
		return nil
	}
	return err
}

// open opens a device node, which has to be that of the host. One that is missing is made: in a container with a /dev of its own, others may bind devices that were not there when it
// was started, and each has to be asked what it shows.
func (k Kernel) open(number, flags int) (*os.File, error) {
	node, err := os.OpenFile(k.node(number), flags|unix.O_NONBLOCK, 0)
	if errors.Is(err, fs.ErrNotExist) && k.makeNode(number) == nil {
		node, err = os.OpenFile(k.node(number), flags|unix.O_NONBLOCK, 0)
	}
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%w: %s is missing, though the kernel has it: in a container, mount the host's /dev at /dev", ErrUnavailable, k.node(number))
	}
	return node, err
}

// makeNode makes the node of a device that the kernel has.
func (k Kernel) makeNode(number int) error {
	text, err := os.ReadFile(filepath.Join(k.sysDir(), name(number), "dev"))
	if err != nil {
		return err
	}
	var major, minor uint32
	if _, err := fmt.Sscanf(string(text), "%d:%d", &major, &minor); err != nil {
		return fmt.Errorf("read the number of %s: %w", name(number), err)
	}
	if err := unix.Mknod(k.node(number), unix.S_IFBLK|0o660, int(unix.Mkdev(major, minor))); err != nil && !errors.Is(err, fs.ErrExist) { //nolint:gosec // the numbers of the kernel
		return fmt.Errorf("make the node of %s: %w", name(number), err)
	}
	return nil
}

func (k Kernel) node(number int) string { return filepath.Join(k.devDir(), name(number)) }

func (k Kernel) devDir() string {
	if k.dev != "" {
		return k.dev
	}
	return "/dev"
}

func (k Kernel) sysDir() string {
	if k.sys != "" {
		return k.sys
	}
	return "/sys/block"
}

const prefix = "loop"

func name(number int) string { return prefix + strconv.Itoa(number) }

// parseName is the inverse of name.
func parseName(s string) (int, bool) {
	digits, ok := strings.CutPrefix(s, prefix)
	if !ok {
		return 0, false
	}
	number, err := strconv.Atoi(digits)
	return number, err == nil && number >= 0 && name(number) == s
}
