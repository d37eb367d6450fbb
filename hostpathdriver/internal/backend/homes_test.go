package backend

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/longshore-csi/longshore/hostpathdriver/internal/volume"
)

// newPools is a world with a pool of a size and a directory, one with a directory
// only, and one with a size only.
func newPools(t *testing.T) *world {
	t.Helper()
	w := newWorld(t)
	w.limits = map[string]int64{"fast": 10 * gib, "slow": volume.Unlimited, "plain": 5 * gib}
	w.poolDirs = map[string]string{"fast": t.TempDir(), "slow": t.TempDir()}
	return w
}

func (s *system) createIn(pool, name string, source *volume.Source) (*volume.Volume, error) {
	req := createRequest(name)
	req.Source = source
	if pool != "" {
		req.Parameters = map[string]string{"kind": pool}
	}
	if source != nil {
		return s.fill(req)
	}
	return s.volumes.Create(s.ctx, req)
}

func (s *system) fill(req *volume.CreateRequest) (*volume.Volume, error) {
	v, err := s.volumes.Create(s.ctx, req)
	if err != nil {
		return nil, err
	}
	err = s.volumes.Copy(s.ctx, v.ID, func(ctx context.Context) error { return s.volumes.Complete(ctx, v.ID) })
	return v, err
}

// TestPoolDirectories: everything of a pool lies in its directory, and what has
// none is where it always was.
func TestPoolDirectories(t *testing.T) {
	w := newPools(t)
	s := w.boot()
	fast, err := s.createIn("fast", "a", nil)
	w.must(err)
	plain, err := s.createIn("plain", "b", nil)
	w.must(err)
	w.must(os.WriteFile(filepath.Join(w.contents(fast.ID), "file"), []byte("text"), 0o600))
	taken, err := s.volumes.CreateSnapshot(s.ctx, &volume.SnapshotRequest{Name: "s", Source: fast.ID})
	w.must(err)
	w.must(s.volumes.Copy(s.ctx, taken.ID, func(ctx context.Context) error { return s.volumes.Complete(ctx, taken.ID) }))
	near, err := s.createIn("", "c", &volume.Source{Snapshot: taken.ID})
	w.must(err)
	far, err := s.createIn("slow", "d", &volume.Source{Volume: fast.ID})
	w.must(err)
	w.must(s.node.Publish(s.ctx, s.inlineRequest("csi-1", map[string]string{"pool": "slow"})))
	w.must(s.node.Stage(s.ctx, s.stageRequest(far.ID)))

	want := []string{
		"fast snapshots/" + string(taken.ID), "fast volumes/" + string(fast.ID), "fast volumes/" + string(near.ID),
		"slow volumes/csi-1", "slow volumes/" + string(far.ID),
	}
	for range 2 { // the second time after a restart
		got := slices.Sorted(slices.Values(w.inPools()))
		if diff := cmp.Diff(slices.Sorted(slices.Values(want)), got); diff != "" {
			t.Errorf("in the directories of the pools (-want +got):\n%s", diff)
		}
		for _, v := range []*volume.Volume{near, far} {
			if text, err := os.ReadFile(filepath.Join(w.contents(v.ID), "file")); string(text) != "text" {
				t.Errorf("copy in pool %q: %q, %v", v.Pool, text, err)
			}
		}
		if gone(filepath.Join(w.stateDir, volumesDir, string(plain.ID))) {
			t.Error("a pool without a directory is not in the state directory")
		}
		if m := w.fake.At(w.staging(far.ID)); m == nil || m.Source != w.contents(far.ID) {
			t.Errorf("staged is %+v, want %s", m, w.contents(far.ID))
		}
		s = w.boot()
	}
	w.must(s.node.Unstage(s.ctx, far.ID, w.staging(far.ID)), s.node.Unpublish(s.ctx, "csi-1", w.target("csi-1")))
	for _, id := range []volume.ID{fast.ID, plain.ID, near.ID, far.ID} {
		w.must(s.volumes.Delete(s.ctx, id))
	}
	w.must(s.volumes.DeleteSnapshot(s.ctx, taken.ID))
	if left := w.files(); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}

// TestPoolWithoutSizeHasWhatItsDiskHas: and a pool with one has no more.
func TestPoolWithoutSizeHasWhatItsDiskHas(t *testing.T) {
	w := newPools(t)
	s := w.boot()
	capacity := func(pool string) volume.Capacity {
		c, err := s.volumes.Capacity(s.ctx, &volume.CapacityRequest{Parameters: map[string]string{"kind": pool}})
		w.must(err)
		return c
	}
	if got, want := capacity("fast"), (volume.Capacity{Available: 10 * gib, Largest: 10 * gib}); got != want {
		t.Errorf("with a size: %+v, want %+v", got, want)
	}
	disk, err := freeOf(w.poolDirs["slow"])
	w.must(err)
	got := capacity("slow")
	// Other programs write to the disk meanwhile.
	if got.Available < disk.bytes/2 || got.Available > disk.bytes*2 || got.Largest != min(got.Available, 1<<40) {
		t.Errorf("without one: %+v, the disk has %d bytes", got, disk.bytes)
	}
	if all := capacity(""); all.Available < 15*gib+disk.bytes/2 || all.Largest != max(10*gib, min(got.Available, 1<<40)) {
		t.Errorf("all: %+v", all)
	}
}

// TestFreeSpaceIsRounded: an idle disk, to which only logs are written, has the
// same capacity for long.
func TestFreeSpaceIsRounded(t *testing.T) {
	for free, want := range map[int64]int64{
		0: 0, 1: 1, 63: 63, 64: 64, 65: 64, 127: 126, 80*gib + 12345: 80 * gib, 81 * gib: 80 * gib, 82 * gib: 82 * gib, math.MaxInt64: 63 << 57,
	} {
		if got := rounded(free); got != want || got > free || free-got > free/32 {
			t.Errorf("%d bytes are told as %d, want %d", free, got, want)
		}
	}
}

// TestPoolWhoseDiskIsMissing: nobody else suffers from it, nothing is put where
// the disk should be, nothing is forgotten, and all is well when it is back.
func TestPoolWhoseDiskIsMissing(t *testing.T) {
	w := newPools(t)
	s := w.boot()
	v, err := s.createIn("slow", "a", nil)
	w.must(err)
	inline := s.inlineRequest("csi-1", map[string]string{"pool": "slow"})
	w.must(s.node.Publish(s.ctx, inline))
	dir := w.poolDirs["slow"]
	w.must(os.Rename(dir, dir+"-away"), os.Mkdir(dir, 0o700)) // the mount point, without its mount
	w.must(w.fake.Unmount(w.ctx, w.target("csi-1")), os.Remove(w.target("csi-1")))

	s = w.boot()
	_, err = s.createIn("slow", "b", nil)
	wantErr(t, "a new volume", err, volume.ErrPrecondition)
	wantErr(t, "a new inline volume", s.node.Publish(s.ctx, s.inlineRequest("csi-2", map[string]string{"pool": "slow"})), volume.ErrPrecondition)
	wantErr(t, "the removal of a volume", s.volumes.Delete(s.ctx, v.ID), volume.ErrPrecondition)
	if c, err := s.volumes.Capacity(s.ctx, &volume.CapacityRequest{Parameters: map[string]string{"kind": "slow"}}); err != nil || c.Available != 0 {
		t.Errorf("capacity without a disk: %+v, %v", c, err)
	}
	health, err := s.volumes.Health(s.ctx, v.ID)
	w.must(err)
	if diff := cmp.Diff([]string{reasonContentsUnreachable, reasonStorageUnreachable}, reasons(health.Conditions)); diff != "" {
		t.Errorf("health of a volume that is not there (-want +got):\n%s", diff)
	}
	other, err := s.createIn("fast", "c", nil)
	w.must(err)
	w.must(s.volumes.Delete(s.ctx, other.ID))
	if entries, err := os.ReadDir(dir); err != nil || len(entries) > 0 {
		t.Errorf("where the disk should be: %v, %v", entries, err)
	}

	w.must(os.Remove(dir), os.Rename(dir+"-away", dir))
	b, err := s.createIn("slow", "b", nil) // without a restart
	w.must(err)
	w.must(s.volumes.Delete(s.ctx, v.ID), s.volumes.Delete(s.ctx, b.ID))
	w.boot() // collects the inline volume, which no pod has any more
	if left := w.files(); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}

// TestPoolThatCannotBeReachedYet: it is made when its directory is there.
func TestPoolThatCannotBeReachedYet(t *testing.T) {
	w := newPools(t)
	w.must(os.Remove(w.poolDirs["slow"]))
	s := w.boot()
	_, err := s.createIn("slow", "a", nil)
	wantErr(t, "no directory", err, volume.ErrPrecondition)
	if !strings.Contains(fmt.Sprint(err), w.poolDirs["slow"]) {
		t.Errorf("the error does not name the directory: %v", err)
	}
	w.must(os.Mkdir(w.poolDirs["slow"], 0o700))
	_, err = s.createIn("slow", "a", nil)
	w.must(err)
}

// TestPoolLosesItsFlag: volumes stay where they are.
func TestPoolLosesItsFlag(t *testing.T) {
	w := newPools(t)
	s := w.boot()
	v, err := s.createIn("slow", "a", nil)
	w.must(err)
	dirs := w.poolDirs
	w.poolDirs, w.limits = nil, nil
	s = w.boot()
	w.must(s.node.Stage(s.ctx, s.stageRequest(v.ID)), s.node.Unstage(s.ctx, v.ID, w.staging(v.ID)), s.volumes.Delete(s.ctx, v.ID))
	w.poolDirs = dirs
	if left := w.files(); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}

// TestRecordOfAHomeIsTorn: volumes know where they are, and new ones go to
// another home.
func TestRecordOfAHomeIsTorn(t *testing.T) {
	w := newPools(t)
	s := w.boot()
	before, err := s.createIn("slow", "a", nil)
	w.must(err)
	record := filepath.Join(w.stateDir, homesDir, filepath.Base(before.Home)+".json")
	w.must(os.Truncate(record, 10))
	s = w.boot()
	after, err := s.createIn("slow", "b", nil)
	w.must(err)
	if after.Home == before.Home || gone(filepath.Join(w.stateDir, homesDir, "quarantine", filepath.Base(record))) {
		t.Errorf("homes %s and %s, want another one, and the record in quarantine", before.Home, after.Home)
	}
	w.must(s.node.Stage(s.ctx, s.stageRequest(before.ID)), s.node.Unstage(s.ctx, before.ID, w.staging(before.ID)))
	w.must(s.volumes.Delete(s.ctx, before.ID), s.volumes.Delete(s.ctx, after.ID))
	if left := w.files(); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}

// TestTwoDriversInOnePool: neither touches what belongs to the other.
func TestTwoDriversInOnePool(t *testing.T) {
	a, b := newPools(t), newPools(t)
	b.poolDirs = a.poolDirs
	v, err := a.boot().createIn("fast", "a", nil)
	a.must(err)
	b.boot()
	_, err = b.boot().createIn("fast", "a", nil)
	a.must(err)
	b.must(os.RemoveAll(b.stateDir))
	s := a.boot()
	if gone(a.contents(v.ID)) {
		t.Fatal("another driver has removed an empty volume")
	}
	a.must(s.volumes.Delete(s.ctx, v.ID))
	if left := a.inPools(); len(left) != 1 {
		t.Errorf("of the other driver there is %v", left)
	}
}

// TestTwoControllersInOnePool: processes with the same state directory have the
// same home.
func TestTwoControllersInOnePool(t *testing.T) {
	w := newPools(t)
	dirs := w.poolDirs
	w.must(os.Remove(dirs["slow"]))
	first, second := w.boot(), w.boot()
	w.must(os.Mkdir(dirs["slow"], 0o700))
	a, err := first.createIn("slow", "a", nil)
	w.must(err, second.volumes.Refresh(w.ctx))
	b, err := second.createIn("slow", "b", nil)
	w.must(err)
	if a.Home != b.Home {
		t.Errorf("homes %s and %s", a.Home, b.Home)
	}
}

// TestCrashWhileAHomeIsMade: the next start goes on with the same.
func TestCrashWhileAHomeIsMade(t *testing.T) {
	for at := 1; ; at++ {
		w := newPools(t)
		steps, crashed := 0, ""
		w.step = func(name string) {
			if steps++; steps == at {
				crashed = name
				panic(crash{})
			}
		}
		err := survive(func() error { w.boot(); return nil })
		if crashed == "" {
			if at < 10 { // three steps for each of two pools, twice: controller and node
				t.Errorf("a start has %d steps", at-1)
			}
			return
		}
		if !errors.Is(err, errCrashed) {
			t.Fatal(err)
		}
		s := w.boot()
		v, err := s.createIn("slow", "a", nil)
		w.must(err)
		w.must(s.volumes.Delete(s.ctx, v.ID))
		for pool, dir := range w.poolDirs {
			if found, err := os.ReadDir(dir); err != nil || len(found) != 2 {
				t.Errorf("crash at %q: pool %s has %v, %v, want a home for volumes, and one for inline volumes", crashed, pool, found, err)
			}
		}
	}
}

// TestPathsInAPool: what is mounted into a pod is not in a pool.
func TestPathsInAPool(t *testing.T) {
	w := newPools(t)
	s := w.boot()
	v, err := s.createIn("slow", "a", nil)
	w.must(err)
	req := s.stageRequest(v.ID)
	req.Stage.Path = filepath.Join(w.poolDirs["fast"], "staging")
	wantErr(t, "in a pool", s.node.Stage(s.ctx, req), volume.ErrInvalid)
	req.Stage.Path = filepath.Dir(w.poolDirs["slow"])
	wantErr(t, "around a pool", s.node.Stage(s.ctx, req), volume.ErrInvalid)
}
