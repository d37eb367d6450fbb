package recovery

import (
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/longshore-csi/longshore/kubeletplugin/internal/records"
	"github.com/longshore-csi/longshore/kubeletplugin/layout"
	"github.com/longshore-csi/longshore/kubeletplugin/volume"
)

// TestRealBindMount: with the kernel's mount table, a target that has lost its record is found to be a bind mount of the
// staging path, also if the root directory is given by a link.
func TestRealBindMount(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("mounting a tmpfs needs root")
	}
	base := newTree(t)
	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(string(base.disk.Root), link); err != nil {
		t.Fatal(err)
	}
	tr := tree{t: t, disk: base.disk}
	tr.disk.Root = layout.Root(link)
	staging := filepath.Join(tr.stage("vol-1"), layout.StagingLeaf)
	dir := tr.publish("uid-a", "pv-1", "vol-1", records.Persistent)
	target := filepath.Join(dir, layout.TargetLeaf)
	tr.spoil(dir)
	if err := errors.Join(os.Mkdir(target, 0o750), syscall.Mount("tmpfs", staging, "tmpfs", 0, "size=64k")); err != nil {
		t.Skipf("this sandbox does not allow mounting: %v", err)
	}
	t.Cleanup(func() { _ = syscall.Unmount(staging, syscall.MNT_DETACH) })
	if err := syscall.Mount(staging, target, "", syscall.MS_BIND, ""); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = syscall.Unmount(target, syscall.MNT_DETACH) })
	r, err := Scan(tr.disk.Root, HostMounts)
	if err != nil {
		t.Fatal(err)
	}
	want := []volume.Recovered{persistent("vol-1", true, volume.Key{Pod: "uid-a", SpecName: "pv-1"})}
	if diff := cmp.Diff(want, r.Volumes); diff != "" || len(r.Lost)+len(r.Foreign) > 0 {
		t.Errorf("lost %v, foreign %v, volumes (-want +got):\n%s", r.Lost, r.Foreign, diff)
	}
}
