package extent

import (
	"errors"
	"fmt"
	"io"
	"math"
	"os"

	"golang.org/x/sys/unix"
)

// file has the methods of *os.File that are used.
type file interface {
	io.ReaderAt
	io.Seeker
	io.Closer
	Fd() uintptr
}

// disk is a file that reads as zeros beyond its end.
type disk struct {
	file
	// size is where the disk ends, whatever the size of the file.
	size int64
	// device is the number of the file system.
	device uint64
}

// open does not wait for the other end of a named pipe.
func open(file File) (*disk, error) {
	f, err := os.OpenFile(file.Path, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	var stat unix.Stat_t
	err = unix.Fstat(int(f.Fd()), &stat)
	if err == nil && stat.Mode&unix.S_IFMT != unix.S_IFREG {
		err = errors.New("it is no regular file")
	}
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("open %s: %w", file.Path, err)
	}
	return &disk{file: f, size: file.Size, device: stat.Dev}, nil
}

// data returns where the first data from an offset on begins, and where it ends; math.MaxInt64 where there is none. On a file system without holes the
// whole file is one range of data (lseek(2), SEEK_DATA).
func (d *disk) data(from int64) (start, end int64, err error) {
	start, err = d.Seek(from, unix.SEEK_DATA)
	if errors.Is(err, unix.ENXIO) || (err == nil && start >= d.size) {
		return math.MaxInt64, math.MaxInt64, nil
	}
	if err != nil {
		return 0, 0, fmt.Errorf("find data: %w", err)
	}
	end, err = d.Seek(start, unix.SEEK_HOLE)
	if err != nil {
		return 0, 0, fmt.Errorf("find a hole: %w", err)
	}
	return start, min(end, d.size), nil
}

// read fills p with the contents at an offset.
func (d *disk) read(p []byte, offset int64) error {
	inside := max(0, min(int64(len(p)), d.size-offset))
	n, err := d.ReadAt(p[:inside], offset)
	if err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	clear(p[n:])
	return nil
}
