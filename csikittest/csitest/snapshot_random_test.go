package csitest_test

import (
	"context"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/longshore-csi/longshore/csikittest/csitest"
	"github.com/longshore-csi/longshore/csikittest/seeds"
)

// snapshotModel is what a driver with RestoredInUse must have, after any calls.
type snapshotModel struct {
	volumes   map[string]string   // ID -> snapshot that it was restored from, or ""
	snapshots map[string]string   // ID -> volume
	groups    map[string][]string // ID -> volumes
}

func memberID(group, volume string) string { return "snap-" + group + "@" + volume }

func (m snapshotModel) inUse(snapshot string) bool {
	return slices.Contains(slices.Collect(maps.Values(m.volumes)), snapshot)
}

// act is a random call, and the code that the model answers with; apply is its effect on the model if that is OK.
type act struct {
	step
	want  codes.Code
	apply func()
}

func (m snapshotModel) createSnapshot(name, volume string) act {
	id := "snap-" + name
	source, exists := m.snapshots[id]
	_, there := m.volumes[volume]
	want := codes.OK
	switch {
	case exists && source != volume:
		want = codes.AlreadyExists
	case !exists && !there:
		want = codes.NotFound
	}
	return act{step{"snapshot " + name + " of " + volume, func(ctx context.Context, d *csitest.Driver) error {
		_, err := controller(d).CreateSnapshot(ctx, snapshotOf(name, volume))
		return err
	}}, want, func() { m.snapshots[id] = volume }}
}

func (m snapshotModel) deleteSnapshot(id string) act {
	want := codes.OK
	if m.inUse(id) {
		want = codes.FailedPrecondition
	}
	return act{step{"delete " + id, func(ctx context.Context, d *csitest.Driver) error {
		_, err := controller(d).DeleteSnapshot(ctx, &csi.DeleteSnapshotRequest{SnapshotId: id})
		return err
	}}, want, func() { delete(m.snapshots, id) }}
}

func (m snapshotModel) createGroup(name string, volumes []string) act {
	id := "group-" + name
	taken, exists := m.groups[id]
	want := codes.OK
	if exists && !slices.Equal(taken, volumes) {
		want = codes.AlreadyExists
	}
	for _, v := range volumes {
		if _, there := m.volumes[v]; !exists && !there {
			want = codes.NotFound
		}
	}
	return act{groupSnapshot(name, volumes...), want, func() {
		m.groups[id] = volumes
		for _, v := range volumes {
			m.snapshots[memberID(name, v)] = v
		}
	}}
}

func (m snapshotModel) deleteGroup(name string) act {
	id, want := "group-"+name, codes.OK
	var members []string
	for _, v := range m.groups[id] {
		members = append(members, memberID(name, v))
		if m.inUse(memberID(name, v)) {
			want = codes.FailedPrecondition
		}
	}
	return act{dropGroupSnapshot(name, members...), want, func() {
		delete(m.groups, id)
		for _, member := range members {
			delete(m.snapshots, member)
		}
	}}
}

func (m snapshotModel) createVolume(name, from string) act {
	id := "vol-" + name
	source, exists := m.volumes[id]
	want := codes.OK
	_, there := m.snapshots[from]
	switch {
	case exists && source != from:
		want = codes.AlreadyExists
	case !exists && from != "" && !there:
		want = codes.NotFound
	}
	return act{step{"create " + name + " from " + from, func(ctx context.Context, d *csitest.Driver) error {
		req := create(name)
		if from != "" {
			req.VolumeContentSource = restoreOf(from)
		}
		_, err := controller(d).CreateVolume(ctx, req)
		return err
	}}, want, func() { m.volumes[id] = from }}
}

func (m snapshotModel) deleteVolume(id string) act {
	return act{step{"delete " + id, func(ctx context.Context, d *csitest.Driver) error {
		_, err := controller(d).DeleteVolume(ctx, &csi.DeleteVolumeRequest{VolumeId: id})
		return err
	}}, codes.OK, func() { delete(m.volumes, id) }}
}

// pick chooses a call at random.
func (m snapshotModel) pick(random *rand.Rand) act {
	one := func(of ...string) string { return of[random.IntN(len(of))] }
	switch random.IntN(6) {
	case 0:
		return m.createSnapshot(one("s", "t"), one("vol-a", "vol-b"))
	case 1:
		return m.deleteSnapshot(one("snap-s", "snap-t"))
	case 2:
		return m.createGroup(one("g", "h"), [][]string{{"vol-a"}, {"vol-a", "vol-b"}}[random.IntN(2)])
	case 3:
		return m.deleteGroup(one("g", "h"))
	case 4:
		return m.createVolume(one("a", "b"), one("", "", "snap-s", "snap-g@vol-a"))
	}
	return m.deleteVolume(one("vol-a", "vol-b"))
}

// state is what the driver has, in the form of the model; ListSnapshots must have the same snapshots.
func (m snapshotModel) state(t *testing.T, d *csitest.Driver) snapshotModel {
	t.Helper()
	got := snapshotModel{volumes: map[string]string{}, snapshots: map[string]string{}, groups: map[string][]string{}}
	for _, v := range d.Volumes() {
		got.volumes[v.ID] = v.Source.GetSnapshot().GetSnapshotId()
	}
	reply, err := controller(d).ListSnapshots(t.Context(), &csi.ListSnapshotsRequest{})
	if err != nil {
		t.Fatal(err)
	}
	for i, s := range d.Snapshots() {
		got.snapshots[s.ID] = s.SourceVolume
		if listed := reply.GetEntries()[i].GetSnapshot(); listed.GetSnapshotId() != s.ID || listed.GetGroupSnapshotId() != s.Group {
			t.Fatalf("snapshot %+v is listed as %v", s, listed)
		}
	}
	for _, g := range d.GroupSnapshots() {
		got.groups[g.ID] = g.Volumes
	}
	return got
}

// Whatever its callers do, in whatever order, the driver has the snapshots that it should, and each success repeats.
func TestRandomSnapshots(t *testing.T) { seeds.Each(t, randomSnapshots) }

func randomSnapshots(t *testing.T, seed uint64) {
	random := rand.New(rand.NewPCG(seed, 0)) //nolint:gosec // no secret
	o := withSnapshots()
	o.RestoredInUse = true
	d := csitest.New(o)
	m := snapshotModel{volumes: map[string]string{}, snapshots: map[string]string{}, groups: map[string][]string{}}
	seen := map[codes.Code]int{}
	for i := range 3_000 {
		act := m.pick(random)
		err := act.call(t.Context(), d)
		if status.Code(err) != act.want {
			t.Fatalf("step %d: %s: %v, want %v", i, act.name, err, act.want)
		}
		seen[act.want]++
		if act.want == codes.OK {
			act.apply()
			if again := act.call(t.Context(), d); again != nil {
				t.Fatalf("step %d: %s succeeds, but its repetition does not: %v", i, act.name, again)
			}
		}
		if diff := cmp.Diff(m, m.state(t, d), cmp.AllowUnexported(snapshotModel{})); diff != "" {
			t.Fatalf("step %d: after %s (-model +driver):\n%s", i, act.name, diff)
		}
	}
	if len(seen) != 4 || len(d.Violations())+len(d.Overlaps()) > 0 {
		t.Errorf("answers %v, violations %q, overlaps %q", seen, d.Violations(), d.Overlaps())
	}
}
