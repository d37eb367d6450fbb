package driverkit

import (
	"errors"
	"io"
	"io/fs"
	"os"
)

// deviceID tells a device from another one that has its name later. The zero value is that of a device of which nothing was noted, by a former version.
type deviceID struct {
	// Number is that of a block device, and Sequence that of its disk, which the kernel counts up with each disk that it sees (/sys/block/*/diskseq, Linux 5.15): a disk that comes in the place
	// of another one has the other's number. Zero on older kernels.
	Number   uint64 `json:"number,omitempty"`
	Sequence uint64 `json:"sequence,omitempty"`
	// FileSystem and Inode identify what is no block device, such as the file that tests have in its place.
	FileSystem uint64 `json:"fileSystem,omitempty"`
	Inode      uint64 `json:"inode,omitempty"`
}

// isOf reports whether a device is still the one that was looked at.
func (d deviceID) isOf(path string) (bool, error) {
	now, err := identify(path)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil && (d == deviceID{} || d == now), err
}

// deviceSize returns the size of a block device in bytes.
func deviceSize(device string) (int64, error) {
	f, err := os.Open(device)
	if err != nil {
		return 0, err
	}
	size, err := f.Seek(0, io.SeekEnd)
	return size, errors.Join(err, f.Close())
}
