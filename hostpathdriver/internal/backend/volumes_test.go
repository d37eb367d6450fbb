package backend

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"go.uber.org/goleak"

	"github.com/longshore-csi/longshore/driverkit/state"
	"github.com/longshore-csi/longshore/hostpathdriver/internal/volume"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m)
}

func TestCreateMakesAVolume(t *testing.T) {
	w := newWorld(t)
	w.limits = map[string]int64{"fast": 10 * gib}
	s := w.boot()
	req := createRequest("pvc-1")
	req.Parameters = map[string]string{"kind": "fast", "mode": "2750"}
	got, err := s.volumes.Create(s.ctx, req)
	w.must(err)
	want := &volume.Volume{
		Name: "pvc-1", Capacity: gib, Pool: "fast", Parameters: req.Parameters,
		Capabilities: req.Capabilities, Node: testNode,
	}
	if diff := cmp.Diff(want, got, cmpopts.IgnoreFields(volume.Volume{}, "ID")); diff != "" {
		t.Errorf("volume (-want +got):\n%s", diff)
	}
	info, err := os.Stat(w.contents(got.ID))
	w.must(err)
	if mode := info.Mode(); mode != fs.ModeDir|fs.ModeSetgid|0o750 {
		t.Errorf("mode %v, want drwxr-s---", mode)
	}
	// The same from disk, in a new life.
	again, err := w.boot().volumes.Find(w.ctx, "pvc-1")
	w.must(err)
	if diff := cmp.Diff(got, again); diff != "" {
		t.Errorf("after a restart (-want +got):\n%s", diff)
	}
	if c, err := s.pools.Capacity("fast"); err != nil || c.Available != 9*gib {
		t.Errorf("left in the pool: %d, %v", c.Available, err)
	}
}

func TestCreateRefusals(t *testing.T) {
	cases := map[string]struct {
		reason string
		change func(*volume.CreateRequest)
		err    error
	}{
		"MountAndBlock": {reason: "a volume is one or the other", change: func(r *volume.CreateRequest) { r.Capabilities = append(r.Capabilities, blockWriter()) }, err: volume.ErrInvalid},
		"TightBlock": {reason: "a device consists of blocks", change: func(r *volume.CreateRequest) {
			r.Capabilities, r.Range = []volume.Capability{blockWriter()}, volume.Range{Required: 4097, Limit: 5000}
		}, err: volume.ErrOutOfRange},
		"Parameter":   {reason: "unknown parameter", change: func(r *volume.CreateRequest) { r.Parameters = map[string]string{"x": "y"} }, err: volume.ErrInvalid},
		"TooLarge":    {reason: "larger than any volume", change: func(r *volume.CreateRequest) { r.Range.Required = 1 << 41 }, err: volume.ErrOutOfRange},
		"OtherNode":   {reason: "out of reach", change: func(r *volume.CreateRequest) { r.Requirements.Requisite = []volume.Segment{{volume.TopologyKey: "x"}} }, err: volume.ErrExhausted},
		"PoolFull":    {reason: "no space in the pool", change: func(r *volume.CreateRequest) { r.Range.Required = 11 * gib }, err: volume.ErrExhausted},
		"UnknownPool": {reason: "no such pool", change: func(r *volume.CreateRequest) { r.Parameters = map[string]string{"kind": "slow"} }, err: volume.ErrInvalid},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.limits = map[string]int64{"fast": 10 * gib}
			s := w.boot()
			req := createRequest("pvc-1")
			c.change(req)
			_, err := s.volumes.Create(s.ctx, req)
			wantErr(t, c.reason, err, c.err)
			if left := w.files(); len(left) > 0 {
				t.Errorf("%s: left on disk: %v", c.reason, left)
			}
			if free, err := s.pools.Capacity(""); err != nil || free.Available != 10*gib {
				t.Errorf("%s: left in the pool: %d, %v", c.reason, free.Available, err)
			}
		})
	}
}

// TestCreateUndoesItself fails to write the record.
func TestCreateUndoesItself(t *testing.T) {
	w := newWorld(t)
	w.limits = map[string]int64{"fast": 10 * gib}
	s := w.boot()
	w.must(os.RemoveAll(filepath.Join(w.stateDir, recordsDir)))
	if _, err := s.volumes.Create(s.ctx, createRequest("pvc-1")); !errors.Is(err, fs.ErrNotExist) {
		t.Fatalf("create without a records directory: %v", err)
	}
	if left := w.files(); len(left) > 0 {
		t.Errorf("left on disk: %v", left)
	}
	if free, err := s.pools.Capacity(""); err != nil || free.Available != 10*gib {
		t.Errorf("left in the pool: %d, %v", free.Available, err)
	}
	_, err := s.volumes.Find(s.ctx, "pvc-1")
	wantErr(t, "find", err, volume.ErrNotFound)
}

func TestDelete(t *testing.T) {
	w := newWorld(t)
	w.limits = map[string]int64{"fast": 10 * gib}
	s := w.boot()
	v := s.create("pvc-1")
	w.writeFile(filepath.Join(w.contents(v.ID), "deep", "file"), "data")
	w.must(s.volumes.Delete(s.ctx, v.ID))
	if left := w.files(); len(left) > 0 {
		t.Errorf("left on disk: %v", left)
	}
	if free, err := s.pools.Capacity(""); err != nil || free.Available != 10*gib {
		t.Errorf("left in the pool: %d, %v", free.Available, err)
	}
	wantErr(t, "second delete", s.volumes.Delete(s.ctx, v.ID), volume.ErrNotFound)
	if got := s.create("pvc-1"); got.ID == v.ID {
		t.Error("an id is used twice")
	}
}

// TestDeleteIsFinishedLater ends the context in the middle of removing the
// contents: the volume is gone, the next call or start removes the rest.
func TestDeleteIsFinishedLater(t *testing.T) {
	w := newWorld(t)
	ctx, cancel := context.WithCancel(w.ctx)
	w.step = func(name string) {
		if name == "delete:purge" {
			cancel()
		}
	}
	s := w.boot()
	v := s.create("pvc-1")
	w.writeFile(filepath.Join(w.contents(v.ID), "file"), "data")
	wantErr(t, "delete", s.volumes.Delete(ctx, v.ID), context.Canceled)
	if diff := cmp.Diff([]string{"trash/" + string(v.ID)}, w.files()); diff != "" {
		t.Errorf("after the interruption (-want +got):\n%s", diff)
	}
	wantErr(t, "delete again", s.volumes.Delete(w.ctx, v.ID), volume.ErrNotFound)
	if left := w.files(); len(left) > 0 {
		t.Errorf("left on disk: %v", left)
	}
}

func TestUsedVolumesAreNotDeleted(t *testing.T) {
	cases := map[string]struct {
		reason string
		attach bool
		use    func(s *system, v *volume.Volume)
		unuse  func(s *system, v *volume.Volume)
	}{
		"Staged": {
			reason: "a node has it mounted",
			use:    func(s *system, v *volume.Volume) { s.must(s.node.Stage(s.ctx, s.stageRequest(v.ID))) },
			unuse:  func(s *system, v *volume.Volume) { s.must(s.node.Unstage(s.ctx, v.ID, s.staging(v.ID))) },
		},
		"Attached": {
			reason: "a node may mount it", attach: true,
			use: func(s *system, v *volume.Volume) {
				_, err := s.volumes.Publish(s.ctx, &volume.PublishRequest{ID: v.ID, Node: testNode, Capability: writer()})
				s.must(err)
			},
			unuse: func(s *system, v *volume.Volume) { s.must(s.volumes.Unpublish(s.ctx, v.ID, "")) },
		},
		"MountedInside": {
			reason: "deleting would reach into another volume",
			use: func(s *system, v *volume.Volume) {
				inner := filepath.Join(s.contents(v.ID), "inner")
				s.must(os.Mkdir(inner, 0o750), s.fake.Bind(s.ctx, s.pods, inner, mountNothing()))
			},
			unuse: func(s *system, v *volume.Volume) {
				s.must(s.fake.Unmount(s.ctx, filepath.Join(s.contents(v.ID), "inner")))
			},
		},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.attach = c.attach
			s := w.boot()
			v := s.create("pvc-1")
			file := filepath.Join(w.contents(v.ID), "file")
			w.writeFile(file, "precious")
			c.use(s, v)
			wantErr(t, c.reason, s.volumes.Delete(s.ctx, v.ID), volume.ErrInUse)
			if _, err := os.Stat(file); err != nil {
				t.Errorf("%s: the data is gone: %v", c.reason, err)
			}
			c.unuse(s, v)
			if err := s.volumes.Delete(s.ctx, v.ID); err != nil {
				t.Errorf("%s: delete when unused: %v", c.reason, err)
			}
		})
	}
}

// TestUnprotected is --check-volume-lifecycle=false.
func TestUnprotected(t *testing.T) {
	w := newWorld(t)
	s := w.boot()
	v := s.create("pvc-1")
	w.must(s.node.Stage(s.ctx, w.stageRequest(v.ID)))
	s.volumes.cfg.ProtectUsed = false
	if err := s.volumes.Delete(s.ctx, v.ID); err != nil {
		t.Errorf("delete of a used volume: %v", err)
	}
}

func TestVolumeOnEveryNodeIsProtectedByEveryNode(t *testing.T) {
	w := newWorld(t)
	w.own = ""
	s := w.boot()
	v := s.create("pvc-1")
	if v.Node != "" {
		t.Fatalf("volume on node %q, want every node", v.Node)
	}
	other, err := OpenNode(s.ctx, NodeConfig{StateDir: w.stateDir, NodeID: "node-2", Pools: s.pools, MaxSize: gib, Mounter: w.mounter, Devices: w.devices})
	w.must(err, other.Stage(s.ctx, w.stageRequest(v.ID)))
	wantErr(t, "delete", s.volumes.Delete(s.ctx, v.ID), volume.ErrInUse)
}

func TestListRefusesNegativeNumbers(t *testing.T) {
	s := newWorld(t).boot()
	_, err := s.volumes.List(s.ctx, volume.ListRequest{Max: -1})
	wantErr(t, "list", err, volume.ErrInvalid)
}

func TestCapacity(t *testing.T) {
	pools := map[string]int64{"fast": 10 * gib, "slow": 2 << 40}
	here, there := volume.Segment{volume.TopologyKey: testNode}, volume.Segment{volume.TopologyKey: "other"}
	cases := map[string]struct {
		reason string
		req    volume.CapacityRequest
		want   volume.Capacity
		err    error
	}{
		"All":      {reason: "the sum, but no volume beyond the maximum", want: volume.Capacity{Available: 2<<40 + 10*gib, Largest: 1 << 40}},
		"Kind":     {reason: "one pool", req: volume.CapacityRequest{Parameters: map[string]string{"kind": "fast"}}, want: volume.Capacity{Available: 10 * gib, Largest: 10 * gib}},
		"Here":     {reason: "the own segment", req: volume.CapacityRequest{Parameters: map[string]string{"kind": "fast"}, Topology: here}, want: volume.Capacity{Available: 10 * gib, Largest: 10 * gib}},
		"There":    {reason: "another driver's segment", req: volume.CapacityRequest{Topology: there}},
		"Foreign":  {reason: "a segment of another key", req: volume.CapacityRequest{Topology: volume.Segment{"zone": "a"}}},
		"Unserved": {reason: "what cannot be made has no space", req: volume.CapacityRequest{Capabilities: []volume.Capability{{Access: volume.AccessMount, FSType: "ntfs", Mode: volume.SingleNodeWriter}}}},
		"Mount":    {reason: "what can has", req: volume.CapacityRequest{Capabilities: []volume.Capability{writer()}, Parameters: map[string]string{"kind": "fast"}}, want: volume.Capacity{Available: 10 * gib, Largest: 10 * gib}},
		"BadKind":  {reason: "no such pool", req: volume.CapacityRequest{Parameters: map[string]string{"kind": "x"}}, err: volume.ErrInvalid},
		"BadParam": {reason: "no such parameter", req: volume.CapacityRequest{Parameters: map[string]string{"x": "y"}}, err: volume.ErrInvalid},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.limits = pools
			s := w.boot()
			got, err := s.volumes.Capacity(s.ctx, &c.req)
			wantErr(t, c.reason, err, c.err)
			if diff := cmp.Diff(c.want, got); err == nil && diff != "" {
				t.Errorf("%s (-want +got):\n%s", c.reason, diff)
			}
		})
	}
}

func TestCapacityWithoutPoolsIsTheDisk(t *testing.T) {
	w := newWorld(t)
	s := w.boot()
	disk, err := freeOf(w.stateDir)
	w.must(err)
	got, err := s.volumes.Capacity(s.ctx, &volume.CapacityRequest{})
	w.must(err)
	// Other programs write to the disk meanwhile.
	if got.Available <= 0 || got.Available < disk.bytes/2 || got.Available > disk.bytes*2 || got.Largest != min(got.Available, 1<<40) {
		t.Errorf("capacity %+v, the disk has %d bytes", got, disk.bytes)
	}
	_, err = s.volumes.Capacity(s.ctx, &volume.CapacityRequest{Parameters: map[string]string{"kind": "fast"}})
	wantErr(t, "a kind without pools", err, volume.ErrInvalid)
}

func TestPublish(t *testing.T) {
	w := newWorld(t)
	w.attach = true
	s := w.boot()
	v := s.create("pvc-1")
	publish := func(id volume.ID, node string, c volume.Capability) error {
		_, err := s.volumes.Publish(s.ctx, &volume.PublishRequest{ID: id, Node: node, Capability: c})
		return err
	}
	wantErr(t, "unknown volume", publish("x", testNode, writer()), volume.ErrNotFound)
	wantErr(t, "unknown node", publish(v.ID, "node-9", writer()), volume.ErrNotFound)
	wantErr(t, "no node", publish(v.ID, "../x", writer()), volume.ErrInvalid)
	wantErr(t, "block", publish(v.ID, testNode, blockWriter()), volume.ErrInvalid)
	w.must(os.MkdirAll(nodeDir(w.stateDir, "node-2"), 0o750))
	wantErr(t, "out of reach", publish(v.ID, "node-2", writer()), volume.ErrPrecondition)
	w.must(publish(v.ID, testNode, writer()))

	// A new life knows it.
	s = w.boot()
	got, err := s.volumes.Get(s.ctx, v.ID)
	w.must(err)
	if diff := cmp.Diff([]volume.Publication{{Node: testNode, Capability: writer()}}, got.Published); diff != "" {
		t.Errorf("published (-want +got):\n%s", diff)
	}
	w.must(s.volumes.Unpublish(s.ctx, v.ID, testNode))
	if got, err = s.volumes.Get(s.ctx, v.ID); err != nil || len(got.Published) > 0 {
		t.Errorf("after Unpublish: %v, %v", got.Published, err)
	}
	wantErr(t, "unpublish an unknown volume", s.volumes.Unpublish(s.ctx, "x", testNode), volume.ErrNotFound)
}

func TestAttachLimitSurvivesRestart(t *testing.T) {
	w := newWorld(t)
	w.attach = true
	s := w.boot()
	publish := func(s *system, v *volume.Volume) error {
		s.volumes.cfg.AttachLimit = 2
		_, err := s.volumes.Publish(s.ctx, &volume.PublishRequest{ID: v.ID, Node: testNode, Capability: writer()})
		return err
	}
	a, b, c := s.create("a"), s.create("b"), s.create("c")
	w.must(publish(s, a), publish(s, b))
	wantErr(t, "third", publish(s, c), volume.ErrExhausted)
	s = w.boot()
	wantErr(t, "third after a restart", publish(s, c), volume.ErrExhausted)
	w.must(s.volumes.Unpublish(s.ctx, a.ID, ""))
	if err := publish(s, c); err != nil {
		t.Errorf("third when the first is gone: %v", err)
	}
}

// TestDeletedVolumesGiveTheirSlotsBack: with --check-volume-lifecycle=false an
// attached volume may go, and nobody detaches it any more.
func TestDeletedVolumesGiveTheirSlotsBack(t *testing.T) {
	w := newWorld(t)
	w.attach = true
	s := w.boot()
	s.volumes.cfg.ProtectUsed, s.volumes.cfg.AttachLimit = false, 1
	for _, name := range []string{"a", "b"} {
		v := s.create(name)
		if _, err := s.volumes.Publish(s.ctx, &volume.PublishRequest{ID: v.ID, Node: testNode, Capability: writer()}); err != nil {
			t.Errorf("attach %s: %v", name, err)
		}
		w.must(s.volumes.Delete(s.ctx, v.ID))
	}
}

// TestNodesElsewhere: the state directories of the nodes are not here, so
// every name may be one.
func TestNodesElsewhere(t *testing.T) {
	w := newWorld(t)
	volumes, err := OpenVolumes(w.ctx, VolumesConfig{
		StateDir: w.stateDir, Pools: volume.NewPools(nil), MaxSize: gib, Attach: true, Mounter: w.mounter,
	})
	w.must(err)
	v, err := volumes.Create(w.ctx, createRequest("pvc-1"))
	w.must(err)
	if _, err := volumes.Publish(w.ctx, &volume.PublishRequest{ID: v.ID, Node: "anywhere", Capability: writer()}); err != nil {
		t.Errorf("publish: %v", err)
	}
}

func TestNewerRecordStopsTheStart(t *testing.T) {
	w := newWorld(t)
	v := w.boot().create("pvc-1")
	w.writeFile(filepath.Join(w.stateDir, recordsDir, string(v.ID)+".json"), `{"version": 7, "kind": "volume", "record": {}}`)
	_, err := w.tryBoot()
	wantErr(t, "boot", err, state.ErrNewerSchema)
	if _, err := os.Stat(w.contents(v.ID)); err != nil {
		t.Errorf("the contents: %v", err)
	}
}

// TestTornRecordKeepsTheData: an unreadable record must not make its volume's
// contents an orphan, not even when they are empty.
func TestTornRecordKeepsTheData(t *testing.T) {
	w := newWorld(t)
	s := w.boot()
	torn, empty, good := s.create("torn"), s.create("empty"), s.create("good")
	w.writeFile(filepath.Join(w.contents(torn.ID), "file"), "precious")
	for _, v := range []*volume.Volume{torn, empty} {
		w.writeFile(filepath.Join(w.stateDir, recordsDir, string(v.ID)+".json"), `{"version": 1, "ki`)
	}
	for range 2 {
		s = w.boot()
		if got := ids(s.volumes.volumes.catalog.all()); !cmp.Equal(got, []volume.ID{good.ID}) {
			t.Errorf("volumes %v, want %v", got, good.ID)
		}
	}
	for _, path := range []string{filepath.Join(w.contents(torn.ID), "file"), w.contents(empty.ID)} {
		if _, err := os.Stat(path); err != nil {
			t.Errorf("contents: %v", err)
		}
	}
}

// TestOrphans: what is empty goes, what has contents stays.
func TestOrphans(t *testing.T) {
	w := newWorld(t)
	w.boot()
	w.must(os.Mkdir(w.contents("empty"), 0o750))
	w.writeFile(filepath.Join(w.contents("full"), "file"), "whose?")
	w.writeFile(filepath.Join(w.stateDir, trashDir, "old", "file"), "rest")
	w.boot()
	if diff := cmp.Diff([]string{"volumes/full"}, w.files()); diff != "" {
		t.Errorf("files (-want +got):\n%s", diff)
	}
}

// TestUndoThatFailsKeepsTheDirectory: the record may be there, so its volume
// must stay whole.
func TestUndoThatFailsKeepsTheDirectory(t *testing.T) {
	w := newWorld(t)
	s := w.boot()
	records := filepath.Join(w.stateDir, recordsDir)
	w.must(os.Remove(records))
	w.writeFile(records, "a file, in which nothing can be written nor removed")
	if _, err := s.volumes.Create(s.ctx, createRequest("pvc-1")); err == nil {
		t.Fatal("create without a place for the record: no error")
	}
	if left := w.files(); len(left) != 1 || !strings.HasPrefix(left[0], volumesDir+"/") {
		t.Errorf("left on disk: %v, want the directory of the volume", left)
	}
	w.must(os.Remove(records))
	w.boot()
	if left := w.files(); len(left) > 0 {
		t.Errorf("left after the next start: %v", left)
	}
}

// TestMountInTheTrash: what is mounted inside a discarded volume is not its
// contents, and stops neither the start nor, when it is gone, the removal.
func TestMountInTheTrash(t *testing.T) {
	w := newWorld(t)
	s := w.boot()
	v := s.create("pvc-1")
	inner := filepath.Join(w.stateDir, trashDir, string(v.ID), "inner")
	w.writeFile(filepath.Join(w.contents(v.ID), "inner", "file"), "precious")
	s.volumes.cfg.Step = func(name string) {
		if name == "delete:purge" {
			w.must(w.fake.Bind(w.ctx, w.pods, inner, mountNothing()))
		}
	}
	wantErr(t, "delete", s.volumes.Delete(s.ctx, v.ID), volume.ErrInUse)
	s = w.boot()
	wantErr(t, "delete again", s.volumes.Delete(s.ctx, v.ID), volume.ErrInUse)
	if _, err := os.Stat(filepath.Join(inner, "file")); err != nil {
		t.Errorf("what is mounted: %v", err)
	}
	w.must(w.fake.Unmount(w.ctx, inner))
	w.boot()
	if left := w.files(); len(left) > 0 {
		t.Errorf("left on disk: %v", left)
	}
}

// TestMissingContents: a volume whose directory vanished is shown and can be
// deleted, but not staged.
func TestMissingContents(t *testing.T) {
	w := newWorld(t)
	v := w.boot().create("pvc-1")
	w.must(os.RemoveAll(w.contents(v.ID)))
	s := w.boot()
	if err := s.node.Stage(s.ctx, w.stageRequest(v.ID)); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("stage: %v, want fs.ErrNotExist", err)
	}
	if err := s.volumes.Delete(s.ctx, v.ID); err != nil {
		t.Errorf("delete: %v", err)
	}
	if left := w.files(); len(left) > 0 {
		t.Errorf("left on disk: %v", left)
	}
}
