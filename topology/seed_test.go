package topology

import (
	"errors"
	"fmt"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
)

// This file has the worked examples and the rules of seed 001, "CSI Volume
// Plugins in Kubernetes", each as a test named for it.

// TestSeedTopologyRepresentationInPersistentVolumeObjects is the example of
// three accessible topologies, in Form 1.
func TestSeedTopologyRepresentationInPersistentVolumeObjects(t *testing.T) {
	accessible := []*csi.Topology{
		{Segments: map[string]string{"zone": "a", "rack": "1"}},
		{Segments: map[string]string{"zone": "b", "rack": "1"}},
		{Segments: map[string]string{"zone": "b", "rack": "2"}},
	}
	want := &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{
		{MatchExpressions: []corev1.NodeSelectorRequirement{
			{Key: "rack", Operator: corev1.NodeSelectorOpIn, Values: []string{"1"}},
			{Key: "zone", Operator: corev1.NodeSelectorOpIn, Values: []string{"a"}},
		}},
		{MatchExpressions: []corev1.NodeSelectorRequirement{
			{Key: "rack", Operator: corev1.NodeSelectorOpIn, Values: []string{"1"}},
			{Key: "zone", Operator: corev1.NodeSelectorOpIn, Values: []string{"b"}},
		}},
		{MatchExpressions: []corev1.NodeSelectorRequirement{
			{Key: "rack", Operator: corev1.NodeSelectorOpIn, Values: []string{"2"}},
			{Key: "zone", Operator: corev1.NodeSelectorOpIn, Values: []string{"b"}},
		}},
	}}}
	got, err := NodeAffinity(accessible)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Fatalf("-want +got\n%s", diff)
	}
	nodes := map[string]bool{"zone=a,rack=1": true, "zone=a,rack=2": false, "zone=b,rack=1": true, "zone=b,rack=2": true, "zone=b": false}
	for labels, want := range nodes {
		if ok, err := Accessible(got, mustParse(t, labels).Map()); ok != want || err != nil {
			t.Errorf("node with %s: accessible = %v, %v, want %v", labels, ok, err, want)
		}
	}
}

// TestSeedFormsMeanTheSame checks the claim that Form 1, Form 2 (reduced by
// rack) and Form 3 (reduced by zone) represent one topology.
func TestSeedFormsMeanTheSame(t *testing.T) {
	in := func(key string, values ...string) corev1.NodeSelectorRequirement {
		return corev1.NodeSelectorRequirement{Key: key, Operator: corev1.NodeSelectorOpIn, Values: values}
	}
	form := func(terms ...[]corev1.NodeSelectorRequirement) *corev1.VolumeNodeAffinity {
		affinity := &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{}}
		for _, e := range terms {
			affinity.Required.NodeSelectorTerms = append(affinity.Required.NodeSelectorTerms, corev1.NodeSelectorTerm{MatchExpressions: e})
		}
		return affinity
	}
	type and = []corev1.NodeSelectorRequirement
	one, err := NodeAffinity(messages(t, "zone=a,rack=1", "zone=b,rack=1", "zone=b,rack=2"))
	if err != nil {
		t.Fatal(err)
	}
	forms := map[string]*corev1.VolumeNodeAffinity{
		"Form1": one,
		"Form2": form(and{in("zone", "a", "b"), in("rack", "1")}, and{in("zone", "b"), in("rack", "2")}),
		"Form3": form(and{in("zone", "a"), in("rack", "1")}, and{in("zone", "b"), in("rack", "1", "2")}),
	}
	for _, zone := range []string{"a", "b", "c"} {
		for _, rack := range []string{"1", "2", "3"} {
			want := zone == "a" && rack == "1" || zone == "b" && rack != "3"
			if zone == "c" {
				want = false
			}
			for name, affinity := range forms {
				if ok, err := Accessible(affinity, map[string]string{"zone": zone, "rack": rack}); ok != want || err != nil {
					t.Errorf("%s, zone %s, rack %s: accessible = %v, %v, want %v", name, zone, rack, ok, err, want)
				}
			}
		}
	}
}

// TestSeedTopologyRepresentationInNodeObjects is the proposed label; other
// labels of the node, also of other drivers, do not matter.
func TestSeedTopologyRepresentationInNodeObjects(t *testing.T) {
	x := New("driver.example.com")
	x.SetNode("n1", map[string]string{
		"com.example.topology/rack": "rack1",
		"org.other.topology/rack":   "other",
		"kubernetes.io/hostname":    "n1",
	})
	x.SetCSINode("n1", true, []string{"com.example.topology/rack"})
	got, err := x.NodeSegment("n1")
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]string{"com.example.topology/rack": "rack1"}
	if diff := cmp.Diff(want, got.Topology().GetSegments()); diff != "" {
		t.Errorf("-want +got\n%s", diff)
	}
}

// TestSeedPreferredTopology: "The topology segment from the selected node will
// always be the first in preferred topology", N is the size of requisite, and
// the order is the same for "any arbitrary reordering".
func TestSeedPreferredTopology(t *testing.T) {
	zones := []string{"a", "b", "c", "d"}
	for selected := range zones {
		var want []string
		for rotation := range zones {
			x := New(testDriver)
			for i := range zones {
				place := (i + rotation) % len(zones)
				name := fmt.Sprintf("node-%d", place)
				x.SetNode(name, map[string]string{"zone": zones[place]})
				x.SetCSINode(name, true, []string{"zone"})
			}
			got, err := ask(t, x, Request{Policy: DefaultPolicy(), SelectedNode: fmt.Sprintf("node-%d", selected)})
			if err != nil {
				t.Fatal(err)
			}
			if len(got.Preferred) != len(got.Requisite) || got.Preferred[0] != "zone="+zones[selected] {
				t.Errorf("selected zone %s: preferred %q", zones[selected], got.Preferred)
			}
			if want == nil {
				want = got.Preferred
			}
			if diff := cmp.Diff(want, got.Preferred); diff != "" {
				t.Errorf("order of nodes matters: -first +this\n%s", diff)
			}
		}
	}
}

// TestSeedAllowedTopologiesAreRequisite: "AllowedTopologies from the
// StorageClass is passed through as requisite topology", even for segments
// that no node is in.
func TestSeedAllowedTopologiesAreRequisite(t *testing.T) {
	x := indexOf(t, testNode{"n1", "zone=a", []string{"zone"}})
	got, err := ask(t, x, Request{Policy: DefaultPolicy(), SelectedNode: "n1", AllowedTopologies: allow(term(in("zone", "z", "a")))})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(answer{[]string{"zone=a", "zone=z"}, []string{"zone=a", "zone=z"}}, got); diff != "" {
		t.Errorf("-want +got\n%s", diff)
	}
}

// TestSeedOneNodeIsTheSourceOfTruthForKeys: "if topology keys are different
// across the cluster, only a subset of nodes matching the topology keys of the
// chosen node will be considered". A node cannot bring its own keys into the
// requirement of a claim for another node.
func TestSeedOneNodeIsTheSourceOfTruthForKeys(t *testing.T) {
	x := indexOf(t,
		testNode{"old1", "zone=a", []string{"zone"}},
		testNode{"old2", "zone=b", []string{"zone"}},
		testNode{"new1", "zone=c,rack=1", []string{"zone", "rack"}},
		testNode{"evil", "evil=1", []string{"evil"}},
	)
	cases := map[string]struct {
		reason, selected string
		want             []string
	}{
		"OldKeys": {"nodes with more keys have the label as well", "old1", []string{"zone=a", "zone=b", "zone=c"}},
		"NewKeys": {"nodes without a label for each key are left out", "new1", []string{"rack=1,zone=c"}},
		"OddKeys": {"odd keys concern claims of that node only", "evil", []string{"evil=1"}},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			got, err := ask(t, x, Request{Policy: DefaultPolicy(), SelectedNode: tc.selected})
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tc.want, got.Requisite); diff != "" {
				t.Errorf("%s: -want +got\n%s", tc.reason, diff)
			}
		})
	}
}

// TestSeedNoSelectedNodeNoPreferred: "If the annotation is unset, preferred
// topology will not be specified (unless the PVC follows StatefulSet naming
// format)", with the feature flag on, and off.
func TestSeedNoSelectedNodeNoPreferred(t *testing.T) {
	zones := []string{"zone=a", "zone=b", "zone=c"}
	web := func(ordinal uint32) []string { return rotated(zones, (fnv1("web")+ordinal)%3).Preferred }
	cases := map[string]struct {
		reason string
		spread Spread
		claim  string
		want   []string
	}{
		"FlagOnSet0":   {"the first replica", SpreadStatefulSets, "data-web-0", web(0)},
		"FlagOnSet1":   {"the next replica, the next zone", SpreadStatefulSets, "data-web-1", web(1)},
		"FlagOnOther":  {"no ordinal, no preference", SpreadStatefulSets, "claim", nil},
		"FlagOffSet":   {"never a preference", SpreadOff, "data-web-1", nil},
		"FlagOffOther": {"never a preference", SpreadOff, "claim", nil},
		"DefaultOther": {"the default prefers for every name", SpreadAnyName, "claim", rotated(zones, fnv1("claim")%3).Preferred},
	}
	x := indexOf(t, testNode{"n1", "zone=a", []string{"zone"}}, testNode{"n2", "zone=b", []string{"zone"}}, testNode{"n3", "zone=c", []string{"zone"}})
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			got, err := ask(t, x, Request{Policy: Policy{Immediate: true, Spread: tc.spread}, ClaimName: tc.claim})
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(answer{zones, tc.want}, got); diff != "" {
				t.Errorf("%s: -want +got\n%s", tc.reason, diff)
			}
		})
	}
}

// TestSeedStatefulSetSpread: the first preferred segments give "an even spread
// of topology across the StatefulSet's volumes", also when the set grows.
func TestSeedStatefulSetSpread(t *testing.T) {
	x := threeZones(t)
	counts := map[string]int{}
	for ordinal := range 12 {
		got, err := ask(t, x, Request{Policy: DefaultPolicy(), ClaimName: fmt.Sprintf("data-web-%d", ordinal)})
		if err != nil {
			t.Fatal(err)
		}
		counts[got.Preferred[0]]++
	}
	if len(counts) != 6 {
		t.Errorf("12 replicas are in %d of 6 segments", len(counts))
	}
	for segment, count := range counts {
		if count != 2 {
			t.Errorf("%d replicas in %s, want 2", count, segment)
		}
	}
}

// TestSeedStaleCSINode: "the provisioner must gracefully handle the case where
// CSINodeInfo is not up-to-date". Instead of provisioning where the volume
// would be inaccessible, the claim waits until node and keys agree.
func TestSeedStaleCSINode(t *testing.T) {
	x := indexOf(t, testNode{"n1", "zone=a", []string{"zone"}})
	x.SetCSINode("n1", true, []string{"zone", "rack"}) // upgraded, label not there yet
	request := Request{Policy: DefaultPolicy(), SelectedNode: "n1"}
	if _, err := x.Require(request); !errors.Is(err, ErrMissingLabel) {
		t.Fatalf("keys without labels: got %v, want ErrMissingLabel", err)
	}
	x.SetNode("n1", map[string]string{"zone": "a", "rack": "1"})
	got, err := ask(t, x, request)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"rack=1,zone=a"}, got.Preferred); diff != "" {
		t.Errorf("-want +got\n%s", diff)
	}
}

// TestSeedRollingUpgrade: while values change and keys remain, "requisite
// topology will contain both old and new topology values"; stale labels of a
// removed driver do not count.
func TestSeedRollingUpgrade(t *testing.T) {
	x := indexOf(t, testNode{"n1", "zone=old-a", []string{"zone"}}, testNode{"n2", "zone=old-b", []string{"zone"}})
	x.SetNode("n2", map[string]string{"zone": "new-b"})
	got, err := ask(t, x, Request{Policy: DefaultPolicy(), SelectedNode: "n2"})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"zone=new-b", "zone=old-a"}, got.Requisite); diff != "" {
		t.Errorf("during the upgrade: -want +got\n%s", diff)
	}
	x.SetCSINode("n1", false, nil) // driver removed, label stays
	if got, err = ask(t, x, Request{Policy: DefaultPolicy(), SelectedNode: "n2"}); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"zone=new-b"}, got.Requisite); diff != "" {
		t.Errorf("after removal from n1: -want +got\n%s", diff)
	}
}

// TestSpecTopologyExample is the example of CSI v1.13, message Topology.
func TestSpecTopologyExample(t *testing.T) {
	example := &csi.Topology{Segments: map[string]string{"com.company/zone": "Z1", "com.company/rack": "R3"}}
	s, err := FromTopology(example)
	if err != nil {
		t.Fatal(err)
	}
	if got, want := s.String(), "com.company/rack=R3,com.company/zone=Z1"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}
