package disk

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/longshore-csi/longshore/kubeletplugin/fault"
	"github.com/longshore-csi/longshore/kubeletplugin/internal/records"
	"github.com/longshore-csi/longshore/kubeletplugin/layout"
)

var device = records.Device{SpecVolID: "pv-1", Handle: "vol-1", Driver: "d.example"}

// devicesLeft are the parents of the directories of all block volumes, which stay.
var devicesLeft = []string{
	"plugins", "plugins/kubernetes.io", "plugins/kubernetes.io/csi", "plugins/kubernetes.io/csi/volumeDevices",
	"plugins/kubernetes.io/csi/volumeDevices/publish", "plugins/kubernetes.io/csi/volumeDevices/staging", "pods",
}

func write(t *testing.T, path string) {
	t.Helper()
	if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o750), os.WriteFile(path, nil, 0o600)); err != nil {
		t.Fatal(err)
	}
}

// TestDeviceLifecycle: everything can be repeated, and in the end nothing of the volume is left.
func TestDeviceLifecycle(t *testing.T) {
	d := newDisk(t)
	for range 2 {
		if err := errors.Join(d.PrepareDevice(device), d.PrepareDeviceTarget("u", "pv-1")); err != nil {
			t.Fatalf("preparing must be repeatable: %v", err)
		}
	}
	if got, err := records.ReadDevice(d.Root.DeviceRecordDir("pv-1")); err != nil || got != device {
		t.Errorf("record: got %+v, %v", got, err)
	}
	if _, err := os.Stat(d.Root.DeviceTargetDir("pv-1")); err != nil {
		t.Errorf("the driver makes the target path, but not its directory: %v", err)
	}
	write(t, d.Root.DeviceTarget("u", "pv-1"))
	if _, err := os.Stat(d.Root.DeviceLink("u", "pv-1")); err != nil {
		t.Errorf("the link does not lead to the device: %v", err)
	}
	if err := d.CleanDevice("pv-1"); err == nil {
		t.Error("the volume is published, but was removed")
	}
	for range 2 {
		if err := errors.Join(d.ReleaseDevice("u", "pv-1"), d.CleanDeviceTarget("u", "pv-1"), d.CleanPod("u"), d.CleanDevice("pv-1")); err != nil {
			t.Fatalf("cleaning must be repeatable: %v", err)
		}
	}
	if diff := cmp.Diff(devicesLeft, tree(t, d)); diff != "" {
		t.Errorf("left on disk (-want +got):\n%s", diff)
	}
}

// TestDeviceKept: what is not empty stays, and so does the record.
func TestDeviceKept(t *testing.T) {
	cases := map[string]struct {
		reason string
		path   func(d *Disk) string
	}{
		"Staging":   {reason: "a driver has staged the volume there", path: func(d *Disk) string { return filepath.Join(d.Root.DeviceStaging("pv-1"), "device") }},
		"Published": {reason: "another pod has it", path: func(d *Disk) string { return d.Root.DeviceTarget("other", "pv-1") }},
		"Mapped":    {reason: "a kubelet has mapped it", path: func(d *Disk) string { return d.Root.DeviceMap("other", "pv-1") }},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			d := newDisk(t)
			if err := d.PrepareDevice(device); err != nil {
				t.Fatal(err)
			}
			write(t, tc.path(d))
			if err := d.CleanDevice("pv-1"); err == nil {
				t.Errorf("%s: it was removed", tc.reason)
			}
			if _, err := records.ReadDevice(d.Root.DeviceRecordDir("pv-1")); err != nil {
				t.Errorf("%s: record: %v", tc.reason, err)
			}
			if err := d.SweepStaging(d.Root.DeviceDir("pv-1")); err == nil {
				t.Errorf("%s: it was swept", tc.reason)
			}
		})
	}
}

// TestDeviceCrash stops at every point: nothing is there without the record, and cleaning goes on from there.
func TestDeviceCrash(t *testing.T) {
	points := []fault.Point{
		fault.BeforeStageRecord, fault.AfterStageRecord, fault.BeforeTargetRecord, fault.AfterTargetRecord,
		fault.BeforeTargetRemoval, fault.AfterTargetRemoval, fault.BeforeStagingRemoval, fault.AfterStagingRemoval,
	}
	for _, stop := range points {
		t.Run(string(stop), func(t *testing.T) {
			d := newDisk(t)
			d.Fault = func(p fault.Point) error {
				if p == stop {
					return fault.ErrCrashed
				}
				return nil
			}
			steps := []func() error{
				func() error { return d.PrepareDevice(device) }, func() error { return d.PrepareDeviceTarget("u", "pv-1") },
				func() error { return d.CleanDeviceTarget("u", "pv-1") }, func() error { return d.CleanDevice("pv-1") },
			}
			var err error
			for _, s := range steps {
				if err = s(); err != nil {
					break
				}
			}
			if !errors.Is(err, fault.ErrCrashed) {
				t.Fatalf("got %v, want a stop at %q", err, stop)
			}
			_, recErr := records.ReadDevice(d.Root.DeviceRecordDir("pv-1"))
			for _, path := range []string{d.Root.DeviceStaging("pv-1"), d.Root.DeviceLink("u", "pv-1")} {
				if _, err := os.Lstat(path); err == nil && recErr != nil {
					t.Errorf("there is %s but no record: %v", path, recErr)
				}
			}
			d.Fault = nil
			if recErr != nil {
				err = d.SweepStaging(d.Root.DeviceDir("pv-1"))
			} else {
				err = errors.Join(d.CleanDeviceTarget("u", "pv-1"), d.CleanDevice("pv-1"))
			}
			if err = errors.Join(err, d.CleanPod("u")); err != nil {
				t.Errorf("cleaning after the stop: %v", err)
			}
			if left := tree(t, d); slices.ContainsFunc(left, func(path string) bool { return strings.Contains(path, "pv-1") }) {
				t.Errorf("left on disk: %v", left)
			}
		})
	}
}

// TestLoopsOf finds loop devices as the kernel shows them.
func TestLoopsOf(t *testing.T) {
	sys := t.TempDir()
	for name, backing := range map[string]string{"loop0": "/root/dev/u\n", "loop1": "/root/dev/other\n", "loop2": "/root/dev/u (deleted)\n", "loop10": "/root/dev/u\n"} {
		file := filepath.Join(sys, "block", name, "loop", "backing_file")
		if err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o750), os.WriteFile(file, []byte(backing), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.MkdirAll(filepath.Join(sys, "block", "loop3"), 0o750); err != nil { // not in use
		t.Fatal(err)
	}
	if got, err := loopsOf(sys, "/root/dev/u"); err != nil || !slices.Equal(got, []string{"loop0", "loop10"}) {
		t.Errorf("got %v, %v; want loop0 and loop10", got, err)
	}
}

// TestReleaseDevice: with a real bind mount and a real loop device, as a kubelet makes them, also if the root directory is given by a link.
func TestReleaseDevice(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("bind mounts need root")
	}
	d := newDisk(t)
	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(string(d.Root), link); err != nil {
		t.Fatal(err)
	}
	d.Root = layout.Root(link)
	if err := d.PrepareDevice(device); err != nil {
		t.Fatal(err)
	}
	disk, bind := filepath.Join(t.TempDir(), "disk"), d.Root.DeviceMap("u", "pv-1")
	write(t, disk)
	write(t, bind)
	if err := os.Truncate(disk, 1<<20); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mount(disk, bind, "", syscall.MS_BIND, ""); err != nil {
		t.Skipf("this sandbox does not allow mounting: %v", err)
	}
	t.Cleanup(func() { _ = syscall.Unmount(bind, syscall.MNT_DETACH) })
	resolved, err := filepath.EvalSymlinks(filepath.Dir(bind))
	if err != nil {
		t.Fatal(err)
	}
	loop, err := exec.CommandContext(t.Context(), "losetup", "-f", "--show", bind).Output()
	if err != nil {
		t.Logf("without a loop device, which cannot be made here: %v", err)
	} else {
		device := filepath.Base(strings.TrimSpace(string(loop)))
		t.Cleanup(func() { _ = detachLoop(device, filepath.Join(resolved, filepath.Base(bind))) })
		if found, err := loopsOf("/sys", filepath.Join(resolved, "u")); err != nil || len(found) != 1 {
			t.Errorf("the loop device is not found: %v, %v", found, err)
		}
	}
	if err := d.ReleaseDevice("u", "pv-1"); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Lstat(bind); err == nil {
		t.Error("the file is still there")
	}
	if left, err := loopsOf("/sys", filepath.Join(resolved, "u")); err != nil || len(left) > 0 {
		t.Errorf("loop devices %v (%v) are left", left, err)
	}
	if _, err := os.Stat(disk); err != nil {
		t.Errorf("the device itself: %v", err)
	}
}

// TestDetachLoopOfSomebodyElse: a device that was found for a path, and shows another file by now, is left as it is.
func TestDetachLoopOfSomebodyElse(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("loop devices need root")
	}
	file := filepath.Join(t.TempDir(), "file")
	write(t, file)
	if err := os.Truncate(file, 1<<20); err != nil {
		t.Fatal(err)
	}
	out, err := exec.CommandContext(t.Context(), "losetup", "-f", "--show", file).Output()
	if err != nil {
		t.Skipf("no loop device can be made here: %v", err)
	}
	device := filepath.Base(strings.TrimSpace(string(out)))
	t.Cleanup(func() { _ = detachLoop(device, file) })
	if err := detachLoop(device, filepath.Join(filepath.Dir(file), "former")); err != nil {
		t.Error(err)
	}
	if found, err := loopsOf("/sys", file); err != nil || len(found) != 1 {
		t.Errorf("the device of another file was detached: %v, %v", found, err)
	}
}
