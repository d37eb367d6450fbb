package idempotent

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
	"k8s.io/klog/v2"

	"github.com/longshore-csi/longshore/driverkit/loop"
	"github.com/longshore-csi/longshore/driverkit/mount"
	"github.com/longshore-csi/longshore/hostpathdriver/internal/backend"
	"github.com/longshore-csi/longshore/hostpathdriver/internal/volume"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m)
}

// fixture is the real backend with a mount table that is not the kernel's.
type fixture struct {
	t       *testing.T
	ctx     context.Context // fixture of one test
	volumes *Services
	node    *Node
	mounter *mount.Fake
	pods    string
}

func newFixture(t *testing.T) *fixture {
	t.Helper()
	f := &fixture{t: t, ctx: klog.NewContext(t.Context(), klog.Logger{}), mounter: &mount.Fake{}, pods: t.TempDir()}
	stateDir, pools := t.TempDir(), volume.NewPools(nil)
	volumes, err := backend.OpenVolumes(f.ctx, backend.VolumesConfig{
		StateDir: stateDir, Pools: pools, MaxSize: 1 << 40, Attach: true, ProtectUsed: true, Mounter: f.mounter,
	})
	f.must(err)
	node, err := backend.OpenNode(f.ctx, backend.NodeConfig{StateDir: stateDir, NodeID: "n1", Pools: pools, MaxSize: 1 << 40, Mounter: f.mounter, Devices: &loop.Fake{Dir: t.TempDir()}})
	f.must(err)
	f.volumes, f.node = New(volumes), NewNode(node)
	return f
}

func (f *fixture) must(errs ...error) {
	f.t.Helper()
	if err := errors.Join(errs...); err != nil {
		f.t.Fatal(err)
	}
}

func (f *fixture) want(what string, err, want error) {
	f.t.Helper()
	if !errors.Is(err, want) {
		f.t.Errorf("%s: error %v, want %v", what, err, want)
	}
}

func capability() volume.Capability {
	return volume.Capability{Access: volume.AccessMount, Mode: volume.SingleNodeMultiWriter}
}

func createRequest(name string) *volume.CreateRequest {
	return &volume.CreateRequest{Name: name, Range: volume.Range{Required: 1 << 20}, Capabilities: []volume.Capability{capability()}}
}

func (f *fixture) create(name string) *volume.Volume {
	f.t.Helper()
	v, err := f.volumes.Create(f.ctx, createRequest(name))
	f.must(err)
	return v
}

func (f *fixture) stage(id volume.ID) *volume.StageRequest {
	return &volume.StageRequest{ID: id, Stage: volume.Stage{Path: filepath.Join(f.pods, "staging"), Capability: capability()}}
}

func (f *fixture) target(id volume.ID) *volume.TargetRequest {
	return &volume.TargetRequest{ID: id, Target: volume.Target{
		Path: filepath.Join(f.pods, "target"), Source: filepath.Join(f.pods, "staging"), Capability: capability(),
	}}
}

func TestCreateAgain(t *testing.T) {
	f := newFixture(t)
	first := f.create("pvc-1")
	if again := f.create("pvc-1"); again.ID != first.ID {
		t.Errorf("the same request made a second volume: %s and %s", first.ID, again.ID)
	}
	larger := createRequest("pvc-1")
	larger.Range.Required = 1 << 30
	_, err := f.volumes.Create(f.ctx, larger)
	f.want("another size", err, volume.ErrExists)
	f.must(f.volumes.Delete(f.ctx, first.ID), f.volumes.Delete(f.ctx, first.ID))
	if next := f.create("pvc-1"); next.ID == first.ID {
		t.Error("a deleted volume has come back")
	}
}

// TestCreateConcurrently calls with few names from many goroutines: one volume
// for each name.
func TestCreateConcurrently(t *testing.T) {
	f := newFixture(t)
	const names, calls = 4, 8
	var mu sync.Mutex
	found := map[string]map[volume.ID]bool{}
	var group sync.WaitGroup
	for i := range names * calls {
		group.Go(func() {
			name := fmt.Sprintf("pvc-%d", i%names)
			v, err := f.volumes.Create(f.ctx, createRequest(name))
			if err != nil {
				t.Error(err)
				return
			}
			mu.Lock()
			defer mu.Unlock()
			if found[name] == nil {
				found[name] = map[volume.ID]bool{}
			}
			found[name][v.ID] = true
		})
	}
	group.Wait()
	for name, ids := range found {
		if len(ids) != 1 {
			t.Errorf("%s: %d volumes, want 1", name, len(ids))
		}
	}
	page, err := f.volumes.List(f.ctx, volume.ListRequest{})
	if err != nil || len(page.Volumes) != names {
		t.Errorf("%d volumes, %v, want %d", len(page.Volumes), err, names)
	}
}

// TestEverythingAtOnce lets many goroutines do everything with one volume;
// only errors of the domain may come back, and at the end all of it can be
// undone.
func TestEverythingAtOnce(t *testing.T) {
	f := newFixture(t)
	v := f.create("pvc-1")
	stage, target := f.stage(v.ID), f.target(v.ID)
	calls := map[string]func() error{
		"create": func() error { _, err := f.volumes.Create(f.ctx, createRequest("pvc-1")); return err },
		"attach": func() error {
			_, err := f.volumes.Publish(f.ctx, &volume.PublishRequest{ID: v.ID, Node: "n1", Capability: capability()})
			return err
		},
		"stage":     func() error { return f.node.Stage(f.ctx, stage) },
		"publish":   func() error { return f.node.Publish(f.ctx, target) },
		"stats":     func() error { _, err := f.node.Stats(f.ctx, v.ID, stage.Stage.Path); return err },
		"unpublish": func() error { return f.node.Unpublish(f.ctx, v.ID, target.Target.Path) },
		"unstage":   func() error { return f.node.Unstage(f.ctx, v.ID, stage.Stage.Path) },
		"detach":    func() error { return f.volumes.Unpublish(f.ctx, v.ID, "n1") },
	}
	expected := []error{volume.ErrPrecondition, volume.ErrInUse, volume.ErrNotFound}
	var group sync.WaitGroup
	for name, call := range calls {
		group.Go(func() {
			for range 10 {
				err := call()
				ok := err == nil
				for _, e := range expected {
					ok = ok || errors.Is(err, e)
				}
				if !ok {
					t.Errorf("%s: %v", name, err)
				}
			}
		})
	}
	group.Wait()
	f.must(f.node.Unpublish(f.ctx, v.ID, target.Target.Path), f.node.Unstage(f.ctx, v.ID, stage.Stage.Path),
		f.volumes.Unpublish(f.ctx, v.ID, ""), f.volumes.Delete(f.ctx, v.ID))
	if left := f.mounter.Targets(); len(left) > 0 {
		t.Errorf("mounts left: %v", left)
	}
}

func TestAttachAgain(t *testing.T) {
	f := newFixture(t)
	v := f.create("pvc-1")
	publish := func(readOnly bool) error {
		_, err := f.volumes.Publish(f.ctx, &volume.PublishRequest{ID: v.ID, Node: "n1", ReadOnly: readOnly, Capability: capability()})
		return err
	}
	f.must(publish(false), publish(false))
	f.want("another readonly flag", publish(true), volume.ErrExists)
	f.must(f.volumes.Unpublish(f.ctx, v.ID, "n2"), f.volumes.Unpublish(f.ctx, v.ID, "n1"), f.volumes.Unpublish(f.ctx, v.ID, "n1"),
		f.volumes.Unpublish(f.ctx, v.ID, ""), f.volumes.Unpublish(f.ctx, "unknown", "n1"))
	_, err := f.volumes.Publish(f.ctx, &volume.PublishRequest{ID: "unknown", Node: "n1", Capability: capability()})
	f.want("unknown volume", err, volume.ErrNotFound)
}

func TestMountAgain(t *testing.T) {
	f := newFixture(t)
	v := f.create("pvc-1")
	stage, target := f.stage(v.ID), f.target(v.ID)
	for range 2 {
		f.must(f.node.Stage(f.ctx, stage))
	}
	for range 2 {
		f.must(f.node.Publish(f.ctx, target))
	}
	if got := len(f.mounter.Calls()); got != 2 {
		t.Errorf("%d mounts were made, want 2: %v", got, f.mounter.Calls())
	}
	other := *stage
	other.Stage.Path += "-other"
	f.want("staging twice", f.node.Stage(f.ctx, &other), volume.ErrPrecondition)
	readOnly := *target
	readOnly.Target.ReadOnly = true
	f.want("another readonly flag", f.node.Publish(f.ctx, &readOnly), volume.ErrExists)
	inline := *target
	inline.Inline = &volume.InlineRequest{}
	f.want("as inline volume", f.node.Publish(f.ctx, &inline), volume.ErrExists)
	for range 2 {
		f.must(f.node.Unpublish(f.ctx, v.ID, target.Target.Path))
	}
	for range 2 {
		f.must(f.node.Unstage(f.ctx, v.ID, stage.Stage.Path))
	}
}

// TestHealing takes the mounts away behind the driver's back; the repeated
// call makes them again.
func TestHealing(t *testing.T) {
	f := newFixture(t)
	v := f.create("pvc-1")
	stage, target := f.stage(v.ID), f.target(v.ID)
	inline := &volume.TargetRequest{ID: "csi-1", Target: volume.Target{Path: filepath.Join(f.pods, "inline"), Capability: capability()}, Inline: &volume.InlineRequest{}}
	f.must(f.node.Stage(f.ctx, stage), f.node.Publish(f.ctx, target), f.node.Publish(f.ctx, inline))
	f.mounter.Reboot()
	f.must(f.node.Stage(f.ctx, stage), f.node.Publish(f.ctx, target), f.node.Publish(f.ctx, inline))
	for _, path := range []string{stage.Stage.Path, target.Target.Path, inline.Target.Path} {
		if f.mounter.At(path) == nil {
			t.Errorf("%s is not mounted again", path)
		}
	}
}

// TestStagingMoves: the mount at the old path is gone, the CO has another one
// now. A kubelet upgrade does that.
func TestStagingMoves(t *testing.T) {
	f := newFixture(t)
	v := f.create("pvc-1")
	stage := f.stage(v.ID)
	f.must(f.node.Stage(f.ctx, stage), f.mounter.Unmount(f.ctx, stage.Stage.Path))
	moved := f.stage(v.ID)
	moved.Stage.Path = filepath.Join(f.pods, "new-staging")
	f.must(f.node.Stage(f.ctx, moved), f.node.Unstage(f.ctx, v.ID, stage.Stage.Path))
	if f.mounter.At(moved.Stage.Path) == nil {
		t.Error("the new path is not mounted")
	}
	f.must(f.node.Unstage(f.ctx, v.ID, moved.Stage.Path))
}

func TestInlineIsNeverStaged(t *testing.T) {
	f := newFixture(t)
	path := filepath.Join(f.pods, "inline")
	f.must(f.node.Publish(f.ctx, &volume.TargetRequest{ID: "csi-1", Target: volume.Target{Path: path, Capability: capability()}, Inline: &volume.InlineRequest{}}))
	f.want("stage", f.node.Stage(f.ctx, f.stage("csi-1")), volume.ErrPrecondition)
	f.must(f.node.Unpublish(f.ctx, "csi-1", path))
	if _, err := os.Stat(path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("target: %v, want it gone", err)
	}
}

// slow is work that lasts an hour of virtual time, and counts how much of it
// runs at once.
type slow struct {
	running atomic.Int32
	most    atomic.Int32
}

func (s *slow) work(ctx context.Context) error {
	now := s.running.Add(1)
	defer s.running.Add(-1)
	for {
		most := s.most.Load()
		if now <= most || s.most.CompareAndSwap(most, now) {
			break
		}
	}
	select {
	case <-time.After(time.Hour):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// slowVolumes and slowNode are services that can do one thing, slowly.
type slowVolumes struct {
	volume.Services
	*slow
}

func (s slowVolumes) Delete(ctx context.Context, _ volume.ID) error { return s.work(ctx) }

type slowNode struct {
	volume.NodeService
	*slow
}

func (s slowNode) Unstage(ctx context.Context, _ volume.ID, _ string) error { return s.work(ctx) }

// TestOneCallAtATime: calls on one volume wait for each other, calls on
// others do not, and who waits too long is told to call again.
func TestOneCallAtATime(t *testing.T) {
	cases := map[string]func(s *slow) func(ctx context.Context, id volume.ID) error{
		"Volumes": func(s *slow) func(context.Context, volume.ID) error { return New(slowVolumes{slow: s}).Delete },
		"Node": func(s *slow) func(context.Context, volume.ID) error {
			n := NewNode(slowNode{slow: s})
			return func(ctx context.Context, id volume.ID) error { return n.Unstage(ctx, id, "/x") }
		},
	}
	for name, decorate := range cases {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := &slow{}
				call := decorate(s)
				start := time.Now()
				var group sync.WaitGroup
				for range 2 {
					group.Go(func() {
						if err := call(t.Context(), "a"); err != nil {
							t.Error(err)
						}
					})
				}
				synctest.Wait()
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				if err := call(ctx, "a"); !errors.Is(err, volume.ErrBusy) {
					t.Errorf("waiting too long: %v, want ErrBusy", err)
				}
				group.Wait()
				if took := time.Since(start); took != 2*time.Hour || s.most.Load() != 1 {
					t.Errorf("two calls took %v with %d at once, want 2h and 1", took, s.most.Load())
				}
				for _, id := range []volume.ID{"b", "c"} {
					group.Go(func() {
						if err := call(t.Context(), id); err != nil {
							t.Error(err)
						}
					})
				}
				group.Wait()
				if took := time.Since(start); took != 3*time.Hour || s.most.Load() != 2 {
					t.Errorf("with other volumes %v and %d at once, want 3h and 2", took, s.most.Load())
				}
			})
		})
	}
}
