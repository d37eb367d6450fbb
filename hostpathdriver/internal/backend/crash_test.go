package backend

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/longshore-csi/longshore/hostpathdriver/internal/volume"
)

// crash is what a step panics with: the process is gone, nothing after it
// runs.
type crash struct{}

// story is a sequence of calls as a CO makes them: first those that make
// something, then those that undo it. It ends with everything deleted.
type story struct {
	name string
	// attach is --enable-attach.
	attach bool
	do     []func(s *system) error
	undo   []func(s *system) error
}

// fate is what comes with a crash.
type fate struct {
	// reboot takes the machine down too, and with it all mounts.
	reboot bool
	// pool keeps contents in the directory of a pool, with quotas.
	pool bool
	// giveUp skips what the CO was about to make: the pod was deleted
	// meanwhile. What undoes is repeated all the same.
	giveUp bool
}

// named finds the volume that the story made before the crash or makes it, as
// CreateVolume with a name does.
func (s *system) named(name string) (*volume.Volume, error) {
	v, err := s.volumes.Find(s.ctx, name)
	if errors.Is(err, volume.ErrNotFound) {
		return s.volumes.Create(s.ctx, createRequest(name))
	}
	return v, err
}

// with runs a call on the volume of the story if it exists.
func with(call func(s *system, v *volume.Volume) error) func(s *system) error {
	return withNamed("pvc-1", call)
}

func withNamed(name string, call func(s *system, v *volume.Volume) error) func(s *system) error {
	return func(s *system) error {
		v, err := s.volumes.Find(s.ctx, name)
		if errors.Is(err, volume.ErrNotFound) {
			return nil
		}
		if err != nil {
			return err
		}
		return call(s, v)
	}
}

func stories() []story {
	create := func(s *system) error {
		_, err := s.named("pvc-1")
		return err
	}
	attach := with(func(s *system, v *volume.Volume) error {
		if v.PublishedOn(testNode) != nil {
			return nil
		}
		_, err := s.volumes.Publish(s.ctx, &volume.PublishRequest{ID: v.ID, Node: testNode, Capability: sharer()})
		return err
	})
	stage := with(func(s *system, v *volume.Volume) error { return s.node.Stage(s.ctx, s.stageRequest(v.ID)) })
	publish := with(func(s *system, v *volume.Volume) error {
		// A restart may have forgotten the staging mount; a CO stages again.
		return errors.Join(s.node.Stage(s.ctx, s.stageRequest(v.ID)), s.node.Publish(s.ctx, s.targetRequest(v.ID)))
	})
	unpublish := with(func(s *system, v *volume.Volume) error { return s.node.Unpublish(s.ctx, v.ID, s.target(v.ID)) })
	unstage := with(func(s *system, v *volume.Volume) error { return s.node.Unstage(s.ctx, v.ID, s.staging(v.ID)) })
	detach := with(func(s *system, v *volume.Volume) error { return s.volumes.Unpublish(s.ctx, v.ID, testNode) })
	remove := with(func(s *system, v *volume.Volume) error { return s.volumes.Delete(s.ctx, v.ID) })
	const inline = "csi-1"
	createBlock := func(s *system) error {
		_, err := s.volumes.Find(s.ctx, "pvc-1")
		if errors.Is(err, volume.ErrNotFound) {
			_, err = s.volumes.Create(s.ctx, blockRequest("pvc-1"))
		}
		return err
	}
	stageBlock := with(func(s *system, v *volume.Volume) error { return s.node.Stage(s.ctx, s.stageBlock(v.ID)) })
	publishBlock := with(func(s *system, v *volume.Volume) error {
		return errors.Join(s.node.Stage(s.ctx, s.stageBlock(v.ID)), s.node.Publish(s.ctx, s.targetBlock(v.ID)), s.node.Publish(s.ctx, s.readerBlock(v.ID)))
	})
	expandBlock := with(func(s *system, v *volume.Volume) error {
		if _, err := s.expand(v.ID, 2*gib); err != nil {
			return err
		}
		if size := s.diskSize(v.ID); size != 2*gib {
			return fmt.Errorf("the file has %d bytes after the expansion", size)
		}
		known, err := s.node.Lookup(s.ctx, v.ID)
		if errors.Is(err, volume.ErrNotFound) || known.Stage == nil {
			return nil // a reboot has forgotten it
		}
		_, err = s.expandOnNode(v.ID, s.staging(v.ID), 2*gib)
		return err
	})
	unpublishBlock := with(func(s *system, v *volume.Volume) error {
		return errors.Join(s.node.Unpublish(s.ctx, v.ID, s.readerBlock(v.ID).Target.Path), s.node.Unpublish(s.ctx, v.ID, s.target(v.ID)))
	})
	return append(copyStories(), []story{
		{
			name: "Persistent",
			do:   []func(*system) error{create, stage, publish},
			undo: []func(*system) error{unpublish, unstage, remove},
		},
		{
			name: "Attached", attach: true,
			do:   []func(*system) error{create, attach, stage, publish},
			undo: []func(*system) error{unpublish, unstage, detach, remove},
		},
		{
			name: "Block",
			do:   []func(*system) error{createBlock, stageBlock, publishBlock, expandBlock},
			undo: []func(*system) error{unpublishBlock, unstage, remove},
		},
		{
			name: "Inline",
			do:   []func(*system) error{func(s *system) error { return s.node.Publish(s.ctx, s.inlineRequest(inline, nil)) }},
			undo: []func(*system) error{func(s *system) error { return s.node.Unpublish(s.ctx, inline, s.target(inline)) }},
		},
		{
			name: "InlineImage",
			do: []func(*system) error{func(s *system) error {
				req := s.inlineRequest(inline, nil)
				req.Target.Capability.FSType = "ext4"
				return s.node.Publish(s.ctx, req)
			}},
			undo: []func(*system) error{func(s *system) error { return s.node.Unpublish(s.ctx, inline, s.target(inline)) }},
		},
	}...)
}

// TestCrashAtEveryStep kills the driver before each change on disk, with the
// machine staying up or going down, starts it again, and goes on as a CO
// does. At the end nothing may be left: no file, no mount, no charge.
func TestCrashAtEveryStep(t *testing.T) {
	for _, tale := range stories() {
		steps := tale.countSteps(t)
		if steps < 6 {
			t.Fatalf("%s: only %d steps, the story does not reach the disk", tale.name, steps)
		}
		for _, f := range []fate{{}, {reboot: true, pool: true}, {giveUp: true, pool: true}, {reboot: true, giveUp: true}} {
			for at := 1; at <= steps; at++ {
				t.Run(fmt.Sprintf("%s/Reboot=%t/GiveUp=%t/Pool=%t/Step%02d", tale.name, f.reboot, f.giveUp, f.pool, at), func(t *testing.T) {
					t.Parallel() // each has a world of its own, and waits for the disk
					tale.crashAt(t, at, f)
				})
			}
		}
	}
}

// countSteps tells the story without a crash.
func (tale story) countSteps(t *testing.T) int {
	t.Helper()
	w := newWorld(t)
	w.attach = tale.attach
	steps := 0
	w.step = func(string) { steps++ }
	s := w.boot()
	for _, call := range slices.Concat(tale.do, tale.undo) {
		w.must(call(s))
	}
	if left := w.files(); len(left) > 0 {
		t.Fatalf("%s: left without any crash: %v", tale.name, left)
	}
	return steps
}

func (tale story) crashAt(t *testing.T, at int, f fate) {
	t.Helper()
	w := newWorld(t)
	w.attach = tale.attach
	w.limits = map[string]int64{"fast": 10 * gib}
	if f.pool {
		w.poolDirs = map[string]string{"fast": t.TempDir()}
		w.fakeQ.Roots = []string{w.poolDirs["fast"]}
		w.boot() // makes what stays
	}
	steps, crashed := 0, ""
	w.step = func(name string) {
		if steps++; steps == at {
			crashed = name
			panic(crash{})
		}
	}
	s := w.boot()
	for _, call := range tale.do {
		err := survive(func() error { return call(s) })
		if errors.Is(err, errCrashed) {
			s = w.restart(f, crashed)
			if f.giveUp {
				break
			}
			err = call(s)
		}
		if err != nil {
			t.Errorf("after the crash at %q: %v", crashed, err)
		}
	}
	for _, call := range tale.undo {
		err := survive(func() error { return call(s) })
		if errors.Is(err, errCrashed) {
			s = w.restart(f, crashed)
			err = call(s)
		}
		if err != nil {
			t.Errorf("after the crash at %q: %v", crashed, err)
		}
	}
	if crashed == "" {
		t.Fatalf("step %d was never reached", at)
	}
	w.checkNothingLeft(crashed)
}

// restart starts the driver after a crash and checks what it finds.
func (w *world) restart(f fate, crashed string) *system {
	w.t.Helper()
	if f.reboot {
		w.reboot()
	}
	s := w.boot()
	checkConsistent(w.t, s, crashed)
	return s
}

func (w *world) checkNothingLeft(crashed string) {
	w.t.Helper()
	s := w.boot()
	if diff := cmp.Diff([]string(nil), slices.Concat(w.files(), w.fake.Targets(), w.attached())); diff != "" {
		w.t.Errorf("left after the crash at %q (-want +got):\n%s", crashed, diff)
	}
	if left := w.enforced(); len(left) > 0 {
		w.t.Errorf("limits left after the crash at %q: %v", crashed, left)
	}
	if c, err := s.pools.Capacity("fast"); err != nil || c.Available != 10*gib {
		w.t.Errorf("left in the pool after the crash at %q: %d, %v", crashed, c.Available, err)
	}
}

var errCrashed = errors.New("crashed")

// survive runs a call and turns a crash into an error.
func survive(call func() error) (err error) {
	defer func() {
		switch r := recover().(type) {
		case nil:
		case crash:
			err = errCrashed
		default:
			panic(r)
		}
	}()
	return call()
}

// checkConsistent checks what must hold after every start: each volume has
// contents, each directory a record, and the charge is what there is.
func checkConsistent(t *testing.T, s *system, crashed string) {
	t.Helper()
	charged := int64(0)
	for _, v := range s.volumes.volumes.catalog.all() {
		charged += v.Capacity
		if v.Filling {
			continue
		}
		if gone(s.contents(v.ID)) {
			t.Errorf("after the crash at %q: volume %s has no contents", crashed, v.ID)
		}
		if v.Form().Disk && s.diskSize(v.ID) != v.Capacity {
			t.Errorf("after the crash at %q: the file has %d bytes, the volume %d", crashed, s.diskSize(v.ID), v.Capacity)
		}
	}
	for _, snapshot := range s.volumes.snapshots.catalog.all() {
		charged += snapshot.Size
		if _, err := s.volumes.groups.catalog.get(snapshot.Group); snapshot.Group != "" && err != nil {
			t.Errorf("after the crash at %q: member %s: %v", crashed, snapshot.ID, err)
		}
	}
	for _, n := range s.node.All() {
		if n.Ephemeral != nil {
			charged += n.Ephemeral.Size
		}
		if n.Stage == nil {
			continue
		}
		if there, err := s.node.presenter(n).stillStaged(s.ctx, n); err != nil || !there {
			t.Errorf("after the crash at %q: nothing is staged at %s, %v", crashed, n.Stage.Path, err)
		}
	}
	if c, err := s.pools.Capacity("fast"); err != nil || c.Available+charged != 10*gib {
		t.Errorf("after the crash at %q: %d bytes left and %d charged, %v", crashed, c.Available, charged, err)
	}
	for _, file := range s.files() {
		var id string
		if n, err := fmt.Sscanf(file, "volumes/%s", &id); n != 1 || err != nil {
			continue
		}
		if _, err := s.volumes.Get(s.ctx, volume.ID(id)); err != nil {
			t.Errorf("after the crash at %q: %s: %v", crashed, file, err)
		}
	}
}
