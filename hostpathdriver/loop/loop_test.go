package loop

import (
	"context"
	"errors"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

func TestCheckSize(t *testing.T) {
	cases := map[string]struct {
		reason string
		size   int64
		ok     bool
	}{
		"Empty":     {reason: "a device without a sector is of no use", size: 0},
		"Negative":  {reason: "no file has it", size: -512},
		"Byte":      {reason: "less than a sector", size: 1},
		"OneLess":   {reason: "the last sector is not whole", size: 1<<20 - 1},
		"OneMore":   {reason: "the kernel would cut the rest off", size: 1<<20 + 1},
		"Sector":    {reason: "the smallest", size: SectorSize, ok: true},
		"MiB":       {reason: "the usual", size: 1 << 20, ok: true},
		"Odd":       {reason: "any number of sectors", size: 3 * SectorSize, ok: true},
		"Huge":      {reason: "the largest", size: math.MaxInt64 - SectorSize + 1, ok: true},
		"OneTooBig": {reason: "not whole either", size: math.MaxInt64},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			err := checkSize(c.size)
			if (err == nil) != c.ok {
				t.Errorf("%s: checkSize(%d) = %v, want ok %t", c.reason, c.size, err, c.ok)
			}
			if err != nil && !strings.Contains(err.Error(), "multiple of 512") {
				t.Errorf("%q does not name the rule", err)
			}
		})
	}
}

func TestParseName(t *testing.T) {
	cases := map[string]struct {
		reason string
		name   string
		number int
		ok     bool
	}{
		"First":     {reason: "as the kernel counts", name: "loop0", number: 0, ok: true},
		"Many":      {reason: "more than one digit", name: "loop1024", number: 1024, ok: true},
		"OtherDisk": {reason: "another driver", name: "vda"},
		"Control":   {reason: "no block device", name: "loop-control"},
		"Bare":      {reason: "no number", name: "loop"},
		"Partition": {reason: "a part of a device", name: "loop0p1"},
		"Negative":  {reason: "no number of the kernel", name: "loop-1"},
		"Plus":      {reason: "Go reads it, the kernel does not write it", name: "loop+1"},
		"Zeros":     {reason: "another spelling is another name", name: "loop01"},
		"TooLarge":  {reason: "no integer", name: "loop99999999999999999999"},
		"Empty":     {reason: "nothing at all", name: ""},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			number, ok := parseName(c.name)
			if ok != c.ok || ok && number != c.number {
				t.Errorf("%s: parseName(%q) = %d, %t, want %d, %t", c.reason, c.name, number, ok, c.number, c.ok)
			}
		})
	}
}

func TestShows(t *testing.T) {
	id := Identity{Dev: 5, Ino: 7}
	cases := map[string]struct {
		reason string
		info   unix.LoopInfo64
		want   bool
	}{
		"Whole":       {reason: "ours", info: unix.LoopInfo64{Device: 5, Inode: 7}, want: true},
		"OtherInode":  {reason: "another file", info: unix.LoopInfo64{Device: 5, Inode: 8}},
		"OtherDevice": {reason: "the same number on another file system", info: unix.LoopInfo64{Device: 6, Inode: 7}},
		"Offset":      {reason: "somebody's partition", info: unix.LoopInfo64{Device: 5, Inode: 7, Offset: 512}},
		"Limited":     {reason: "somebody's beginning", info: unix.LoopInfo64{Device: 5, Inode: 7, Sizelimit: 512}},
		"ReadOnly":    {reason: "the kind is asked for elsewhere", info: unix.LoopInfo64{Device: 5, Inode: 7, Flags: unix.LO_FLAGS_READ_ONLY}, want: true},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			if got := shows(&c.info, id); got != c.want {
				t.Errorf("%s: %t, want %t", c.reason, got, c.want)
			}
		})
	}
}

func TestChoiceOfDevice(t *testing.T) {
	cases := map[string]struct {
		reason   string
		found    []device
		readOnly bool
		want     int // -1 for none
		dying    bool
	}{
		"None":        {reason: "nothing is attached", want: -1},
		"Writable":    {reason: "the only one", found: []device{{number: 3}}, want: 3},
		"OtherKind":   {reason: "a read-only one takes no writes", found: []device{{number: 3, readOnly: true}}, want: -1},
		"Both":        {reason: "the kind counts", found: []device{{number: 1}, {number: 2, readOnly: true}}, readOnly: true, want: 2},
		"Dying":       {reason: "it goes with its last user", found: []device{{number: 1, dying: true}}, want: -1, dying: true},
		"DyingOther":  {reason: "the other kind does not matter", found: []device{{number: 1, readOnly: true, dying: true}}, want: -1},
		"DyingBefore": {reason: "the next one is there already", found: []device{{number: 1, dying: true}, {number: 2}}, want: 2, dying: true},
		"Lowest":      {reason: "everybody answers the same one", found: []device{{number: 4}, {number: 9}}, want: 4},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			d, ok := alive(c.found, c.readOnly)
			if !ok {
				d.number = -1
			}
			if d.number != c.want {
				t.Errorf("%s: alive = %d, want %d", c.reason, d.number, c.want)
			}
			if got := anyDying(c.found, c.readOnly); got != c.dying {
				t.Errorf("%s: anyDying = %t, want %t", c.reason, got, c.dying)
			}
		})
	}
}

// TestUntilPauses looks at once, then less and less often.
func TestUntilPauses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var looks []time.Duration
		start := time.Now()
		err := until(t.Context(), func() (bool, error) {
			looks = append(looks, time.Since(start))
			return len(looks) == 11, nil
		})
		if err != nil {
			t.Fatal(err)
		}
		ms := time.Millisecond
		want := []time.Duration{0, 2 * ms, 6 * ms, 14 * ms, 30 * ms, 62 * ms, 126 * ms, 254 * ms, 454 * ms, 654 * ms, 854 * ms}
		if diff := cmp.Diff(want, looks); diff != "" {
			t.Errorf("looks (-want +got):\n%s", diff)
		}
	})
}

func TestUntilEnds(t *testing.T) {
	broken := errors.New("broken")
	cases := map[string]struct {
		reason string
		after  time.Duration
		step   func() (bool, error)
		want   []error
		not    error
	}{
		"Busy":      {reason: "both facts are told", after: time.Hour, step: func() (bool, error) { return false, nil }, want: []error{ErrBusy, context.DeadlineExceeded}},
		"OverFirst": {reason: "there is one look in any case", step: func() (bool, error) { return false, nil }, want: []error{ErrBusy, context.DeadlineExceeded}},
		"Fails":     {reason: "an error is not repeated", after: time.Hour, step: func() (bool, error) { return false, broken }, want: []error{broken}, not: ErrBusy},
		"Done":      {reason: "no error where it is done", step: func() (bool, error) { return true, nil }, want: []error{nil}},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithTimeout(t.Context(), c.after)
				defer cancel()
				err := until(ctx, c.step)
				for _, want := range c.want {
					if !errors.Is(err, want) {
						t.Errorf("%s: %v, want %v", c.reason, err, want)
					}
				}
				if c.not != nil && errors.Is(err, c.not) {
					t.Errorf("%s: %v", c.reason, err)
				}
			})
		})
	}
}

// TestLockIsOfTheOpenFile keeps out everybody but who has it, in this process,
// too, and goes with the file.
func TestLockIsOfTheOpenFile(t *testing.T) {
	file := filepath.Join(t.TempDir(), "disk")
	createFile(t, file, mib)
	open := func() *backing {
		b, err := openBacking(file, os.O_RDONLY)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { b.Close() })
		return b
	}
	first, second := open(), open()
	wantLock := func(b *backing, want bool) {
		t.Helper()
		if got, err := b.tryLock(); got != want || err != nil {
			t.Errorf("tryLock = %t, %v, want %t", got, err, want)
		}
	}
	wantLock(first, true)
	wantLock(second, false)
	if err := first.unlock(); err != nil {
		t.Fatal(err)
	}
	wantLock(second, true)
	wantLock(first, false)
	second.Close()
	wantLock(first, true)
	if _, err := second.tryLock(); err == nil {
		t.Error("a closed file is locked")
	}
	if err := second.unlock(); err == nil {
		t.Error("a closed file is unlocked")
	}
}
