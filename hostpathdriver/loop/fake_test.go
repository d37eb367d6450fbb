package loop

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func fakeRig(t *testing.T) (rig, *Fake) {
	t.Helper()
	f := &Fake{Dir: t.TempDir()}
	return rig{
		Devices: f,
		hold: func(t *testing.T, device string) func() {
			t.Helper()
			release, err := f.Hold(device)
			if err != nil {
				t.Fatal(err)
			}
			closed := func() {
				if err := release(); err != nil {
					t.Error(err)
				}
			}
			t.Cleanup(closed)
			return closed
		},
		size: func(t *testing.T, device string) int64 {
			t.Helper()
			for _, d := range f.Table() {
				if d.Path == device {
					return d.Size
				}
			}
			t.Errorf("%s is not in the table", device)
			return 0
		},
		readAhead: func(t *testing.T, device string) int64 {
			t.Helper()
			for _, d := range f.Table() {
				if d.Path == device {
					return d.ReadAhead
				}
			}
			t.Errorf("%s is not in the table", device)
			return 0
		},
		reboot: func(t *testing.T, _ string) {
			t.Helper()
			if err := f.Reboot(); err != nil {
				t.Error(err)
			}
		},
	}, f
}

func TestFakeContract(t *testing.T) {
	testContract(t, func(t *testing.T) rig {
		r, _ := fakeRig(t)
		return r
	})
}

func TestFakeKeepsATable(t *testing.T) {
	r, f := fakeRig(t)
	file := newFile(t, r, mib)
	writable, readOnly := attach(t, r, file, false), attach(t, r, file, true)
	want := []FakeDevice{
		{Path: filepath.Join(f.Dir, "loop0"), File: file, Size: mib},
		{Path: filepath.Join(f.Dir, "loop1"), File: file, ReadOnly: true, Size: mib},
	}
	if diff := cmp.Diff(want, f.Table()); diff != "" {
		t.Errorf("Table (-want +got):\n%s", diff)
	}
	if writable != want[0].Path || readOnly != want[1].Path {
		t.Errorf("Attach = %s and %s", writable, readOnly)
	}
	if err := f.Resize(withTestDeadline(t), file); err != nil {
		t.Fatal(err)
	}
	detach(t, r, file, false)
	if diff := cmp.Diff(want[1:], f.Table()); diff != "" {
		t.Errorf("Table after Detach (-want +got):\n%s", diff)
	}
	if _, err := os.Stat(writable); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the device is still there: %v", err)
	}
	calls := []string{"attach " + file, "attach " + file, "resize " + file, "detach " + file}
	if diff := cmp.Diff(calls, f.Calls()); diff != "" {
		t.Errorf("Calls (-want +got):\n%s", diff)
	}
}

// TestFakeGoesOnAfterTakenNames finds devices of an earlier Fake in its Dir.
func TestFakeGoesOnAfterTakenNames(t *testing.T) {
	r, f := fakeRig(t)
	file := newFile(t, r, mib)
	first := attach(t, r, file, false)
	second, err := (&Fake{Dir: f.Dir}).Attach(withTestDeadline(t), file, false)
	if err != nil {
		t.Fatal(err)
	}
	if want := filepath.Join(f.Dir, "loop1"); second != want || first == second {
		t.Errorf("Attach = %s, then %s, want %s", first, second, want)
	}
}

func TestFakeFails(t *testing.T) {
	r, f := fakeRig(t)
	file := newFile(t, r, mib)
	device := attach(t, r, file, false)
	broken := errors.New("no more devices")
	f.Fail(broken)
	_, err := f.Attach(withTestDeadline(t), file, true)
	for call, err := range map[string]error{"Attach": err, "Detach": f.Detach(withTestDeadline(t), file, false), "Resize": f.Resize(withTestDeadline(t), file)} {
		if !errors.Is(err, broken) {
			t.Errorf("%s: %v, want the injected error", call, err)
		}
	}
	wantDevice(t, r, file, false, device)
	f.Fail(nil)
	detach(t, r, file, false)
}

func TestFakeNeedsItsDir(t *testing.T) {
	file := filepath.Join(t.TempDir(), "disk")
	createFile(t, file, mib)
	f := &Fake{Dir: filepath.Join(t.TempDir(), "missing")}
	if device, err := f.Attach(withTestDeadline(t), file, false); device != "" || !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("Attach = %q, %v", device, err)
	}
	if got := f.Table(); len(got) != 0 {
		t.Errorf("after a failure: %v", got)
	}
}

// TestFakeHolds counts users: the device goes with the last one, and releasing
// twice counts once.
func TestFakeHolds(t *testing.T) {
	r, f := fakeRig(t)
	file := newFile(t, r, mib)
	device := attach(t, r, file, false)
	first, second := r.hold(t, device), r.hold(t, device)
	giveUp(t, r, file, false)
	first()
	first()
	if _, err := os.Stat(device); err != nil {
		t.Errorf("the second user has lost the device: %v", err)
	}
	second()
	if _, err := os.Stat(device); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the device is still there: %v", err)
	}
	if _, err := f.Hold(device); err == nil {
		t.Error("a device that is gone is held")
	}
}

// TestFakeRebootsWhileHeld ends the users with the machine.
func TestFakeRebootsWhileHeld(t *testing.T) {
	r, f := fakeRig(t)
	file := newFile(t, r, mib)
	release := r.hold(t, attach(t, r, file, false))
	if err := f.Reboot(); err != nil {
		t.Fatal(err)
	}
	again := attach(t, r, file, false)
	release()
	wantDevice(t, r, file, false, again)
	if err := os.Remove(again); err != nil {
		t.Fatal(err)
	}
	if err := f.Reboot(); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("Reboot without the file of a device: %v", err)
	}
}
