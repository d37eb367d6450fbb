package extent

import (
	"slices"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/longshore-csi/longshore/hostpathdriver/internal/volume"
)

// Source: Linux UAPI, linux/fiemap.h and linux/fs.h.
const (
	ioctlMap = 0xc020660b // FS_IOC_FIEMAP
	mapSync  = 0x1        // FIEMAP_FLAG_SYNC
	// FIEMAP_EXTENT_LAST, _MERGED and _SHARED. Other flags say that an address
	// is not known, or does not identify the contents.
	mapLast, mapMerged, mapShared = 0x1, 0x1000, 0x2000
)

// mapping is struct fiemap_extent: where some bytes of a file are on the disk
// below.
type mapping struct {
	logical, physical, length uint64
	_                         [2]uint64
	flags                     uint32
	_                         [3]uint32
}

// mapRequest is struct fiemap.
type mapRequest struct {
	start, length              uint64
	flags, mapped, capacity, _ uint32
	mappings                   [64]mapping
}

// shared reports whether two disks have the same contents for sure, because the
// file system keeps them in the same place: one was made of the other by
// FICLONE, or both of a third one. It is false where nothing is known.
func shared(a, b *disk, e volume.Extent) bool {
	if a.device != b.device || e.End() > min(a.size, b.size) {
		return false
	}
	left := a.mappings(e)
	return len(left) > 0 && slices.Equal(left, b.mappings(e))
}

// mappings asks the file system where the bytes of a range are; nil where that
// does not identify the contents. Dirty pages are written to the disk first:
// they have no place yet, and the file system would return the old one.
func (d *disk) mappings(e volume.Extent) []mapping {
	req := &mapRequest{start: uint64(e.Offset), length: uint64(e.Length), flags: mapSync}
	req.capacity = uint32(len(req.mappings))
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, d.Fd(), ioctlMap, uintptr(unsafe.Pointer(req)))
	if errno != 0 || req.mapped >= req.capacity { // there may be more
		return nil
	}
	return cutMappings(req.mappings[:req.mapped], req.start, req.start+req.length)
}

// cutMappings cuts mappings, which may begin before the range that was asked
// for and end after it. It is nil unless all of them are marked as shared and
// as nothing special.
func cutMappings(list []mapping, start, end uint64) []mapping {
	cut := make([]mapping, 0, len(list))
	for _, m := range list {
		if m.flags&^(mapLast|mapMerged) != mapShared {
			return nil
		}
		from, to := max(m.logical, start), min(m.logical+m.length, end)
		cut = append(cut, mapping{logical: from, physical: m.physical + from - m.logical, length: to - from})
	}
	return cut
}
