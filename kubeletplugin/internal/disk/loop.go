package disk

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
)

// releaseMap detaches the loop devices of a path, unmounts it, and removes the file on which it was mounted.
func releaseMap(path string) error {
	if _, err := os.Lstat(path); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	resolved, err := filepath.EvalSymlinks(filepath.Dir(path)) // the kernel knows no links
	if err != nil {
		return err
	}
	path = filepath.Join(resolved, filepath.Base(path))
	loops, err := loopsOf("/sys", path)
	if err != nil {
		return err
	}
	for _, name := range loops {
		if err := detachLoop(name, path); err != nil {
			return err
		}
	}
	mounted, err := mountinfo.Mounted(path)
	if err != nil {
		return err
	}
	if mounted {
		if err := unix.Unmount(path, unix.UMOUNT_NOFOLLOW); err != nil {
			return fmt.Errorf("unmount %q: %w", path, err)
		}
	}
	return removeEmpty(path)
}

// loopsOf lists the loop devices that have a path open.
func loopsOf(sys, path string) ([]string, error) {
	files, err := filepath.Glob(filepath.Join(sys, "block", "loop*", "loop", "backing_file"))
	if err != nil {
		return nil, err
	}
	var all []string
	for _, file := range files {
		backing, err := backingFile(file)
		if err != nil {
			return nil, fmt.Errorf("look for loop devices: %w", err)
		}
		if backing == path {
			all = append(all, filepath.Base(filepath.Dir(filepath.Dir(file))))
		}
	}
	return all, nil
}

// backingFile reads the path that a loop device shows; empty if it was detached meanwhile.
func backingFile(file string) (path string, err error) {
	backing, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENODEV) || errors.Is(err, unix.ENXIO) {
		return "", nil
	}
	return strings.TrimSuffix(string(backing), "\n"), err
}

// detachLoop ends a loop device, given by its name, that shows a path; if it is open elsewhere, the kernel does so when it is closed. The device may
// have been detached since it was found, and show a file of somebody else: only an open device cannot be given to another.
func detachLoop(name, path string) error {
	device := filepath.Join("/dev", name)
	f, err := os.Open(device)
	if err != nil {
		return fmt.Errorf("detach loop device: %w", err)
	}
	backing, err := backingFile(filepath.Join("/sys/block", name, "loop", "backing_file"))
	if err != nil || backing != path {
		return errors.Join(err, f.Close())
	}
	err = unix.IoctlSetInt(int(f.Fd()), unix.LOOP_CLR_FD, 0)
	if errors.Is(err, unix.ENXIO) { // it is detached
		err = nil
	}
	if err != nil {
		err = fmt.Errorf("detach loop device %q: %w", device, err)
	}
	return errors.Join(err, f.Close())
}
