package volume

import (
	"errors"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestMetadataRequests(t *testing.T) {
	long := ID(strings.Repeat("x", MaxIDLength+1))
	cases := map[string]struct {
		reason string
		id     ID
		err    error
	}{
		"Plain":  {reason: "as the driver makes them", id: "snap-1"},
		"Empty":  {reason: "it is required", id: "", err: ErrInvalid},
		"Parent": {reason: "it must not lead out of a directory", id: "..", err: ErrInvalid},
		"Path":   {reason: "it must not lead elsewhere", id: "a/b", err: ErrInvalid},
		"Long":   {reason: "strings are limited", id: long, err: ErrInvalid},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			for field, got := range map[string]error{
				"snapshot id":        (&AllocatedRequest{Snapshot: c.id}).Check(),
				"base snapshot id":   (&DeltaRequest{Base: c.id, Target: "other"}).Check(),
				"target snapshot id": (&DeltaRequest{Base: "other", Target: c.id}).Check(),
			} {
				if !errors.Is(got, c.err) || (got != nil && !strings.HasPrefix(got.Error(), field)) {
					t.Errorf("%s: %s: %v, want %v", c.reason, field, got, c.err)
				}
			}
		})
	}
}

func TestSnapshotDiskRules(t *testing.T) {
	plain := SnapshotDisk{ID: "s", Volume: "v", Path: "/disk", Size: 2 * BlockSize}
	with := func(change func(d *SnapshotDisk)) *SnapshotDisk {
		d := plain
		change(&d)
		return &d
	}
	cases := map[string]struct {
		reason string
		got    error
		want   error
	}{
		"Contents":       {reason: "a complete disk", got: plain.CheckContents()},
		"Directory":      {reason: "files have no blocks of their own", got: with(func(d *SnapshotDisk) { d.Path = "" }).CheckContents(), want: ErrInvalid},
		"Filling":        {reason: "what is missing would look like a hole", got: with(func(d *SnapshotDisk) { d.Filling = true }).CheckContents(), want: ErrPrecondition},
		"FillingForever": {reason: "waiting does not make a directory a disk", got: with(func(d *SnapshotDisk) { d.Path, d.Filling = "", true }).CheckContents(), want: ErrInvalid},

		"Start":     {reason: "from the beginning", got: plain.CheckOffset(0)},
		"Unaligned": {reason: "any byte of the disk", got: plain.CheckOffset(BlockSize + 1)},
		"End":       {reason: "nothing is left to tell", got: plain.CheckOffset(plain.Size)},
		"Beyond":    {reason: "it exceeds the size", got: plain.CheckOffset(plain.Size + 1), want: ErrOutOfRange},
		"Far":       {reason: "no arithmetic overflows", got: plain.CheckOffset(math.MaxInt64), want: ErrOutOfRange},
		"Negative":  {reason: "the specification names this code for it", got: plain.CheckOffset(-1), want: ErrOutOfRange},

		"Base":        {reason: "an earlier one of the same volume", got: plain.CheckBase(with(func(d *SnapshotDisk) { d.ID = "t" }))},
		"Itself":      {reason: "nothing differs", got: plain.CheckBase(&plain)},
		"Expanded":    {reason: "the volume was smaller", got: plain.CheckBase(with(func(d *SnapshotDisk) { d.Size = BlockSize }))},
		"OtherSource": {reason: "of another volume", got: plain.CheckBase(with(func(d *SnapshotDisk) { d.Volume = "w" })), want: ErrInvalid},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			if !errors.Is(c.got, c.want) {
				t.Errorf("%s: %v, want %v", c.reason, c.got, c.want)
			}
		})
	}
}

func TestExtentCut(t *testing.T) {
	cases := map[string]struct {
		reason string
		in     Extent
		size   int64
		want   []Extent
	}{
		"Nothing": {reason: "no bytes, no pieces", in: Extent{Offset: 5}, size: 4},
		"Whole":   {reason: "it fits", in: Extent{5, 4}, size: 4, want: []Extent{{5, 4}}},
		"Even":    {reason: "pieces of one size", in: Extent{4, 8}, size: 4, want: []Extent{{4, 4}, {8, 4}}},
		"Rest":    {reason: "the last one is smaller", in: Extent{0, 9}, size: 4, want: []Extent{{0, 4}, {4, 4}, {8, 1}}},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(c.want, slices.Collect(c.in.Cut(c.size))); diff != "" {
				t.Errorf("%s (-want +got):\n%s", c.reason, diff)
			}
		})
	}
	for range (Extent{0, 1 << 60}).Cut(1) {
		break // no more is made than is asked for
	}
}
