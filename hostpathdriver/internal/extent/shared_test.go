package extent

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/longshore-csi/longshore/csikittest/needs"
	"github.com/longshore-csi/longshore/driverkit/mount"
	"github.com/longshore-csi/longshore/hostpathdriver/loop"
)

// xfs mounts an XFS, which shares blocks between files.
func xfs(t *testing.T) string {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("mounts need root")
	}
	needs.Programs(t, "mkfs.xfs")
	ctx := context.WithoutCancel(t.Context())
	image, dir := filepath.Join(t.TempDir(), "image"), t.TempDir()
	if err := errors.Join(os.WriteFile(image, nil, 0o600), os.Truncate(image, 512<<20)); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.CommandContext(ctx, "mkfs.xfs", "-q", "-m", "reflink=1", image).CombinedOutput(); err != nil {
		t.Fatalf("mkfs.xfs: %v: %s", err, out)
	}
	device, err := loop.Kernel{}.Attach(ctx, image, false)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := (loop.Kernel{}).Detach(ctx, image, false); err != nil {
			t.Error(err)
		}
	})
	if err := unix.Mount(device, dir, "xfs", 0, ""); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := (mount.Kernel{}).Unmount(ctx, dir); err != nil {
			t.Error(err)
		}
	})
	return dir
}

// clone makes a file that shares all blocks with another one.
func (f *files) clone(id, from string) File {
	f.t.Helper()
	d := f.add(id, f.all[from].Size)
	source, err := os.Open(f.all[from].Path)
	if err != nil {
		f.t.Fatal(err)
	}
	defer source.Close()
	target, err := os.OpenFile(d.Path, os.O_WRONLY, 0)
	if err != nil {
		f.t.Fatal(err)
	}
	defer target.Close()
	if err := unix.IoctlFileClone(int(target.Fd()), int(source.Fd())); err != nil {
		f.t.Fatal(err)
	}
	return d
}

// reads compares two snapshots, and counts how often their files are read.
func (f *files) reads(base, target string) ([]Range, int) {
	f.t.Helper()
	disks, counts := make([]*disk, 2), make([]*counted, 2)
	for i, id := range []string{target, base} {
		opened, err := open(f.all[id])
		if err != nil {
			f.t.Fatal(err)
		}
		defer opened.Close()
		counts[i] = &counted{file: opened.file}
		opened.file = counts[i]
		disks[i] = opened
	}
	got := mustCollect(f.t, ranges(f.t.Context(), disks, 0))
	return got, counts[0].reads + counts[1].reads
}

// TestSharedBlocks: what two snapshots share is not read, and nothing that
// differs is taken for shared.
func TestSharedBlocks(t *testing.T) {
	needs.Time(t)
	f := newFiles(t)
	f.dir = xfs(t)
	random := seeded(t)
	const size = 32 * chunk
	base := f.add("base", size)
	f.write(base, randomBytes(random, size/2), 0)
	f.write(base, randomBytes(random, block), size-block)

	f.clone("same", "base")
	changed := f.clone("changed", "base")
	was := f.contents(base)
	f.write(changed, []byte{^was[3*chunk+5*block]}, 3*chunk+5*block) // stays in memory for now
	f.write(changed, []byte{^was[size-1]}, size-1)
	copied := f.add("copied", size)
	f.write(copied, f.contents(base), 0)
	grown := f.clone("grown", "base")
	grown.Size = 2 * size
	f.all["grown"] = grown
	f.write(grown, []byte("z"), 2*size-1)
	cut := f.clone("cut", "base")
	cut.Size = chunk
	f.all["cut"] = cut
	// All of it is shared, with somebody else.
	strange := f.add("strange", size)
	f.write(strange, randomBytes(random, size/2), 0)
	f.write(strange, f.contents(base)[size-block:], size-block)
	f.clone("stranger", "strange")
	// More places in a chunk than one answer has room for; the one that differs
	// comes late, and is shared as well.
	f.write(f.add("whole", chunk), randomBytes(random, chunk), 0)
	comb := f.clone("comb", "whole")
	for at := int64(0); at < chunk; at += 2 * block {
		f.write(comb, []byte("tooth"), at)
	}
	f.write(f.clone("broken", "comb"), []byte("gap"), 200*block)
	f.clone("brokenToo", "broken")

	cases := map[string]struct {
		reason       string
		base, target string
		want         []Range
		reads        int
	}{
		"Same":    {reason: "all is shared", base: "base", target: "same"},
		"Itself":  {reason: "all is shared", base: "same", target: "same"},
		"Changed": {reason: "the chunks that were written to are read of both", base: "base", target: "changed", want: extents(3*chunk+5*block, block, size-block, block), reads: 4},
		"Back":    {reason: "the same the other way", base: "changed", target: "base", want: extents(3*chunk+5*block, block, size-block, block), reads: 4},
		"Cousins": {reason: "both share with a third", base: "same", target: "changed", want: extents(3*chunk+5*block, block, size-block, block), reads: 4},
		"Copied":  {reason: "equal, and not shared", base: "base", target: "copied", reads: 2 * 32},
		"Grown":   {reason: "data beyond the end of the base", base: "base", target: "grown", want: extents(2*size-block, block), reads: 2},
		"Strange": {reason: "no block is shared with each other", base: "base", target: "strange", want: extents(0, size/2), reads: 2 * 17},
		"Comb":    {reason: "not all places are known", base: "comb", target: "brokenToo", want: extents(200*block, block), reads: 2},
		"Cut":     {reason: "a base that ends earlier has zeros there, whatever its file has", base: "cut", target: "base", want: extents(chunk, size/2-chunk, size-block, block), reads: 2 * 16},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			f.t = t
			got, reads := f.reads(c.base, c.target)
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Errorf("%s (-want +got):\n%s", c.reason, diff)
			}
			if reads > c.reads {
				t.Errorf("%s: %d reads, want at most %d", c.reason, reads, c.reads)
			}
		})
	}
}

// TestSameAddressesElsewhere: addresses are those of one file system.
func TestSameAddressesElsewhere(t *testing.T) {
	f := newFiles(t)
	for i, id := range []string{"base", "target"} {
		f.dir = xfs(t)
		f.write(f.add(id, chunk), bytes.Repeat([]byte{byte(i + 1)}, chunk), 0)
		f.clone(id+"-too", id)
	}
	if diff := cmp.Diff(extents(0, chunk), f.different("base", "target", 0)); diff != "" {
		t.Errorf("difference (-want +got):\n%s", diff)
	}
}

func TestCutMappings(t *testing.T) {
	at := func(logical, physical, length uint64, flags uint32) mapping {
		return mapping{logical: logical, physical: physical, length: length, flags: flags}
	}
	cases := map[string]struct {
		reason string
		in     []mapping
		want   []mapping
	}{
		"Inside":    {reason: "as it is, without flags", in: []mapping{at(110, 7, 5, mapShared|mapMerged), at(120, 50, 80, mapShared|mapLast)}, want: []mapping{at(110, 7, 5, 0), at(120, 50, 80, 0)}},
		"Around":    {reason: "cut on both sides", in: []mapping{at(90, 1000, 200, mapShared)}, want: []mapping{at(100, 1010, 100, 0)}},
		"Own":       {reason: "not shared with anybody", in: []mapping{at(100, 0, 50, mapShared), at(150, 0, 50, 0)}},
		"Unwritten": {reason: "zeros, whatever is there", in: []mapping{at(100, 0, 100, mapShared|0x800)}},
		"Encoded":   {reason: "the address is that of compressed data", in: []mapping{at(100, 0, 100, mapShared|0x8)}},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(c.want, cutMappings(c.in, 100, 200), cmp.AllowUnexported(mapping{})); diff != "" {
				t.Errorf("%s (-want +got):\n%s", c.reason, diff)
			}
		})
	}
}

// TestRandomClones changes clones at random, over and over, and compares them
// with what a look at each byte finds.
func TestRandomClones(t *testing.T) {
	needs.Time(t)
	f := newFiles(t)
	f.dir = xfs(t)
	random := seeded(t)
	const size = 3 * chunk
	f.write(f.add("0", size), randomBytes(random, size), 0)
	ids := []string{"0"}
	for i := range 20 {
		id := string(rune('a' + i))
		d := f.clone(id, ids[random.IntN(len(ids))])
		for range random.IntN(6) {
			at := random.Int64N(size)
			f.write(d, randomBytes(random, min(size-at, 1+random.Int64N(2*block))), at)
		}
		ids = append(ids, id)
		base := ids[random.IntN(len(ids))]
		want := joined(differentBlocks(f.contents(f.all[base]), f.contents(d)))
		if diff := cmp.Diff(want, f.different(base, id, 0)); diff != "" {
			t.Fatalf("%s to %s (-want +got):\n%s", base, id, diff)
		}
	}
}
