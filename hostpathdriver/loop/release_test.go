package loop

import (
	"os"
	"testing"
)

// listed returns what List says of a device.
func listed(t *testing.T, r rig, device string) *Shown {
	t.Helper()
	all, err := r.List(withTestDeadline(t))
	if err != nil {
		t.Fatal(err)
	}
	for _, shown := range all {
		if shown.Device == device {
			return &shown
		}
	}
	return nil
}

func release(t *testing.T, r rig, shown *Shown, orphaned bool) {
	t.Helper()
	if err := r.Release(withTestDeadline(t), *shown, func() (bool, error) { return orphaned, nil }); err != nil {
		t.Errorf("release: %v", err)
	}
}

func list(t *testing.T, r rig, file string) {
	device := attach(t, r, file, true)
	id, err := Identify(file)
	if err != nil {
		t.Fatal(err)
	}
	want := Shown{Device: device, ReadOnly: true, ID: id, File: file}
	if got := listed(t, r, device); got == nil || *got != want {
		t.Fatalf("List: %+v, want %+v", got, want)
	}
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(file + ".keep"); err != nil { // the other path of the file
		t.Fatal(err)
	}
	want.Deleted = true
	got := listed(t, r, device)
	if got == nil || *got != want {
		t.Fatalf("List after the deletion: %+v, want %+v", got, want)
	}
	release(t, r, got, true)
	if got := listed(t, r, device); got != nil && got.ID == id {
		t.Errorf("after Release: %+v", got)
	}
}

func releaseRefused(t *testing.T, r rig, file string) {
	device := attach(t, r, file, false)
	release(t, r, listed(t, r, device), false)
	wantDevice(t, r, file, false, device)
}

func releaseOther(t *testing.T, r rig, file string) {
	device := attach(t, r, file, false)
	shown := listed(t, r, device)
	shown.ID.Ino++
	release(t, r, shown, true)
	wantDevice(t, r, file, false, device)
}
