package volume

import (
	"fmt"
	"maps"
)

const (
	// DefaultSize is the size in bytes of a volume without a requested size: 1 GiB.
	DefaultSize int64 = 1 << 30
	// DefaultEphemeralSize is the size in bytes of an inline volume without
	// the attribute "size": 100 MiB.
	DefaultEphemeralSize int64 = 100 << 20
)

// Range is a wish for a size in bytes; zero means unset.
type Range struct {
	Required int64
	Limit    int64
}

// Size picks the size of a new volume: what is required, else the default,
// never more than the limit of the request. It is an ErrInvalid for a
// contradictory range and an ErrOutOfRange beyond largest.
func (r Range) Size(largest int64) (int64, error) {
	switch {
	case r.Required < 0 || r.Limit < 0:
		return 0, fmt.Errorf("capacity range: required_bytes %d and limit_bytes %d must not be negative: %w", r.Required, r.Limit, ErrInvalid)
	case r.Limit > 0 && r.Required > r.Limit:
		return 0, fmt.Errorf("capacity range: required_bytes %d exceeds limit_bytes %d: %w", r.Required, r.Limit, ErrInvalid)
	case r.Required > largest:
		return 0, fmt.Errorf("capacity range: required_bytes %d exceeds the largest volume size %d: %w", r.Required, largest, ErrOutOfRange)
	case r.Required > 0:
		return r.Required, nil
	}
	size := min(DefaultSize, largest)
	if r.Limit > 0 {
		size = min(size, r.Limit)
	}
	return size, nil
}

// BlockSize is the unit of a device in bytes: what every program that
// bypasses the page cache can live with.
const BlockSize int64 = 4096

// DiskSize is Size for a disk, a multiple of BlockSize that is not below
// least. It is an ErrOutOfRange when there is none within the range.
func (r Range) DiskSize(least, largest int64) (int64, error) {
	size, err := r.Size(largest)
	if err != nil {
		return 0, err
	}
	if size < least {
		size, r.Required = least, max(least, r.Required)
	}
	rounded := (size + BlockSize - 1) / BlockSize * BlockSize
	if r.Required == 0 && rounded > size {
		rounded -= BlockSize // nothing smaller was ruled out
	}
	if rounded == 0 || rounded > largest || !r.Allow(rounded) {
		return 0, fmt.Errorf("capacity range: at least %d bytes, limit_bytes %d (0 is no limit), largest volume size %d: no multiple of the block size %d lies between: %w",
			r.Required, r.Limit, largest, BlockSize, ErrOutOfRange)
	}
	return rounded, nil
}

// Allow reports whether a volume of that size satisfies the range.
func (r Range) Allow(size int64) bool {
	return size >= r.Required && (r.Limit == 0 || size <= r.Limit)
}

// CreateRequest asks for a new persistent volume.
type CreateRequest struct {
	Name       string
	Range      Range
	Parameters map[string]string
	// Mutable are the first values of mutable parameters. A repeated call is
	// the same with others: they may have been modified in between.
	Mutable      map[string]string
	Capabilities []Capability
	Requirements Requirements
	// Source is what the volume is to be made of; nil for an empty one.
	Source *Source
}

// CheckSame reports whether an existing volume of the same name is what the
// request asks for. If not, the error is an ErrExists that names the first
// difference.
func (v *Volume) CheckSame(req *CreateRequest) error {
	switch {
	case !req.Range.Allow(v.Capacity):
		return v.differs("capacity is %d bytes, asked for is at least %d and at most %d (0 is no limit)",
			v.Capacity, req.Range.Required, req.Range.Limit)
	case !sameSource(v.Source, req.Source):
		return v.differs("it has another content source")
	case !maps.Equal(v.Parameters, req.Parameters):
		return v.differs("its parameters differ")
	case !sameCapabilities(v.Capabilities, req.Capabilities):
		return v.differs("its capabilities differ")
	case !req.Requirements.Allow(v.Node):
		return v.differs("it is on node %q, which the accessibility requirements exclude", v.Node)
	}
	return nil
}

func (v *Volume) differs(format string, args ...any) error {
	return fmt.Errorf("volume %q has id %q but %s: %w", v.Name, v.ID, fmt.Sprintf(format, args...), ErrExists)
}

func sameSource(a, b *Source) bool {
	return (a == nil) == (b == nil) && (a == nil || *a == *b)
}

// sameCapabilities compares two lists as sets.
func sameCapabilities(a, b []Capability) bool {
	return coverCapabilities(a, b) && coverCapabilities(b, a)
}

func coverCapabilities(all, some []Capability) bool {
	for _, c := range some {
		if !containsCapability(all, c) {
			return false
		}
	}
	return true
}

func containsCapability(list []Capability, c Capability) bool {
	for _, other := range list {
		if other.Equal(c) {
			return true
		}
	}
	return false
}
