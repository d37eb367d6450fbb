package loop

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// Kernel is the Devices of the machine. It needs CAP_SYS_ADMIN, Linux 5.8
// (LOOP_CONFIGURE), /sys, and in a container the /dev of the host.
//
// Its devices do not clear themselves (no LO_FLAGS_AUTOCLEAR): between
// NodeStageVolume and the first use no process has them open, and they would be
// gone. They do no direct I/O: that depends on the file system and the sector
// size of the disk below (LO_FLAGS_DIRECT_IO falls back in silence), and
// through the page cache of the file a reader of the file sees what was synced
// to the device. The price is memory that holds the same data twice and can
// be reclaimed.
type Kernel struct {
	dev string // instead of /dev, for tests
	sys string // instead of /sys/block, for tests
}

var _ Devices = Kernel{}

// Attach implements Devices.
func (k Kernel) Attach(ctx context.Context, file string, readOnly bool) (string, error) {
	var device string
	err := ctx.Err()
	if err == nil {
		err = until(ctx, func() (done bool, err error) {
			device, err = k.attach(ctx, file, readOnly)
			return device != "", err
		})
	}
	if err != nil {
		return "", fmt.Errorf("attach %s to a loop device, read-only %t: %w", file, readOnly, err)
	}
	return device, nil
}

// attach returns no device while another process keeps it waiting. The lock has
// an open file of its own: the kernel keeps the file that LOOP_CONFIGURE passes,
// and with it the lock, until the device is detached.
func (k Kernel) attach(ctx context.Context, file string, readOnly bool) (string, error) {
	b, err := openBacking(file, os.O_RDONLY)
	if err != nil {
		return "", err
	}
	defer b.Close()
	if err := checkSize(b.size); err != nil {
		return "", err
	}
	if locked, err := b.tryLock(); err != nil || !locked {
		return "", err
	}
	found, err := k.find(b.id)
	if err != nil {
		return "", err
	}
	if d, ok := alive(found, readOnly); ok {
		return k.node(d.number), nil
	}
	if !readOnly && anyDying(found, readOnly) {
		return "", nil
	}
	return k.create(ctx, b, readOnly)
}

// create makes a device in one step, so that no crash leaves half of one.
func (k Kernel) create(ctx context.Context, b *backing, readOnly bool) (string, error) {
	flags, config := os.O_RDWR, unix.LoopConfig{Size: SectorSize}
	if readOnly {
		flags, config.Info.Flags = os.O_RDONLY, unix.LO_FLAGS_READ_ONLY
	}
	shown, err := openBacking(b.Name(), flags)
	if err != nil {
		return "", err
	}
	defer shown.Close()
	if shown.id != b.id {
		return "", fmt.Errorf("%s was replaced meanwhile", b.Name())
	}
	config.Fd = uint32(shown.Fd())
	// The name is for the eyes of people only, and may be cut.
	copy(config.Info.File_name[:len(config.Info.File_name)-1], b.Name())
	control, err := k.openControl()
	if err != nil {
		return "", err
	}
	defer control.Close()
	return k.configureFree(ctx, control, &config)
}

func (k Kernel) openControl() (*os.File, error) {
	path := filepath.Join(k.devDir(), "loop-control")
	control, err := os.OpenFile(path, os.O_RDWR, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%w: %s is missing: load the kernel module loop, and in a container mount the host's /dev at /dev", ErrUnavailable, path)
	}
	return control, err
}

// configureFree attaches the file to the first free device. Other processes look
// for a free device at the same time and may take it first: configureFree goes
// on to higher numbers.
func (k Kernel) configureFree(ctx context.Context, control *os.File, config *unix.LoopConfig) (string, error) {
	for taken := -1; ; {
		if err := ctx.Err(); err != nil {
			return "", err
		}
		free, err := unix.IoctlRetInt(int(control.Fd()), unix.LOOP_CTL_GET_FREE)
		if err != nil {
			return "", fmt.Errorf("ask for a free loop device: %w", err)
		}
		number := max(free, taken+1)
		if number != free {
			if err := addDevice(control, number); err != nil {
				return "", err
			}
		}
		err = k.configure(number, config)
		if err == nil {
			return k.node(number), nil
		}
		if !errors.Is(err, unix.EBUSY) && !errors.Is(err, unix.ENXIO) {
			return "", err
		}
		taken = number
	}
}

// addDevice makes sure that a number has a device, bound or not.
func addDevice(control *os.File, number int) error {
	err := unix.IoctlSetInt(int(control.Fd()), unix.LOOP_CTL_ADD, number)
	if err != nil && !errors.Is(err, unix.EEXIST) {
		return fmt.Errorf("add loop device %d: %w", number, err)
	}
	return nil
}

func (k Kernel) configure(number int, config *unix.LoopConfig) error {
	node, err := k.open(number, os.O_RDWR)
	if err != nil {
		return err
	}
	defer node.Close()
	if err := unix.IoctlLoopConfigure(int(node.Fd()), config); err != nil {
		return fmt.Errorf("configure %s: %w", node.Name(), err)
	}
	return nil
}

// Device implements Devices.
func (k Kernel) Device(ctx context.Context, file string, readOnly bool) (string, error) {
	found, err := k.lookUp(ctx, file)
	if err != nil {
		return "", fmt.Errorf("look up the loop device of %s, read-only %t: %w", file, readOnly, err)
	}
	if d, ok := alive(found, readOnly); ok {
		return k.node(d.number), nil
	}
	return "", nil
}

// lookUp finds the devices of a file, which may be missing. The file stays
// open until they are found, so that its inode number cannot become that of
// another one.
func (k Kernel) lookUp(ctx context.Context, file string) ([]device, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	b, err := openBacking(file, os.O_RDONLY)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer b.Close()
	return k.find(b.id)
}

// Detach implements Devices.
func (k Kernel) Detach(ctx context.Context, file string, readOnly bool) error {
	if err := k.detach(ctx, file, readOnly); err != nil {
		return fmt.Errorf("detach %s from its loop device, read-only %t: %w", file, readOnly, err)
	}
	return nil
}

func (k Kernel) detach(ctx context.Context, file string, readOnly bool) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	b, err := openBacking(file, os.O_RDONLY)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer b.Close()
	// Clearing comes once: a device that appears later is another caller's.
	// The lock does not cover the waiting, which would stop all others.
	err = until(ctx, func() (bool, error) {
		locked, err := b.tryLock()
		if err != nil || !locked {
			return false, err
		}
		return true, errors.Join(k.clearAll(b.id, readOnly), b.unlock())
	})
	if err != nil {
		return err
	}
	return until(ctx, func() (bool, error) {
		found, err := k.find(b.id)
		return !anyDying(found, readOnly), err
	})
}

// clearAll gives up the devices of one kind. The kernel clears a device that
// no other process has open, and else marks it to be cleared on the last close.
func (k Kernel) clearAll(id Identity, readOnly bool) error {
	found, err := k.find(id)
	if err != nil {
		return err
	}
	for _, d := range found {
		if d.readOnly != readOnly || d.dying {
			continue
		}
		if err := k.control(d.number, id, clearDevice); err != nil {
			return fmt.Errorf("clear %s: %w", k.node(d.number), err)
		}
	}
	return nil
}

// Resize implements Devices.
func (k Kernel) Resize(ctx context.Context, file string) error {
	err := k.each(ctx, file, func(fd int) error { return unix.IoctlSetInt(fd, unix.LOOP_SET_CAPACITY, 0) })
	if err != nil {
		return fmt.Errorf("resize the loop devices of %s: %w", file, err)
	}
	return nil
}

// SetReadAhead implements Devices.
func (k Kernel) SetReadAhead(ctx context.Context, file string, bytes int64) error {
	err := k.each(ctx, file, func(fd int) error { return setReadAhead(fd, bytes) })
	if err != nil {
		return fmt.Errorf("set the read-ahead of the loop devices of %s to %d bytes: %w", file, bytes, err)
	}
	return nil
}

func setReadAhead(fd int, bytes int64) error {
	return unix.IoctlSetInt(fd, unix.BLKRASET, int(bytes/SectorSize))
}

// defaultReadAhead is the least read-ahead that the kernel gives a new device.
// Source: Linux, include/linux/pagemap.h, VM_READAHEAD_PAGES.
const defaultReadAhead = 128 << 10

// clearDevice gives up a device. The kernel keeps the read-ahead of a number for the
// next file, so that it is reset before; without the right to do so nobody has set it.
func clearDevice(fd int) error {
	_ = setReadAhead(fd, defaultReadAhead)
	return unix.IoctlSetInt(fd, unix.LOOP_CLR_FD, 0)
}

// each acts on every device of a file.
func (k Kernel) each(ctx context.Context, file string, act func(fd int) error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	b, err := openBacking(file, os.O_RDONLY)
	if err != nil {
		return err
	}
	defer b.Close()
	if err := checkSize(b.size); err != nil {
		return err
	}
	found, err := k.find(b.id)
	if err != nil {
		return err
	}
	for _, d := range found {
		if err := k.control(d.number, b.id, act); err != nil {
			return fmt.Errorf("%s: %w", k.node(d.number), err)
		}
	}
	return nil
}
