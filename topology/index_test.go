package topology

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	storagev1 "k8s.io/api/storage/v1"
)

func TestRegistration(t *testing.T) {
	csiNode := &storagev1.CSINode{Spec: storagev1.CSINodeSpec{Drivers: []storagev1.CSINodeDriver{
		{Name: "other.example.com", TopologyKeys: []string{"host"}},
		{Name: testDriver, TopologyKeys: []string{"zone", "rack"}},
		{Name: "plain.example.com"},
	}}}
	cases := map[string]struct {
		reason, driver string
		registered     bool
		keys           []string
	}{
		"Registered": {"the entry of this driver counts", testDriver, true, []string{"zone", "rack"}},
		"NoKeys":     {"a driver without topology is registered", "plain.example.com", true, nil},
		"Absent":     {"no entry, not registered", "absent.example.com", false, nil},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			registered, keys := Registration(csiNode, tc.driver)
			if registered != tc.registered || !slices.Equal(keys, tc.keys) {
				t.Errorf("%s: got %v, %q, want %v, %q", tc.reason, registered, keys, tc.registered, tc.keys)
			}
		})
	}
}

func TestSegmentsFollowEvents(t *testing.T) {
	x := New(testDriver)
	zone := []string{"zone"}
	steps := []struct {
		what    string
		do      func() bool
		changed bool
		want    []string
	}{
		{"Node before CSINode", func() bool { return x.SetNode("n1", map[string]string{"zone": "a"}) }, false, nil},
		{"CSINode without the driver", func() bool { return x.SetCSINode("n1", false, nil) }, false, nil},
		{"driver registers", func() bool { return x.SetCSINode("n1", true, zone) }, true, []string{"zone=a"}},
		{"the same again", func() bool { return x.SetCSINode("n1", true, zone) }, false, []string{"zone=a"}},
		{"CSINode before Node", func() bool { return x.SetCSINode("n2", true, zone) }, false, []string{"zone=a"}},
		{"Node without the label", func() bool { return x.SetNode("n2", map[string]string{"x": "y"}) }, false, []string{"zone=a"}},
		{"label arrives, same segment", func() bool { return x.SetNode("n2", map[string]string{"zone": "a"}) }, false, []string{"zone=a"}},
		{"label changes", func() bool { return x.SetNode("n2", map[string]string{"zone": "b"}) }, true, []string{"zone=a", "zone=b"}},
		{"other label changes", func() bool { return x.SetNode("n2", map[string]string{"zone": "b", "x": "y"}) }, false, []string{"zone=a", "zone=b"}},
		{"Node goes", func() bool { return x.DeleteNode("n1") }, true, []string{"zone=b"}},
		{"Node comes back", func() bool { return x.SetNode("n1", map[string]string{"zone": "a"}) }, true, []string{"zone=a", "zone=b"}},
		{"CSINode goes", func() bool { return x.DeleteCSINode("n1") }, true, []string{"zone=b"}},
		{"unknown nodes go", func() bool { return x.DeleteNode("n9") || x.DeleteCSINode("n9") }, false, []string{"zone=b"}},
		{"driver drops its keys", func() bool { return x.SetCSINode("n2", true, nil) }, true, []string{""}},
		{"driver unregisters", func() bool { return x.SetCSINode("n2", false, nil) }, true, nil},
		{"driver without keys before Node", func() bool { return x.SetCSINode("n3", true, nil) }, false, nil},
		{"Node without labels", func() bool { return x.SetNode("n3", nil) }, true, []string{""}},
		{"Node and CSINode go", func() bool { return x.DeleteNode("n3") && !x.DeleteCSINode("n3") }, true, nil},
	}
	for _, step := range steps {
		if changed := step.do(); changed != step.changed {
			t.Errorf("%s: changed = %v, want %v", step.what, changed, step.changed)
		}
		if diff := cmp.Diff(step.want, segmentTexts(x)); diff != "" {
			t.Errorf("%s: -want +got\n%s", step.what, diff)
		}
	}
	x.DeleteNode("n1")
	x.DeleteNode("n2")
	x.DeleteCSINode("n2")
	if len(x.nodes) != 0 || len(x.sets) != 0 {
		t.Errorf("%d nodes and %d key sets remain when everything is gone", len(x.nodes), len(x.sets))
	}
}

// TestOneSegmentForManyNodes is named for a defect of the segment list of
// external-provisioner: one entry for each node instead of for each segment,
// from the second update on.
func TestOneSegmentForManyNodes(t *testing.T) {
	x := New(testDriver)
	for round := range 3 {
		for i := range 300 {
			name := fmt.Sprintf("n%d", i)
			x.SetNode(name, map[string]string{"zone": fmt.Sprint(i % 3), "round": fmt.Sprint(round)})
			x.SetCSINode(name, true, []string{"zone"})
		}
		if diff := cmp.Diff([]string{"zone=0", "zone=1", "zone=2"}, segmentTexts(x)); diff != "" {
			t.Errorf("round %d: -want +got\n%s", round, diff)
		}
	}
}

// TestInputIsNotChanged is named for a defect of external-provisioner, which
// sorts the topology keys of objects of the shared informer cache.
func TestInputIsNotChanged(t *testing.T) {
	x := New(testDriver)
	keys := []string{"zone", "rack", "zone"}
	labels := map[string]string{"zone": "a", "rack": "1", "other": "x"}
	x.SetCSINode("n1", true, keys)
	x.SetNode("n1", labels)
	allowed := allow(term(in("zone", "b", "a"), in("rack", "2", "1")))
	request := Request{Policy: DefaultPolicy(), SelectedNode: "n1", AllowedTopologies: allowed}
	if _, err := x.Require(request); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"zone", "rack", "zone"}, keys); diff != "" {
		t.Errorf("keys changed: %s", diff)
	}
	if diff := cmp.Diff(map[string]string{"zone": "a", "rack": "1", "other": "x"}, labels); diff != "" {
		t.Errorf("labels changed: %s", diff)
	}
	if diff := cmp.Diff(allow(term(in("zone", "b", "a"), in("rack", "2", "1"))), allowed); diff != "" {
		t.Errorf("allowedTopologies changed: %s", diff)
	}
	keys[0] = "host"
	if s, err := x.NodeSegment("n1"); err != nil || s.String() != "rack=1,zone=a" {
		t.Errorf("the index kept the caller's keys: %q, %v", s, err)
	}
}

func TestNodeSegmentErrors(t *testing.T) {
	x := New(testDriver)
	x.SetNode("only-node", map[string]string{"zone": "a"})
	x.SetCSINode("only-csinode", true, []string{"zone"})
	x.SetNode("unregistered", map[string]string{"zone": "a"})
	x.SetCSINode("unregistered", false, nil)
	x.SetNode("unlabelled", map[string]string{"zone": "a"})
	x.SetCSINode("unlabelled", true, []string{"zone", "rack", "host"})
	x.SetNode("malformed", map[string]string{"zone": "not a label"})
	x.SetCSINode("malformed", true, []string{"zone"})
	x.SetNode("keyless", map[string]string{"zone": "a"})
	x.SetCSINode("keyless", true, nil)
	cases := map[string]struct {
		reason string
		node   string
		class  error
		says   []string
	}{
		"Unknown":      {"nothing of the node exists", "nowhere", ErrNodeNotFound, []string{`"nowhere"`, "neither", "select another node"}},
		"NodeGone":     {"CSINode without Node: the claim must be rescheduled", "only-csinode", ErrNodeNotFound, []string{"its Node object", "select another node"}},
		"CSINodeGone":  {"Node without CSINode", "only-node", ErrNodeNotFound, []string{"its CSINode object", "select another node"}},
		"Unregistered": {"the driver is not there yet", "unregistered", ErrNotRegistered, []string{`"unregistered"`, testDriver}},
		"MissingLabel": {"all missing keys are named", "unlabelled", ErrMissingLabel, []string{`"unlabelled"`, `"host", "rack"`, "kubelet"}},
		"Malformed":    {"the value is named", "malformed", ErrInvalid, []string{`"malformed"`, `"not a label"`}},
		"NoKeys":       {"no keys give the empty segment", "keyless", nil, nil},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			s, err := x.NodeSegment(tc.node)
			if !errors.Is(err, tc.class) || !s.IsEmpty() {
				t.Fatalf("%s: got %q, %v, want %v", tc.reason, s, err, tc.class)
			}
			for _, text := range tc.says {
				if !strings.Contains(err.Error(), text) {
					t.Errorf("%s: error %q does not say %q", tc.reason, err, text)
				}
			}
		})
	}
}

func TestState(t *testing.T) {
	x := indexOf(t,
		testNode{"n1", "zone=a,rack=1", []string{"zone", "rack"}},
		testNode{"n2", "zone=a,rack=2", []string{"rack", "zone"}},
		testNode{"n3", "zone=b", []string{"zone"}},
		testNode{"n4", "zone=b", []string{"zone"}},
		testNode{"n5", "zone=c", nil},
	)
	x.SetNode("n6", map[string]string{"zone": "d"}) // not registered
	want := []KeySetState{
		{Keys: []string{}, Nodes: 1, Segments: map[string]int{"": 5}},
		{Keys: []string{"rack", "zone"}, Nodes: 2, Segments: map[string]int{"rack=1,zone=a": 1, "rack=2,zone=a": 1}},
		{Keys: []string{"zone"}, Nodes: 2, Segments: map[string]int{"zone=a": 2, "zone=b": 2}},
	}
	if diff := cmp.Diff(want, x.State()); diff != "" {
		t.Errorf("-want +got\n%s", diff)
	}
}

// TestCountsStayExact changes a segment's only node back and forth: counts
// that drift would keep a segment forever or lose it.
func TestCountsStayExact(t *testing.T) {
	x := indexOf(t, testNode{"n1", "zone=a", []string{"zone"}}, testNode{"n2", "zone=b,rack=1", []string{"zone"}})
	for range 100 {
		x.SetNode("n1", map[string]string{"zone": "b"})
		x.SetCSINode("n2", true, []string{"rack", "zone"})
		x.SetNode("n1", map[string]string{"zone": "a"})
		x.SetCSINode("n2", true, []string{"zone"})
	}
	want := []KeySetState{{Keys: []string{"zone"}, Nodes: 2, Segments: map[string]int{"zone=a": 1, "zone=b": 1}}}
	if diff := cmp.Diff(want, x.State()); diff != "" {
		t.Errorf("-want +got\n%s", diff)
	}
	for _, n := range x.nodes {
		if len(n.memberships) != 1 {
			t.Errorf("node has %d memberships, want 1", len(n.memberships))
		}
	}
}

// TestLatestRingIsReused checks that answers share their lists until a segment
// comes or goes, and that earlier answers do not change then.
func TestLatestRingIsReused(t *testing.T) {
	x := indexOf(t, testNode{"n1", "zone=a", []string{"zone"}}, testNode{"n2", "zone=c", []string{"zone"}})
	request := Request{Policy: DefaultPolicy(), SelectedNode: "n1"}
	first, err := x.Require(request)
	if err != nil {
		t.Fatal(err)
	}
	x.SetNode("n3", map[string]string{"zone": "c"})
	x.SetCSINode("n3", true, []string{"zone"})
	second, err := x.Require(request)
	if err != nil {
		t.Fatal(err)
	}
	if &first.Requisite[0] != &second.Requisite[0] {
		t.Error("no segment has come or gone, but the list was rebuilt")
	}
	x.SetNode("n3", map[string]string{"zone": "b"})
	x.DeleteNode("n2")
	third, err := x.Require(request)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"zone=a", "zone=c"}, texts(t, first.Preferred)); diff != "" {
		t.Errorf("first answer changed: -want +got\n%s", diff)
	}
	if diff := cmp.Diff([]string{"zone=a", "zone=b"}, texts(t, third.Preferred)); diff != "" {
		t.Errorf("third answer: -want +got\n%s", diff)
	}
}

// TestAppendIsSafe is named for a defect of external-provisioner, where an
// append to a shared slice put volumes into the wrong zone.
func TestAppendIsSafe(t *testing.T) {
	x := indexOf(t, testNode{"n1", "zone=a", []string{"zone"}}, testNode{"n2", "zone=b", []string{"zone"}},
		testNode{"n3", "zone=c", []string{"zone"}})
	for _, limit := range []int{0, 1, 2} {
		request := Request{Policy: Policy{MaxSegments: limit}, SelectedNode: "n2"}
		first, err := x.Require(request)
		if err != nil {
			t.Fatal(err)
		}
		want := texts(t, first.Preferred)
		first.Requisite = append(first.Requisite, messages(t, "zone=x")...)
		first.Preferred = append(first.Preferred, messages(t, "zone=y")...)
		second, err := x.Require(request)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, texts(t, second.Preferred)); diff != "" {
			t.Errorf("limit %d: append changed the next answer: -want +got\n%s", limit, diff)
		}
	}
}

func TestErrorsWrapOneClass(t *testing.T) {
	sentinels := []error{ErrNodeNotFound, ErrNotRegistered, ErrMissingLabel, ErrNotAllowed, ErrNoTopology, ErrInvalid}
	x := New(testDriver)
	x.SetCSINode("n1", true, []string{"zone"})
	_, err := x.Require(Request{SelectedNode: "n1"})
	count := 0
	for _, sentinel := range sentinels {
		if errors.Is(err, sentinel) {
			count++
		}
	}
	if count != 1 {
		t.Errorf("error %v wraps %d classes, want 1", err, count)
	}
}
