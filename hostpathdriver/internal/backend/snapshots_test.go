package backend

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/longshore-csi/longshore/driverkit"
	"github.com/longshore-csi/longshore/hostpathdriver/internal/contents"
)

func TestSnapshotsAndCopies(t *testing.T) {
	for name, form := range map[string]func(r *driverkit.CreateRequest){"Directory": nil, "Device": asDevice, "Image": asImage} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.limits = map[string]int64{"fast": gib}
			s := w.start()
			v := w.create(s, func(r *driverkit.CreateRequest) {
				if form != nil {
					form(r)
				}
				r.Size.Required = 32 * mib
			})
			place := func(kind, id string) string {
				if form == nil {
					return w.state(kind, id, "file")
				}
				return w.state(kind, id, "disk")
			}
			if name == "Image" { // A node has made its file system.
				w.must(s.cfg.contentsOf(s.volumes.find("pvc-1")).Prepared(v.ID))
			}
			if form == nil {
				w.write(place(contents.Volumes, v.ID), "data")
			} else {
				file, err := os.OpenFile(place(contents.Volumes, v.ID), os.O_WRONLY, 0)
				w.must(err)
				_, err = file.WriteString("data")
				w.must(err, file.Close())
			}
			snap := w.snapshot(s, "snap", v.ID)
			diff(t, "the snapshot again", snap, w.snapshot(s, "snap", v.ID))
			restored := w.create(s, func(r *driverkit.CreateRequest) {
				named("restored")(r)
				ofSnapshot(snap.ID)(r)
				r.Size.Required = 48 * mib
				if name == "Device" {
					asDevice(r)
				}
			})
			clone := w.create(s, func(r *driverkit.CreateRequest) {
				named("clone")(r)
				ofVolume(v.ID)(r)
				if name == "Device" {
					asDevice(r)
				}
			})
			for id, kind := range map[string]string{snap.ID: contents.Snapshots, restored.ID: contents.Volumes, clone.ID: contents.Volumes} {
				if got := w.read(place(kind, id)); got != "data" {
					t.Errorf("%s %s: %q", kind, id, got)
				}
			}
			if info, err := os.Stat(place(contents.Volumes, restored.ID)); form != nil && (err != nil || info.Size() != 48*mib) {
				t.Errorf("the restored disk: %v, %v", info, err)
			}
			for _, id := range []string{restored.ID, clone.ID} {
				if unreplayed := !gone(w.state(contents.Volumes, id, "unreplayed")); unreplayed != (name == "Image") {
					t.Errorf("%s: the journal of the copy is to be replayed: %t", id, unreplayed)
				}
			}
			w.wantLeft(s, "fast", gib-(32+32+48+32)*mib)
			s = w.start()
			w.wantLeft(s, "fast", gib-(32+32+48+32)*mib)
			w.must(w.delete(s, v.ID), w.delete(s, clone.ID), w.deleteSnapshot(s, snap.ID), w.delete(s, restored.ID))
			w.wantLeft(s, "fast", gib)
			w.wantNothing()
		})
	}
}

// TestCopyOfAnUnformattedImage: it has no contents, and the node that stages the copy makes its file system.
func TestCopyOfAnUnformattedImage(t *testing.T) {
	w := newWorld(t)
	s := w.start()
	v := w.create(s, func(r *driverkit.CreateRequest) { asImage(r); r.Size.Required = 32 * mib })
	snap := w.snapshot(s, "snap", v.ID)
	restored := w.create(s, func(r *driverkit.CreateRequest) { named("restored")(r); asImage(r); ofSnapshot(snap.ID)(r) })
	for path, want := range map[string]bool{
		w.state(contents.Snapshots, snap.ID, "unformatted"): true, w.state(contents.Volumes, restored.ID, "unformatted"): true,
		w.state(contents.Volumes, restored.ID, "unreplayed"): false,
	} {
		if gone(path) == want {
			t.Errorf("%s exists: %t, want %t", path, !want, want)
		}
	}
	device := w.create(s, func(r *driverkit.CreateRequest) { named("device")(r); asDevice(r); ofSnapshot(snap.ID)(r) })
	if !gone(w.state(contents.Volumes, device.ID, "unformatted")) {
		t.Error("a device of the snapshot is marked as an image")
	}
}

func TestCopiesThatAreRefused(t *testing.T) {
	w := newWorld(t)
	s := w.start()
	v, device := w.create(s, nil), w.create(s, func(r *driverkit.CreateRequest) { named("device")(r); asDevice(r) })
	snap := w.snapshot(s, "snap", device.ID)
	for name, c := range map[string]struct {
		reason string
		change func(r *driverkit.CreateRequest)
		err    error
	}{
		"Smaller":       {"the contents need their space", func(r *driverkit.CreateRequest) { ofVolume(v.ID)(r); r.Size.Required = mib - 1 }, driverkit.ErrOutOfRange},
		"Limit":         {"a limit below the source", func(r *driverkit.CreateRequest) { ofVolume(v.ID)(r); r.Size.Limit = mib - 1 }, driverkit.ErrOutOfRange},
		"DeviceOfFiles": {"no blocks in files", func(r *driverkit.CreateRequest) { ofVolume(v.ID)(r); asDevice(r) }, driverkit.ErrInvalid},
		"MountOfDevice": {"nobody knows what is on a device", ofSnapshot(snap.ID), driverkit.ErrInvalid},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := s.Create(w.ctx, request("copy", c.change))
			w.want(c.reason, err, c.err)
		})
	}
	_, err := s.CreateSnapshot(w.ctx, &driverkit.CreateSnapshotRequest{Name: "s", Volume: "none"})
	w.want("no such volume", err, driverkit.ErrNotFound)
	_, err = s.CreateSnapshot(w.ctx, &driverkit.CreateSnapshotRequest{Name: "s", Volume: v.ID, Parameters: map[string]string{"x": "y"}})
	w.want("a misspelt parameter", err, driverkit.ErrInvalid)
	if list, err := s.ListSnapshots(w.ctx, &driverkit.ListSnapshotsRequest{Volume: device.ID}); len(list.Entries) != 1 || err != nil {
		t.Errorf("snapshots of the device: %v, %v", list, err)
	}
	if list, err := s.ListSnapshots(w.ctx, &driverkit.ListSnapshotsRequest{Volume: v.ID}); len(list.Entries) != 0 || err != nil {
		t.Errorf("snapshots of the directory: %v, %v", list, err)
	}
}

func TestOwnerOfACopy(t *testing.T) {
	w := newWorld(t)
	s := w.start()
	v := w.create(s, func(r *driverkit.CreateRequest) { r.Parameters = map[string]string{"mode": "0700"} })
	same := w.create(s, func(r *driverkit.CreateRequest) { named("same")(r); ofVolume(v.ID)(r) })
	other := w.create(s, func(r *driverkit.CreateRequest) {
		named("other")(r)
		ofVolume(v.ID)(r)
		r.Parameters = map[string]string{"mode": "0750"}
	})
	for id, want := range map[string]os.FileMode{same.ID: 0o700, other.ID: 0o750} {
		if info, err := os.Stat(w.state(contents.Volumes, id)); err != nil || info.Mode().Perm() != want {
			t.Errorf("mode %v, %v, want %v", info.Mode(), err, want)
		}
	}
}

// group requests a group of two volumes.
func (w *world) group(s *Controller, name string) (*driverkit.GroupSnapshot, error) {
	return s.CreateGroupSnapshot(w.ctx, &driverkit.CreateGroupSnapshotRequest{Name: name, Volumes: []string{s.volumes.find("pvc-1").ID, s.volumes.find("pvc-2").ID}})
}

func groupWorld(t *testing.T) *world {
	t.Helper()
	w := newWorld(t)
	w.limits = map[string]int64{"fast": gib}
	s := w.start()
	for _, name := range []string{"pvc-1", "pvc-2"} {
		v := w.create(s, named(name))
		w.write(w.state(contents.Volumes, v.ID, "file"), "first")
	}
	return w
}

func TestGroups(t *testing.T) {
	w := groupWorld(t)
	s := w.start()
	g, err := w.group(s, "group")
	w.must(err)
	again, err := w.group(s, "group")
	w.must(err)
	diff(t, "the group again", g, again)
	s = w.start()
	got, err := s.GetGroupSnapshot(w.ctx, &driverkit.GetGroupSnapshotRequest{ID: g.ID})
	w.must(err)
	diff(t, "the group after a restart", g, got)
	for i, member := range g.Snapshots {
		if member.Group != g.ID || member.Volume != s.volumes.find([]string{"pvc-1", "pvc-2"}[i]).ID {
			t.Errorf("member %d: %+v", i, member)
		}
		w.want("deletion of a member alone", w.deleteSnapshot(s, member.ID), driverkit.ErrInvalid)
	}
	w.wantLeft(s, "fast", gib-4*mib)
	for name, c := range map[string]struct {
		req driverkit.CreateGroupSnapshotRequest
		err error
	}{
		"OtherParameters": {driverkit.CreateGroupSnapshotRequest{Name: "group", Parameters: map[string]string{"ignoreFailedRead": ""}}, driverkit.ErrExists},
		"BadParameters":   {driverkit.CreateGroupSnapshotRequest{Name: "g2", Parameters: map[string]string{"x": ""}}, driverkit.ErrInvalid},
		"Twice":           {driverkit.CreateGroupSnapshotRequest{Name: "g2", Volumes: []string{g.Snapshots[0].Volume, g.Snapshots[0].Volume}}, driverkit.ErrInvalid},
		"Missing":         {driverkit.CreateGroupSnapshotRequest{Name: "g2", Volumes: []string{g.Snapshots[0].Volume, "none"}}, driverkit.ErrNotFound},
	} {
		_, err := s.CreateGroupSnapshot(w.ctx, &c.req)
		w.want(name, err, c.err)
	}
	// An interrupted deletion has deleted the first member.
	member, err := s.snapshots.get(g.Snapshots[0].ID)
	w.must(err, s.removeSnapshot(w.ctx, member))
	got, err = s.GetGroupSnapshot(w.ctx, &driverkit.GetGroupSnapshotRequest{ID: g.ID})
	w.must(err)
	diff(t, "driverkit asks for the members that are left, to delete them", g.Snapshots[1:], got.Snapshots)
	_, err = w.group(s, "group")
	w.want("a group whose deletion has begun", err, driverkit.ErrBusy)
	w.must(s.DeleteGroupSnapshot(w.ctx, &driverkit.DeleteGroupSnapshotRequest{ID: g.ID}))
	w.want("deletion again", s.DeleteGroupSnapshot(w.ctx, &driverkit.DeleteGroupSnapshotRequest{ID: g.ID}), driverkit.ErrNotFound)
	w.wantLeft(s, "fast", gib-2*mib)
}

// TestDeletionOfAGroupThatWasInterruptedByItsDeadline: the record of a member is gone, and the repeated call removes what is left of it.
func TestDeletionOfAGroupThatWasInterruptedByItsDeadline(t *testing.T) {
	w := groupWorld(t)
	g, err := w.group(w.start(), "group")
	w.must(err)
	ctx, cancel := context.WithCancel(w.ctx)
	w.config.Step = (&fault{at: "delete:purge", do: cancel}).step
	s := w.start()
	req := &driverkit.DeleteGroupSnapshotRequest{ID: g.ID}
	w.want("the call", s.DeleteGroupSnapshot(ctx, req), context.Canceled)
	w.must(s.DeleteGroupSnapshot(w.ctx, req))
	checkConsistent(w, s)
	if left, err := os.ReadDir(w.state("trash")); err != nil || len(left) > 0 {
		t.Errorf("left in the trash: %v, %v", left, err)
	}
}

// TestGroupOfVolumesInUse: one that is written to during the copy is copied again with all others, some times.
func TestGroupOfVolumesInUse(t *testing.T) {
	for name, c := range map[string]struct {
		reason string
		writes int
		err    error
	}{
		"Quiet":   {reason: "one attempt", writes: 0},
		"Once":    {reason: "the second attempt succeeds", writes: 1},
		"Twice":   {reason: "the third attempt succeeds", writes: 2},
		"Forever": {reason: "somebody keeps writing", writes: attempts, err: driverkit.ErrPrecondition},
	} {
		t.Run(name, func(t *testing.T) {
			w := groupWorld(t)
			writes, copies := 0, 0
			file := ""
			w.config.Step = func(step string) {
				if step != "copy:contents" {
					return
				}
				if copies++; copies%2 == 0 && writes < c.writes { // The first volume is copied already.
					writes++
					w.write(file, "written during attempt "+string(rune('0'+writes)))
				}
			}
			s := w.start()
			file = w.state(contents.Volumes, s.volumes.find("pvc-1").ID, "file")
			g, err := w.group(s, "group")
			w.want(c.reason, err, c.err)
			if writes != c.writes {
				t.Errorf("%s: %d writes", c.reason, writes)
			}
			if err != nil {
				w.wantLeft(s, "fast", gib-2*mib)
				if left := w.objects(); slices.ContainsFunc(left, func(path string) bool { return filepath.Base(filepath.Dir(path)) == "copies" }) || len(s.snapshots.all()) > 0 {
					t.Errorf("left: %v", left)
				}
				return
			}
			if got := w.read(w.state(contents.Snapshots, g.Snapshots[0].ID, "file")); got != w.read(file) {
				t.Errorf("%s: the snapshot has %q, the volume %q", c.reason, got, w.read(file))
			}
		})
	}
}

// TestListOmitsMembersOfAGroupThatDoesNotExistYet: they exist with the group.
func TestListOmitsMembersOfAGroupThatDoesNotExistYet(t *testing.T) {
	w := groupWorld(t)
	listed := -1
	var s *Controller
	w.config.Step = func(step string) {
		if step == "group:record" {
			list, err := s.ListSnapshots(w.ctx, &driverkit.ListSnapshotsRequest{})
			listed = len(list.Entries)
			w.must(err)
		}
	}
	s = w.start()
	_, err := w.group(s, "group")
	w.must(err)
	list, err := s.ListSnapshots(w.ctx, &driverkit.ListSnapshotsRequest{})
	w.must(err)
	if listed != 0 || len(list.Entries) != 2 {
		t.Errorf("listed before %d, after %d, want 0 and 2", listed, len(list.Entries))
	}
}

// slowCopy has a copy wait until release is closed. started is closed when the copy is in progress.
func slowCopy(w *world) (started chan struct{}, release func()) {
	started, released := make(chan struct{}), make(chan struct{})
	f := &fault{at: "copy:contents", do: func() { close(started); <-released }}
	w.config.Step = f.step
	return started, func() { close(released) }
}

func TestCopyThatTakesLongerThanItsCall(t *testing.T) {
	w := newWorld(t)
	v := w.create(w.start(), nil)
	started, release := slowCopy(w)
	s := w.start()
	call := func(ctx context.Context) (*driverkit.Snapshot, error) {
		return s.CreateSnapshot(ctx, &driverkit.CreateSnapshotRequest{Name: "snap", Volume: v.ID})
	}
	ctx, cancel := context.WithCancel(w.ctx)
	go func() { <-started; cancel() }()
	_, err := call(ctx)
	w.want("the first call", err, driverkit.ErrRunning)
	w.want("deletion of the source", w.delete(s, v.ID), driverkit.ErrInUse)
	_, err = s.Expand(w.ctx, &driverkit.ExpandRequest{ID: v.ID, Size: driverkit.Range{Required: 2 * mib}})
	w.want("expansion of the source", err, driverkit.ErrBusy)
	ended, cancel := context.WithCancel(w.ctx)
	cancel()
	_, err = call(ended)
	w.want("a repeated call finds the copy in progress", err, driverkit.ErrRunning)
	release()
	snap, err := call(w.ctx)
	w.must(err)
	if list, _ := s.ListSnapshots(w.ctx, &driverkit.ListSnapshotsRequest{}); len(list.Entries) != 1 || list.Entries[0].ID != snap.ID {
		t.Errorf("snapshots: %v, want the one of the first call", list)
	}
	w.must(w.delete(s, v.ID), w.deleteSnapshot(s, snap.ID))
	w.wantNothing()
}

// TestSourceOfACopyIsNotDeleted: a snapshot, and a member of a group.
func TestSourceOfACopyIsNotDeleted(t *testing.T) {
	w := groupWorld(t)
	s := w.start()
	g, err := w.group(s, "group")
	w.must(err)
	single := w.snapshot(s, "single", g.Snapshots[0].Volume)
	for _, id := range []string{single.ID, g.Snapshots[1].ID} {
		started, release := slowCopy(w)
		s = w.start()
		done := make(chan error)
		go func() {
			_, err := s.Create(w.ctx, request("copy of "+id, ofSnapshot(id)))
			done <- err
		}()
		<-started
		if id == single.ID {
			w.want("the snapshot", w.deleteSnapshot(s, id), driverkit.ErrInUse)
		} else {
			w.want("the group", s.DeleteGroupSnapshot(w.ctx, &driverkit.DeleteGroupSnapshotRequest{ID: g.ID}), driverkit.ErrInUse)
		}
		release()
		w.must(<-done)
	}
	if _, err := s.GetGroupSnapshot(w.ctx, &driverkit.GetGroupSnapshotRequest{ID: g.ID}); err != nil {
		t.Errorf("the refused deletion has deleted something: %v", err)
	}
}

func TestPanicInACopyIsAnError(t *testing.T) {
	w := newWorld(t)
	w.limits = map[string]int64{"fast": gib}
	v := w.create(w.start(), nil)
	w.config.Step = (&fault{at: "copy:contents", do: func() { panic("in a copy") }}).step
	s := w.start()
	if _, err := s.Create(w.ctx, request("clone", ofVolume(v.ID))); err == nil || errors.Is(err, driverkit.ErrBusy) {
		t.Errorf("error %v, want one that is no ErrBusy", err)
	}
	clone := w.create(s, func(r *driverkit.CreateRequest) { named("clone")(r); ofVolume(v.ID)(r) })
	s = w.start()
	w.wantLeft(s, "fast", gib-2*mib)
	w.must(w.delete(s, v.ID), w.delete(s, clone.ID))
	w.wantNothing()
}

// TestCloseEndsCopies: it waits for them, and nothing of them is left.
func TestCloseEndsCopies(t *testing.T) {
	w := newWorld(t)
	w.limits = map[string]int64{"fast": gib}
	v := w.create(w.start(), nil)
	w.write(w.state(contents.Volumes, v.ID, "file"), "data")
	started, release := slowCopy(w)
	s := w.start()
	done := make(chan error)
	go func() {
		_, err := s.Create(w.ctx, request("clone", ofVolume(v.ID)))
		done <- err
	}()
	<-started
	var closed sync.WaitGroup
	closed.Go(s.Close)
	for s.copies.Start(w.ctx, "other", func(context.Context) error { return nil }) == nil {
		time.Sleep(time.Millisecond) // until Close has begun
	}
	release()
	closed.Wait()
	if copied := s.copies.User(volumeKey(v.ID)); copied != "" {
		t.Errorf("after Close %s is being copied", copied)
	}
	w.want("the call", <-done, driverkit.ErrBusy)
	w.wantLeft(s, "fast", gib-mib)
	w.must(w.delete(w.start(), v.ID))
	w.wantNothing()
}

func TestBlocks(t *testing.T) {
	w := newWorld(t)
	w.config.BlockSize = 4096
	s := w.start()
	v, directory := w.create(s, asDevice), w.create(s, named("directory"))
	other := w.create(s, func(r *driverkit.CreateRequest) { named("other")(r); asDevice(r) })
	disk := w.state(contents.Volumes, v.ID, "disk")
	writeAt := func(offset int64) {
		file, err := os.OpenFile(disk, os.O_WRONLY, 0)
		w.must(err)
		_, err = file.WriteAt([]byte("data"), offset)
		w.must(err, file.Sync(), file.Close())
	}
	writeAt(0)
	first := w.snapshot(s, "first", v.ID)
	writeAt(128 << 10)
	second := w.snapshot(s, "second", v.ID)
	ranges := func(req *driverkit.BlocksRequest) (found []driverkit.BlockRange) {
		blocks, err := s.Blocks(w.ctx, req)
		w.must(err)
		if blocks.VolumeSize != mib || blocks.BlockSize != 4096 {
			t.Errorf("%+v: volume of %d bytes in blocks of %d", req, blocks.VolumeSize, blocks.BlockSize)
		}
		for r, err := range blocks.Ranges {
			w.must(err)
			found = append(found, r)
		}
		return found
	}
	diff(t, "allocated", []driverkit.BlockRange{{Offset: 0, Size: 4096}, {Offset: 128 << 10, Size: 4096}}, ranges(&driverkit.BlocksRequest{Snapshot: second.ID}))
	diff(t, "allocated from an offset", []driverkit.BlockRange{{Offset: 128 << 10, Size: 4096}}, ranges(&driverkit.BlocksRequest{Snapshot: second.ID, Offset: 4096}))
	diff(t, "changed", []driverkit.BlockRange{{Offset: 128 << 10, Size: 4096}}, ranges(&driverkit.BlocksRequest{Snapshot: second.ID, Base: first.ID}))
	for name, c := range map[string]struct {
		req driverkit.BlocksRequest
		err error
	}{
		"Missing":     {driverkit.BlocksRequest{Snapshot: "none"}, driverkit.ErrNotFound},
		"Path":        {driverkit.BlocksRequest{Snapshot: "../" + first.ID}, driverkit.ErrNotFound},
		"MissingBase": {driverkit.BlocksRequest{Snapshot: second.ID, Base: "none"}, driverkit.ErrNotFound},
		"OtherVolume": {driverkit.BlocksRequest{Snapshot: second.ID, Base: w.snapshot(s, "of-other", other.ID).ID}, driverkit.ErrInvalid},
		"Directory":   {driverkit.BlocksRequest{Snapshot: w.snapshot(s, "of-directory", directory.ID).ID}, driverkit.ErrInvalid},
	} {
		_, err := s.Blocks(w.ctx, &c.req)
		w.want(name, err, c.err)
	}
	blocks, err := s.Blocks(w.ctx, &driverkit.BlocksRequest{Snapshot: second.ID})
	w.must(err, w.deleteSnapshot(s, second.ID))
	for _, err := range blocks.Ranges {
		w.want("deleted meanwhile", err, driverkit.ErrNotFound)
	}
}

// TestSourceIsFreeAfterCopy: an object whose record is there is not made as long as its copy has not ended, which has the source in use.
func TestSourceIsFreeAfterCopy(t *testing.T) {
	w := newWorld(t)
	s := w.start()
	v := w.create(s, nil)
	clone := func(ctx context.Context) error {
		_, err := s.Create(ctx, request("clone", ofVolume(v.ID)))
		return err
	}
	snapshot := func(ctx context.Context) error {
		_, err := s.CreateSnapshot(ctx, &driverkit.CreateSnapshotRequest{Name: "snap", Volume: v.ID})
		return err
	}
	group := func(ctx context.Context) error {
		_, err := s.CreateGroupSnapshot(ctx, &driverkit.CreateGroupSnapshotRequest{Name: "group", Volumes: []string{v.ID}})
		return err
	}
	for key, call := range map[string]func(context.Context) error{volumeCopy("clone"): clone, snapshotCopy("snap"): snapshot, groupCopies("group"): group} {
		w.must(call(w.ctx))
		ended := make(chan struct{})
		w.must(s.copies.Start(w.ctx, key, func(context.Context) error { <-ended; return nil }, volumeKey(v.ID)))
		over, cancel := context.WithCancel(w.ctx)
		cancel()
		w.want(key+", whose copy goes on", call(over), driverkit.ErrRunning)
		close(ended)
		w.must(call(w.ctx))
		if by := s.copies.User(volumeKey(v.ID)); by != "" {
			t.Errorf("the source is still used by %s", by)
		}
	}
}
