package backend

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/longshore-csi/longshore/driverkit"
	"github.com/longshore-csi/longshore/hostpathdriver/internal/contents"
)

// deed is a call that changes something. When it was repeated to its end, these volumes and snapshots exist, and these bytes are charged.
type deed struct {
	before func(w *world, s *Controller)
	do     func(w *world, s *Controller) error
	steps  []string
	names  []string
	mibs   int64
}

func deeds() map[string]deed {
	source := func(w *world, s *Controller) {
		v := w.create(s, named("source"))
		w.write(w.state(contents.Volumes, v.ID, "file"), "data")
	}
	id := func(s *Controller, name string) string {
		if v := s.volumes.find(name); v != nil {
			return v.ID
		}
		return "gone"
	}
	notFound := func(err error) error {
		if err != nil && strings.Contains(err.Error(), driverkit.ErrNotFound.Error()) {
			return nil
		}
		return err
	}
	create := func(change func(w *world, s *Controller, r *driverkit.CreateRequest)) func(w *world, s *Controller) error {
		return func(w *world, s *Controller) error {
			_, err := s.Create(w.ctx, request("pvc-1", func(r *driverkit.CreateRequest) { change(w, s, r) }))
			return err
		}
	}
	groupRequest := func(w *world, s *Controller) error {
		_, err := s.CreateGroupSnapshot(w.ctx, &driverkit.CreateGroupSnapshotRequest{Name: "group", Volumes: []string{id(s, "source"), id(s, "other")}})
		return err
	}
	copying := []string{"copy:begin", "copy:contents", "copy:adopt"}
	deleting := []string{"delete:discard", "delete:record", "delete:purge"}
	return map[string]deed{
		"CreateDirectory": {do: create(func(*world, *Controller, *driverkit.CreateRequest) {}), steps: []string{"create:contents", "create:record"}, names: []string{"pvc-1"}, mibs: 1},
		"CreateDevice":    {do: create(func(_ *world, _ *Controller, r *driverkit.CreateRequest) { asDevice(r) }), steps: []string{"create:contents", "create:record"}, names: []string{"pvc-1"}, mibs: 1},
		"Clone": {before: source, do: create(func(_ *world, s *Controller, r *driverkit.CreateRequest) { ofVolume(id(s, "source"))(r) }),
			steps: append(slices.Clone(copying), "copy:record"), names: []string{"pvc-1", "source"}, mibs: 2},
		"Snapshot": {before: source, do: func(w *world, s *Controller) error {
			_, err := s.CreateSnapshot(w.ctx, &driverkit.CreateSnapshotRequest{Name: "snap", Volume: id(s, "source")})
			return err
		}, steps: append(slices.Clone(copying), "copy:record"), names: []string{"snap", "source"}, mibs: 2},
		"Group": {before: func(w *world, s *Controller) { source(w, s); w.create(s, named("other")) }, do: groupRequest,
			steps: append(slices.Clone(copying), "copy:record", "group:record"), names: []string{"group", "member-0", "member-1", "other", "source"}, mibs: 4},
		"Delete": {before: source, do: func(w *world, s *Controller) error { return notFound(w.delete(s, id(s, "source"))) }, steps: deleting},
		"DeleteSnapshot": {before: func(w *world, s *Controller) { source(w, s); w.snapshot(s, "snap", id(s, "source")) }, do: func(w *world, s *Controller) error {
			doomed := "gone"
			if found := s.snapshots.find("snap"); found != nil {
				doomed = found.ID
			}
			return notFound(w.deleteSnapshot(s, doomed))
		}, steps: deleting, names: []string{"source"}, mibs: 1},
		"DeleteGroup": {before: func(w *world, s *Controller) { source(w, s); w.create(s, named("other")); w.must(groupRequest(w, s)) }, do: func(w *world, s *Controller) error {
			doomed := "gone"
			if found := s.groups.find("group"); found != nil {
				doomed = found.ID
			}
			return notFound(s.DeleteGroupSnapshot(w.ctx, &driverkit.DeleteGroupSnapshotRequest{ID: doomed}))
		}, steps: deleting, names: []string{"other", "source"}, mibs: 2},
		"Expand": {before: func(w *world, s *Controller) {
			w.create(s, func(r *driverkit.CreateRequest) { named("source")(r); asDevice(r) })
		}, do: func(w *world, s *Controller) error {
			_, err := s.Expand(w.ctx, &driverkit.ExpandRequest{ID: id(s, "source"), Size: driverkit.Range{Required: 2 * mib}})
			return err
		}, steps: []string{"expand:record", "expand:contents", "expand:done"}, names: []string{"source"}, mibs: 2},
		"Attach": {before: source, do: func(w *world, s *Controller) error {
			_, err := s.Attach(w.ctx, &driverkit.AttachRequest{ID: id(s, "source"), Node: testNode, Capability: mounted()})
			return err
		}, steps: []string{"publish:record"}, names: []string{"source"}, mibs: 1},
		"Modify": {before: source, do: func(w *world, s *Controller) error {
			return w.modify(s, &driverkit.ModifyRequest{ID: id(s, "source"), Parameters: map[string]string{"tier": "gold"}})
		}, steps: []string{"modify:record"}, names: []string{"source"}, mibs: 1},
	}
}

// names are those of all objects of a controller; those of members of groups are random.
func names(s *Controller) (found []string) {
	shown := s.cfg.Show()
	for _, v := range shown.Volumes {
		found = append(found, v.Name)
	}
	for _, snap := range shown.Snapshots {
		if snap.Group != "" {
			found = append(found, "member"+snap.Name[strings.LastIndex(snap.Name, "-"):])
			continue
		}
		found = append(found, snap.Name)
	}
	for _, g := range shown.Groups {
		found = append(found, g.Name)
	}
	slices.Sort(found)
	return found
}

// TestKilledAtEachStep: the process dies before each change on disk, another one opens the directory, and the call is repeated. Nothing is lost or leaked,
// and the pools are charged right before and after.
func TestKilledAtEachStep(t *testing.T) {
	for name, d := range deeds() {
		for _, step := range d.steps {
			t.Run(fmt.Sprintf("%s/%s", name, step), func(t *testing.T) {
				w := newWorld(t)
				w.limits = map[string]int64{"fast": gib}
				s := w.start()
				if d.before != nil {
					d.before(w, s)
				}
				f := &fault{at: step, do: func() { panic("killed") }}
				w.config.Step = f.step
				s = w.start()
				dead, err := killed(func() error { return d.do(w, s) })
				if !dead && err == nil { // A panic in a copy is an error.
					t.Fatalf("the call does not come to %s, but to %v", step, f.seen)
				}
				s = w.start()
				checkConsistent(w, s)
				w.must(d.do(w, s))
				diff(t, "what exists when the call was repeated", d.names, names(s))
				w.wantLeft(s, "fast", gib-d.mibs*mib)
				checkConsistent(w, s)
				s = w.start()
				w.wantLeft(s, "fast", gib-d.mibs*mib)
				checkConsistent(w, s)
			})
		}
	}
}

// TestStepsAreAllTested: a call has no step that TestKilledAtEachStep does not know.
func TestStepsAreAllTested(t *testing.T) {
	for name, d := range deeds() {
		w := newWorld(t)
		s := w.start()
		if d.before != nil {
			d.before(w, s)
		}
		f := &fault{}
		w.config.Step = f.step
		w.must(d.do(w, w.start()))
		slices.Sort(f.seen)
		diff(t, name, slices.Sorted(slices.Values(d.steps)), slices.Compact(f.seen))
	}
}

// checkConsistent compares records, contents and pools.
func checkConsistent(w *world, s *Controller) {
	w.t.Helper()
	charged := int64(0)
	var want []string
	for _, v := range s.volumes.all() {
		charged += v.Capacity
		want = append(want, "volumes/"+v.ID, recordsDir+"/"+v.ID+".json")
	}
	for _, snap := range s.snapshots.all() {
		charged += snap.Size
		want = append(want, "snapshots/"+snap.ID, snapshotRecordsDir+"/"+snap.ID+".json")
	}
	for _, g := range s.groups.all() {
		want = append(want, groupRecordsDir+"/"+g.ID+".json")
	}
	w.wantLeft(s, "fast", gib-charged)
	var got []string
	for _, path := range w.objects() {
		if path = strings.TrimPrefix(path, "state/"); strings.Count(path, "/") == 1 {
			got = append(got, path)
		}
	}
	slices.Sort(want)
	slices.Sort(got)
	diff(w.t, "records and contents", want, got)
}
