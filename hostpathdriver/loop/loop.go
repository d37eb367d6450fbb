// Package loop shows files as block devices: the interface between a driver and
// the loop devices of the kernel. Behind it stand Kernel, for machines, and
// Fake, for tests without privileges. It does not make, enlarge or delete the
// files, and it mounts nothing; do not use it for devices that some other
// program made with an offset or a size limit.
package loop

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// SectorSize is the unit of a loop device in bytes: files whose size is no
// multiple of it cannot be shown whole.
// Source: Linux, include/linux/blk_types.h, SECTOR_SIZE.
const SectorSize = 512

// ErrBusy says that another process still had a device, or was just changing the
// devices of the file, when the context ended. The error that carries it also
// carries the one of the context. Repeating the call later is right.
var ErrBusy = errors.New("loop device is in use")

// ErrUnavailable says that the machine, or the container, lacks what loop
// devices need; the error that carries it says what, and how to provide it.
var ErrUnavailable = errors.New("loop devices are not available here")

// Devices shows files as block devices. A file is known by its device and
// inode number, never by its path: two paths of one file have one device, and
// a new file with the name of a deleted one has nothing to do with the old
// one. For each file there is at most one writable and one read-only device,
// also when several processes ask at the same time.
//
// The two have caches of their own: what is written to the writable device
// is certain to be read from the read-only one when it was synced before the
// first read.
//
// A file has to be detached before it is deleted; afterwards its devices can be
// found by List alone. A bind mount of a device node does not keep
// the device: it has to go before Detach, as the number is soon used again.
//
// Sources: Linux UAPI linux/loop.h, loop(4).
type Devices interface {
	// Attach returns the device that shows file, made where there is none.
	// A read-only device and a writable one of the same file are two. The
	// size of file has to be a positive multiple of SectorSize; an error is
	// fs.ErrNotExist only when file does not exist. Where a
	// writable device of the file was detached and is still open, Attach
	// waits for its end, since its late writes would spoil those of the new
	// one: ErrBusy when ctx ends before.
	Attach(ctx context.Context, file string, readOnly bool) (device string, err error)
	// Device returns what Attach has made; empty when there is none (after
	// a reboot, say, or when file does not exist).
	Device(ctx context.Context, file string, readOnly bool) (string, error)
	// Detach lets go of the device and returns when it is gone; no device
	// and no file are no error. It never takes the device from who has it
	// open: ErrBusy when that is still so as ctx ends. The device is given
	// up all the same, and goes with its last user.
	Detach(ctx context.Context, file string, readOnly bool) error
	// List returns the devices, of whichever program, that show a whole file and
	// are not given up.
	List(ctx context.Context) ([]Shown, error)
	// Release lets go of a device that List has returned, as Detach does, if it
	// still shows that file and orphaned reports true. While orphaned is asked,
	// no Attach of shown.File is in progress; where one is, Release does nothing.
	Release(ctx context.Context, shown Shown, orphaned func() (bool, error)) error
	// Resize makes every device of file as large as file has become, which
	// is no error where there is no device. The rule for sizes is that of
	// Attach.
	Resize(ctx context.Context, file string) error
	// SetReadAhead sets the read-ahead in bytes, a multiple of the kernel's page, of
	// every device of file, which is no error where there is no device. It applies to
	// files that are opened later, and ends with Detach.
	SetReadAhead(ctx context.Context, file string, bytes int64) error
}

// Identity is what makes a file the same file under any path, as long as
// a reference keeps its inode from being freed; an attached device is one.
type Identity struct {
	// Dev is the number of the device of its file system.
	Dev uint64 `json:"dev"`
	// Ino is the number of its inode.
	Ino uint64 `json:"ino"`
}

// Identify returns the identity of a file, by which its devices can still be
// found when the file is deleted or renamed while they are attached. What is no
// regular file is an error.
func Identify(file string) (Identity, error) {
	b, err := openBacking(file, os.O_RDONLY)
	if err != nil {
		return Identity{}, err
	}
	return b.id, b.Close()
}

// Shown is a device that shows a whole file.
type Shown struct {
	// Device is the path of the device, such as /dev/loop0.
	Device string
	// ReadOnly says that the device refuses writes.
	ReadOnly bool
	// ID is the identity of the file, which may have been deleted.
	ID Identity
	// File is the path of the file as the kernel reports it: after a rename the
	// new one, after the deletion the last one. It is that of the mount namespace
	// in which the file was opened: a file of that path here may be another one.
	File string
	// Deleted says that the file has no path any more.
	Deleted bool
}

// backing is an open file that devices show.
type backing struct {
	*os.File
	id   Identity
	size int64
}

// openBacking opens file and refuses what is not a regular file. It does not
// wait for the other end of a named pipe.
func openBacking(file string, flags int) (*backing, error) {
	f, err := os.OpenFile(file, flags|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		f.Close()
		return nil, fmt.Errorf("stat %s: %w", file, err)
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG {
		f.Close()
		return nil, fmt.Errorf("%s must be a regular file, its mode is %#o", file, st.Mode)
	}
	return &backing{File: f, id: Identity{Dev: st.Dev, Ino: st.Ino}, size: st.Size}, nil
}

// checkSize says the rule of sizes.
func checkSize(size int64) error {
	if size <= 0 || size%SectorSize != 0 {
		return fmt.Errorf("size of %d bytes: must be a positive multiple of %d", size, SectorSize)
	}
	return nil
}

// tryLock takes the lock of the file's devices, which all processes share. It
// is held by the open file and goes with it, also when the process dies.
func (b *backing) tryLock() (bool, error) {
	err := unix.Flock(int(b.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) || errors.Is(err, unix.EINTR) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("lock %s: %w", b.Name(), err)
	}
	return true, nil
}

func (b *backing) unlock() error {
	if err := unix.Flock(int(b.Fd()), unix.LOCK_UN); err != nil {
		return fmt.Errorf("unlock %s: %w", b.Name(), err)
	}
	return nil
}

// The pauses between two polls. The kernel sends no notification when the last
// user of a device has closed it, so that the device must be polled.
const (
	firstPause = 2 * time.Millisecond
	lastPause  = 200 * time.Millisecond
)

// until takes a step, and repeats it until it is done or fails: ErrBusy when
// the context ends before.
func until(ctx context.Context, step func() (done bool, err error)) error {
	for pause := firstPause; ; pause = min(2*pause, lastPause) {
		if done, err := step(); done || err != nil {
			return err
		}
		timer := time.NewTimer(pause)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return fmt.Errorf("%w: %w", ErrBusy, ctx.Err())
		}
	}
}

// whileLocked acts on a listed device if it is orphaned, under the lock of its
// file. It does nothing where another process changes the devices of the file. A
// file that is gone needs no lock: it cannot be attached.
func whileLocked(shown Shown, orphaned func() (bool, error), act func() error) (err error) {
	b, err := openBacking(shown.File, os.O_RDONLY)
	if err == nil {
		defer func() { err = errors.Join(err, b.Close()) }()
		if b.id == shown.ID {
			if locked, err := b.tryLock(); err != nil || !locked {
				return err
			}
		}
	} else if !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if ok, err := orphaned(); err != nil || !ok {
		return err
	}
	return act()
}
