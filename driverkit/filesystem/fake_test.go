package filesystem

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/longshore-csi/longshore/driverkit/mount"
)

// TestFakeFails stops before each step; the next call goes on from there.
func TestFakeFails(t *testing.T) {
	r := fakeRig(t)
	f, ok := r.Filesystems.(*Fake)
	if !ok {
		t.Fatal("not the fake")
	}
	image, device := newDevice(t, r, MinSize("ext4"))
	target := newTarget(t, r)
	o := Options{Type: "ext4", Grow: true}
	broken := errors.New("broken")
	for _, step := range []Step{StepFormat, StepMount, StepGrow} {
		f.Fail(step, broken)
		if err := f.Mount(withTestDeadline(t), device, target, o); !errors.Is(err, broken) {
			t.Errorf("before %s: %v", step, err)
		}
		f.Fail(step, nil)
	}
	mountAt(t, r, device, target, o)
	want := []string{
		"format " + device, "format " + device, "mount " + target, "mount " + target,
		"grow " + device, "grow " + device,
	}
	if diff := cmp.Diff(want, f.Calls()); diff != "" {
		t.Errorf("Calls (-want +got):\n%s", diff)
	}
	if err := os.Truncate(image, roomy); err != nil {
		t.Fatal(err)
	}
	if err := f.Grow(withTestDeadline(t), device, target); err != nil {
		t.Error(err)
	}
	if got := usage(t, r, target).Bytes.Total; got != MinSize("ext4") {
		t.Errorf("it has %d bytes, and its device has not grown", got)
	}
}

// TestFakeMountsFail: the table of the mounts can fail by itself.
func TestFakeMountsFail(t *testing.T) {
	r := fakeRig(t)
	_, device := newDevice(t, r, roomy)
	target := newTarget(t, r)
	broken := errors.New("broken")
	mounts, ok := r.mounts.(*mount.Fake)
	if !ok {
		t.Fatal("not the fake")
	}
	mounts.Fail(broken)
	if err := refused(t, r, device, target, Options{Type: "xfs"}); !errors.Is(err, broken) {
		t.Errorf("%v, want the injected error", err)
	}
	mounts.Fail(nil)
	mountAt(t, r, device, target, Options{Type: "xfs", Flags: []string{"noatime"}})
	want := &mount.FakeMount{Source: device, Options: mount.Options{Flags: []string{"nouuid", "noatime", "rw"}}}
	if diff := cmp.Diff(want, mounts.At(target)); diff != "" {
		t.Errorf("At (-want +got):\n%s", diff)
	}
}

// TestFakeWithoutLoops takes any file for a device.
func TestFakeWithoutLoops(t *testing.T) {
	r := fakeRig(t)
	mounts := &mount.Fake{}
	r.Filesystems, r.mounts = &Fake{Mounts: mounts}, mounts
	device := newImage(t, r, roomy)
	target := newTarget(t, r)
	mountAt(t, r, device, target, Options{Type: "ext3"})
	if err := os.Truncate(device, 2*roomy); err != nil {
		t.Fatal(err)
	}
	if err := r.Grow(withTestDeadline(t), device, target); err != nil {
		t.Error(err)
	}
	if got := usage(t, r, target).Bytes.Total; got != 2*roomy {
		t.Errorf("it has %d bytes, want %d", got, 2*roomy)
	}
}

// TestFakeKnowsItsDevices: a file that was not attached is none of them.
func TestFakeKnowsItsDevices(t *testing.T) {
	r := fakeRig(t)
	image := newImage(t, r, roomy)
	if err := refused(t, r, image, newTarget(t, r), Options{Type: "ext4"}); !strings.Contains(err.Error(), "no device") {
		t.Error(err)
	}
	small := filepath.Join(t.TempDir(), "small")
	if err := os.WriteFile(small, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	refused(t, r, small, newTarget(t, r), Options{Type: "ext4"})
}
