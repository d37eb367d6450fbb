package disk

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/longshore-csi/longshore/kubeletplugin/fault"
	"github.com/longshore-csi/longshore/kubeletplugin/internal/records"
	"github.com/longshore-csi/longshore/kubeletplugin/layout"
)

var (
	staging = records.Staging{Handle: "vol-1", Driver: "d.example"}
	target  = records.Target{SpecVolID: "pv-1", Handle: "vol-1", Driver: "d.example", Lifecycle: records.Persistent}
)

func newDisk(t *testing.T) *Disk {
	t.Helper()
	return &Disk{Root: layout.Root(t.TempDir())}
}

// tree lists everything below the root, so a test sees what was left and what was lost.
func tree(t *testing.T, d *Disk) []string {
	t.Helper()
	var all []string
	err := filepath.WalkDir(string(d.Root), func(path string, _ fs.DirEntry, err error) error {
		if rel, _ := filepath.Rel(string(d.Root), path); rel != "." {
			all = append(all, rel)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func TestStagingLifecycle(t *testing.T) {
	d := newDisk(t)
	for range 2 {
		if err := d.PrepareStaging(staging); err != nil {
			t.Fatalf("preparing must be repeatable: %v", err)
		}
	}
	dir := d.Root.StagingDir(staging.Driver, staging.Handle)
	if got, err := records.ReadStaging(dir); err != nil || got != staging {
		t.Errorf("record: got %+v, %v", got, err)
	}
	if fi, err := os.Stat(filepath.Join(dir, layout.StagingLeaf)); err != nil || fi.Mode().Perm()&0o027 != 0 {
		t.Errorf("staging path: got %v, %v, want a directory that others cannot enter", fi, err)
	}
	for range 2 {
		if err := d.CleanStaging(staging.Driver, staging.Handle); err != nil {
			t.Fatalf("cleaning must be repeatable: %v", err)
		}
	}
	want := []string{"plugins", "plugins/kubernetes.io", "plugins/kubernetes.io/csi", "plugins/kubernetes.io/csi/d.example"}
	if diff := cmp.Diff(want, tree(t, d)); diff != "" {
		t.Errorf("only the driver's directory stays (-want +got):\n%s", diff)
	}
}

func TestTargetLifecycle(t *testing.T) {
	d := newDisk(t)
	if err := d.PrepareTarget("uid-1", target); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Lstat(d.Root.Target("uid-1", "pv-1")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the target path belongs to the driver, but it was made: %v", err)
	}
	if err := os.Mkdir(d.Root.Target("uid-1", "pv-1"), 0o750); err != nil {
		t.Fatal(err)
	}
	if err := d.CleanPod("uid-1"); err == nil {
		t.Error("a pod whose volume has a record was cleaned")
	}
	if err := d.CleanTarget("uid-1", "pv-1"); err != nil {
		t.Fatal(err)
	}
	if err := d.CleanPod("uid-1"); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"pods"}, tree(t, d)); diff != "" {
		t.Errorf("left behind (-want +got):\n%s", diff)
	}
}

func TestCleanKeepsData(t *testing.T) {
	d := newDisk(t)
	if err := d.PrepareTarget("uid-1", target); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(d.Root.Target("uid-1", "pv-1"), "data")
	if err := os.MkdirAll(filepath.Dir(file), 0o750); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte("precious"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := d.CleanTarget("uid-1", "pv-1"); !errors.Is(err, syscall.ENOTEMPTY) {
		t.Errorf("cleaning a target with data: got %v, want ENOTEMPTY", err)
	}
	if _, err := os.Stat(file); err != nil {
		t.Errorf("data below the target is gone: %v", err)
	}
	if _, err := records.ReadTarget(d.Root.TargetDir("uid-1", "pv-1")); err != nil {
		t.Errorf("the record must outlive the target path: %v", err)
	}
}

func TestCleanRefusesMountPoint(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("mounting a tmpfs needs root")
	}
	d := newDisk(t)
	if err := d.PrepareStaging(staging); err != nil {
		t.Fatal(err)
	}
	path := d.Root.Staging(staging.Driver, staging.Handle)
	if err := syscall.Mount("tmpfs", path, "tmpfs", 0, "size=64k"); err != nil {
		t.Skipf("this sandbox does not allow mounting: %v", err)
	}
	t.Cleanup(func() { _ = syscall.Unmount(path, syscall.MNT_DETACH) })
	if err := d.CleanStaging(staging.Driver, staging.Handle); !errors.Is(err, syscall.EBUSY) {
		t.Errorf("cleaning a mounted staging path: got %v, want EBUSY", err)
	}
	if _, err := records.ReadStaging(filepath.Dir(path)); err != nil {
		t.Errorf("the record must stay while the path is mounted: %v", err)
	}
}

func TestCleanPod(t *testing.T) {
	cases := map[string]struct {
		reason string
		files  []string
		fails  bool
		left   []string
	}{
		"Absent":     {reason: "a pod without CSI volumes has no directory", left: []string{}},
		"Unrecorded": {reason: "stopped between mkdir and record", files: []string{"volumes/kubernetes.io~csi/v/mount/"}},
		"TempFile": {
			reason: "stopped while the record was written",
			files:  []string{"volumes/kubernetes.io~csi/v/.vol_data.json.tmp"},
		},
		"ForeignFile": {
			reason: "other volumes are not ours to remove",
			files:  []string{"volumes/kubernetes.io~empty-dir/v/data"},
			left:   []string{"data", "kubernetes.io~empty-dir", "u", "v", "volumes"},
		},
		"Data": {
			reason: "data in a volume directory is never removed",
			files:  []string{"volumes/kubernetes.io~csi/v/mount/data"},
			fails:  true,
			left:   []string{"data", "kubernetes.io~csi", "mount", "u", "v", "volumes"},
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			d := newDisk(t)
			for _, f := range tc.files {
				makeFile(t, filepath.Join(d.Root.Pod("u"), f), f[len(f)-1] == '/')
			}
			if err := d.CleanPod("u"); (err != nil) != tc.fails {
				t.Errorf("%s: error %v, want failure %t", tc.reason, err, tc.fails)
			}
			got := []string{}
			for _, p := range tree(t, d) {
				if p != "pods" {
					got = append(got, filepath.Base(p))
				}
			}
			slices.Sort(got)
			if diff := cmp.Diff(append([]string{}, tc.left...), got); diff != "" {
				t.Errorf("%s (-want +got):\n%s", tc.reason, diff)
			}
		})
	}
}

func makeFile(t *testing.T, path string, dir bool) {
	t.Helper()
	parent := filepath.Dir(path)
	if dir {
		parent = path
	}
	if err := os.MkdirAll(parent, 0o750); err != nil {
		t.Fatal(err)
	}
	if !dir {
		if err := os.WriteFile(path, []byte("x"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// TestCrashLeavesRecord stops at every point of preparing and cleaning, and looks whether the
// staging path can exist without its record.
func TestCrashLeavesRecord(t *testing.T) {
	points := []fault.Point{fault.BeforeStageRecord, fault.AfterStageRecord, fault.BeforeStagingRemoval, fault.AfterStagingRemoval}
	for _, stop := range points {
		t.Run(string(stop), func(t *testing.T) {
			d := newDisk(t)
			d.Fault = func(p fault.Point) error {
				if p == stop {
					return fault.ErrCrashed
				}
				return nil
			}
			err := d.PrepareStaging(staging)
			if err == nil {
				err = d.CleanStaging(staging.Driver, staging.Handle)
			}
			if !errors.Is(err, fault.ErrCrashed) {
				t.Fatalf("got %v, want a stop at %q", err, stop)
			}
			_, pathErr := os.Lstat(d.Root.Staging(staging.Driver, staging.Handle))
			_, recErr := records.ReadStaging(d.Root.StagingDir(staging.Driver, staging.Handle))
			if pathErr == nil && recErr != nil {
				t.Errorf("there is a staging path but no record: %v", recErr)
			}
			d.Fault = nil
			if err := d.CleanStaging(staging.Driver, staging.Handle); err != nil {
				t.Errorf("cleaning after the stop: %v", err)
			}
		})
	}
}

func TestSweepStaging(t *testing.T) {
	cases := map[string]struct {
		reason string
		files  []string
		fails  bool
	}{
		"Empty":    {reason: "stopped before the record", files: []string{"globalmount/"}},
		"TempFile": {reason: "stopped while the record was written", files: []string{".vol_data.json.tmp"}},
		"Record":   {reason: "a record means that something may be staged", files: []string{"vol_data.json"}, fails: true},
		"Data":     {reason: "data is never removed", files: []string{"globalmount/data"}, fails: true},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			d := newDisk(t)
			dir := d.Root.StagingDir(staging.Driver, staging.Handle)
			for _, f := range tc.files {
				makeFile(t, filepath.Join(dir, f), f[len(f)-1] == '/')
			}
			if err := d.SweepStaging(dir); (err != nil) != tc.fails {
				t.Errorf("%s: error %v, want failure %t", tc.reason, err, tc.fails)
			}
			if _, err := os.Lstat(dir); errors.Is(err, fs.ErrNotExist) == tc.fails {
				t.Errorf("%s: directory: %v", tc.reason, err)
			}
		})
	}
}
