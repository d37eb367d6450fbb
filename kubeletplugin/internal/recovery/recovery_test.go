package recovery

import (
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/types"

	"github.com/longshore-csi/longshore/kubeletplugin/internal/disk"
	"github.com/longshore-csi/longshore/kubeletplugin/internal/records"
	"github.com/longshore-csi/longshore/kubeletplugin/layout"
	"github.com/longshore-csi/longshore/kubeletplugin/volume"
)

const driver = "d.example"

type tree struct {
	t    testing.TB
	disk *disk.Disk
}

func newTree(t testing.TB) tree {
	t.Helper()
	return tree{t: t, disk: &disk.Disk{Root: layout.Root(t.TempDir())}}
}

func (tr tree) stage(handle string) string {
	tr.t.Helper()
	if err := tr.disk.PrepareStaging(records.Staging{Driver: driver, Handle: handle}); err != nil {
		tr.t.Fatal(err)
	}
	return tr.disk.Root.StagingDir(driver, handle)
}

func (tr tree) publish(pod types.UID, spec, handle, lifecycle string) string {
	tr.t.Helper()
	rec := records.Target{SpecVolID: spec, Handle: handle, Driver: driver, Lifecycle: lifecycle}
	if err := tr.disk.PrepareTarget(pod, rec); err != nil {
		tr.t.Fatal(err)
	}
	return tr.disk.Root.TargetDir(pod, spec)
}

func (tr tree) spoil(dir string) {
	tr.t.Helper()
	if err := os.WriteFile(filepath.Join(dir, layout.RecordFile), nil, 0o600); err != nil {
		tr.t.Fatal(err)
	}
}

func (tr tree) scan(mounted ...string) *volume.Found {
	tr.t.Helper()
	r, err := Scan(tr.disk.Root, func(string) ([]volume.MountPoint, error) {
		var all []volume.MountPoint
		for _, point := range mounted {
			all = append(all, volume.MountPoint{Point: point, Source: "8:1/same"})
		}
		return all, nil
	})
	if err != nil {
		tr.t.Fatal(err)
	}
	return r
}

func persistent(handle string, staged bool, targets ...volume.Key) volume.Recovered {
	return volume.Recovered{
		Volume: volume.Volume{Name: layout.Unique(driver, handle), Driver: driver, Handle: handle, Attachable: true},
		Staged: staged, Targets: targets,
	}
}

func TestScanEmpty(t *testing.T) {
	tr := newTree(t)
	if diff := cmp.Diff(&volume.Found{}, tr.scan()); diff != "" {
		t.Errorf("a new root directory (-want +got):\n%s", diff)
	}
}

func TestScan(t *testing.T) {
	tr := newTree(t)
	tr.stage("vol-1")
	tr.stage("vol-2") // unpublished but not unstaged: kubelet issue 121937
	tr.publish("uid-a", "pv-1", "vol-1", records.Persistent)
	tr.publish("uid-b", "pv-1", "vol-1", records.Persistent)
	tr.publish("uid-b", "pv-3", "vol-3", records.Persistent) // stopped before it was staged
	tr.publish("uid-b", "scratch", "csi-abc", records.Ephemeral)
	got := tr.scan()
	want := &volume.Found{
		Volumes: []volume.Recovered{
			{
				Volume: volume.Volume{
					Name: layout.UniqueInline("uid-b", "scratch"), Driver: driver, Handle: "csi-abc", Ephemeral: true,
				},
				Targets: []volume.Key{{Pod: "uid-b", SpecName: "scratch"}},
			},
			persistent("vol-1", true, volume.Key{Pod: "uid-a", SpecName: "pv-1"}, volume.Key{Pod: "uid-b", SpecName: "pv-1"}),
			persistent("vol-2", true),
			persistent("vol-3", false, volume.Key{Pod: "uid-b", SpecName: "pv-3"}),
		},
		Pods: []types.UID{"uid-a", "uid-b"},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("found (-want +got):\n%s", diff)
	}
}

// TestScanSpoiled is kubelet issues 101791 and 108217: what cannot be read is not forgotten.
func TestScanSpoiled(t *testing.T) {
	cases := map[string]struct {
		reason  string
		build   func(tr tree) (mounted []string)
		volumes int
		lost    int
		foreign int
		unused  int
	}{
		"StagingFromTarget": {
			reason: "a target record of the same volume has the handle",
			build: func(tr tree) []string {
				tr.publish("uid-a", "pv-1", "vol-1", records.Persistent)
				tr.spoil(tr.stage("vol-1"))
				return nil
			},
			volumes: 1,
		},
		"StagingMounted": {
			reason: "nobody knows the volume, but it is mounted",
			build: func(tr tree) []string {
				dir := tr.stage("vol-1")
				tr.spoil(dir)
				return []string{filepath.Join(dir, layout.StagingLeaf)}
			},
			foreign: 1,
		},
		"StagingOfAnother": {
			reason: "a record that belongs elsewhere is not believed",
			build: func(tr tree) []string {
				if err := (records.Staging{Driver: driver, Handle: "other"}).Write(tr.stage("vol-1")); err != nil {
					tr.t.Fatal(err)
				}
				return nil
			},
			foreign: 1,
		},
		"TargetMounted": {
			reason: "a pod's mount without a record",
			build: func(tr tree) []string {
				dir := tr.publish("uid-a", "pv-1", "vol-1", records.Persistent)
				tr.spoil(dir)
				return []string{filepath.Join(dir, layout.TargetLeaf)}
			},
			lost: 1,
		},
		"TargetOfAnother": {
			reason: "a record that belongs elsewhere is not believed",
			build: func(tr tree) []string {
				rec := records.Target{SpecVolID: "..", Handle: "vol-1", Driver: driver}
				dir := tr.publish("uid-a", "pv-1", "vol-1", records.Persistent)
				if err := rec.Write(dir); err != nil {
					tr.t.Fatal(err)
				}
				return []string{filepath.Join(dir, layout.TargetLeaf)}
			},
			lost: 1,
		},
		"TargetWithFiles": {
			reason: "not every driver mounts; what is stored there is a volume's",
			build: func(tr tree) []string {
				dir := tr.publish("uid-a", "pv-1", "vol-1", records.Persistent)
				tr.spoil(dir)
				if err := os.MkdirAll(filepath.Join(dir, layout.TargetLeaf, "data"), 0o750); err != nil {
					tr.t.Fatal(err)
				}
				return nil
			},
			lost: 1,
		},
		"TargetNotMounted": {
			reason: "stopped before the record was written",
			build: func(tr tree) []string {
				dir := tr.publish("uid-a", "pv-1", "vol-1", records.Persistent)
				if err := records.Remove(dir); err != nil {
					tr.t.Fatal(err)
				}
				return nil
			},
		},
		"StagingUnused": {
			reason: "stopped between making the directory and writing the record",
			build: func(tr tree) []string {
				if err := records.Remove(tr.stage("vol-1")); err != nil {
					tr.t.Fatal(err)
				}
				return nil
			},
			unused: 1,
		},
		"OtherLayouts": {
			reason: "the directories for block volumes are empty",
			build: func(tr tree) []string {
				if err := os.MkdirAll(filepath.Join(tr.disk.Root.Drivers(), "volumeDevices", "publish"), 0o750); err != nil {
					tr.t.Fatal(err)
				}
				return nil
			},
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			tr := newTree(t)
			mounted := tc.build(tr)
			r := tr.scan(mounted...)
			if len(r.Volumes) != tc.volumes || len(r.Lost) != tc.lost || len(r.Foreign) != tc.foreign || len(r.Unused) != tc.unused {
				t.Errorf("%s: got %+v, want %d volumes, %d lost, %d foreign, %d unused", tc.reason, r, tc.volumes, tc.lost, tc.foreign, tc.unused)
			}
		})
	}
}

// TestLostTargetOfStagedVolume: a pod's mount has lost its record, but it is of the same directory as one staged volume.
func TestLostTargetOfStagedVolume(t *testing.T) {
	tr := newTree(t)
	staging := filepath.Join(tr.stage("vol-1"), layout.StagingLeaf)
	target := tr.publish("uid-a", "pv-1", "vol-1", records.Persistent)
	tr.spoil(target)
	mount := filepath.Join(target, layout.TargetLeaf)
	want := []volume.Recovered{persistent("vol-1", true, volume.Key{Pod: "uid-a", SpecName: "pv-1"})}
	if r := tr.scan(staging, mount); len(r.Lost) > 0 || !cmp.Equal(r.Volumes, want) {
		t.Errorf("found %+v, want the volume with the target (kubelet issue 101791)", r)
	}
	if r := tr.scan(mount); len(r.Lost) != 1 || r.Lost[0].Path != mount || r.Lost[0].Key != want[0].Targets[0] || !r.Volumes[0].Pinned {
		t.Errorf("found %+v, want a target of an unknown volume, which may be the staged one", r)
	}
	if r := tr.scan(staging); len(r.Lost) > 0 || r.Volumes[0].Pinned {
		t.Errorf("found %+v, but nothing is mounted at the target any more", r)
	}
	other := filepath.Join(tr.stage("vol-2"), layout.StagingLeaf)
	if r := tr.scan(staging, other, mount); len(r.Lost) != 1 || !r.Volumes[0].Pinned || !r.Volumes[1].Pinned {
		t.Errorf("found %+v, want both volumes pinned: the target may be of either", r)
	}
}

// TestPinned: a volume is also mounted at a path that is not a target.
func TestPinned(t *testing.T) {
	tr := newTree(t)
	staging := filepath.Join(tr.stage("vol-1"), layout.StagingLeaf)
	target := filepath.Join(tr.publish("uid-a", "pv-1", "vol-1", records.Persistent), layout.TargetLeaf)
	subpath := filepath.Join(tr.disk.Root.Pod("uid-a"), "volume-subpaths", "pv-1", "main", "0")
	nested := filepath.Join(target, "mnt")
	if r := tr.scan(staging, target, nested); r.Volumes[0].Pinned || len(r.Foreign) > 0 {
		t.Errorf("all mounts are explained, but found %+v", r)
	}
	if r := tr.scan(staging, target, subpath); !r.Volumes[0].Pinned || len(r.Foreign) != 1 || r.Foreign[0].Path != subpath {
		t.Errorf("the volume could be unstaged under a container: %+v", r)
	}
}

func TestScanFails(t *testing.T) {
	tr := newTree(t)
	broken := errors.New("no mount table")
	if _, err := Scan(tr.disk.Root, func(string) ([]volume.MountPoint, error) { return nil, broken }); !errors.Is(err, broken) {
		t.Errorf("without a mount table: got %v, want that error", err)
	}
	if err := os.WriteFile(tr.disk.Root.Pods(), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Scan(tr.disk.Root, func(string) ([]volume.MountPoint, error) { return nil, nil }); err == nil {
		t.Error("a pods directory that cannot be read must not count as empty")
	}
}

func TestHostMounts(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("mounting a tmpfs needs root")
	}
	base := t.TempDir()
	dir, link := filepath.Join(base, "dir"), filepath.Join(base, "link")
	point := filepath.Join(dir, "point")
	if err := errors.Join(os.MkdirAll(point, 0o750), os.Symlink(dir, link)); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mount("tmpfs", point, "tmpfs", 0, "size=64k"); err != nil {
		t.Skipf("this sandbox does not allow mounting: %v", err)
	}
	t.Cleanup(func() { _ = syscall.Unmount(point, syscall.MNT_DETACH) })
	cases := map[string]struct {
		reason, dir, want string
	}{
		"Plain":    {reason: "the usual way", dir: dir, want: point},
		"Itself":   {reason: "the directory may be a mount point, too", dir: point, want: point},
		"Slash":    {reason: "as people write a directory", dir: dir + "/", want: point},
		"Link":     {reason: "the mount table has no links, but the paths below the root have", dir: link, want: filepath.Join(link, "point")},
		"LinkPart": {reason: "a link anywhere in the path", dir: filepath.Join(link, "point"), want: filepath.Join(link, "point")},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			got, err := HostMounts(tc.dir)
			if err != nil || len(got) != 1 || got[0].Point != tc.want || got[0].Source == "" {
				t.Errorf("%s: got %v, %v, want %q", tc.reason, got, err, tc.want)
			}
		})
	}
	if _, err := HostMounts(filepath.Join(base, "none")); err == nil {
		t.Error("a directory that is not there: no error")
	}
}
