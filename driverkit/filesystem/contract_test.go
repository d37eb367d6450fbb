package filesystem

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/longshore-csi/longshore/driverkit/mount"
)

type contractCase struct {
	reason string
	run    func(t *testing.T, r rig, fsType string)
}

// contract is what both implementations promise, for every type.
func contract() map[string]contractCase {
	return map[string]contractCase{
		"Blank":          {reason: "a file system is made once, and files stay", run: blank},
		"Smallest":       {reason: "MinSize is enough", run: smallest},
		"MountTwice":     {reason: "the second call finds what the first has made", run: mountTwice},
		"TwoTargets":     {reason: "one file system, two places", run: twoTargets},
		"OtherMount":     {reason: "nothing is hidden below another mount", run: otherMount},
		"OtherType":      {reason: "a file system of another type is never formatted", run: otherType},
		"OtherData":      {reason: "neither is what is no file system", run: otherData},
		"UnknownType":    {reason: "a type has to be installed", run: unknownType},
		"Formatted":      {reason: "what had a file system is never formatted", run: formatted},
		"Flags":          {reason: "some are passed on, some are refused", run: flags},
		"ReadOnly":       {reason: "no write gets through", run: readOnly},
		"ReadOnlyBlank":  {reason: "reading alone makes nothing", run: readOnlyBlank},
		"ReadOnlyDevice": {reason: "it can be read, and is not silently read-only", run: readOnlyDevice},
		"OtherwiseThere": {reason: "writable is not read-only", run: otherwiseThere},
		"Copies":         {reason: "copies of one image are mounted side by side", run: copies},
		"CopyOfMounted":  {reason: "a copy of what is being written to is repaired", run: copyOfMounted},
		"Grow":           {reason: "it grows while it is mounted, to the size of its device", run: grows},
		"GrowAtMount":    {reason: "a copy on a larger device grows when it is mounted", run: growAtMount},
		"GrowRefused":    {reason: "only what is mounted for writing grows", run: growRefused},
		"IsMountOf":      {reason: "a mount is known by its device", run: shown},
		"Reboot":         {reason: "the same calls mount it again", run: reboot},
		"Usage":          {reason: "the numbers are those of the file system", run: measured},
		"Missing":        {reason: "devices and targets are not made", run: missing},
		"ContextOver":    {reason: "a call that is over does nothing", run: contextOver},
	}
}

func testContract(t *testing.T, newRig func(t *testing.T) rig) {
	eachType(t, newRig(t), func(t *testing.T, fsType string) {
		for name, c := range contract() {
			t.Run(name, func(t *testing.T) {
				t.Logf("because %s", c.reason)
				c.run(t, newRig(t), fsType)
			})
		}
	})
}

func TestFakeContract(t *testing.T) { testContract(t, fakeRig) }

func TestKernelContract(t *testing.T) { testContract(t, kernelRig) }

// roomy is a size at which every type is at ease.
const roomy = 320 * mib

func blank(t *testing.T, r rig, fsType string) {
	_, device := newDevice(t, r, roomy)
	target := newTarget(t, r)
	mountAt(t, r, device, target, Options{Type: fsType})
	writeFile(t, target, "kept")
	unmount(t, r, target)
	wantMounted(t, r, target, false)
	mountAt(t, r, device, target, Options{Type: fsType})
	wantFile(t, target, "kept")
}

func smallest(t *testing.T, r rig, fsType string) {
	_, device := newDevice(t, r, MinSize(fsType))
	target := newTarget(t, r)
	mountAt(t, r, device, target, Options{Type: fsType})
	writeFile(t, target, "a file")
	if got := usage(t, r, target); got.Bytes.Available <= 0 || got.Inodes.Available < 100 {
		t.Errorf("%+v is not of much use", got)
	}
	_, device = newDevice(t, r, MinSize(fsType)-sectorSize)
	refused(t, r, device, newTarget(t, r), Options{Type: fsType})
	if !allZero([]byte(start(t, device))) {
		t.Error("a device that is too small was formatted")
	}
}

func mountTwice(t *testing.T, r rig, fsType string) {
	_, device := newDevice(t, r, roomy)
	target := newTarget(t, r)
	for range 2 {
		mountAt(t, r, device, target, Options{Type: fsType})
	}
	unmount(t, r, target)
	wantMounted(t, r, target, false)
}

func twoTargets(t *testing.T, r rig, fsType string) {
	_, device := newDevice(t, r, roomy)
	targets := []string{newTarget(t, r), newTarget(t, r)}
	for _, target := range targets {
		mountAt(t, r, device, target, Options{Type: fsType})
	}
	for _, target := range targets {
		wantShows(t, r, device, target, true, false)
	}
	unmount(t, r, targets[0])
	wantShows(t, r, device, targets[1], true, false)
}

func otherMount(t *testing.T, r rig, fsType string) {
	_, first := newDevice(t, r, roomy)
	_, second := newDevice(t, r, roomy)
	target := newTarget(t, r)
	mountAt(t, r, first, target, Options{Type: fsType})
	if err := r.Mount(withTestDeadline(t), second, target, Options{Type: fsType}); err == nil {
		t.Error("a second device is accepted at the same target")
	}
	wantShows(t, r, first, target, true, false)
	if !allZero([]byte(start(t, second))) {
		t.Error("the second device was formatted")
	}
}

func otherType(t *testing.T, r rig, fsType string) {
	_, device := newDevice(t, r, roomy)
	target := newTarget(t, r)
	mountAt(t, r, device, target, Options{Type: fsType})
	unmount(t, r, target)
	before := start(t, device)
	for _, other := range r.Types() {
		if other == fsType {
			continue
		}
		err := refused(t, r, device, target, Options{Type: other})
		if !errors.Is(err, ErrForeign) || !strings.Contains(err.Error(), fsType) {
			t.Errorf("%v: want ErrForeign, and the word %s", err, fsType)
		}
	}
	if start(t, device) != before {
		t.Error("the device was written to")
	}
}

func otherData(t *testing.T, r rig, fsType string) {
	for _, at := range []int64{0, 512, headSize - 4} {
		_, device := newDevice(t, r, roomy)
		writeDevice(t, device, []byte("data"), at)
		before := start(t, device)
		for _, o := range []Options{{Type: fsType}, {Type: fsType, ReadOnly: true}} {
			if err := refused(t, r, device, newTarget(t, r), o); !errors.Is(err, ErrForeign) {
				t.Errorf("data at %d: %v, want ErrForeign", at, err)
			}
		}
		if start(t, device) != before {
			t.Errorf("data at %d: the device was written to", at)
		}
	}
}

func unknownType(t *testing.T, r rig, fsType string) {
	_, device := newDevice(t, r, roomy)
	for _, unknown := range []string{"", "btrfs", fsType + "x", "../" + fsType, "-" + fsType} {
		err := refused(t, r, device, newTarget(t, r), Options{Type: unknown})
		if !strings.Contains(err.Error(), fsType) {
			t.Errorf("type %q: %v does not say which are known", unknown, err)
		}
	}
}

// formatted loses the beginning of a file system, whose blocks then read as zeros, and meets one that was never made.
func formatted(t *testing.T, r rig, fsType string) {
	image, device := newDevice(t, r, roomy)
	target := newTarget(t, r)
	o := Options{Type: fsType, Formatted: true}
	if err := r.Mount(withTestDeadline(t), device, target, o); !errors.Is(err, ErrLost) {
		t.Errorf("a blank device: %v, want ErrLost", err)
	}
	mountAt(t, r, device, target, Options{Type: fsType})
	mountAt(t, r, device, target, o)
	if err := r.mounts.Unmount(withTestDeadline(t), target); err != nil {
		t.Fatal(err)
	}
	mountAt(t, r, device, target, o)
	if err := r.mounts.Unmount(withTestDeadline(t), target); err != nil {
		t.Fatal(err)
	}
	file, err := os.OpenFile(device, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	_, err = file.WriteAt(make([]byte, 1<<20), 0)
	if err := errors.Join(err, file.Sync(), file.Close()); err != nil {
		t.Fatal(err)
	}
	for _, readOnly := range []bool{false, true} {
		o.ReadOnly = readOnly
		if err := r.Mount(withTestDeadline(t), device, target, o); !errors.Is(err, ErrLost) {
			t.Errorf("a device whose beginning was lost, read-only %t: %v, want ErrLost", readOnly, err)
		}
	}
	wantMounted(t, r, target, false)
	head := make([]byte, 1<<20)
	if file, err = os.Open(image); err != nil {
		t.Fatal(err)
	}
	_, err = io.ReadFull(file, head)
	if err := errors.Join(err, file.Close()); err != nil || !allZero(head) {
		t.Errorf("something was written to the device: %v", err)
	}
}

func flags(t *testing.T, r rig, fsType string) {
	_, device := newDevice(t, r, roomy)
	target := newTarget(t, r)
	err := refused(t, r, device, target, Options{Type: fsType, Flags: []string{"noatime", "loop"}})
	if !strings.Contains(err.Error(), "mount flag 2 of 2, loop: ") {
		t.Errorf("%v does not name the flag", err)
	}
	if !allZero([]byte(start(t, device))) {
		t.Error("the device was formatted, with flags that are refused")
	}
	mountAt(t, r, device, target, Options{Type: fsType, Flags: []string{"noatime", "nodev", "rw"}})
	if !r.real {
		return
	}
	var about unix.Statfs_t
	if err := unix.Statfs(target, &about); err != nil || about.Flags&unix.ST_NOATIME == 0 || about.Flags&unix.ST_NODEV == 0 {
		t.Errorf("flags %#x, %v: want noatime and nodev", about.Flags, err)
	}
	unmount(t, r, target)
	err = refused(t, r, device, target, Options{Type: fsType, Flags: []string{"no_such_flag=1"}})
	if text := err.Error(); !strings.Contains(text, "no_such_flag=...") || strings.Contains(text, "no_such_flag=1") {
		t.Errorf("%v does not name the flags, without their values", err)
	}
}

func readOnly(t *testing.T, r rig, fsType string) {
	_, device := newDevice(t, r, roomy)
	target := newTarget(t, r)
	mountAt(t, r, device, target, Options{Type: fsType})
	writeFile(t, target, "kept")
	unmount(t, r, target)
	for _, o := range []Options{{ReadOnly: true}, {Flags: []string{"ro"}}, {ReadOnly: true, Flags: []string{"rw"}}} {
		o.Type, o.Grow = fsType, true
		for range 2 {
			mountAt(t, r, device, target, o)
		}
		wantShows(t, r, device, target, true, true)
		wantFile(t, target, "kept")
		if r.real {
			if err := os.WriteFile(filepath.Join(target, "file"), nil, 0o600); !errors.Is(err, unix.EROFS) {
				t.Errorf("write: %v, want EROFS", err)
			}
		}
		unmount(t, r, target)
	}
}

func readOnlyBlank(t *testing.T, r rig, fsType string) {
	image, device := newDevice(t, r, roomy)
	for _, d := range []string{device, attach(t, r, image, true)} {
		refused(t, r, d, newTarget(t, r), Options{Type: fsType, ReadOnly: true})
		if !allZero([]byte(start(t, d))) {
			t.Errorf("%s was formatted", d)
		}
	}
}

func readOnlyDevice(t *testing.T, r rig, fsType string) {
	image, device := newDevice(t, r, roomy)
	target := newTarget(t, r)
	mountAt(t, r, device, target, Options{Type: fsType})
	unmount(t, r, target)
	if err := r.loops.Detach(withTestDeadline(t), image, false); err != nil {
		t.Fatal(err)
	}
	locked := attach(t, r, image, true)
	refused(t, r, locked, target, Options{Type: fsType})
	mountAt(t, r, locked, target, Options{Type: fsType, ReadOnly: true})
	wantShows(t, r, locked, target, true, true)
}

func otherwiseThere(t *testing.T, r rig, fsType string) {
	_, device := newDevice(t, r, roomy)
	target := newTarget(t, r)
	for _, first := range []bool{false, true} {
		mountAt(t, r, device, target, Options{Type: fsType, ReadOnly: first})
		if err := r.Mount(withTestDeadline(t), device, target, Options{Type: fsType, ReadOnly: !first}); err == nil {
			t.Errorf("mounted read-only %t, and accepted as the opposite", first)
		}
		wantShows(t, r, device, target, true, first)
		unmount(t, r, target)
	}
}

func copies(t *testing.T, r rig, fsType string) {
	image, device := newDevice(t, r, roomy)
	target := newTarget(t, r)
	mountAt(t, r, device, target, Options{Type: fsType})
	unmount(t, r, target)
	second, third := attach(t, r, copyImage(t, r, image, roomy), false), attach(t, r, copyImage(t, r, image, roomy), false)
	for _, d := range []string{device, second, third} {
		at := newTarget(t, r)
		mountAt(t, r, d, at, Options{Type: fsType})
		writeFile(t, at, d)
		wantShows(t, r, d, at, true, false)
		wantFile(t, at, d)
	}
}

func copyOfMounted(t *testing.T, r rig, fsType string) {
	image, device := newDevice(t, r, roomy)
	target := newTarget(t, r)
	mountAt(t, r, device, target, Options{Type: fsType})
	writeFile(t, target, "kept")
	duplicate := copySynced(t, r, image, target)
	at := newTarget(t, r)
	mountAt(t, r, attach(t, r, duplicate, false), at, Options{Type: fsType})
	if r.real {
		wantFile(t, at, "kept")
	}
}

// copySynced copies the image of a mounted file system, whose journal stays
// open.
func copySynced(t *testing.T, r rig, image, target string) string {
	t.Helper()
	flush(t, target)
	return copyImage(t, r, image, roomy)
}

// needGrowth skips a test of what this process must not do.
func needGrowth(t *testing.T, r rig, fsType string) {
	t.Helper()
	if !r.grows(fsType) {
		t.Skipf("%s needs CAP_SYS_RESOURCE to grow, which this process lacks", fsType)
	}
}

func grows(t *testing.T, r rig, fsType string) {
	needGrowth(t, r, fsType)
	for _, size := range []int64{MinSize(fsType), roomy} {
		image, device := newDevice(t, r, size)
		target := newTarget(t, r)
		mountAt(t, r, device, target, Options{Type: fsType})
		writeFile(t, target, "kept")
		before := usage(t, r, target)
		if err := r.Grow(withTestDeadline(t), device, target); err != nil {
			t.Errorf("Grow by nothing: %v", err)
		}
		if after := usage(t, r, target); after.Bytes.Total != before.Bytes.Total {
			t.Errorf("grown by nothing from %d to %d bytes", before.Bytes.Total, after.Bytes.Total)
		}
		if err := errors.Join(os.Truncate(image, 2<<30), r.loops.Resize(withTestDeadline(t), image)); err != nil {
			t.Fatal(err)
		}
		for range 2 {
			if err := r.Grow(withTestDeadline(t), device, target); err != nil {
				t.Error(err)
			}
		}
		if after := usage(t, r, target); after.Bytes.Total < 2<<30*9/10 {
			t.Errorf("grown from %d to %d bytes", before.Bytes.Total, after.Bytes.Total)
		}
		wantFile(t, target, "kept")
	}
}

func growAtMount(t *testing.T, r rig, fsType string) {
	image, device := newDevice(t, r, roomy)
	target := newTarget(t, r)
	mountAt(t, r, device, target, Options{Type: fsType, Grow: true})
	before := usage(t, r, target)
	unmount(t, r, target)
	larger := attach(t, r, copyImage(t, r, image, 2*roomy), false)
	target = newTarget(t, r)
	for _, o := range []Options{{ReadOnly: true, Grow: true}, {}} {
		o.Type = fsType
		mountAt(t, r, larger, target, o)
		if after := usage(t, r, target); after.Bytes.Total != before.Bytes.Total {
			t.Errorf("%+v: it has %d bytes, had %d", o, after.Bytes.Total, before.Bytes.Total)
		}
		unmount(t, r, target)
	}
	if r.grows(fsType) {
		// The second finds it mounted, as after a crash before it has grown.
		mountAt(t, r, larger, target, Options{Type: fsType})
	}
	mountAt(t, r, larger, target, Options{Type: fsType, Grow: true})
	if after := usage(t, r, target); after.Bytes.Total < before.Bytes.Total+roomy*9/10 {
		t.Errorf("it has %d bytes, had %d", after.Bytes.Total, before.Bytes.Total)
	}
}

func growRefused(t *testing.T, r rig, fsType string) {
	_, device := newDevice(t, r, roomy)
	target, other := newTarget(t, r), newTarget(t, r)
	mountAt(t, r, device, target, Options{Type: fsType})
	if err := r.Grow(withTestDeadline(t), device, other); err == nil {
		t.Error("it grows where it is not mounted")
	}
	unmount(t, r, target)
	if err := r.Grow(withTestDeadline(t), device, target); err == nil {
		t.Error("it grows unmounted")
	}
	mountAt(t, r, device, target, Options{Type: fsType, ReadOnly: true})
	if err := r.Grow(withTestDeadline(t), device, target); err == nil {
		t.Error("it grows read-only")
	}
}

func shown(t *testing.T, r rig, fsType string) {
	_, first := newDevice(t, r, roomy)
	_, second := newDevice(t, r, roomy)
	target, bound, empty := newTarget(t, r), newTarget(t, r), newTarget(t, r)
	wantShows(t, r, first, target, false, false)
	mountAt(t, r, first, target, Options{Type: fsType})
	if err := r.mounts.Bind(withTestDeadline(t), target, bound, mount.Options{ReadOnly: true}); err != nil {
		t.Fatal(err)
	}
	wantShows(t, r, first, target, true, false)
	wantShows(t, r, first, bound, true, true)
	wantShows(t, r, second, target, false, false)
	wantShows(t, r, first, empty, false, false)
	wantShows(t, r, first, filepath.Join(target, "lost"), false, false)
	wantShows(t, r, filepath.Join(empty, "missing"), target, false, false)
	below := filepath.Join(target, "below")
	if err := os.Mkdir(below, 0o700); err != nil {
		t.Fatal(err)
	}
	wantShows(t, r, first, below, false, false)
	part := newTarget(t, r)
	if err := r.mounts.Bind(withTestDeadline(t), below, part, mount.Options{}); err != nil {
		t.Fatal(err)
	}
	for place, want := range map[string]string{target: first, bound: first, empty: "", part: "", below: "", filepath.Join(target, "lost"): ""} {
		if device, err := r.DeviceAt(withTestDeadline(t), place); err != nil || device != want {
			t.Errorf("device at %s: %q, %v, want %q", place, device, err, want)
		}
	}
}

func reboot(t *testing.T, r rig, fsType string) {
	image, device := newDevice(t, r, roomy)
	target := newTarget(t, r)
	mountAt(t, r, device, target, Options{Type: fsType})
	before := usage(t, r, target)
	r.reboot(t, image, target)
	wantMounted(t, r, target, false)
	device = attach(t, r, image, false)
	wantShows(t, r, device, target, false, false)
	mountAt(t, r, device, target, Options{Type: fsType})
	if after := usage(t, r, target); after.Bytes.Total != before.Bytes.Total {
		t.Errorf("it has %d bytes, had %d", after.Bytes.Total, before.Bytes.Total)
	}
}

func measured(t *testing.T, r rig, fsType string) {
	_, device := newDevice(t, r, roomy)
	target := newTarget(t, r)
	if got, err := r.Usage(withTestDeadline(t), target); err == nil {
		t.Errorf("Usage where nothing is mounted: %+v", got)
	}
	mountAt(t, r, device, target, Options{Type: fsType})
	before := usage(t, r, target)
	for what, s := range map[string]Space{"bytes": before.Bytes, "inodes": before.Inodes} {
		if s.Total <= 0 || s.Used < 0 || s.Available <= 0 || s.Used+s.Available > s.Total {
			t.Errorf("%s: %+v", what, s)
		}
	}
	if total := before.Bytes.Total; total > roomy || total < roomy*7/10 {
		t.Errorf("%d bytes on a device of %d", total, roomy)
	}
	if !r.real {
		return
	}
	writeFile(t, target, strings.Repeat("x", 8*mib))
	flush(t, target)
	after := usage(t, r, target)
	if grown := after.Bytes.Used - before.Bytes.Used; grown < 8*mib || after.Inodes.Used != before.Inodes.Used+1 {
		t.Errorf("8 MiB in one file: before %+v, after %+v", before, after)
	}
}

func missing(t *testing.T, r rig, fsType string) {
	_, device := newDevice(t, r, roomy)
	nowhere := filepath.Join(t.TempDir(), "missing")
	refused(t, r, device, nowhere, Options{Type: fsType})
	refused(t, r, nowhere, newTarget(t, r), Options{Type: fsType})
	if got, err := r.Usage(withTestDeadline(t), nowhere); err == nil {
		t.Errorf("Usage of no directory: %+v", got)
	}
}

func contextOver(t *testing.T, r rig, fsType string) {
	_, device := newDevice(t, r, roomy)
	target := newTarget(t, r)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, _, isMountOfErr := r.IsMountOf(ctx, device, target)
	_, usageErr := r.Usage(ctx, target)
	for call, err := range map[string]error{
		"Mount": r.Mount(ctx, device, target, Options{Type: fsType}), "Grow": r.Grow(ctx, device, target), "IsMountOf": isMountOfErr, "Usage": usageErr,
	} {
		if !errors.Is(err, context.Canceled) {
			t.Errorf("%s: %v, want context.Canceled", call, err)
		}
	}
	wantMounted(t, r, target, false)
	if !allZero([]byte(start(t, device))) {
		t.Error("the device was formatted")
	}
}

func TestTypesAreSorted(t *testing.T) {
	for name, f := range map[string]Filesystems{"Fake": &Fake{}, "Kernel": NewKernel()} {
		types := f.Types()
		if !slices.IsSorted(types) {
			t.Errorf("%s: %v", name, types)
		}
		for _, fsType := range types {
			if MinSize(fsType) <= 0 {
				t.Errorf("MinSize(%q) = %d", fsType, MinSize(fsType))
			}
		}
	}
	if got := MinSize("vfat"); got != 0 {
		t.Errorf("MinSize of an unknown type: %d", got)
	}
}
