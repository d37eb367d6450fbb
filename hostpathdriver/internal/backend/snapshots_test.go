package backend

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/longshore-csi/longshore/hostpathdriver/internal/volume"
)

// copyAll makes the copies that are to be made.
func (s *system) copyAll() error {
	ids, err := s.volumes.Unfilled(s.ctx)
	for _, id := range ids {
		err = errors.Join(err, s.copy(id))
	}
	return err
}

func (s *system) copy(id volume.ID) error {
	return s.volumes.Copy(s.ctx, id, func(ctx context.Context) error { return s.volumes.Complete(ctx, id) })
}

// snapshot makes a whole snapshot.
func (s *system) snapshot(name string, source volume.ID) *volume.Snapshot {
	s.t.Helper()
	made, err := s.volumes.CreateSnapshot(s.ctx, &volume.SnapshotRequest{Name: name, Source: source})
	s.must(err, s.copyAll())
	made, err = s.volumes.GetSnapshot(s.ctx, made.ID)
	s.must(err)
	return made
}

// from asks for a volume that is made of another or of a snapshot.
func from(name string, source volume.Source, change ...func(*volume.CreateRequest)) *volume.CreateRequest {
	req := &volume.CreateRequest{Name: name, Capabilities: []volume.Capability{sharer()}, Source: &source}
	for _, c := range change {
		c(req)
	}
	return req
}

func asBlock(req *volume.CreateRequest) { req.Capabilities = []volume.Capability{blockSharer()} }

// restore makes a whole volume of a source.
func (s *system) restore(req *volume.CreateRequest) *volume.Volume {
	s.t.Helper()
	made, err := s.volumes.Create(s.ctx, req)
	s.must(err, s.copyAll())
	made, err = s.volumes.Get(s.ctx, made.ID)
	s.must(err)
	return made
}

func (w *world) snapshotContents(id volume.ID) string {
	return filepath.Join(w.stateDir, snapshotsDir, string(id))
}

func (w *world) wantFile(path, want string) {
	w.t.Helper()
	if got, err := os.ReadFile(path); err != nil || string(got) != want {
		w.t.Errorf("%s: %q, %v, want %q", path, got, err, want)
	}
}

// TestSnapshotsAndClonesHaveTheContents: of directories and of devices,
// whatever happens to the source afterwards.
func TestSnapshotsAndClonesHaveTheContents(t *testing.T) {
	w := newWorld(t)
	w.limits = map[string]int64{"fast": 100 * gib}
	s := w.boot()
	directory, device := s.create("directory"), s.createBlock("device")
	w.must(os.Chmod(w.contents(directory.ID), 0o750|fs.ModeSetgid))
	w.writeFile(filepath.Join(w.contents(directory.ID), "sub", "file"), "old")
	w.writeDisk(device.ID, "old")

	s1, s2 := s.snapshot("s1", directory.ID), s.snapshot("s2", device.ID)
	w.writeFile(filepath.Join(w.contents(directory.ID), "sub", "file"), "new")
	w.writeDisk(device.ID, "new")
	c1 := s.restore(from("c1", volume.Source{Volume: directory.ID}))
	c2 := s.restore(from("c2", volume.Source{Volume: device.ID}, asBlock))
	w.must(s.volumes.Delete(s.ctx, directory.ID), s.volumes.Delete(s.ctx, device.ID))
	r1 := s.restore(from("r1", volume.Source{Snapshot: s1.ID}))
	r2 := s.restore(from("r2", volume.Source{Snapshot: s2.ID}, asBlock, func(r *volume.CreateRequest) { r.Range.Required = 2 * gib }))

	for path, want := range map[string]string{
		filepath.Join(w.snapshotContents(s1.ID), "sub", "file"): "old",
		filepath.Join(w.contents(c1.ID), "sub", "file"):         "new",
		filepath.Join(w.contents(r1.ID), "sub", "file"):         "old",
	} {
		w.wantFile(path, want)
	}
	for id, want := range map[volume.ID]string{c2.ID: "new", r2.ID: "old"} {
		if got := w.readDisk(id); got != want {
			t.Errorf("device of %s: %q, want %q", id, got, want)
		}
	}
	if info, err := os.Stat(w.contents(r1.ID)); err != nil || info.Mode() != fs.ModeDir|fs.ModeSetgid|0o750 {
		t.Errorf("root of the restored directory: %v, %v", info, err)
	}
	if r1.Capacity != gib || r2.Capacity != 2*gib || s.diskSize(r2.ID) != 2*gib || s2.Size != gib {
		t.Errorf("sizes: restored %d and %d (file %d), snapshot %d", r1.Capacity, r2.Capacity, s.diskSize(r2.ID), s2.Size)
	}
	if c, err := s.pools.Capacity("fast"); err != nil || c.Available != 93*gib {
		t.Errorf("pool: %+v, %v, want 7 GiB taken: 2 clones, 2 snapshots, restored 1 and 2", c, err)
	}
	s = w.boot()
	w.must(s.volumes.DeleteSnapshot(s.ctx, s1.ID), s.volumes.DeleteSnapshot(s.ctx, s2.ID))
	for _, v := range []*volume.Volume{c1, c2, r1, r2} {
		w.must(s.volumes.Delete(s.ctx, v.ID))
	}
	if left := w.files(); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
	if c, err := s.pools.Capacity("fast"); err != nil || c.Available != 100*gib {
		t.Errorf("left in the pool: %+v, %v", c, err)
	}
}

func (w *world) writeDisk(id volume.ID, text string) {
	w.t.Helper()
	file, err := os.OpenFile(filepath.Join(w.contents(id), diskName), os.O_WRONLY, 0)
	w.must(err)
	_, err = file.WriteAt([]byte(text), 4096)
	w.must(err, file.Close())
}

func (w *world) readDisk(id volume.ID) string {
	w.t.Helper()
	return w.readText(filepath.Join(w.contents(id), diskName))
}

// readText reads what writeDisk wrote.
func (w *world) readText(path string) string {
	w.t.Helper()
	file, err := os.Open(path)
	w.must(err)
	data := make([]byte, 3)
	_, err = file.ReadAt(data, 4096)
	w.must(err, file.Close())
	return string(data)
}

// TestSourcesThatDoNotFit: what cannot be made is refused, and leaves nothing.
func TestSourcesThatDoNotFit(t *testing.T) {
	w := newWorld(t)
	s := w.boot()
	directory, device, image := s.create("directory"), s.createBlock("device"), s.createImage("image", "ext4")
	unfilled, err := s.volumes.Create(s.ctx, from("unfilled", volume.Source{Volume: directory.ID}))
	w.must(err)
	cases := map[string]struct {
		reason string
		req    *volume.CreateRequest
		err    error
	}{
		"UnknownVolume":   {reason: "it was deleted", req: from("new", volume.Source{Volume: "gone"}), err: volume.ErrNotFound},
		"UnknownSnapshot": {reason: "it was deleted", req: from("new", volume.Source{Snapshot: "gone"}), err: volume.ErrNotFound},
		"Smaller":         {reason: "it would not fit", req: from("new", volume.Source{Volume: directory.ID}, func(r *volume.CreateRequest) { r.Range.Required = gib - 1 }), err: volume.ErrOutOfRange},
		"Limit":           {reason: "it would not fit", req: from("new", volume.Source{Volume: directory.ID}, func(r *volume.CreateRequest) { r.Range.Limit = gib - 1 }), err: volume.ErrOutOfRange},
		"DeviceOfDirectory": {
			reason: "a directory is no device", req: from("new", volume.Source{Volume: directory.ID}, asBlock), err: volume.ErrInvalid,
		},
		"DirectoryOfDevice": {
			reason: "a device is no directory", err: volume.ErrInvalid,
			req: from("new", volume.Source{Volume: device.ID}, func(r *volume.CreateRequest) { r.Parameters = map[string]string{"backend": "directory"} }),
		},
		"OtherFileSystem": {
			reason: "a copy has the same file system", err: volume.ErrInvalid,
			req: from("new", volume.Source{Volume: image.ID}, func(r *volume.CreateRequest) { r.Capabilities[0].FSType = "xfs" }),
		},
		"OtherNode": {
			reason: "contents do not travel", err: volume.ErrExhausted,
			req: from("new", volume.Source{Volume: directory.ID}, func(r *volume.CreateRequest) {
				r.Requirements.Requisite = []volume.Segment{{volume.TopologyKey: "node-2"}}
			}),
		},
		"Unfilled": {reason: "it has not its own contents yet", req: from("new", volume.Source{Volume: unfilled.ID}), err: volume.ErrPrecondition},
	}
	before := w.files()
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			_, err := s.volumes.Create(s.ctx, c.req)
			wantErr(t, c.reason, err, c.err)
			if diff := cmp.Diff(before, w.files()); diff != "" {
				t.Errorf("files (-want +got):\n%s", diff)
			}
		})
	}
	_, err = s.volumes.CreateSnapshot(s.ctx, &volume.SnapshotRequest{Name: "s", Source: unfilled.ID})
	wantErr(t, "snapshot of what is not complete", err, volume.ErrPrecondition)
	_, err = s.volumes.CreateSnapshot(s.ctx, &volume.SnapshotRequest{Name: "s", Source: "gone"})
	wantErr(t, "snapshot of nothing", err, volume.ErrNotFound)
	_, err = s.volumes.CreateSnapshot(s.ctx, &volume.SnapshotRequest{Name: "s", Source: directory.ID, Parameters: map[string]string{"x": "y"}})
	wantErr(t, "unknown parameter", err, volume.ErrInvalid)
	wantErr(t, "stage what is not complete", s.node.Stage(s.ctx, w.stageRequest(unfilled.ID)), volume.ErrPrecondition)
	_, err = s.expand(unfilled.ID, 2*gib)
	wantErr(t, "expand what is not complete", err, volume.ErrPrecondition)
	wantErr(t, "delete the source of a copy", s.volumes.Delete(s.ctx, directory.ID), volume.ErrInUse)
	w.must(s.copyAll(), s.volumes.Delete(s.ctx, directory.ID), s.node.Stage(s.ctx, w.stageRequest(unfilled.ID)))
}

// TestFormsOfCopies: an image may be given out as a device, and a device that
// was one as an image.
func TestFormsOfCopies(t *testing.T) {
	w := newWorld(t)
	s := w.boot()
	image := s.createImage("image", "ext3")
	blank := s.restore(from("blank", volume.Source{Volume: image.ID}))
	w.must(s.node.Stage(s.ctx, w.stageImage(image.ID, "")), s.node.Unstage(s.ctx, image.ID, w.staging(image.ID)))
	made := w.made()
	same := s.restore(from("same", volume.Source{Volume: image.ID}))
	device := s.restore(from("device", volume.Source{Volume: image.ID}, asBlock))
	back := s.restore(from("back", volume.Source{Volume: device.ID}, func(r *volume.CreateRequest) { r.Capabilities[0].FSType = "ext3" }))
	for _, v := range []*volume.Volume{blank, same, back} {
		if v.FSType != "ext3" {
			t.Errorf("%s: %v", v.Name, v.Form())
		}
		w.must(s.node.Stage(s.ctx, w.stageImage(v.ID, "")))
	}
	if w.made() != made+1 {
		t.Errorf("%d file systems were made of copies, want one: that of the copy of an image nobody had used", w.made()-made)
	}
	if device.Form() != (volume.Form{Disk: true}) {
		t.Errorf("device: %v", device.Form())
	}
}

// TestCopiesGoOn: one copy at a time, whoever makes it; once complete, never
// again.
func TestCopiesGoOn(t *testing.T) {
	w := newWorld(t)
	s := w.boot()
	source := s.create("source")
	w.writeFile(filepath.Join(w.contents(source.ID), "file"), "text")
	clone, err := s.volumes.Create(s.ctx, from("clone", volume.Source{Volume: source.ID}))
	w.must(err)
	if !clone.Filling {
		t.Fatalf("%+v: want it filling", clone)
	}
	other := w.boot()
	err = s.volumes.Copy(s.ctx, clone.ID, func(ctx context.Context) error {
		wantErr(t, "two copies at once", other.copy(clone.ID), volume.ErrBusy)
		return errTest
	})
	wantErr(t, "a copy that could not be recorded", err, errTest)
	w.must(other.copy(clone.ID))
	w.writeFile(filepath.Join(w.contents(clone.ID), "file"), "changed by a workload")
	w.must(s.copy(clone.ID)) // its memory is old; the record tells
	w.wantFile(filepath.Join(w.contents(clone.ID), "file"), "changed by a workload")
	w.must(s.volumes.Refresh(s.ctx))
	if again, err := s.volumes.Get(s.ctx, clone.ID); err != nil || again.Filling {
		t.Errorf("after the copy: %+v, %v", again, err)
	}
	wantErr(t, "copy to nothing", s.copy("gone"), volume.ErrNotFound)
	if ids, err := s.volumes.Unfilled(s.ctx); err != nil || len(ids) > 0 {
		t.Errorf("unfilled: %v, %v", ids, err)
	}
	for _, name := range w.files() {
		if filepath.Dir(name) == copiesDir {
			t.Errorf("left: %s", name)
		}
	}
	w.writeFile(filepath.Join(w.stateDir, copiesDir, "gone.progress"), "")
	w.boot()
	if left, err := filepath.Glob(filepath.Join(w.stateDir, copiesDir, "*")); err != nil || len(left) > 0 {
		t.Errorf("left after a restart: %v, %v", left, err)
	}
}

// TestStartBesideACopy: a controller that starts removes nothing that another
// one is about to write down how far its copy is, also for a group.
func TestStartBesideACopy(t *testing.T) {
	w := newWorld(t)
	s := w.boot()
	source := s.create("source")
	clone, err := s.volumes.Create(s.ctx, from("clone", volume.Source{Volume: source.ID}))
	w.must(err)
	group, err := s.volumes.CreateGroup(s.ctx, &volume.GroupRequest{Name: "g", Sources: []volume.ID{source.ID}})
	w.must(err)
	for _, id := range []volume.ID{clone.ID, group.ID} {
		w.must(s.volumes.Copy(s.ctx, id, func(ctx context.Context) error {
			halfWritten := s.volumes.copyPath(id, "progress.new")
			w.writeFile(halfWritten, "")
			w.boot()
			if gone(halfWritten) || gone(s.volumes.copyPath(id, "lock")) {
				t.Errorf("the copy to %s lost its files", id)
			}
			return s.volumes.Complete(ctx, id)
		}))
	}
}

// TestTornDisk: blocks of different moments are no snapshot of a disk.
func TestTornDisk(t *testing.T) {
	w := newWorld(t)
	s := w.boot()
	source := s.createBlock("source")
	w.writeDisk(source.ID, "old")
	made, err := s.volumes.CreateSnapshot(s.ctx, &volume.SnapshotRequest{Name: "s", Source: source.ID})
	w.must(err)
	w.step = func(name string) {
		if name == "copy" {
			w.step = nil
			future := time.Now().Add(time.Hour)
			w.writeDisk(source.ID, "new")
			w.must(os.Chtimes(filepath.Join(w.contents(source.ID), diskName), future, future))
		}
	}
	s.volumes.cfg.Step = func(name string) { w.step.at(name) }
	t.Cleanup(func() { w.step = nil })
	wantErr(t, "written to meanwhile", s.copy(made.ID), volume.ErrPrecondition)
	if again, err := s.volumes.GetSnapshot(s.ctx, made.ID); err != nil || !again.Filling {
		t.Errorf("after the failure: %+v, %v", again, err)
	}
	w.must(s.copy(made.ID))
	if again, err := s.volumes.GetSnapshot(s.ctx, made.ID); err != nil || again.Filling {
		t.Errorf("after the second copy: %+v, %v", again, err)
	}
}

func TestListSnapshots(t *testing.T) {
	s := newWorld(t).boot()
	a, b := s.create("a"), s.create("b")
	var all []volume.ID
	for _, source := range []*volume.Volume{a, b, a, a} {
		all = append(all, s.snapshot(rename(len(all)), source.ID).ID)
	}
	cases := map[string]struct {
		reason string
		req    volume.SnapshotListRequest
		want   [][]volume.ID
	}{
		"All":          {reason: "in the order of creation", want: [][]volume.ID{all}},
		"Pages":        {reason: "no one is lost", req: volume.SnapshotListRequest{ListRequest: volume.ListRequest{Max: 3}}, want: [][]volume.ID{all[:3], all[3:]}},
		"Source":       {reason: "all of one volume", req: volume.SnapshotListRequest{Source: a.ID}, want: [][]volume.ID{{all[0], all[2], all[3]}}},
		"SourcePages":  {reason: "pages of what matches", req: volume.SnapshotListRequest{Source: a.ID, ListRequest: volume.ListRequest{Max: 2}}, want: [][]volume.ID{{all[0], all[2]}, {all[3]}}},
		"UnknownCause": {reason: "none of it", req: volume.SnapshotListRequest{Source: "gone"}, want: [][]volume.ID{{}}},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			var got [][]volume.ID
			for {
				page, err := s.volumes.ListSnapshots(s.ctx, c.req)
				if err != nil {
					t.Fatal(err)
				}
				ids := []volume.ID{}
				for _, one := range page.Snapshots {
					ids = append(ids, one.ID)
				}
				got = append(got, ids)
				if c.req.Token = page.Next; page.Next == "" {
					break
				}
			}
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Errorf("%s (-want +got):\n%s", c.reason, diff)
			}
		})
	}
	_, err := s.volumes.ListSnapshots(s.ctx, volume.SnapshotListRequest{ListRequest: volume.ListRequest{Token: "-5"}})
	wantErr(t, "foreign token", err, volume.ErrBadToken)
}

func rename(i int) string { return "snapshot-" + string(rune('a'+i)) }

// TestGroupOfVolumesNotInUse: nobody begins to write until the last copy is
// complete.
func TestGroupOfVolumesNotInUse(t *testing.T) {
	w := newWorld(t)
	w.limits = map[string]int64{"fast": 10 * gib}
	s := w.boot()
	a, b := s.create("a"), s.createBlock("b")
	w.writeFile(filepath.Join(w.contents(a.ID), "file"), "text")
	req := &volume.GroupRequest{Name: "g", Sources: []volume.ID{a.ID, b.ID}}

	w.must(s.node.Stage(s.ctx, w.stageRequest(a.ID)), s.node.Unstage(s.ctx, a.ID, w.staging(a.ID)))
	group, err := s.volumes.CreateGroup(s.ctx, req)
	w.must(err)
	if !group.Filling() || len(group.Snapshots) != 2 || group.Snapshots[0].Source != a.ID || group.Snapshots[1].Group != group.ID {
		t.Errorf("group %+v", group)
	}
	wantErr(t, "write while the group is made", s.node.Stage(s.ctx, w.stageRequest(a.ID)), volume.ErrBusy)
	reader := w.stageRequest(a.ID)
	reader.Stage.Capability.Mode = volume.MultiNodeReaderOnly
	w.must(s.node.Stage(s.ctx, reader), s.node.Unstage(s.ctx, a.ID, reader.Stage.Path))
	_, err = s.volumes.CreateGroup(s.ctx, &volume.GroupRequest{Name: "other", Sources: []volume.ID{a.ID}})
	wantErr(t, "two groups at once", err, volume.ErrBusy)
	wantErr(t, "delete a source", s.volumes.Delete(s.ctx, a.ID), volume.ErrInUse)

	err = s.volumes.Copy(s.ctx, group.ID, func(context.Context) error {
		wantErr(t, "the copies are made, but not recorded", s.node.Stage(s.ctx, w.stageRequest(a.ID)), volume.ErrBusy)
		return errTest
	})
	wantErr(t, "a group that could not be recorded", err, errTest)
	w.must(s.copy(group.ID))
	w.must(s.node.Stage(s.ctx, w.stageRequest(a.ID)), s.node.Unstage(s.ctx, a.ID, w.staging(a.ID)))
	w.wantFile(filepath.Join(w.snapshotContents(group.Members[0]), "file"), "text")

	s = w.boot()
	wantErr(t, "delete one member", s.volumes.DeleteSnapshot(s.ctx, group.Members[0]), volume.ErrInvalid)
	_, err = s.volumes.GetGroup(s.ctx, group.ID, group.Members[:1])
	wantErr(t, "another list", err, volume.ErrInvalid)
	found, err := s.volumes.GetGroup(s.ctx, group.ID, []volume.ID{group.Members[1], group.Members[0]})
	if err != nil || found.Filling() {
		t.Errorf("group %+v, %v", found, err)
	}
	wantErr(t, "delete another list", s.volumes.DeleteGroup(s.ctx, group.ID, []volume.ID{}), volume.ErrInvalid)
	restored, err := s.volumes.Create(s.ctx, from("restored", volume.Source{Snapshot: group.Members[0]}))
	w.must(err)
	wantErr(t, "delete while a member is restored", s.volumes.DeleteGroup(s.ctx, group.ID, group.Members), volume.ErrInUse)
	w.must(s.copyAll(), s.volumes.DeleteGroup(s.ctx, group.ID, group.Members))
	wantErr(t, "delete it again", s.volumes.DeleteGroup(s.ctx, group.ID, group.Members), volume.ErrNotFound)
	w.must(s.volumes.Delete(s.ctx, a.ID), s.volumes.Delete(s.ctx, b.ID), s.volumes.Delete(s.ctx, restored.ID))
	if left := w.files(); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}

// TestGroupIsWholeOrNothing: space for one of two members.
func TestGroupIsWholeOrNothing(t *testing.T) {
	w := newWorld(t)
	w.limits = map[string]int64{"fast": 3 * gib}
	s := w.boot()
	a, b := s.create("a"), s.create("b")
	_, err := s.volumes.CreateGroup(s.ctx, &volume.GroupRequest{Name: "g", Sources: []volume.ID{a.ID, b.ID}})
	wantErr(t, "no space for both", err, volume.ErrExhausted)
	if left := w.files(); slices.ContainsFunc(left, func(name string) bool { return filepath.Dir(name) != recordsDir && filepath.Dir(name) != volumesDir }) {
		t.Errorf("left: %v", left)
	}
	w.must(s.node.Stage(s.ctx, w.stageRequest(a.ID)))
	if c, err := s.pools.Capacity("fast"); err != nil || c.Available != gib {
		t.Errorf("pool: %+v, %v", c, err)
	}
	for name, req := range map[string]*volume.GroupRequest{
		"none":      {Name: "g"},
		"twice":     {Name: "g", Sources: []volume.ID{b.ID, b.ID}},
		"parameter": {Name: "g", Sources: []volume.ID{b.ID}, Parameters: map[string]string{"x": "y"}},
	} {
		_, err := s.volumes.CreateGroup(s.ctx, req)
		wantErr(t, name, err, volume.ErrInvalid)
	}
	_, err = s.volumes.CreateGroup(s.ctx, &volume.GroupRequest{Name: "g", Sources: []volume.ID{b.ID, "gone"}})
	wantErr(t, "unknown volume", err, volume.ErrNotFound)
}
