package backend

import (
	"context"
	"errors"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/longshore-csi/longshore/driverkit/mount"
	"github.com/longshore-csi/longshore/hostpathdriver/internal/quota"
	"github.com/longshore-csi/longshore/hostpathdriver/internal/volume"
)

// enforced are the sizes that directories are kept to: those that were limited and
// not released since, by name.
func (w *world) enforced() map[string]string {
	found := map[string]string{}
	for _, call := range w.fakeQ.Calls() {
		words := strings.Fields(call)
		if words[len(words)-1] == "failed" {
			continue
		}
		if name := filepath.Base(words[1]); words[0] == "limit" {
			found[name] = words[2]
		} else {
			delete(found, name)
		}
	}
	return found
}

// TestQuotaOfDirectories: the size of a directory is enforced from before
// anybody can write to it until it is gone. Disks are of their size, and
// snapshots are written to by nobody.
func TestQuotaOfDirectories(t *testing.T) {
	w := newWorld(t)
	w.fakeQ.Roots = []string{w.stateDir}
	s := w.boot()
	v := s.create("pvc-1")
	block, err := s.volumes.Create(s.ctx, blockRequest("pvc-2"))
	w.must(err)
	taken, err := s.volumes.CreateSnapshot(s.ctx, &volume.SnapshotRequest{Name: "s", Source: v.ID})
	w.must(err, s.complete(taken.ID))
	req := createRequest("pvc-3")
	req.Source = &volume.Source{Snapshot: taken.ID}
	clone, err := s.volumes.Create(s.ctx, req)
	w.must(err)
	w.must(s.node.Publish(s.ctx, s.inlineRequest("csi-1", map[string]string{"size": "1Mi"})))

	want := map[string]string{string(v.ID): "1073741824", string(clone.ID): "1073741824", "csi-1": "1048576"}
	if diff := cmp.Diff(want, w.enforced()); diff != "" {
		t.Errorf("limits, the clone's before it is filled (-want +got):\n%s", diff)
	}
	w.must(s.complete(clone.ID))
	_, err = s.expand(v.ID, 2*gib)
	w.must(err)
	want[string(v.ID)] = "2147483648"
	if diff := cmp.Diff(want, w.enforced()); diff != "" {
		t.Errorf("limits after an expansion (-want +got):\n%s", diff)
	}
	before := len(w.fakeQ.Calls())
	s = w.boot()
	if more := w.fakeQ.Calls()[before:]; len(more) > 0 {
		t.Errorf("a start, with all in order, calls %v", more)
	}

	w.must(s.node.Unpublish(s.ctx, "csi-1", w.target("csi-1")))
	for _, id := range []volume.ID{v.ID, block.ID, clone.ID} {
		w.must(s.volumes.Delete(s.ctx, id))
	}
	w.must(s.volumes.DeleteSnapshot(s.ctx, taken.ID))
	if left := slices.Sorted(maps.Keys(w.enforced())); len(left) > 0 {
		t.Errorf("limits left: %v", left)
	}
}

// complete makes a copy.
func (s *system) complete(id volume.ID) error {
	return s.volumes.Copy(s.ctx, id, func(ctx context.Context) error { return s.volumes.Complete(ctx, id) })
}

// TestQuotaMeasures: nobody walks through a directory that the file system
// counts.
func TestQuotaMeasures(t *testing.T) {
	w := newWorld(t)
	w.fakeQ.Roots = []string{w.stateDir}
	s := w.boot()
	v := s.create("pvc-1")
	w.must(s.node.Stage(s.ctx, s.stageRequest(v.ID)))
	w.must(os.WriteFile(filepath.Join(w.contents(v.ID), "file"), make([]byte, 1<<20), 0o600))
	stats, err := s.node.Stats(s.ctx, v.ID, w.staging(v.ID))
	w.must(err)
	counted, ok, err := w.fakeQ.Usage(w.contents(v.ID))
	w.must(err)
	if !ok || stats.Bytes.Used != counted.Bytes || stats.Bytes.Total != gib || stats.Inodes.Used != 2 {
		t.Errorf("statistics %+v, the file system counts %+v", stats, counted)
	}
	if len(s.node.meter.results) > 0 {
		t.Error("the directory was walked through all the same")
	}
	w.fakeQ.Switch(false)
	if stats, err = s.node.Stats(s.ctx, v.ID, w.staging(v.ID)); err != nil || stats.Bytes.Used < 1<<20 || stats.Bytes.Total != gib {
		t.Errorf("with quotas off: %+v, %v", stats, err)
	}
}

// TestQuotaComesLater: what was made without a limit stays without, as it may
// have more in it than it should.
func TestQuotaComesLater(t *testing.T) {
	w := newWorld(t)
	s := w.boot()
	v := s.create("pvc-1")
	w.fakeQ.Roots = []string{w.stateDir}
	s = w.boot()
	_, err := s.expand(v.ID, 2*gib)
	w.must(err)
	if got := w.enforced(); len(got) > 0 {
		t.Errorf("limits %v", got)
	}
	w.must(s.volumes.Delete(s.ctx, v.ID))
}

// TestQuotaInterrupted: a start finishes what a crash left between the record
// and the limit of a volume that was made larger, also where only the volumes are
// on a disk with quotas.
func TestQuotaInterrupted(t *testing.T) {
	w := newWorld(t)
	w.fakeQ.Roots = []string{filepath.Join(w.stateDir, volumesDir)}
	v := w.boot().create("pvc-1")
	w.step = func(name string) {
		if name == "expand:contents" {
			panic(crash{})
		}
	}
	s := w.boot()
	wantErr(t, "expansion", survive(func() error { _, err := s.expand(v.ID, 2*gib); return err }), errCrashed)
	w.step = nil
	w.boot()
	if diff := cmp.Diff(map[string]string{string(v.ID): "2147483648"}, w.enforced()); diff != "" {
		t.Errorf("limits after the next start (-want +got):\n%s", diff)
	}
}

// TestOnQuotas is the driver on file systems with project quotas, which kernels
// are made with or not.
func TestOnQuotas(t *testing.T) {
	for fsType, mkfs := range map[string][]string{"ext4": {"mkfs.ext4", "-q", "-O", "quota,project"}, "xfs": {"mkfs.xfs", "-q"}} {
		t.Run(fsType, func(t *testing.T) {
			w := newWorld(t)
			w.stateDir = filepath.Join(mountWithQuotas(t, mkfs), "state")
			w.mounter, w.quotas = mount.Kernel{}, quota.New()
			useLimited(t, w)
		})
	}
}

// mountWithQuotas skips the test where the kernel has none. In a virtual machine
// of vmtest it has.
func mountWithQuotas(t *testing.T, mkfs []string) string {
	t.Helper()
	image, dir := filepath.Join(t.TempDir(), "image"), t.TempDir()
	err := errors.Join(os.WriteFile(image, nil, 0o600), os.Truncate(image, 300<<20))
	for _, command := range [][]string{append(mkfs, image), {"mount", "-o", "loop,prjquota", image, dir}} {
		if err == nil {
			err = exec.Command(command[0], command[1:]...).Run()
		}
	}
	switch {
	case err != nil && os.Getenv("VMTEST") == "":
		t.Skipf("this kernel has no project quotas, or lets nobody mount: %v", err)
	case err != nil:
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, 0); err != nil {
			t.Error(err)
		}
	})
	return dir
}

// useLimited is the life of a volume whose workload wants more than it has.
func useLimited(t *testing.T, w *world) {
	t.Helper()
	const mib = 1 << 20
	s := w.boot()
	req := createRequest("pvc-1")
	req.Range.Required = 4 * mib
	v, err := s.volumes.Create(s.ctx, req)
	w.must(err, s.node.Stage(s.ctx, s.stageRequest(v.ID)))
	shown := w.staging(v.ID)
	if err := fillUp(shown, 3*mib); err != nil {
		t.Errorf("write 3 of 4 MiB: %v", err)
	}
	if err := fillUp(shown, 8*mib); !errors.Is(err, unix.EDQUOT) && !errors.Is(err, unix.ENOSPC) {
		t.Errorf("write 8 MiB to a volume of 4: %v", err)
	}
	stats, err := s.node.Stats(s.ctx, v.ID, shown)
	w.must(err)
	if b := stats.Bytes; b.Total != 4*mib || b.Used < 3*mib || b.Used > 4*mib || b.Available != b.Total-b.Used {
		t.Errorf("statistics of a full volume: %+v", b)
	}
	_, err = s.expand(v.ID, 16*mib)
	w.must(err)
	if err := fillUp(shown, 8*mib); err != nil {
		t.Errorf("write 8 MiB to a volume of 16: %v", err)
	}
	clone, err := s.fill(&volume.CreateRequest{
		Name: "pvc-2", Capabilities: req.Capabilities, Range: volume.Range{Required: 16 * mib}, Source: &volume.Source{Volume: v.ID},
	})
	w.must(err)
	counted, limited, err := w.quotas.Usage(w.contents(clone.ID))
	if err != nil || !limited || counted.Limit != 16*mib || counted.Bytes < 8*mib {
		t.Errorf("the clone has %+v, limited %t, %v", counted, limited, err)
	}
	s = w.boot()
	w.must(s.node.Unstage(s.ctx, v.ID, shown), s.volumes.Delete(s.ctx, v.ID), s.volumes.Delete(s.ctx, clone.ID))
	if left := w.files(); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}

// fillUp writes a file as a workload does, which has no rights of its own.
func fillUp(dir string, size int) error {
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // and never unlocked: the thread ends with its rights
		header, none := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}, [2]unix.CapUserData{}
		err := unix.Capset(&header, &none[0])
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, "file"), make([]byte, size), 0o600)
		}
		done <- err
	}()
	return <-done
}
