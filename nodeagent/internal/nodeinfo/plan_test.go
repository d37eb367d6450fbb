package nodeinfo

import (
	"errors"
	"math"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func pointer[T any](v T) *T { return &v }

func TestFromNodeInfo(t *testing.T) {
	topology := &csi.Topology{Segments: map[string]string{"topology.d.example/zone": "a"}}
	cases := map[string]struct {
		reason string
		name   string
		reply  *csi.NodeGetInfoResponse
		errs   []string
	}{
		"Full": {
			reason: "all that a driver can say", name: "d.example",
			reply: &csi.NodeGetInfoResponse{NodeId: "n", MaxVolumesPerNode: 5, AccessibleTopology: topology},
		},
		"Negative": {
			reason: "a driver that does not know its limit is still a driver", name: "d.example",
			reply: &csi.NodeGetInfoResponse{NodeId: "n", MaxVolumesPerNode: -1},
		},
		"NoNodeID": {
			reason: "nothing could be attached", name: "d.example", reply: &csi.NodeGetInfoResponse{},
			errs: []string{`CSI driver "d.example": node ID must not be empty`},
		},
		"AllAtOnce": {
			reason: "one look shows all that is wrong", name: "d_example",
			reply: &csi.NodeGetInfoResponse{
				NodeId:             strings.Repeat("n", 257),
				AccessibleTopology: &csi.Topology{Segments: map[string]string{"a b": "x", "zone": "not a label"}},
			},
			errs: []string{`"d_example"`, "must not exceed 256 bytes, this one has 257", `topology key "a b"`, `topology value zone="not a label"`},
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			d, err := FromNodeInfo(tc.name, tc.reply)
			if (err != nil) != (len(tc.errs) > 0) {
				t.Fatalf("%s: got %v", tc.reason, err)
			}
			for _, text := range tc.errs {
				if !strings.Contains(err.Error(), text) {
					t.Errorf("%s: error %q, want it to say %q", tc.reason, err, text)
				}
			}
			want := Driver{
				Name: tc.name, NodeID: tc.reply.GetNodeId(), MaxVolumes: tc.reply.GetMaxVolumesPerNode(),
				Topology: tc.reply.GetAccessibleTopology().GetSegments(),
			}
			if diff := cmp.Diff(want, d); diff != "" {
				t.Errorf("%s, -want +got:\n%s", tc.reason, diff)
			}
		})
	}
}

func TestEntry(t *testing.T) {
	cases := map[string]struct {
		reason string
		d      Driver
		want   storagev1.CSINodeDriver
	}{
		"Sorted": {
			reason: "the order of a map must not become a write",
			d:      Driver{Name: "d", NodeID: "n", Topology: map[string]string{"z": "1", "a": "2", "m": "3"}},
			want:   storagev1.CSINodeDriver{Name: "d", NodeID: "n", TopologyKeys: []string{"a", "m", "z"}},
		},
		"Limit": {
			reason: "a limit is told", d: Driver{Name: "d", NodeID: "n", MaxVolumes: 7},
			want: storagev1.CSINodeDriver{Name: "d", NodeID: "n", Allocatable: &storagev1.VolumeNodeResources{Count: pointer(int32(7))}},
		},
		"Clamped": {
			reason: "the API has 32 bits", d: Driver{Name: "d", NodeID: "n", MaxVolumes: math.MaxInt64},
			want: storagev1.CSINodeDriver{Name: "d", NodeID: "n", Allocatable: &storagev1.VolumeNodeResources{Count: pointer(int32(math.MaxInt32))}},
		},
		"NoLimit": {
			reason: "0 and below mean that it is not known", d: Driver{Name: "d", NodeID: "n", MaxVolumes: -3},
			want: storagev1.CSINodeDriver{Name: "d", NodeID: "n"},
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(tc.want, tc.d.entry()); diff != "" {
				t.Errorf("%s, -want +got:\n%s", tc.reason, diff)
			}
		})
	}
}

func TestUpdates(t *testing.T) {
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-1", UID: "u1"}}
	entry := func(name, id string, limit int32, keys ...string) storagev1.CSINodeDriver {
		e := storagev1.CSINodeDriver{Name: name, NodeID: id, TopologyKeys: keys}
		if limit > 0 {
			e.Allocatable = &storagev1.VolumeNodeResources{Count: &limit}
		}
		return e
	}
	type drivers = []storagev1.CSINodeDriver
	cases := map[string]struct {
		reason  string
		have    drivers
		present drivers
		absent  string
		want    []drivers
	}{
		"Equal":  {reason: "nothing to write", have: drivers{entry("d", "n", 3, "k")}, present: drivers{entry("d", "n", 3, "k")}},
		"Add":    {reason: "one write", present: drivers{entry("d", "n", 0)}, want: []drivers{{entry("d", "n", 0)}}},
		"Remove": {reason: "one write", have: drivers{entry("d", "n", 0), entry("e", "n", 0)}, absent: "d", want: []drivers{{entry("e", "n", 0)}}},
		"RemoveMissing": {
			reason: "nothing to write", have: drivers{entry("e", "n", 0)}, absent: "d",
		},
		"Limit": {
			reason: "allocatable may change in place", have: drivers{entry("d", "n", 3)}, present: drivers{entry("d", "n", 4)},
			want: []drivers{{entry("d", "n", 4)}},
		},
		"NodeID": {
			reason:  "the rest of an entry is immutable: it goes, then comes",
			have:    drivers{entry("d", "old", 3), entry("e", "n", 0)},
			present: drivers{entry("d", "new", 3)},
			want:    []drivers{{entry("e", "n", 0)}, {entry("d", "new", 3), entry("e", "n", 0)}},
		},
		"Keys": {
			reason: "keys are immutable too", have: drivers{entry("d", "n", 0, "a")}, present: drivers{entry("d", "n", 0, "b")},
			want: []drivers{{}, {entry("d", "n", 0, "b")}},
		},
		"Others": {
			reason:  "what is not named may register any moment, and stays",
			have:    drivers{entry("x", "n", 0)},
			present: drivers{entry("b", "n", 0), entry("a", "n", 0)},
			want:    []drivers{{entry("x", "n", 0), entry("a", "n", 0), entry("b", "n", 0)}},
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			w := wish{present: map[string]storagev1.CSINodeDriver{}, absent: map[string]bool{tc.absent: true}}
			for _, e := range tc.present {
				w.present[e.Name] = e
			}
			obj := newCSINode(node, wish{})
			obj.Spec.Drivers = tc.have
			before := obj.DeepCopy()
			var got []drivers
			for _, state := range updates(obj, node, w) {
				got = append(got, state.Spec.Drivers)
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("%s, -want +got:\n%s", tc.reason, diff)
			}
			if diff := cmp.Diff(before, obj); diff != "" {
				t.Errorf("%s: the object that was read has changed:\n%s", tc.reason, diff)
			}
		})
	}
}

func TestUpdatesMetadata(t *testing.T) {
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-1", UID: "u1"}}
	bare := &storagev1.CSINode{ObjectMeta: metav1.ObjectMeta{Name: "node-1"}}
	states := updates(bare, node, wish{})
	want := newCSINode(node, wish{})
	if len(states) != 1 {
		t.Fatalf("%d writes, want one for owner and annotation", len(states))
	}
	if diff := cmp.Diff(want.ObjectMeta, states[0].ObjectMeta); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	if got := updates(states[0], node, wish{}); got != nil {
		t.Errorf("a second look writes again: %v", got)
	}
}

func TestPlanLabels(t *testing.T) {
	cases := map[string]struct {
		reason   string
		labels   map[string]string
		record   string
		topology map[string]string
		policy   Collision
		set      map[string]string
		written  string
		collides bool
	}{
		"New": {
			reason: "labels are added, others stay", labels: map[string]string{"x": "y"}, topology: map[string]string{"k": "v"},
			policy: CollisionFail, set: map[string]string{"k": "v"},
		},
		"Same": {
			reason: "nothing to write", labels: map[string]string{"k": "v"}, topology: map[string]string{"k": "v"},
			policy: CollisionFail, set: map[string]string{},
		},
		"Collision": {
			reason: "another value belongs to somebody", labels: map[string]string{"k": "old"}, topology: map[string]string{"k": "new"},
			policy: CollisionFail, collides: true,
		},
		"Recorded": {
			reason: "what is written is recorded, where it may be overwritten later", topology: map[string]string{"k": "v"},
			policy: CollisionOverwrite, set: map[string]string{"k": "v"}, written: `{"k":"v"}`,
		},
		"Overwrite": {
			reason: "our own value may change", labels: map[string]string{"k": "old"}, record: `{"k":"old","z":"1"}`,
			topology: map[string]string{"k": "new"}, policy: CollisionOverwrite, set: map[string]string{"k": "new"}, written: `{"k":"new","z":"1"}`,
		},
		"Foreign": {
			reason: "a value that somebody else has set since is not ours", labels: map[string]string{"k": "theirs"}, record: `{"k":"old"}`,
			topology: map[string]string{"k": "new"}, policy: CollisionOverwrite, collides: true,
		},
		"FailIgnoresTheRecord": {
			reason: "the policy decides", labels: map[string]string{"k": "old"}, record: `{"k":"old"}`,
			topology: map[string]string{"k": "new"}, policy: CollisionFail, collides: true,
		},
		"BrokenRecord": {
			reason: "a record that cannot be read allows nothing", labels: map[string]string{"k": "old"}, record: `null`,
			topology: map[string]string{"k": "new"}, policy: CollisionOverwrite, collides: true,
		},
		"Stale": {
			reason: "labels that the topology has no more stay: volumes refer to them", labels: map[string]string{"k": "v"},
			policy: CollisionFail, set: map[string]string{},
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			got, err := planLabels(tc.labels, tc.record, tc.topology, tc.policy)
			if errors.Is(err, ErrCollision) != tc.collides {
				t.Fatalf("%s: got %v", tc.reason, err)
			}
			if tc.collides {
				if !strings.Contains(err.Error(), `"k" is "`+tc.labels["k"]+`" on the node, and "new" for the driver`) {
					t.Errorf("%s: error %q does not tell both values", tc.reason, err)
				}
				return
			}
			record := ""
			if got.record != nil {
				record = *got.record
			}
			if diff := cmp.Diff(tc.set, got.set); diff != "" || record != tc.written {
				t.Errorf("%s: record %q, want %q; labels, -want +got:\n%s", tc.reason, record, tc.written, diff)
			}
		})
	}
}

func TestPlanAnnotation(t *testing.T) {
	known := []storagev1.CSINodeDriver{{Name: "k", NodeID: "kid"}}
	cases := map[string]struct {
		reason string
		old    *string
		set    map[string]string
		remove string
		want   *string
		same   bool
	}{
		"First":         {reason: "the annotation appears", set: map[string]string{"d": "1"}, want: pointer(`{"d":"1"}`)},
		"Another":       {reason: "keys are sorted", old: pointer(`{"z":"9"}`), set: map[string]string{"d": "1"}, want: pointer(`{"d":"1","z":"9"}`)},
		"Same":          {reason: "nothing to write, whatever the spaces", old: pointer(`{ "d": "1" }`), set: map[string]string{"d": "1"}, same: true},
		"Changed":       {reason: "a driver overwrites its own", old: pointer(`{"d":"1"}`), set: map[string]string{"d": "2"}, want: pointer(`{"d":"2"}`)},
		"Removed":       {reason: "others stay", old: pointer(`{"d":"1","e":"2"}`), remove: "d", want: pointer(`{"e":"2"}`)},
		"LastRemoved":   {reason: "an empty map goes", old: pointer(`{"d":"1"}`), remove: "d"},
		"RemovedTwice":  {reason: "nothing to write", old: pointer(`{"e":"2"}`), remove: "d", same: true},
		"NothingAtAll":  {reason: "nothing to write", remove: "d", same: true},
		"EmptyGoes":     {reason: "an empty map says nothing", old: pointer(`{}`), remove: "d"},
		"Broken":        {reason: "what cannot be read is created again from the CSINode", old: pointer(`{"d":`), set: map[string]string{"d": "1"}, want: pointer(`{"d":"1","k":"kid"}`)},
		"WrongType":     {reason: "the same", old: pointer(`["d"]`), set: map[string]string{"d": "1"}, want: pointer(`{"d":"1","k":"kid"}`)},
		"Null":          {reason: "the same", old: pointer(`null`), set: map[string]string{"d": "1"}, want: pointer(`{"d":"1","k":"kid"}`)},
		"BrokenRemoved": {reason: "the same", old: pointer(`x`), remove: "k"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			node := &corev1.Node{}
			if tc.old != nil {
				node.Annotations = map[string]string{NodeIDAnnotation: *tc.old}
			}
			got, change := planAnnotation(node, known, tc.set, tc.remove)
			if diff := cmp.Diff(tc.want, got); diff != "" || change == tc.same {
				t.Errorf("%s: change %v, -want +got:\n%s", tc.reason, change, diff)
			}
		})
	}
}

func TestRestricted(t *testing.T) {
	cases := map[string]bool{
		"topology.kubernetes.io/zone":          false,
		"topology.kubernetes.io/rack":          true,
		"kubernetes.io/hostname":               false,
		"topology.disk.csi.k8s.io/node":        true,
		"k8s.io/x":                             true,
		"feature.node.kubernetes.io/x":         false,
		"node-restriction.kubernetes.io/x":     true,
		"topology.hostpath.example/node":       false,
		"notkubernetes.io/x":                   false,
		"zone":                                 false,
		"kubelet.kubernetes.io/whatever":       false,
		"failure-domain.beta.kubernetes.io/az": true,
	}
	for key, want := range cases {
		if got := len(restricted(map[string]string{key: "v"})) == 1; got != want {
			t.Errorf("%s: restricted %v, want %v", key, got, want)
		}
	}
}

func FuzzPlanAnnotation(f *testing.F) {
	f.Add(`{"d":"1"}`, "d", "2")
	f.Add(`{"d":1}`, "e", "")
	f.Fuzz(func(t *testing.T, old, name, id string) {
		if !utf8.ValidString(name) || !utf8.ValidString(id) {
			return // gRPC lets no such string through
		}
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{NodeIDAnnotation: old}}}
		value, change := planAnnotation(node, nil, map[string]string{name: id}, "")
		if !change {
			return
		}
		node.Annotations[NodeIDAnnotation] = *value
		if _, again := planAnnotation(node, nil, map[string]string{name: id}, ""); again {
			t.Errorf("%q changes on and on", *value)
		}
	})
}
