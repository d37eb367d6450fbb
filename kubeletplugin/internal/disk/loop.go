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
		if err := detachLoop(filepath.Join("/dev", name)); err != nil {
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
		backing, err := os.ReadFile(file)
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENODEV) || errors.Is(err, unix.ENXIO) { // detached meanwhile
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("look for loop devices: %w", err)
		}
		if strings.TrimSuffix(string(backing), "\n") == path {
			all = append(all, filepath.Base(filepath.Dir(filepath.Dir(file))))
		}
	}
	return all, nil
}

// detachLoop ends a loop device; if it is open elsewhere, the kernel does so when it is closed.
func detachLoop(device string) error {
	f, err := os.Open(device)
	if err != nil {
		return fmt.Errorf("detach loop device: %w", err)
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
