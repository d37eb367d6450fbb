package filesystem

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
)

// headSize is how much of the start of a device is looked at. It is what mkfs
// of ext leaves blank until its last write, which is the superblock; no
// volume that anybody uses begins with so many zeros.
const headSize = 2048

// disk is a device before it is mounted.
type disk struct {
	path     string
	readOnly bool
	size     int64
	// found is the type of its file system, or other words of blkid(8).
	found string
	head  []byte
}

// read reads how large a device is, and how it begins.
func (d *disk) read(f *os.File) error {
	var err error
	d.head = make([]byte, headSize)
	if _, err = f.ReadAt(d.head, 0); err == nil {
		d.size, err = f.Seek(0, io.SeekEnd)
	}
	if err != nil {
		return fmt.Errorf("read the start of %s: %w", d.path, err)
	}
	return nil
}

// prepare refuses what must be neither mounted nor formatted, and makes a
// device blank on which mkfs was interrupted.
func (d *disk) prepare(k kind, o Options) error {
	if err := d.refuse(k, o); err != nil || d.found != "" && !d.halfMade() {
		return err
	}
	switch {
	case o.Formatted:
		return fmt.Errorf("%w: look for it with the programs of %s, or restore the volume", ErrLost, k.name)
	case o.readOnly():
		return errors.New("there is nothing on the device yet, and nothing is made for reading alone")
	case d.size < k.minSize:
		return fmt.Errorf("the device has %d bytes: %s takes at least %d", d.size, k.name, k.minSize)
	case d.found != "":
		return d.wipe()
	}
	return nil
}

// refuse is the error for a device that has something else, or cannot be written.
func (d *disk) refuse(k kind, o Options) error {
	switch {
	case d.readOnly && !o.readOnly():
		return errors.New("the device is read-only")
	case d.found == "" && !allZero(d.head) && !o.Formatted:
		return fmt.Errorf("%w: it begins with data that blkid does not know", ErrForeign)
	case d.found != "" && d.found != k.name:
		return fmt.Errorf("%w: it has %s", ErrForeign, d.found)
	}
	return nil
}

// extSize is how many bytes ext3 or ext4 takes of its device.
// Source: Linux, fs/ext4/ext4.h, struct ext4_super_block.
func (d *disk) extSize() int64 {
	const (
		superblock = 1024
		blocks     = superblock + 0x4
		shift      = superblock + 0x18
		features   = superblock + 0x60
		blocksHigh = superblock + 0x150
		wide       = 0x80
		leastShift = 10
	)
	number := func(at int) int64 { return int64(binary.LittleEndian.Uint32(d.head[at:])) }
	count := number(blocks)
	if number(features)&wide != 0 {
		count |= number(blocksHigh) << 32
	}
	return count << (leastShift + number(shift))
}

func allZero(b []byte) bool {
	return len(bytes.Trim(b, "\x00")) == 0
}

// halfMade reports whether mkfs.xfs was interrupted: it writes the superblock
// early, says in it that it is not done, and takes that back with its last
// write. The kernel does not mount that, so it has no files yet. mkfs
// of ext needs no such check, as it writes the superblock last. It syncs before
// that, too, which mkfs.xfs does not: when the machine loses power just then,
// the first mount may fail.
// Source: Linux, fs/xfs/libxfs/xfs_format.h, struct xfs_dsb.
func (d *disk) halfMade() bool {
	const inProgress = 126
	return bytes.HasPrefix(d.head, []byte("XFSB")) && d.head[inProgress] != 0
}

// wipe makes a device blank, unless another process has it open exclusively. The
// superblock goes last: until then the device counts as half-made.
func (d *disk) wipe() error {
	f, err := os.OpenFile(d.path, os.O_WRONLY|os.O_SYNC|os.O_EXCL, 0)
	if err != nil {
		return err
	}
	const sector = 512
	_, rest := f.WriteAt(make([]byte, headSize-sector), sector)
	if rest == nil {
		_, rest = f.WriteAt(make([]byte, sector), 0)
	}
	if err := errors.Join(rest, f.Close()); err != nil {
		return fmt.Errorf("wipe the start of %s: %w", d.path, err)
	}
	return nil
}
