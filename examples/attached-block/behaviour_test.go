package main

import (
	"errors"
	"maps"
	"os"
	"path/filepath"
	"testing"

	"github.com/longshore-csi/longshore/driverkit"
	"github.com/longshore-csi/longshore/driverkit/drivertest"
	"github.com/longshore-csi/longshore/examples/attached-block/array"
)

// newDisks returns what a driver with fakes is made of.
func newDisks(t *testing.T) *disks {
	t.Helper()
	_, d, err := newRig(t, true).disks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func request(name string) *driverkit.CreateRequest {
	return &driverkit.CreateRequest{
		Name: name, Size: driverkit.Range{Required: 5 << 20}, Capabilities: []driverkit.Capability{{Mode: driverkit.SingleNodeWriter}}, Secrets: credentials(),
	}
}

func mustCreate(t *testing.T, d *disks, req *driverkit.CreateRequest) *driverkit.Volume {
	t.Helper()
	v, err := d.Create(t.Context(), req)
	if err != nil {
		t.Fatalf("create %q: %v", req.Name, err)
	}
	return v
}

// TestWrongPassword makes every call that has secrets with wrong ones.
func TestWrongPassword(t *testing.T) {
	d := newDisks(t)
	v := mustCreate(t, d, request("pvc-1"))
	for name, wrong := range map[string]driverkit.Secrets{
		"WrongPassword": {userSecret: "csi", passwordSecret: "sardine"},
		"UnknownUser":   {userSecret: "root", passwordSecret: "swordfish"},
		"NoPassword":    {userSecret: "root"},
	} {
		t.Run(name, func(t *testing.T) {
			create := request("pvc-2")
			create.Secrets = wrong
			for call, err := range map[string]error{
				"create":          lastError(d.Create(t.Context(), create)),
				"get":             lastError(d.Get(t.Context(), &driverkit.GetRequest{ID: v.ID, Secrets: wrong})),
				"attach":          lastError(d.Attach(t.Context(), &driverkit.AttachRequest{ID: v.ID, Node: drivertest.NodeID, Secrets: wrong})),
				"detach":          d.Detach(t.Context(), &driverkit.DetachRequest{ID: v.ID, Node: drivertest.NodeID, Secrets: wrong}),
				"expand":          lastError(d.Expand(t.Context(), &driverkit.ExpandRequest{ID: v.ID, Secrets: wrong})),
				"snapshot":        lastError(d.CreateSnapshot(t.Context(), &driverkit.CreateSnapshotRequest{Name: "s", Volume: v.ID, Secrets: wrong})),
				"list snapshots":  lastError(d.ListSnapshots(t.Context(), &driverkit.ListSnapshotsRequest{Secrets: wrong})),
				"delete snapshot": d.DeleteSnapshot(t.Context(), &driverkit.DeleteSnapshotRequest{ID: "s", Secrets: wrong}),
				"delete":          d.Delete(t.Context(), &driverkit.DeleteRequest{ID: v.ID, Secrets: wrong}),
			} {
				if !errors.Is(err, driverkit.ErrUnauthenticated) {
					t.Errorf("%s: %v, want driverkit.ErrUnauthenticated", call, err)
				}
			}
		})
	}
}

func lastError[T any](_ T, err error) error { return err }

// TestAttach attaches volumes until the node has as many as it may have, and in ways that contradict each other.
func TestAttach(t *testing.T) {
	d := newDisks(t)
	attach := func(v *driverkit.Volume, node string, readOnly bool) error {
		_, err := d.Attach(t.Context(), &driverkit.AttachRequest{ID: v.ID, Node: node, ReadOnly: readOnly})
		return err
	}
	want := func(what string, err, want error) {
		t.Helper()
		if !errors.Is(err, want) {
			t.Errorf("%s: %v, want %v", what, err, want)
		}
	}
	first := mustCreate(t, d, request("pvc-1"))
	second, third, fourth := mustCreate(t, d, request("pvc-2")), mustCreate(t, d, request("pvc-3")), mustCreate(t, d, request("pvc-4"))
	want("attach the first", attach(first, drivertest.NodeID, false), nil)
	want("attach the second", attach(second, drivertest.NodeID, true), nil)
	want("attach the third", attach(third, drivertest.NodeID, false), nil)
	want("attach one too many", attach(fourth, drivertest.NodeID, false), driverkit.ErrExhausted)
	want("attach one too many to another node", attach(fourth, "other-node", false), nil)
	want("attach the first again", attach(first, drivertest.NodeID, false), nil)
	want("attach the first read-only", attach(first, drivertest.NodeID, true), driverkit.ErrExists)
	want("attach the first to another node", attach(first, "other-node", true), nil)
	want("attach to an unknown node", attach(first, "nobody", false), driverkit.ErrNotFound)
	want("delete an attached volume", d.Delete(t.Context(), &driverkit.DeleteRequest{ID: first.ID}), driverkit.ErrInUse)
	want("detach from all nodes", d.Detach(t.Context(), &driverkit.DetachRequest{ID: first.ID}), nil)
	want("detach again", d.Detach(t.Context(), &driverkit.DetachRequest{ID: first.ID}), nil)
	want("attach to the free slot", attach(fourth, drivertest.NodeID, false), nil)
	for _, v := range []*driverkit.Volume{second, third, fourth} {
		want("detach", d.Detach(t.Context(), &driverkit.DetachRequest{ID: v.ID}), nil)
	}
}

// TestTopology chooses pools.
func TestTopology(t *testing.T) {
	d := newDisks(t)
	at := func(zone, rack string) driverkit.Segments { return driverkit.Segments{zoneKey: zone, rackKey: rack} }
	requisite := func(list ...driverkit.Segments) driverkit.TopologyRequirement {
		return driverkit.TopologyRequirement{Requisite: list}
	}
	preferred := requisite(at("a", "1"), at("a", "2"))
	preferred.Preferred = []driverkit.Segments{at("a", "2")}
	for name, test := range map[string]struct {
		reason      string
		requirement driverkit.TopologyRequirement
		pool        string
		size        int64
		want        driverkit.Segments
		err         error
	}{
		"Anywhere":  {reason: "the first pool", want: at("a", "1")},
		"Preferred": {reason: "the second pool is preferred", want: at("a", "2"), requirement: preferred},
		"OtherZone": {reason: "the rack of another zone", want: at("b", "1"), requirement: requisite(at("b", "1"))},
		"ZoneAlone": {reason: "any rack of the zone", want: at("b", "1"), requirement: requisite(driverkit.Segments{zoneKey: "b"})},
		"Nowhere":   {reason: "no pool is in the rack", err: driverkit.ErrExhausted, requirement: requisite(at("b", "2"))},
		"Large":     {reason: "only one pool has the space", size: 3 << 29, want: at("b", "1")},
		"TooLarge":  {reason: "no pool has the space", size: 1 << 32, err: driverkit.ErrExhausted},
		"Named":     {reason: "the parameter names the pool", pool: "a2", want: at("a", "2")},
		"Excluded":  {reason: "the named pool is elsewhere", pool: "a2", err: driverkit.ErrExhausted, requirement: requisite(at("b", "1"))},
	} {
		t.Run(name, func(t *testing.T) {
			req := request(name)
			req.Topology, req.Size.Required = test.requirement, max(test.size, req.Size.Required)
			if test.pool != "" {
				req.Parameters = map[string]string{poolParameter: test.pool}
			}
			v, err := d.Create(t.Context(), req)
			if !errors.Is(err, test.err) {
				t.Fatalf("%s: %v, want %v", test.reason, err, test.err)
			}
			if err == nil && !maps.Equal(v.Topology[0], test.want) {
				t.Errorf("%s: the volume is in %v, want %v", test.reason, v.Topology, test.want)
			}
		})
	}
}

// TestParameters refuses a parameter that is misspelt.
func TestParameters(t *testing.T) {
	req := request("pvc-1")
	req.Parameters = map[string]string{"pol": "a2"}
	if _, err := newDisks(t).Create(t.Context(), req); !errors.Is(err, driverkit.ErrInvalid) {
		t.Errorf("create with parameter pol: %v, want driverkit.ErrInvalid", err)
	}
}

// TestCapacity asks for the capacity of segments.
func TestCapacity(t *testing.T) {
	d := newDisks(t)
	mustCreate(t, d, request("pvc-1"))
	for name, test := range map[string]struct {
		reason    string
		topology  driverkit.Segments
		available int64
		largest   int64
	}{
		"Everywhere": {"all pools", nil, 4<<30 - 5<<20, 2 << 30},
		"Zone":       {"both racks of the zone", driverkit.Segments{zoneKey: "a"}, 2<<30 - 5<<20, 1 << 30},
		"Rack":       {"the pool of the volume", driverkit.Segments{zoneKey: "a", rackKey: "1"}, 1<<30 - 5<<20, 1<<30 - 5<<20},
		"Nowhere":    {"no pool", driverkit.Segments{zoneKey: "c"}, 0, 0},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := d.Capacity(t.Context(), &driverkit.CapacityRequest{Topology: test.topology})
			if err != nil || got.Available != test.available || got.LargestVolume != test.largest {
				t.Errorf("%s: %+v, %v, want %d bytes, the largest volume with %d", test.reason, got, err, test.available, test.largest)
			}
		})
	}
}

// TestCopies restores and clones within the pool of the source.
func TestCopies(t *testing.T) {
	d := newDisks(t)
	req := request("pvc-1")
	req.Parameters = map[string]string{poolParameter: "b1"}
	v := mustCreate(t, d, req)
	s, err := d.CreateSnapshot(t.Context(), &driverkit.CreateSnapshotRequest{Name: "s-1", Volume: v.ID})
	if err != nil || !s.Ready || s.Size != v.Size || s.Volume != v.ID {
		t.Fatalf("snapshot: %+v, %v", s, err)
	}
	for name, source := range map[string]driverkit.Source{"restored": {Snapshot: s.ID}, "cloned": {Volume: v.ID}} {
		req := request(name)
		req.Size.Required, req.Source = 1<<20, &source
		got := mustCreate(t, d, req)
		if got.Size != v.Size || *got.Source != source || got.Topology[0][zoneKey] != "b" {
			t.Errorf("%s: %+v, want the size and zone of its source", name, got)
		}
	}
	req = request("elsewhere")
	req.Source, req.Topology.Requisite = &driverkit.Source{Snapshot: s.ID}, []driverkit.Segments{{zoneKey: "a", rackKey: "1"}}
	if _, err := d.Create(t.Context(), req); !errors.Is(err, driverkit.ErrExhausted) {
		t.Errorf("restore in another zone: %v, want driverkit.ErrExhausted", err)
	}
	snapshot := &driverkit.CreateSnapshotRequest{Name: "s-2", Volume: v.ID, Topology: req.Topology}
	if _, err := d.CreateSnapshot(t.Context(), snapshot); !errors.Is(err, driverkit.ErrExhausted) {
		t.Errorf("snapshot for another zone: %v, want driverkit.ErrExhausted", err)
	}
}

// TestArrayIsAway probes an array that does not answer.
func TestArrayIsAway(t *testing.T) {
	d := newDisks(t)
	if err := d.Probe(t.Context()); err != nil {
		t.Errorf("probe: %v", err)
	}
	d.array.Address = "http://127.0.0.1:1"
	if err := d.Probe(t.Context()); !errors.Is(err, driverkit.ErrUnavailable) {
		t.Errorf("probe: %v, want driverkit.ErrUnavailable", err)
	}
}

// TestArraySurvives switches the machine off and on: volumes and devices exist again.
func TestArraySurvives(t *testing.T) {
	r, dir := newRig(t, true), t.TempDir()
	_, d, err := r.disks(dir)
	if err != nil {
		t.Fatal(err)
	}
	v := mustCreate(t, d, request("pvc-1"))
	published, err := d.Attach(t.Context(), &driverkit.AttachRequest{ID: v.ID, Node: drivertest.NodeID})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.RemoveAll(filepath.Join(dir, "by-id")); err != nil {
		t.Fatal(err)
	}
	stage := &driverkit.StageRequest{ID: v.ID, PublishContext: published.PublishContext}
	if _, err := d.Stage(t.Context(), stage); !errors.Is(err, driverkit.ErrUnavailable) {
		t.Errorf("stage before the array is on: %v, want driverkit.ErrUnavailable", err)
	}
	if _, err := array.Open(t.Context(), array.Config{Dir: dir}); err != nil {
		t.Fatal(err)
	}
	if _, err := d.Stage(t.Context(), stage); err != nil {
		t.Errorf("stage: %v", err)
	}
	if err := d.Detach(t.Context(), &driverkit.DetachRequest{ID: v.ID}); err != nil {
		t.Errorf("detach: %v", err)
	}
}
