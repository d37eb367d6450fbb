package backend

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/longshore-csi/longshore/driverkit"
	"github.com/longshore-csi/longshore/driverkit/filesystem"
	"github.com/longshore-csi/longshore/driverkit/mount"
	"github.com/longshore-csi/longshore/hostpathdriver/internal/contents"
)

func (w *world) stage(id string, c driverkit.Capability) *driverkit.StageRequest {
	return &driverkit.StageRequest{ID: id, Path: w.path("staging", id), Capability: c}
}

func (w *world) unstage(id string) *driverkit.UnstageRequest {
	return &driverkit.UnstageRequest{ID: id, Path: w.path("staging", id)}
}

// staged stages a volume, and mounts it as driverkit does.
func (w *world) staged(n *Node, id string, c driverkit.Capability) *driverkit.Staged {
	w.t.Helper()
	staged, err := n.Stage(w.ctx, w.stage(id, c))
	w.must(err)
	path := w.path("staging", id)
	w.must(os.MkdirAll(path, 0o700))
	switch {
	case staged.Directory != "":
		w.must(w.mounts.Bind(w.ctx, staged.Directory, path, mount.Options{}))
	case staged.FSType != "":
		w.must(w.disks.Mount(w.ctx, staged.Device, path, filesystem.Options{Type: staged.FSType, ReadOnly: staged.ReadOnly}))
	}
	return staged
}

// unstaged undoes staged.
func (w *world) unstaged(n *Node, id string) {
	w.t.Helper()
	w.must(mount.UnmountAll(w.ctx, w.mounts, w.path("staging", id)), n.Unstage(w.ctx, w.unstage(id)))
}

// attached are the files that devices show, and how.
func (w *world) attached() map[string]bool {
	found := map[string]bool{}
	for _, device := range w.loops.Table() {
		name := device.File
		if device.ReadOnly {
			name += " read-only"
		}
		found[name] = true
	}
	return found
}

func (w *world) wantAttached(what string, files ...string) {
	w.t.Helper()
	want := map[string]bool{}
	for _, file := range files {
		want[file] = true
	}
	diff(w.t, what+": files that devices show", want, w.attached())
}

func (w *world) disk(id string) string { return w.state(contents.Volumes, id, "disk") }

func large(r *driverkit.CreateRequest) { asImage(r); r.Size.Required = 32 * mib }

// wantReleased checks that a node has nothing.
func (w *world) wantReleased(what string) {
	w.t.Helper()
	w.wantAttached(what)
	if left := w.mounts.Targets(); len(left) > 0 {
		w.t.Errorf("%s: mounted is %v", what, left)
	}
	for _, dir := range []string{usesDir, prepareDir, contents.Volumes} {
		left, err := filepath.Glob(w.state(nodesDir, testNode, dir, "[^.]*"))
		if w.must(err); len(left) > 0 {
			w.t.Errorf("%s: left is %v", what, left)
		}
	}
}

// TestOwnsMount tells the mounts of a volume from those of others, also when no record says that it is staged.
func TestOwnsMount(t *testing.T) {
	cases := map[string]struct {
		change     func(r *driverkit.CreateRequest)
		capability driverkit.Capability
	}{
		"Directory": {capability: mounted()},
		"Device":    {change: asDevice, capability: raw()},
		"Image":     {change: large, capability: ext4()},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			controller := w.start()
			v := w.create(controller, c.change)
			other, err := controller.Create(w.ctx, request("pvc-2", c.change))
			w.must(err)
			n := w.startNode()
			staged := w.staged(n, v.ID, c.capability)
			path, foreign := w.path("staging", v.ID), w.path("foreign")
			if staged.FSType == "" && staged.Device != "" {
				path = w.path("published")
				w.must(os.WriteFile(path, nil, 0o600), w.mounts.Bind(w.ctx, staged.Device, path, mount.Options{}))
			}
			w.must(os.MkdirAll(foreign, 0o700), w.mounts.Place(w.ctx, "server:/export", foreign, mount.Options{}))
			w.must(n.uses.Delete(v.ID))
			for _, tc := range []struct {
				id, path string
				want     bool
			}{{v.ID, path, true}, {other.ID, path, false}, {v.ID, foreign, false}, {"unknown", path, false}, {"../" + v.ID, path, false}} {
				own, err := n.OwnsMount(w.ctx, &driverkit.MountRequest{ID: tc.id, Path: tc.path})
				if w.must(err); own != tc.want {
					t.Errorf("volume %q owns the mount at %s: %t, want %t", tc.id, tc.path, own, tc.want)
				}
			}
		})
	}
}

func TestStageForms(t *testing.T) {
	cases := map[string]struct {
		change     func(r *driverkit.CreateRequest)
		capability driverkit.Capability
		fsType     string
	}{
		"Directory": {capability: mounted()},
		"Device":    {change: asDevice, capability: raw()},
		"Image":     {change: large, capability: ext4(), fsType: "ext4"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			v := w.create(w.start(), c.change)
			n := w.startNode()
			staged := w.staged(n, v.ID, c.capability)
			if name == "Directory" {
				diff(t, "staged", &driverkit.Staged{Directory: w.state(contents.Volumes, v.ID)}, staged)
				w.wantAttached("a directory")
			} else {
				diff(t, "staged", &driverkit.Staged{Device: staged.Device, FSType: c.fsType, Formatted: c.fsType != ""}, staged)
				w.wantAttached("staged", w.disk(v.ID))
			}
			used, err := n.cfg.usedOn(v.ID)
			w.must(err)
			diff(t, "the controller knows who uses it", []string{testNode}, used)
			n = w.startNode() // A new process takes it over.
			again, err := n.Stage(w.ctx, w.stage(v.ID, c.capability))
			w.must(err)
			diff(t, "staged again", staged, again)
			w.must(n.Unstage(w.ctx, &driverkit.UnstageRequest{ID: v.ID, Path: "/staged/by/another/driver"}))
			if n.get(v.ID) == nil {
				t.Error("it was unstaged at a path at which it is not staged")
			}
			w.unstaged(n, v.ID)
			w.unstaged(n, v.ID)
			w.wantReleased("unstaged")
		})
	}
}

func TestStageThatIsRefused(t *testing.T) {
	w := newWorld(t)
	s := w.start()
	v, here := w.create(s, large), w.create(s, named("here"))
	elsewhere := s.volumes.find("here").Clone()
	elsewhere.Node = "node-2"
	w.must(s.volumes.save(elsewhere))
	n := w.startNode()
	for reason, c := range map[string]struct {
		req *driverkit.StageRequest
		err error
	}{
		"no such volume":     {w.stage("none", mounted()), driverkit.ErrNotFound},
		"no id":              {w.stage("../x", mounted()), driverkit.ErrNotFound},
		"not as it was made": {w.stage(v.ID, raw()), driverkit.ErrInvalid},
		"out of reach":       {w.stage(here.ID, mounted()), driverkit.ErrPrecondition},
	} {
		_, err := n.Stage(w.ctx, c.req)
		w.want(reason, err, c.err)
	}
	w.config.Filesystems = onlyXFS{w.disks}
	n = w.startNode()
	_, err := n.Stage(w.ctx, w.stage(v.ID, ext4()))
	w.want("no programs for ext4", err, driverkit.ErrPrecondition)
	err = w.createInline(n, &driverkit.InlineRequest{ID: "csi-1", Capability: ext4()})
	w.want("nor for an inline volume", err, driverkit.ErrPrecondition)
	w.wantReleased("refused")
}

// onlyXFS are file systems of a machine that lacks the programs of ext4.
type onlyXFS struct{ *filesystem.Fake }

func (onlyXFS) Types() []string { return []string{"xfs"} }

func TestAttachments(t *testing.T) {
	for name, change := range map[string]func(r *driverkit.CreateRequest){"Device": asDevice, "Image": large} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.config.Attach = true
			s, n := w.start(), w.startNode()
			v := w.create(s, change)
			use := request("", change).Capabilities[0]
			_, err := n.Stage(w.ctx, w.stage(v.ID, use))
			w.want("not attached", err, driverkit.ErrPrecondition)
			_, err = s.Attach(w.ctx, &driverkit.AttachRequest{ID: v.ID, Node: testNode, Capability: use, ReadOnly: true})
			w.must(err)
			if staged := w.staged(n, v.ID, use); !staged.ReadOnly {
				t.Error("an attachment that is read-only is staged for writing")
			}
			w.wantAttached("nobody can write", w.disk(v.ID)+" read-only")
			w.unstaged(n, v.ID)
			w.wantReleased("unstaged")
		})
	}
}

func TestReadOnlyDevice(t *testing.T) {
	w := newWorld(t)
	v := w.create(w.start(), func(r *driverkit.CreateRequest) {
		asDevice(r)
		r.MutableParameters = map[string]string{"readAheadKiB": "64"}
	})
	n := w.startNode()
	first := w.staged(n, v.ID, raw()).Device
	req := w.stage(v.ID, raw())
	req.ReadOnly = true
	for range 2 {
		second, err := n.ReadOnlyDevice(w.ctx, req)
		if err != nil || second.Device == first {
			t.Errorf("device %+v, %v, want another than %q", second, err, first)
		}
	}
	w.wantAttached("both", w.disk(v.ID), w.disk(v.ID)+" read-only")
	for _, device := range w.loops.Table() {
		if device.ReadAhead != 64<<10 {
			t.Errorf("%+v: want a read-ahead of 64 KiB", device)
		}
	}
	w.unstaged(n, v.ID)
	w.wantReleased("unstaged")
}

// prepared watches how file systems are prepared: their modes, as a workload would see them.
type prepared struct {
	fault
	w     *world
	id    string
	modes []os.FileMode
}

func (p *prepared) step(name string) {
	if name == "prepare:unmount" {
		info, err := os.Stat(p.w.state(nodesDir, testNode, prepareDir, p.id))
		p.w.must(err)
		p.modes = append(p.modes, info.Mode().Perm())
	}
	p.fault.step(name)
}

// TestStageInterruptedAtEachStep: the process dies, another one opens the directory, and the call is repeated. The workload sees a complete file system.
func TestStageInterruptedAtEachStep(t *testing.T) {
	steps := []string{"stage:record", "prepare:mount", "prepare:change", "prepare:unmount", "prepare:done"}
	for _, step := range steps {
		for _, kind := range []string{"New", "Copy"} {
			t.Run(kind+"/"+step, func(t *testing.T) {
				w := newWorld(t)
				s := w.start()
				owned := func(r *driverkit.CreateRequest) { large(r); r.Parameters = map[string]string{"mode": "0751"} }
				v := w.create(s, owned)
				if kind == "Copy" {
					n := w.startNode()
					w.staged(n, v.ID, ext4())
					w.unstaged(n, v.ID)
					source := v.ID
					v = w.create(s, func(r *driverkit.CreateRequest) { named("copy")(r); owned(r); ofVolume(source)(r) })
				}
				p := &prepared{fault: fault{at: step, do: func() { panic("killed") }}, w: w, id: v.ID}
				w.config.Step = p.step
				n := w.startNode()
				if dead, err := killed(func() error { _, err := n.Stage(w.ctx, w.stage(v.ID, ext4())); return err }); !dead {
					t.Fatalf("the call does not come to %s, but to %v: %v", step, p.seen, err)
				}
				n = w.startNode()
				w.wantReleased("a new process")
				w.staged(n, v.ID, ext4())
				if len(p.modes) == 0 || p.modes[len(p.modes)-1] != 0o751 {
					t.Errorf("modes %v, want 0751 at last", p.modes)
				}
				before := len(p.seen)
				_, err := n.Stage(w.ctx, w.stage(v.ID, ext4()))
				w.must(err)
				if again := p.seen[before:]; !slices.Equal(again, []string{"stage:record"}) {
					t.Errorf("a complete file system is prepared again: %v", again)
				}
				w.unstaged(n, v.ID)
				w.wantReleased("unstaged")
			})
		}
	}
}

// TestImageWhoseFileHasNoSizeYet: the process was killed when it had wiped the file, or had just made it.
func TestImageWhoseFileHasNoSizeYet(t *testing.T) {
	w := newWorld(t)
	v := w.create(w.start(), large)
	w.must(os.Truncate(w.disk(v.ID), 0))
	n := w.startNode()
	w.staged(n, v.ID, ext4())
	if info, err := os.Stat(w.disk(v.ID)); err != nil || info.Size() != 32*mib {
		t.Errorf("persistent: %v, %v, want 32 MiB", info, err)
	}
	inline := &driverkit.InlineRequest{ID: "csi-1", Capability: ext4(), Attributes: map[string]string{"size": "32Mi"}}
	w.must(w.createInline(n, inline), os.Truncate(n.disk(n.get("csi-1")), 0), w.createInline(n, inline))
	w.staged(n, "csi-1", ext4())
}

// TestPreparationByAnotherNode: one node makes the file system.
func TestPreparationByAnotherNode(t *testing.T) {
	w := newWorld(t)
	v := w.create(w.start(), large)
	n := w.startNode()
	unlock, err := contents.At(w.config.StateDir, contents.Volumes, w.mounts).LockPreparation(v.ID)
	w.must(err)
	_, err = n.Stage(w.ctx, w.stage(v.ID, ext4()))
	w.want("while another node prepares it", err, driverkit.ErrBusy)
	w.must(unlock())
	w.staged(n, v.ID, ext4())
}

// TestStageThatFailsCanBeUndone: the record is written first, so that NodeUnstageVolume knows what to release.
func TestStageThatFailsCanBeUndone(t *testing.T) {
	w := newWorld(t)
	v := w.create(w.start(), large)
	n := w.startNode()
	w.disks.Fail(filesystem.StepMount, errTest)
	_, err := n.Stage(w.ctx, w.stage(v.ID, ext4()))
	w.want("the file system cannot be mounted", err, errTest)
	w.disks.Fail(filesystem.StepMount, nil)
	w.must(n.Unstage(w.ctx, w.unstage(v.ID)))
	w.wantReleased("undone")
	w.loops.Fail(errTest)
	_, err = n.Stage(w.ctx, w.stage(v.ID, ext4()))
	w.want("there is no device", err, errTest)
	w.loops.Fail(nil)
	w.staged(n, v.ID, ext4())
}

// TestUnstageOfADeviceInUse: it is released when its user has closed it.
func TestUnstageOfADeviceInUse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		v := w.create(w.start(), asDevice)
		n := w.startNode()
		release, err := w.loops.Hold(w.staged(n, v.ID, raw()).Device)
		w.must(err)
		ctx, cancel := context.WithTimeout(w.ctx, time.Second)
		defer cancel()
		w.want("while a program has it open", n.Unstage(ctx, w.unstage(v.ID)), driverkit.ErrInUse)
		if n.get(v.ID) == nil {
			t.Error("the record is gone before the device")
		}
		w.must(release(), n.Unstage(w.ctx, w.unstage(v.ID)))
		w.wantReleased("closed")
		w.config.Pools = nil
	})
}

func TestUnstageInterruptedAtEachStep(t *testing.T) {
	for _, step := range []string{"unstage:detach", "unstage:record"} {
		t.Run(step, func(t *testing.T) {
			w := newWorld(t)
			v := w.create(w.start(), asDevice)
			w.config.Step = (&fault{at: step, do: func() { panic("killed") }}).step
			n := w.startNode()
			w.staged(n, v.ID, raw())
			if dead, err := killed(func() error { return n.Unstage(w.ctx, w.unstage(v.ID)) }); !dead {
				t.Fatalf("the call does not come to %s: %v", step, err)
			}
			w.unstaged(w.startNode(), v.ID)
			w.wantReleased("unstaged by another process")
		})
	}
}

// TestReboot: nothing is staged any more, and the node forgets it.
func TestReboot(t *testing.T) {
	w := newWorld(t)
	s := w.start()
	device, image, directory := w.create(s, asDevice), w.create(s, func(r *driverkit.CreateRequest) { named("image")(r); large(r) }), w.create(s, named("directory"))
	n := w.startNode()
	w.staged(n, device.ID, raw())
	w.staged(n, image.ID, ext4())
	w.staged(n, directory.ID, mounted())
	w.mounts.Reboot()
	w.must(w.loops.Reboot())
	w.startNode()
	w.wantReleased("rebooted")
}

// TestDeviceOfADeletedVolumeIsReleased: a volume is detached by force from a node that does not answer, and deleted. When the node is back its device goes.
func TestDeviceOfADeletedVolumeIsReleased(t *testing.T) {
	for name, restart := range map[string]bool{"Unstage": false, "Restart": true} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			s, n := w.start(), w.startNode()
			v, other := w.create(s, asDevice), w.create(s, func(r *driverkit.CreateRequest) { named("other")(r); asDevice(r) })
			w.staged(n, v.ID, raw())
			w.staged(n, other.ID, raw())
			w.must(w.delete(s, v.ID))
			if restart {
				n = w.startNode()
			}
			w.unstaged(n, v.ID)
			w.wantAttached("the other one stays", w.disk(other.ID))
			w.unstaged(n, other.ID)
			w.wantReleased("unstaged")
		})
	}
}

// TestMountOfADeletedVolumeKeepsItsRecord: the CO still has to unstage it, after a restart, too.
func TestMountOfADeletedVolumeKeepsItsRecord(t *testing.T) {
	w := newWorld(t)
	s, n := w.start(), w.startNode()
	v := w.create(s, large)
	w.staged(n, v.ID, ext4())
	w.must(w.delete(s, v.ID))
	n = w.startNode()
	if n.get(v.ID) == nil {
		t.Error("the record is gone, and the file system is mounted")
	}
	w.unstaged(n, v.ID)
	w.wantReleased("unstaged")
}

// TestSweepDevices: of the devices of disks of this driver those go that no node has a record of, and that are not mounted.
func TestSweepDevices(t *testing.T) {
	w, pool := poolWorld(t)
	s, n := w.start(), w.startNode()
	create := func(name, kind string) string {
		return w.create(s, func(r *driverkit.CreateRequest) { named(name)(r); asDevice(r); inPool(kind)(r) }).ID
	}
	orphan, deleted, busy, staged, elsewhere, damaged := create("orphan", "slow"), create("deleted", "slow"), create("mounted", "slow"), create("staged", "slow"), create("elsewhere", "slow"), create("damaged", "slow")
	pooled := create("pooled", "disk")
	w.staged(n, staged, raw())
	attach := func(file string) string {
		device, err := w.loops.Attach(w.ctx, file, false)
		w.must(err)
		return device
	}
	inPool := filepath.Join(pool, contents.Volumes, pooled, "disk")
	for _, file := range []string{w.disk(orphan), w.disk(deleted), w.disk(elsewhere), w.disk(damaged), inPool} {
		attach(file)
	}
	w.must(os.RemoveAll(w.state(contents.Volumes, deleted)))
	w.write(w.path("pod"), "")
	w.must(w.mounts.Bind(w.ctx, attach(w.disk(busy)), w.path("pod"), mount.Options{}))
	w.write(filepath.Join(NodeDir(w.config.StateDir, "node-2"), usesDir, elsewhere+".json"), "{}")
	w.write(filepath.Join(NodeDir(w.config.StateDir, testNode), usesDir, damaged+".json"), "{")
	// Those of other drivers: one with the same path in its container, and one in another directory of the same disk.
	foreign, beside := w.path("container", contents.Volumes, orphan, "disk"), filepath.Join(pool, "other-driver", contents.Volumes, orphan, "disk")
	for _, file := range []string{foreign, beside} {
		w.write(file, string(make([]byte, 4096)))
		attach(file)
	}
	w.loops.Fail(errTest)
	w.startNode() // What cannot be released keeps no driver from starting.
	w.loops.Fail(nil)
	w.startNode()
	w.wantAttached("after a start", w.disk(busy), w.disk(staged), w.disk(elsewhere), w.disk(damaged), foreign, beside)
}

func TestReconcile(t *testing.T) {
	w := newWorld(t)
	w.node.ExpandUnasked = true
	s := w.start()
	v, image, directory := w.create(s, asDevice), w.create(s, func(r *driverkit.CreateRequest) { named("image")(r); large(r) }), w.create(s, named("directory"))
	n := w.startNode()
	w.staged(n, v.ID, raw())
	w.staged(n, image.ID, ext4())
	w.staged(n, directory.ID, mounted())
	for _, id := range []string{v.ID, image.ID} {
		_, err := s.Expand(w.ctx, &driverkit.ExpandRequest{ID: id, Size: driverkit.Range{Required: 48 * mib}})
		w.must(err, w.modify(s, &driverkit.ModifyRequest{ID: id, Parameters: map[string]string{"readAheadKiB": "64"}}), n.Reconcile(w.ctx, id))
	}
	for _, device := range w.loops.Table() {
		if device.Size != 48*mib || device.ReadAhead != 64<<10 {
			t.Errorf("device %+v, want 48 MiB with a read-ahead of 64 KiB", device)
		}
	}
	if used, err := w.disks.Usage(w.ctx, w.path("staging", image.ID)); err != nil || used.Bytes.Total != 48*mib {
		t.Errorf("file system: %+v, %v, want 48 MiB", used, err)
	}
	calls := len(w.loops.Calls())
	w.must(n.Reconcile(w.ctx, v.ID), n.Reconcile(w.ctx, directory.ID), n.Reconcile(w.ctx, "not-staged"))
	if again := w.loops.Calls()[calls:]; len(again) > 0 {
		t.Errorf("what is applied is applied again: %v", again)
	}
	w.startNode() // It does not know what its predecessor has applied.
	if again := w.loops.Calls()[calls:]; !slices.Contains(again, "read-ahead "+w.disk(v.ID)) {
		t.Errorf("a new process: %v, want the read-ahead of %s", again, v.ID)
	}
}

// TestWatch applies what a controller in another process has changed; what fails is tried again.
func TestWatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		s := w.start()
		v := w.create(s, asDevice)
		n := w.startNode()
		w.staged(n, v.ID, raw())
		ctx, cancel := context.WithCancel(w.ctx)
		defer synctest.Wait()
		defer cancel()
		go n.Watch(ctx, time.Second)
		after := func(d time.Duration) int64 {
			<-time.After(d + time.Millisecond)
			synctest.Wait()
			return w.loops.Table()[0].ReadAhead
		}
		w.must(w.modify(s, &driverkit.ModifyRequest{ID: v.ID, Parameters: map[string]string{"readAheadKiB": "64"}}))
		if got := after(time.Second); got != 64<<10 {
			t.Errorf("read-ahead %d after a second, want 64 KiB", got)
		}
		w.loops.Fail(errTest)
		w.must(w.modify(s, &driverkit.ModifyRequest{ID: v.ID, Parameters: map[string]string{"readAheadKiB": "128"}}))
		after(time.Second)
		w.loops.Fail(nil)
		if got := after(time.Second); got != 64<<10 {
			t.Errorf("read-ahead %d: after a failure there must be a pause", got)
		}
		if got := after(retryAfter); got != 128<<10 {
			t.Errorf("read-ahead %d after the pause, want 128 KiB", got)
		}
		s.Close()
	})
}

func TestExpandOnNode(t *testing.T) {
	w := newWorld(t)
	w.node.MaxExpandSize = 64 * mib
	s := w.start()
	v, directory := w.create(s, asDevice), w.create(s, named("directory"))
	expand := func(n *Node, id string, r driverkit.Range) error {
		_, err := n.ExpandOnNode(w.ctx, &driverkit.NodeExpandRequest{ID: id, Size: r})
		return err
	}
	n := w.startNode()
	w.staged(n, v.ID, raw())
	w.staged(n, directory.ID, mounted())
	w.must(w.createInline(n, &driverkit.InlineRequest{ID: "csi-1", Capability: mounted()}))
	_, err := s.Expand(w.ctx, &driverkit.ExpandRequest{ID: v.ID, Size: driverkit.Range{Required: 2 * mib}})
	w.must(err)
	for _, c := range []struct {
		reason string
		id     string
		in     driverkit.Range
		err    error
	}{
		{"as large as its record says", v.ID, driverkit.Range{Required: 2 * mib}, nil},
		{"whatever size it has", v.ID, driverkit.Range{}, nil},
		{"a directory has no device", directory.ID, driverkit.Range{}, nil},
		{"the controller was not asked", v.ID, driverkit.Range{Required: 3 * mib}, driverkit.ErrOutOfRange},
		{"it is larger", v.ID, driverkit.Range{Limit: mib}, driverkit.ErrOutOfRange},
		{"more than this node allows", v.ID, driverkit.Range{Required: 65 * mib}, driverkit.ErrOutOfRange},
		{"not staged", "none", driverkit.Range{}, driverkit.ErrNotFound},
		{"an inline volume keeps its size", "csi-1", driverkit.Range{}, driverkit.ErrInvalid},
	} {
		w.want(c.reason, expand(n, c.id, c.in), c.err)
	}
	if got := w.loops.Table()[0].Size; got != 2*mib {
		t.Errorf("the device has %d bytes, want 2 MiB", got)
	}
	// Where the CO asks the node alone, the node asks the controller.
	w.node.Expand = func(ctx context.Context, req *driverkit.ExpandRequest) error {
		_, err := s.Expand(ctx, req)
		return err
	}
	n = w.startNode()
	w.must(expand(n, v.ID, driverkit.Range{Required: 4 * mib}))
	if got := w.loops.Table()[0].Size; got != 4*mib {
		t.Errorf("the device has %d bytes, want 4 MiB", got)
	}
	w.node.Expand = func(context.Context, *driverkit.ExpandRequest) error { return errTest }
	w.want("the controller refuses", expand(w.startNode(), v.ID, driverkit.Range{Required: 5 * mib}), errTest)
}

func TestDescribeNode(t *testing.T) {
	w := newWorld(t)
	w.node.MaxVolumes = func() int64 { return 7 }
	described := driverkit.Node{ID: testNode}
	w.must(w.startNode().DescribeNode(w.ctx, &described))
	diff(t, "node", driverkit.Node{ID: testNode, MaxVolumes: 7}, described)
}

func TestUsage(t *testing.T) {
	w := newWorld(t)
	s := w.start()
	v := w.create(s, func(r *driverkit.CreateRequest) { r.Size.Required = 64 * mib })
	device, image := w.create(s, func(r *driverkit.CreateRequest) { named("device")(r); asDevice(r) }), w.create(s, func(r *driverkit.CreateRequest) { named("image")(r); large(r) })
	n := w.startNode()
	usage := func(id string) *filesystem.Usage {
		used, err := n.Usage(w.ctx, &driverkit.UsageRequest{ID: id})
		w.must(err)
		return used
	}
	_, err := n.Usage(w.ctx, &driverkit.UsageRequest{ID: v.ID})
	w.want("not staged", err, driverkit.ErrNotFound)
	w.staged(n, v.ID, mounted())
	w.staged(n, device.ID, raw())
	w.staged(n, image.ID, ext4())
	dir := w.state(contents.Volumes, v.ID)
	w.write(filepath.Join(dir, "file"), string(make([]byte, 64<<10)))
	w.must(os.Link(filepath.Join(dir, "file"), filepath.Join(dir, "link")))
	first := usage(v.ID)
	if first.Bytes.Total != 64*mib || first.Bytes.Used < 64<<10 || first.Bytes.Used >= 128<<10 || first.Inodes.Used != 2 ||
		first.Bytes.Available != min(64*mib-first.Bytes.Used, first.Bytes.Available) {
		t.Errorf("usage %+v: want 64 KiB in 2 inodes, as both links are one file", first)
	}
	w.write(filepath.Join(dir, "more"), "")
	n.meter.results[v.ID] = measurement{Usage: contents.Usage{Bytes: 1, Inodes: 77}, until: time.Now().Add(time.Hour)}
	if got := usage(v.ID); got.Inodes.Used != 77 {
		t.Errorf("%+v: a measurement that is good for an hour was repeated", got)
	}
	n.meter.results[v.ID] = measurement{until: time.Now()}
	if got := usage(v.ID); got.Inodes.Used != 3 {
		t.Errorf("%+v: want 3 inodes when the measurement is outdated", got)
	}
	if got := usage(device.ID); got.Bytes.Total != mib || got.Inodes != (filesystem.Space{}) {
		t.Errorf("device: %+v", got)
	}
	if got := usage(image.ID); got != nil {
		t.Errorf("image: %+v, want that of driverkit", got)
	}
	w.unstaged(n, v.ID)
	if _, known := n.meter.results[v.ID]; known {
		t.Error("the measurement of a volume that is not staged is kept")
	}
	ctx, cancel := context.WithCancel(w.ctx)
	cancel()
	_, err = n.meter.measure(ctx, "x", dir)
	w.want("a walk that is cancelled", err, context.Canceled)
}

// inlineRequest asks for an inline volume.
func inlineRequest(attributes map[string]string) *driverkit.InlineRequest {
	return &driverkit.InlineRequest{ID: "csi-1", Capability: mounted(), Attributes: attributes, Pod: driverkit.Pod{Namespace: "ns", Name: "pod"}}
}

func TestInlineVolumes(t *testing.T) {
	for name, attributes := range map[string]map[string]string{
		"Directory": {"size": "2Mi", "kind": "slow"}, "Image": {"size": "32Mi", "backend": "image", "kind": "slow"}, "OfAPoolWithADisk": {"size": "2Mi", "kind": "disk", "mode": "0750"},
	} {
		t.Run(name, func(t *testing.T) {
			w, pool := poolWorld(t)
			s, n := w.start(), w.startNode()
			full := w.left(s, attributes["kind"])
			w.must(w.createInline(n, inlineRequest(attributes)), w.createInline(n, inlineRequest(attributes)))
			charged := n.get("csi-1").Inline.Size
			w.wantLeft(s, attributes["kind"], full-charged)
			if u := n.get("csi-1"); u.Inline.Pod != "ns/pod" || gone(n.contents(u).Path(u.ID)) {
				t.Errorf("record %+v", u)
			}
			if left, _ := filepath.Glob(filepath.Join(NodeDir(pool, testNode), contents.Volumes, "*")); (len(left) > 0) != (attributes["kind"] == "disk") {
				t.Errorf("in the directory of the pool: %v", left)
			}
			w.staged(n, "csi-1", mounted())
			for _, c := range []map[string]string{nil, {"size": "3Mi"}} {
				w.want("other attributes", w.createInline(n, inlineRequest(c)), driverkit.ErrExists)
			}
			w.config.Pools = nil
			n = w.startNode() // It charges the pool again.
			if left, err := n.cfg.Pools.Capacity(attributes["kind"]); err != nil || left.Available != full-charged {
				t.Errorf("after a restart: %+v, %v", left, err)
			}
			w.unstaged(n, "csi-1")
			if n.get("csi-1") == nil {
				t.Error("an inline volume that is not staged any more has no record")
			}
			w.must(n.DeleteInline(w.ctx, &driverkit.DeleteInlineRequest{ID: "csi-1"}))
			w.want("deletion again", n.DeleteInline(w.ctx, &driverkit.DeleteInlineRequest{ID: "csi-1"}), driverkit.ErrNotFound)
			if left, err := n.cfg.Pools.Capacity(attributes["kind"]); err != nil || left.Available != full {
				t.Errorf("after deletion: %+v, %v", left, err)
			}
			w.wantReleased("deleted")
			if left, _ := filepath.Glob(filepath.Join(NodeDir(pool, testNode), "*", "*")); len(left) > 0 {
				t.Errorf("left in the pool: %v", left)
			}
		})
	}
}

func TestInlineVolumesThatAreRefused(t *testing.T) {
	w, pool := poolWorld(t)
	s, n := w.start(), w.startNode()
	v := w.create(s, inPool("slow"))
	with := func(change func(r *driverkit.InlineRequest)) *driverkit.InlineRequest {
		r := inlineRequest(nil)
		change(r)
		return r
	}
	left := w.left(s, "")
	for reason, c := range map[string]struct {
		req *driverkit.InlineRequest
		err error
	}{
		"no id":                 {with(func(r *driverkit.InlineRequest) { r.ID = "../x" }), driverkit.ErrInvalid},
		"a misspelt attribute":  {inlineRequest(map[string]string{"szie": "1Mi"}), driverkit.ErrInvalid},
		"a block device":        {with(func(r *driverkit.InlineRequest) { r.Capability = raw() }), driverkit.ErrInvalid},
		"the id of a volume":    {with(func(r *driverkit.InlineRequest) { r.ID = v.ID }), driverkit.ErrExists},
		"an unknown pool":       {inlineRequest(map[string]string{"kind": "none"}), driverkit.ErrInvalid},
		"more than the pool":    {inlineRequest(map[string]string{"kind": "disk", "size": "2Gi"}), driverkit.ErrExhausted},
		"more than a volume":    {inlineRequest(map[string]string{"size": "11Gi"}), driverkit.ErrOutOfRange},
		"flags of no directory": {with(func(r *driverkit.InlineRequest) { r.Capability.MountFlags = []string{"data=ordered"} }), driverkit.ErrInvalid},
	} {
		w.want(reason, w.createInline(n, c.req), c.err)
	}
	w.must(os.Rename(pool, pool+"-away"))
	w.want("the disk of the pool is missing", w.createInline(n, inlineRequest(map[string]string{"kind": "disk"})), driverkit.ErrUnavailable)
	w.wantLeft(s, "", left)
	w.wantReleased("refused")
}

// TestInlineInterruptedAtEachStep: the process dies, and the calls are repeated.
func TestInlineInterruptedAtEachStep(t *testing.T) {
	for _, step := range []string{"inline:record", "inline:contents", "inline:discard", "inline:forget", "inline:purge"} {
		t.Run(step, func(t *testing.T) {
			w := newWorld(t)
			w.limits = map[string]int64{"fast": gib}
			w.config.Step = (&fault{at: step, do: func() { panic("killed") }}).step
			n := w.startNode()
			attributes := map[string]string{"size": "32Mi", "backend": "image"}
			live := func() error {
				if err := w.createInline(n, inlineRequest(attributes)); err != nil {
					return err
				}
				w.staged(n, "csi-1", mounted())
				w.unstaged(n, "csi-1")
				return n.DeleteInline(w.ctx, &driverkit.DeleteInlineRequest{ID: "csi-1"})
			}
			if dead, err := killed(live); !dead {
				t.Fatalf("no call comes to %s: %v", step, err)
			}
			w.config.Pools = nil
			n = w.startNode()
			w.must(live())
			w.wantReleased("repeated")
			if left, err := n.cfg.Pools.Capacity("fast"); err != nil || left.Available != gib {
				t.Errorf("%+v, %v", left, err)
			}
		})
	}
}

// TestDeletionOfAnInlineVolumeThatWasInterruptedByItsDeadline: the record is gone, and the repeated call removes what is left.
func TestDeletionOfAnInlineVolumeThatWasInterruptedByItsDeadline(t *testing.T) {
	for _, kind := range []string{"slow", "disk"} {
		t.Run(kind, func(t *testing.T) {
			w, pool := poolWorld(t)
			ctx, cancel := context.WithCancel(w.ctx)
			w.config.Step = (&fault{at: "inline:purge", do: cancel}).step
			n := w.startNode()
			w.must(w.createInline(n, inlineRequest(map[string]string{"kind": kind})))
			root := map[string]string{"slow": w.config.StateDir, "disk": pool}[kind]
			w.write(filepath.Join(NodeDir(root, testNode), "volumes", "csi-1", "file"), "data")
			w.want("the call", n.DeleteInline(ctx, &driverkit.DeleteInlineRequest{ID: "csi-1"}), context.Canceled)
			w.want("the call again", n.DeleteInline(w.ctx, &driverkit.DeleteInlineRequest{ID: "csi-1"}), driverkit.ErrNotFound)
			w.want("an id that is a path", n.DeleteInline(w.ctx, &driverkit.DeleteInlineRequest{ID: "../volumes"}), driverkit.ErrNotFound)
			for _, root := range []string{w.config.StateDir, pool} {
				if left, err := filepath.Glob(filepath.Join(NodeDir(root, testNode), "trash", "*")); err != nil || len(left) > 0 {
					t.Errorf("left: %v, %v", left, err)
				}
			}
		})
	}
}

// TestUnreadableUse damages the record of a volume in use: it counts as in use, until it is unstaged, which detaches its device.
func TestUnreadableUse(t *testing.T) {
	w := newWorld(t)
	w.config.ProtectUsed = true
	v := w.create(w.start(), func(r *driverkit.CreateRequest) { r.Capabilities = []driverkit.Capability{ext4()} })
	w.staged(w.startNode(), v.ID, ext4())
	w.must(os.Truncate(w.state("nodes", testNode, "uses", v.ID+".json"), 0))
	s, n := w.start(), w.startNode()
	w.want("delete", w.delete(s, v.ID), driverkit.ErrInUse)
	w.wantAttached("the record cannot be read", w.disk(v.ID))
	for range 2 {
		w.unstaged(n, v.ID)
		w.wantAttached("unstaged")
	}
	w.must(w.delete(s, v.ID))
	w.wantNothing()
}

// TestLostFileSystem has an image that was in use lose its beginning, or its end: it is never formatted, nor made larger, whatever calls and starts follow, so that what is left can be had
// back. A raw block volume does not read zeros in place of its data.
func TestLostFileSystem(t *testing.T) {
	for name, tt := range map[string]struct {
		reason     string
		capability driverkit.Capability
		lose       func(disk string) error
		mounts     bool
	}{
		"Beginning":   {reason: "blocks that were lost read as zeros", capability: ext4(), lose: zeroBeginning, mounts: true},
		"End":         {reason: "a repair of the file system cuts files", capability: ext4(), lose: func(disk string) error { return os.Truncate(disk, mib/2) }},
		"EndOfDevice": {reason: "a repair of the file system cuts files", capability: raw(), lose: func(disk string) error { return os.Truncate(disk, 0) }},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			v := w.create(w.start(), func(r *driverkit.CreateRequest) { r.Capabilities = []driverkit.Capability{tt.capability} })
			n := w.startNode()
			w.staged(n, v.ID, tt.capability)
			w.unstaged(n, v.ID)
			w.must(tt.lose(w.disk(v.ID)))
			before := w.read(w.disk(v.ID))
			for range 2 {
				w.start()
				n = w.startNode()
				staged, err := n.Stage(w.ctx, w.stage(v.ID, tt.capability))
				if tt.mounts { // the device is there; driverkit mounts it
					w.must(err)
					err = w.disks.Mount(w.ctx, staged.Device, w.path("staging", v.ID), filesystem.Options{Type: "ext4", Formatted: staged.Formatted})
					w.want(tt.reason, err, filesystem.ErrLost)
				} else {
					w.want(tt.reason, err, driverkit.ErrDataLoss)
				}
				w.must(n.Unstage(w.ctx, w.unstage(v.ID)))
			}
			if after := w.read(w.disk(v.ID)); after != before {
				t.Errorf("the disk was changed from %d bytes to %d", len(before), len(after))
			}
		})
	}
}

// zeroBeginning overwrites what tells what is on a disk.
func zeroBeginning(disk string) error {
	file, err := os.OpenFile(disk, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = file.WriteAt(make([]byte, 128<<10), 0)
	return errors.Join(err, file.Close())
}
