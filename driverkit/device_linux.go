package driverkit

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// identify looks at a device.
func identify(path string) (deviceID, error) {
	var stat unix.Stat_t
	if err := unix.Stat(path, &stat); err != nil {
		return deviceID{}, &fs.PathError{Op: "identify device", Path: path, Err: err}
	}
	if stat.Mode&unix.S_IFMT != unix.S_IFBLK {
		return deviceID{FileSystem: stat.Dev, Inode: stat.Ino}, nil
	}
	sequence, err := diskSequence(stat.Rdev)
	if err != nil {
		return deviceID{}, fmt.Errorf("identify device: %w", err)
	}
	return deviceID{Number: stat.Rdev, Sequence: sequence}, nil
}

// diskSequence reads the sequence number of a disk, that of the whole disk for a partition; zero where the kernel has none.
func diskSequence(number uint64) (uint64, error) {
	dir := fmt.Sprintf("/sys/dev/block/%d:%d/", unix.Major(number), unix.Minor(number))
	for _, file := range []string{dir + "diskseq", dir + "../diskseq"} {
		text, err := os.ReadFile(file)
		if err == nil {
			return strconv.ParseUint(strings.TrimSpace(string(text)), 10, 64)
		}
		if !errors.Is(err, fs.ErrNotExist) {
			return 0, err
		}
	}
	return 0, nil
}

// isBlockDevice reports whether there is a block device at a path.
func isBlockDevice(path string) bool {
	var stat unix.Stat_t
	return unix.Stat(path, &stat) == nil && stat.Mode&unix.S_IFMT == unix.S_IFBLK
}

// sameDevice reports whether two paths show one device, or one file in place of it.
func sameDevice(a, b string) bool {
	var one, other unix.Stat_t
	if unix.Stat(a, &one) != nil || unix.Stat(b, &other) != nil {
		return false
	}
	return one.Mode == other.Mode && one.Rdev == other.Rdev && (one.Rdev != 0 || one.Ino == other.Ino && one.Dev == other.Dev)
}
