package extent

import (
	"slices"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Source: Linux UAPI, linux/fiemap.h and linux/fs.h.
const (
	ioctlMap = 0xc020660b // FS_IOC_FIEMAP
	mapSync  = 0x1        // FIEMAP_FLAG_SYNC
	// FIEMAP_EXTENT_LAST, _MERGED and _SHARED. Other flags say that an address
	// is not known, or does not identify the contents.
	mapLast, mapMerged, mapShared = 0x1, 0x1000, 0x2000
)

// mapping is struct fiemap_extent: the place of some bytes of a file on the disk below.
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

// shared reports whether two disks are certain to have the same contents, because the file system keeps them in the same place: one was made from the other
// by FICLONE, or both from a third one. It is false where this is not known.
func shared(a, b *disk, e Range) bool {
	if a.device != b.device || e.end() > min(a.size, b.size) {
		return false
	}
	left := a.mappings(e)
	return len(left) > 0 && slices.Equal(left, b.mappings(e))
}

// mappings asks the file system for the places of the bytes of a range; nil where these do not identify the contents. Dirty pages are written to the disk
// first: they have no place yet, and the file system would return the old one.
func (d *disk) mappings(e Range) []mapping {
	req := &mapRequest{start: uint64(e.Offset), length: uint64(e.Size), flags: mapSync}
	req.capacity = uint32(len(req.mappings))
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, d.Fd(), ioctlMap, uintptr(unsafe.Pointer(req)))
	if errno != 0 || req.mapped >= req.capacity { // there may be more
		return nil
	}
	return cutMappings(req.mappings[:req.mapped], req.start, req.start+req.length)
}

// cutMappings cuts mappings to the range in question. It is nil unless all of them are marked as shared, without another mark.
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
