package backend

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/longshore-csi/longshore/driverkit/mount"
	"github.com/longshore-csi/longshore/driverkit/state"
	"github.com/longshore-csi/longshore/hostpathdriver/internal/volume"
)

func TestLifeOfAPersistentVolume(t *testing.T) {
	w := newWorld(t)
	s := w.boot()
	v := s.create("pvc-1")
	w.must(s.node.Stage(s.ctx, w.stageRequest(v.ID)), s.node.Publish(s.ctx, w.targetRequest(v.ID)))
	want := &volume.NodeVolume{
		ID:      v.ID,
		Stage:   &volume.Stage{Path: w.staging(v.ID), Capability: sharer()},
		Targets: []volume.Target{{Path: w.target(v.ID), Source: w.staging(v.ID), Capability: sharer()}},
	}
	got, err := s.node.Lookup(s.ctx, v.ID)
	w.must(err)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("record (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]*volume.NodeVolume{want}, w.boot().node.All()); diff != "" {
		t.Errorf("record after a restart (-want +got):\n%s", diff)
	}
	if m := w.fake.At(w.staging(v.ID)); m == nil || m.Source != w.contents(v.ID) {
		t.Errorf("staging mount %+v, want %s", m, w.contents(v.ID))
	}
	if m := w.fake.At(w.target(v.ID)); m == nil || m.Source != w.staging(v.ID) {
		t.Errorf("target mount %+v, want %s", m, w.staging(v.ID))
	}
	wantErr(t, "unstage too early", s.node.Unstage(s.ctx, v.ID, w.staging(v.ID)), volume.ErrInUse)
	w.must(s.node.Unpublish(s.ctx, v.ID, w.target(v.ID)), s.node.Unstage(s.ctx, v.ID, w.staging(v.ID)))
	if left := w.fake.Targets(); len(left) > 0 {
		t.Errorf("mounts left: %v", left)
	}
	if !gone(w.target(v.ID)) || gone(w.staging(v.ID)) {
		t.Errorf("target gone: %t, want true; staging gone: %t, want false: it is the CO's", gone(w.target(v.ID)), gone(w.staging(v.ID)))
	}
	_, err = s.node.Lookup(s.ctx, v.ID)
	wantErr(t, "lookup", err, volume.ErrNotFound)
	w.must(s.volumes.Delete(s.ctx, v.ID))
	if left := w.files(); len(left) > 0 {
		t.Errorf("left on disk: %v", left)
	}
}

func TestStageRefusals(t *testing.T) {
	cases := map[string]struct {
		reason string
		change func(s *system, r *volume.StageRequest)
		err    error
	}{
		"Unknown":      {reason: "no such volume", change: func(_ *system, r *volume.StageRequest) { r.ID = "x" }, err: volume.ErrNotFound},
		"Relative":     {reason: "relative to what?", change: func(_ *system, r *volume.StageRequest) { r.Stage.Path = "some/path" }, err: volume.ErrInvalid},
		"Root":         {reason: "never over the root", change: func(_ *system, r *volume.StageRequest) { r.Stage.Path = "/" }, err: volume.ErrInvalid},
		"DotDot":       {reason: "paths are compared, so they are clean", change: func(_ *system, r *volume.StageRequest) { r.Stage.Path += "/../x" }, err: volume.ErrInvalid},
		"State":        {reason: "not over the driver's own state", change: func(s *system, r *volume.StageRequest) { r.Stage.Path = s.stateDir + "/volumes/x" }, err: volume.ErrInvalid},
		"AboveState":   {reason: "nor over what contains it", change: func(s *system, r *volume.StageRequest) { r.Stage.Path = filepath.Dir(s.stateDir) }, err: volume.ErrInvalid},
		"Block":        {reason: "directories are no devices", change: func(_ *system, r *volume.StageRequest) { r.Stage.Capability.Access = volume.AccessBlock }, err: volume.ErrInvalid},
		"SomethingOn":  {reason: "a foreign mount is in the way", change: func(s *system, r *volume.StageRequest) { s.mountForeign(r.Stage.Path) }, err: volume.ErrPrecondition},
		"OtherNode":    {reason: "the volume is elsewhere", change: func(s *system, _ *volume.StageRequest) { s.node.cfg.NodeID = "other" }, err: volume.ErrPrecondition},
		"NotAttached":  {reason: "attach comes first", change: func(s *system, _ *volume.StageRequest) { s.node.cfg.Attach = true }, err: volume.ErrPrecondition},
		"NotMountable": {reason: "the mount fails", change: func(s *system, _ *volume.StageRequest) { s.fake.Fail(errTest) }, err: errTest},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			s := w.boot()
			v := s.create("pvc-1")
			req := w.stageRequest(v.ID)
			c.change(s, req)
			wantErr(t, c.reason, s.node.Stage(s.ctx, req), c.err)
			if all := s.node.All(); len(all) > 0 {
				t.Errorf("%s: the node remembers %+v", c.reason, all[0])
			}
			if diff := cmp.Diff([]string{"records/" + string(v.ID) + ".json", "volumes/" + string(v.ID)}, w.files()); diff != "" {
				t.Errorf("%s: on disk (-want +got):\n%s", c.reason, diff)
			}
		})
	}
}

var errTest = errors.New("injected by the test")

// mountForeign mounts what is no volume of the driver.
func (w *world) mountForeign(path string) {
	w.t.Helper()
	source := w.t.TempDir()
	w.must(os.MkdirAll(path, 0o750), w.fake.Bind(w.ctx, source, path, mount.Options{}))
}

func TestPublishRefusals(t *testing.T) {
	cases := map[string]struct {
		reason string
		change func(s *system, r *volume.TargetRequest)
		err    error
	}{
		"Unknown":       {reason: "no such volume", change: func(_ *system, r *volume.TargetRequest) { r.ID = "x" }, err: volume.ErrNotFound},
		"NotStaged":     {reason: "stage comes first", change: func(s *system, r *volume.TargetRequest) { r.ID = s.create("other").ID }, err: volume.ErrPrecondition},
		"OtherStaging":  {reason: "staged elsewhere", change: func(_ *system, r *volume.TargetRequest) { r.Target.Source += "x" }, err: volume.ErrPrecondition},
		"StageUnmounts": {reason: "staged, but the mount is gone", change: func(s *system, _ *volume.TargetRequest) { s.fake.Reboot() }, err: volume.ErrPrecondition},
		"Relative":      {reason: "relative target", change: func(_ *system, r *volume.TargetRequest) { r.Target.Path = "x" }, err: volume.ErrInvalid},
		"Block":         {reason: "directories are no devices", change: func(_ *system, r *volume.TargetRequest) { r.Target.Capability.Access = volume.AccessBlock }, err: volume.ErrInvalid},
		"SomethingOn":   {reason: "a foreign mount is in the way", change: func(s *system, r *volume.TargetRequest) { s.mountForeign(r.Target.Path) }, err: volume.ErrPrecondition},
		"NotMountable":  {reason: "the mount fails", change: func(s *system, _ *volume.TargetRequest) { s.fake.Fail(errTest) }, err: errTest},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			s := w.boot()
			v := s.create("pvc-1")
			w.must(s.node.Stage(s.ctx, w.stageRequest(v.ID)))
			before := s.node.All()
			req := w.targetRequest(v.ID)
			c.change(s, req)
			wantErr(t, c.reason, s.node.Publish(s.ctx, req), c.err)
			if diff := cmp.Diff(before, s.node.All()); diff != "" {
				t.Errorf("%s: what the node remembers (-want +got):\n%s", c.reason, diff)
			}
			if !errors.Is(c.err, volume.ErrPrecondition) && !gone(w.target(v.ID)) {
				t.Errorf("%s: the target is left behind", c.reason)
			}
		})
	}
}

func TestReadOnlyMounts(t *testing.T) {
	cases := map[string]struct {
		reason string
		change func(*volume.Target)
		want   mount.Options
	}{
		"Writable": {reason: "nothing asks for it", change: func(*volume.Target) {}},
		"Flag":     {reason: "the readonly field of the request", change: func(x *volume.Target) { x.ReadOnly = true }, want: mount.Options{ReadOnly: true}},
		"Mode":     {reason: "readers only", change: func(x *volume.Target) { x.Capability.Mode = volume.MultiNodeReaderOnly }, want: mount.Options{ReadOnly: true}},
		"Flags":    {reason: "flags are handed on", change: func(x *volume.Target) { x.Capability.MountFlags = []string{"noexec"} }, want: mount.Options{Flags: []string{"noexec"}}},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			s := w.boot()
			v := s.create("pvc-1")
			req := w.targetRequest(v.ID)
			c.change(&req.Target)
			w.must(s.node.Stage(s.ctx, w.stageRequest(v.ID)), s.node.Publish(s.ctx, req))
			if diff := cmp.Diff(c.want, w.fake.At(w.target(v.ID)).Options); diff != "" {
				t.Errorf("%s (-want +got):\n%s", c.reason, diff)
			}
		})
	}
}

// TestUnpublishNeverReachesIntoAVolume: upstream removes the target with all
// that is below, which may still be a mounted volume.
func TestUnpublishNeverReachesIntoAVolume(t *testing.T) {
	w := newWorld(t)
	s := w.boot()
	v := s.create("pvc-1")
	w.must(s.node.Stage(s.ctx, w.stageRequest(v.ID)), s.node.Publish(s.ctx, w.targetRequest(v.ID)))
	w.writeFile(filepath.Join(w.target(v.ID), "file"), "written when nothing was mounted")
	if err := s.node.Unpublish(s.ctx, v.ID, w.target(v.ID)); err == nil {
		t.Error("a target with contents is removed")
	}
	if gone(filepath.Join(w.target(v.ID), "file")) {
		t.Error("the file is gone")
	}
	w.must(os.Remove(filepath.Join(w.target(v.ID), "file")))
	if err := s.node.Unpublish(s.ctx, v.ID, w.target(v.ID)); err != nil {
		t.Errorf("unpublish when empty: %v", err)
	}
}

// TestUnknownVolumesAreCleaned: the record is lost, the mount of the volume is
// there.
func TestUnknownVolumesAreCleaned(t *testing.T) {
	w := newWorld(t)
	s := w.boot()
	id := s.create("pvc-1").ID
	for _, path := range []string{w.target(id), w.target(id), w.staging(id)} {
		w.must(os.MkdirAll(path, 0o750), w.fake.Bind(s.ctx, w.contents(id), path, mountNothing()))
	}
	w.must(s.node.Unpublish(s.ctx, id, w.target(id)), s.node.Unstage(s.ctx, id, w.staging(id)))
	if left := w.fake.Targets(); len(left) > 0 || !gone(w.target(id)) {
		t.Errorf("mounts left: %v, target gone: %t", left, gone(w.target(id)))
	}
	w.must(s.node.Unpublish(s.ctx, "x", w.target("x")), s.node.Unstage(s.ctx, "x", w.staging("x")))
	for _, path := range []string{"/", "relative", w.stateDir} {
		wantErr(t, "unpublish "+path, s.node.Unpublish(s.ctx, "x", path), volume.ErrInvalid)
		wantErr(t, "unstage "+path, s.node.Unstage(s.ctx, "x", path), volume.ErrInvalid)
	}
}

func TestUnmountFailureKeepsTheRecord(t *testing.T) {
	w := newWorld(t)
	s := w.boot()
	v := s.create("pvc-1")
	w.must(s.node.Stage(s.ctx, w.stageRequest(v.ID)), s.node.Publish(s.ctx, w.targetRequest(v.ID)))
	before := s.node.All()
	w.fake.Fail(errTest)
	wantErr(t, "unpublish", s.node.Unpublish(s.ctx, v.ID, w.target(v.ID)), errTest)
	if diff := cmp.Diff(before, s.node.All()); diff != "" {
		t.Errorf("what the node remembers (-want +got):\n%s", diff)
	}
	w.fake.Fail(nil)
	w.must(s.node.Unpublish(s.ctx, v.ID, w.target(v.ID)))
}

func TestInlineVolume(t *testing.T) {
	w := newWorld(t)
	w.limits = map[string]int64{"fast": gib}
	s := w.boot()
	const id = "csi-1"
	req := w.inlineRequest(id, map[string]string{"kind": "fast", "size": "256Mi", "mode": "0700"})
	w.must(s.node.Publish(s.ctx, req))
	want := &volume.NodeVolume{
		ID: id, Targets: []volume.Target{req.Target},
		Ephemeral: &volume.Ephemeral{Size: 256 << 20, Pool: "fast", Attributes: req.Inline.Attributes, Pod: "ns/pod"},
	}
	got, err := s.node.Lookup(s.ctx, id)
	w.must(err)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("record (-want +got):\n%s", diff)
	}
	info, err := os.Stat(w.inlineContents(id))
	if err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("directory: %v, %v", info, err)
	}
	if m := w.fake.At(w.target(id)); m == nil || m.Source != w.inlineContents(id) {
		t.Errorf("mount %+v, want %s", m, w.inlineContents(id))
	}
	for _, system := range []*system{s, w.boot()} {
		if c, err := system.pools.Capacity("fast"); err != nil || c.Available != gib-256<<20 {
			t.Errorf("left in the pool: %d, %v", c.Available, err)
		}
	}
	w.writeFile(filepath.Join(w.inlineContents(id), "file"), "scratch")
	w.must(s.node.Unpublish(s.ctx, id, w.target(id)), s.node.Unpublish(s.ctx, id, w.target(id)))
	if left := append(w.files(), w.fake.Targets()...); len(left) > 0 || !gone(w.target(id)) {
		t.Errorf("left: %v, target gone: %t", left, gone(w.target(id)))
	}
	if c, err := s.pools.Capacity("fast"); err != nil || c.Available != gib {
		t.Errorf("left in the pool at the end: %d, %v", c.Available, err)
	}
}

func TestInlineDefaults(t *testing.T) {
	w := newWorld(t)
	s := w.boot()
	w.must(s.node.Publish(s.ctx, w.inlineRequest("csi-1", nil)))
	got, err := s.node.Lookup(s.ctx, "csi-1")
	w.must(err)
	if got.Ephemeral.Size != 100<<20 || got.Ephemeral.Pool != "" {
		t.Errorf("inline volume %+v, want 100 MiB of no pool", got.Ephemeral)
	}
}

// TestInlineUndoesItself: whatever step fails, nothing is left and the pool
// has its space back.
func TestInlineUndoesItself(t *testing.T) {
	cases := map[string]struct {
		reason string
		change func(s *system, r *volume.TargetRequest)
		err    error
	}{
		"Attribute":  {reason: "unknown attribute", change: func(_ *system, r *volume.TargetRequest) { r.Inline.Attributes = map[string]string{"x": "y"} }, err: volume.ErrInvalid},
		"TooLarge":   {reason: "larger than any volume", change: func(_ *system, r *volume.TargetRequest) { r.Inline.Attributes = map[string]string{"size": "2Ti"} }, err: volume.ErrOutOfRange},
		"PoolFull":   {reason: "larger than the pool", change: func(_ *system, r *volume.TargetRequest) { r.Inline.Attributes = map[string]string{"size": "2Gi"} }, err: volume.ErrExhausted},
		"IDTaken":    {reason: "a persistent volume of that id", change: func(s *system, r *volume.TargetRequest) { r.ID = s.create("pvc").ID }, err: volume.ErrExists},
		"Mount":      {reason: "the mount fails", change: func(s *system, _ *volume.TargetRequest) { s.fake.Fail(errTest) }, err: errTest},
		"MkdirFails": {reason: "a file where the target's parent must be", change: func(s *system, r *volume.TargetRequest) { s.writeFile(r.Target.Path, ""); r.Target.Path += "/x" }, err: nil},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.limits = map[string]int64{"fast": gib + 100<<20}
			s := w.boot()
			req := w.inlineRequest("csi-1", nil)
			c.change(s, req)
			err := s.node.Publish(s.ctx, req)
			if err == nil || (c.err != nil && !errors.Is(err, c.err)) {
				t.Errorf("%s: error %v, want %v", c.reason, err, c.err)
			}
			if all := s.node.All(); len(all) > 0 {
				t.Errorf("%s: the node remembers %+v", c.reason, all[0])
			}
			if left := strings.Join(w.files(), " "); strings.Contains(left, "nodes/") {
				t.Errorf("%s: left on disk: %v", c.reason, left)
			}
			charged := int64(0)
			for _, v := range s.volumes.volumes.catalog.all() {
				charged += v.Capacity
			}
			if free, err := s.pools.Capacity("fast"); err != nil || free.Available+charged != gib+100<<20 {
				t.Errorf("%s: left in the pool: %d, %v", c.reason, free.Available, err)
			}
		})
	}
}

// TestInlineSurvivesReboot: the machine restarts, the pod comes back with the
// same handle and finds its data.
func TestInlineSurvivesReboot(t *testing.T) {
	w := newWorld(t)
	w.limits = map[string]int64{"fast": gib}
	s := w.boot()
	req := w.inlineRequest("csi-1", nil)
	w.must(s.node.Publish(s.ctx, req))
	w.writeFile(filepath.Join(w.inlineContents("csi-1"), "file"), "data")
	w.fake.Reboot()
	s = w.boot()
	w.must(s.node.Publish(s.ctx, req))
	if w.fake.At(w.target("csi-1")) == nil || gone(filepath.Join(w.inlineContents("csi-1"), "file")) {
		t.Errorf("mount %v, file gone: %t", w.fake.At(w.target("csi-1")), gone(filepath.Join(w.inlineContents("csi-1"), "file")))
	}
	if c, err := s.pools.Capacity("fast"); err != nil || c.Available != gib-100<<20 {
		t.Errorf("charged twice or not at all: %d left, %v", c.Available, err)
	}
}

// TestInlineIsCollected: the pod was deleted while the driver was down.
func TestInlineIsCollected(t *testing.T) {
	w := newWorld(t)
	w.limits = map[string]int64{"fast": gib}
	s := w.boot()
	w.must(s.node.Publish(s.ctx, w.inlineRequest("csi-1", nil)))
	w.writeFile(filepath.Join(w.inlineContents("csi-1"), "file"), "data")
	w.fake.Reboot()
	w.must(os.Remove(w.target("csi-1")))
	s = w.boot()
	if left := w.files(); len(left) > 0 || len(s.node.All()) > 0 {
		t.Errorf("left: %v, %v", left, s.node.All())
	}
	if c, err := s.pools.Capacity("fast"); err != nil || c.Available != gib {
		t.Errorf("left in the pool: %d, %v", c.Available, err)
	}
}

// TestUndeletableInlineVolumeStopsNobody: something is mounted inside of a
// volume that is to be collected. The other volumes of the node must not
// suffer from it.
func TestUndeletableInlineVolumeStopsNobody(t *testing.T) {
	w := newWorld(t)
	w.limits = map[string]int64{"fast": gib}
	s := w.boot()
	w.must(s.node.Publish(s.ctx, w.inlineRequest("csi-1", nil)))
	inner := filepath.Join(w.inlineContents("csi-1"), "inner")
	w.fake.Reboot()
	w.must(os.Remove(w.target("csi-1")), os.Mkdir(inner, 0o750), w.fake.Bind(w.ctx, w.pods, inner, mount.Options{}))
	s = w.boot()
	if c, err := s.pools.Capacity("fast"); err != nil || c.Available != gib-100<<20 || len(s.node.All()) != 1 {
		t.Errorf("left in the pool: %d, %v; the node knows %v", c.Available, err, s.node.All())
	}
	w.must(w.fake.Unmount(w.ctx, inner), s.node.Unpublish(s.ctx, "csi-1", w.target("csi-1")))
	if c, err := s.pools.Capacity("fast"); err != nil || c.Available != gib || len(w.files()) > 0 {
		t.Errorf("left in the pool: %d, %v; on disk %v", c.Available, err, w.files())
	}
}

// TestInlineTargetThatCannotBeLookedAt is kept: not to see a target is no
// reason to delete data.
func TestInlineTargetThatCannotBeLookedAt(t *testing.T) {
	w := newWorld(t)
	s := w.boot()
	req := w.inlineRequest("csi-1", nil)
	loop := filepath.Join(w.pods, "loop")
	w.must(os.Mkdir(loop, 0o750))
	req.Target.Path = filepath.Join(loop, "target")
	w.must(s.node.Publish(s.ctx, req))
	w.writeFile(filepath.Join(w.inlineContents("csi-1"), "file"), "data")
	w.must(os.RemoveAll(loop), os.Symlink("loop", loop))
	w.boot()
	if gone(filepath.Join(w.inlineContents("csi-1"), "file")) {
		t.Error("the data is gone")
	}
}

func TestRebootForgetsMounts(t *testing.T) {
	w := newWorld(t)
	s := w.boot()
	a, b := s.create("a"), s.create("b")
	for _, v := range []*volume.Volume{a, b} {
		w.must(s.node.Stage(s.ctx, w.stageRequest(v.ID)), s.node.Publish(s.ctx, w.targetRequest(v.ID)))
	}
	w.must(w.fake.Unmount(s.ctx, w.target(b.ID)))
	s = w.boot()
	known, err := s.node.Lookup(s.ctx, b.ID)
	if err != nil || known.Stage == nil || len(known.Targets) != 0 {
		t.Errorf("one mount gone: %+v, %v", known, err)
	}
	w.fake.Reboot()
	s = w.boot()
	if all := s.node.All(); len(all) > 0 {
		t.Errorf("all mounts gone: the node remembers %+v", all[0])
	}
	w.must(s.node.Stage(s.ctx, w.stageRequest(a.ID)), s.node.Publish(s.ctx, w.targetRequest(a.ID)))
}

// TestUnstageForgetsDeadTargets: somebody unmounted the target by hand.
func TestUnstageForgetsDeadTargets(t *testing.T) {
	w := newWorld(t)
	s := w.boot()
	v := s.create("pvc-1")
	w.must(s.node.Stage(s.ctx, w.stageRequest(v.ID)), s.node.Publish(s.ctx, w.targetRequest(v.ID)))
	w.must(w.fake.Unmount(s.ctx, w.target(v.ID)), s.node.Unstage(s.ctx, v.ID, w.staging(v.ID)))
	if all := s.node.All(); len(all) > 0 {
		t.Errorf("the node remembers %+v", all[0])
	}
}

func TestIntact(t *testing.T) {
	w := newWorld(t)
	s := w.boot()
	v := s.create("pvc-1")
	w.must(s.node.Stage(s.ctx, w.stageRequest(v.ID)), s.node.Publish(s.ctx, w.targetRequest(v.ID)), s.node.Publish(s.ctx, w.inlineRequest("csi-1", nil)))
	persistent, err := s.node.Lookup(s.ctx, v.ID)
	w.must(err)
	inline, err := s.node.Lookup(s.ctx, "csi-1")
	w.must(err)
	check := func(known *volume.NodeVolume, path string, want bool) {
		t.Helper()
		if got, err := s.node.MountMatches(s.ctx, known, path); got != want || err != nil {
			t.Errorf("MountMatches(%s, %s) = %t, %v, want %t", known.ID, path, got, err, want)
		}
	}
	check(persistent, w.staging(v.ID), true)
	check(persistent, w.target(v.ID), true)
	check(persistent, "/elsewhere", false)
	check(inline, w.target("csi-1"), true)
	w.fake.Reboot()
	w.mountForeign(w.target(v.ID))
	check(persistent, w.staging(v.ID), false)
	check(persistent, w.target(v.ID), false)
	check(inline, w.target("csi-1"), false)
}

func TestNodeRefusesBadNames(t *testing.T) {
	w := newWorld(t)
	for _, name := range []string{"", "../x", "a/b", strings.Repeat("n", 300)} {
		_, err := OpenNode(w.ctx, NodeConfig{StateDir: w.stateDir, NodeID: name, Mounter: w.mounter})
		wantErr(t, "node "+name, err, volume.ErrInvalid)
	}
}

func TestTornNodeRecord(t *testing.T) {
	w := newWorld(t)
	s := w.boot()
	w.must(s.node.Publish(s.ctx, w.inlineRequest("csi-1", nil)))
	path := filepath.Join(nodeDir(w.stateDir, testNode), recordsDir, "csi-1.json")
	w.writeFile(path, "{")
	s = w.boot()
	if gone(w.inlineContents("csi-1")) {
		t.Error("the contents of an unreadable record are gone")
	}
	w.must(s.node.Unpublish(s.ctx, "csi-1", w.target("csi-1")))
	w.writeFile(path, `{"version": 9, "kind": "node-volume", "record": {}}`)
	_, err := w.tryBoot()
	wantErr(t, "newer record", err, state.ErrNewerSchema)
}
