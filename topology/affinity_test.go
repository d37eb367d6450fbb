package topology

import (
	"errors"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
)

// formOne writes a node affinity as segment texts, one for each term, with the
// expressions in their order; it fails on anything that is not of Form 1.
func formOne(t *testing.T, affinity *corev1.VolumeNodeAffinity) []string {
	t.Helper()
	if affinity == nil {
		return nil
	}
	var result []string
	for _, term := range affinity.Required.NodeSelectorTerms {
		if len(term.MatchFields) > 0 {
			t.Errorf("term %v has fields", term)
		}
		var pairs []string
		for _, e := range term.MatchExpressions {
			if e.Operator != corev1.NodeSelectorOpIn || len(e.Values) != 1 {
				t.Fatalf("expression %v is not of Form 1", e)
			}
			pairs = append(pairs, e.Key+"="+e.Values[0])
		}
		result = append(result, strings.Join(pairs, ","))
	}
	return result
}

func TestNodeAffinity(t *testing.T) {
	cases := map[string]struct {
		reason     string
		accessible []*csi.Topology
		want       []string
	}{
		"NoTopology": {"no constraint, no affinity", nil, nil},
		"EmptyList":  {"no constraint, no affinity", []*csi.Topology{}, nil},
		"OnlyEmpty":  {"an affinity without terms would match no node", messages(t, "", ""), nil},
		"OnlyNil":    {"a nil message is an empty one", []*csi.Topology{nil}, nil},
		"OneZone":    {"one term with one expression", messages(t, "zone=a"), []string{"zone=a"}},
		"TwoZones":   {"terms are alternatives", messages(t, "zone=b", "zone=a"), []string{"zone=a", "zone=b"}},
		"KeyOrder":   {"expressions in the order of keys", messages(t, "zone=a,rack=1,host=h"), []string{"host=h,rack=1,zone=a"}},
		"Duplicates": {"each segment once", messages(t, "zone=a", "zone=b", "zone=a"), []string{"zone=a", "zone=b"}},
		"SomeEmpty":  {"topologies without segments among others are left out", messages(t, "", "zone=a"), []string{"zone=a"}},
		"MixedKeys":  {"terms may have different keys", messages(t, "region=r,zone=a", "zone=b"), []string{"zone=b", "region=r,zone=a"}},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			affinity, err := NodeAffinity(tc.accessible)
			if err != nil {
				t.Fatal(err)
			}
			if (affinity == nil) != (tc.want == nil) {
				t.Fatalf("%s: got %v", tc.reason, affinity)
			}
			if diff := cmp.Diff(tc.want, formOne(t, affinity)); diff != "" {
				t.Errorf("%s: -want +got\n%s", tc.reason, diff)
			}
		})
	}
}

func TestNodeAffinityErrors(t *testing.T) {
	bad := []*csi.Topology{
		{Segments: map[string]string{"zone": "a"}},
		{Segments: map[string]string{"zone": "a b"}},
	}
	affinity, err := NodeAffinity(bad)
	if !errors.Is(err, ErrInvalid) || affinity != nil {
		t.Fatalf("got %v, %v, want ErrInvalid", affinity, err)
	}
	for _, want := range []string{"accessible topology 2 of 2", `"a b"`, `"zone"`} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("error %q does not say %q", err, want)
		}
	}
}

func TestAffinitySegments(t *testing.T) {
	affinity, err := NodeAffinity(messages(t, "zone=b,rack=1", "zone=a,rack=1"))
	if err != nil {
		t.Fatal(err)
	}
	got, err := AffinitySegments(affinity)
	if err != nil {
		t.Fatal(err)
	}
	want := []Segment{mustParse(t, "rack=1,zone=a"), mustParse(t, "rack=1,zone=b")}
	if !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	for _, none := range []*corev1.VolumeNodeAffinity{nil, {}} {
		if got, err := AffinitySegments(none); err != nil || len(got) != 0 {
			t.Errorf("AffinitySegments(%v) = %v, %v, want none", none, got, err)
		}
	}
	affinity.Required.NodeSelectorTerms[1].MatchExpressions[0].Operator = corev1.NodeSelectorOpExists
	if got, err := AffinitySegments(affinity); !errors.Is(err, ErrInvalid) || !strings.Contains(err.Error(), "term 2") {
		t.Errorf("with operator Exists: got %v, %v, want ErrInvalid for term 2", got, err)
	}
}

// expressions makes a node affinity of one term.
func expressions(list ...corev1.NodeSelectorRequirement) *corev1.VolumeNodeAffinity {
	return &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{
		NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchExpressions: list}},
	}}
}

func TestAccessible(t *testing.T) {
	type requirement = corev1.NodeSelectorRequirement
	labels := map[string]string{"zone": "a", "rack": "7"}
	zone := func(op corev1.NodeSelectorOperator, values ...string) requirement {
		return requirement{Key: "zone", Operator: op, Values: values}
	}
	rack := func(op corev1.NodeSelectorOperator, values ...string) requirement {
		return requirement{Key: "rack", Operator: op, Values: values}
	}
	host := func(op corev1.NodeSelectorOperator, values ...string) requirement {
		return requirement{Key: "host", Operator: op, Values: values}
	}
	cases := map[string]struct {
		reason   string
		affinity *corev1.VolumeNodeAffinity
		want     bool
		wantErr  bool
	}{
		"NoAffinity":     {"accessible from everywhere", nil, true, false},
		"NoRequired":     {"nothing is required", &corev1.VolumeNodeAffinity{}, true, false},
		"NoTerms":        {"no term, no match", &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{}}, false, false},
		"EmptyTerm":      {"an empty term matches no node", expressions(), false, false},
		"In":             {"one of the values", expressions(zone(corev1.NodeSelectorOpIn, "b", "a")), true, false},
		"InOther":        {"none of the values", expressions(zone(corev1.NodeSelectorOpIn, "b")), false, false},
		"InNoLabel":      {"no such label", expressions(host(corev1.NodeSelectorOpIn, "h")), false, false},
		"And":            {"expressions of a term are ANDed", expressions(zone(corev1.NodeSelectorOpIn, "a"), rack(corev1.NodeSelectorOpIn, "8")), false, false},
		"AndBoth":        {"all expressions match", expressions(zone(corev1.NodeSelectorOpIn, "a"), rack(corev1.NodeSelectorOpIn, "7")), true, false},
		"NotIn":          {"static volumes use all operators", expressions(zone(corev1.NodeSelectorOpNotIn, "b")), true, false},
		"NotInNoLabel":   {"a missing label is not in", expressions(host(corev1.NodeSelectorOpNotIn, "h")), true, false},
		"Exists":         {"the label exists", expressions(zone(corev1.NodeSelectorOpExists)), true, false},
		"DoesNotExist":   {"the label does not exist", expressions(host(corev1.NodeSelectorOpDoesNotExist)), true, false},
		"Gt":             {"7 > 6", expressions(rack(corev1.NodeSelectorOpGt, "6")), true, false},
		"Lt":             {"not 7 < 6", expressions(rack(corev1.NodeSelectorOpLt, "6")), false, false},
		"BadOperator":    {"unknown operators are no match and an error", expressions(zone("Near", "a")), false, true},
		"BadExpression":  {"In needs values", expressions(zone(corev1.NodeSelectorOpIn)), false, true},
		"BadKey":         {"keys are checked", expressions(requirement{Key: "?", Operator: corev1.NodeSelectorOpExists}), false, true},
		"ErrAfterNoMach": {"an error counts also behind an expression that does not match", expressions(zone(corev1.NodeSelectorOpIn, "b"), zone("Near")), false, true},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			got, err := Accessible(tc.affinity, labels)
			if got != tc.want || errors.Is(err, ErrInvalid) != tc.wantErr || (err != nil) != tc.wantErr {
				t.Errorf("%s: got %v, %v, want %v, error: %v", tc.reason, got, err, tc.want, tc.wantErr)
			}
		})
	}
}

func TestAccessibleTermsAreAlternatives(t *testing.T) {
	affinity := expressions(corev1.NodeSelectorRequirement{Key: "zone", Operator: "Near"})
	affinity.Required.NodeSelectorTerms = append(affinity.Required.NodeSelectorTerms,
		mustParse(t, "zone=b").Term(), mustParse(t, "zone=a").Term())
	if ok, err := Accessible(affinity, map[string]string{"zone": "a"}); !ok || err != nil {
		t.Errorf("last term matches, first is malformed: got %v, %v, want true", ok, err)
	}
	ok, err := Accessible(affinity, map[string]string{"zone": "c"})
	if ok || !errors.Is(err, ErrInvalid) || !strings.Contains(err.Error(), "term 1") {
		t.Errorf("no term matches, first is malformed: got %v, %v, want an error for term 1", ok, err)
	}
}

func TestAccessibleIgnoresFields(t *testing.T) {
	affinity := expressions(mustParse(t, "zone=a").Term().MatchExpressions...)
	affinity.Required.NodeSelectorTerms[0].MatchFields = []corev1.NodeSelectorRequirement{
		{Key: "metadata.name", Operator: corev1.NodeSelectorOpIn, Values: []string{"n1"}},
	}
	if ok, err := Accessible(affinity, map[string]string{"zone": "a"}); ok || err != nil {
		t.Errorf("got %v, %v, want false: the name of the node is not known", ok, err)
	}
}

// TestAffinityPermutations checks that the order of the driver's answer does
// not matter, and that the affinity means what the segments mean.
func TestAffinityPermutations(t *testing.T) {
	random := newRand(t)
	for range 300 {
		list := randomTopologies(random)
		affinity, err := NodeAffinity(list)
		if err != nil {
			t.Fatal(err)
		}
		random.Shuffle(len(list), func(i, j int) { list[i], list[j] = list[j], list[i] })
		shuffled, err := NodeAffinity(list)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(affinity, shuffled); diff != "" {
			t.Fatalf("order matters: %s", diff)
		}
		labels := map[string]string{"zone": pick(random, "a", "b"), "rack": pick(random, "1", "2"), "x": "y"}
		want := len(list) == 0
		for _, m := range list {
			s, _ := FromTopology(m)
			want = want || s.Matches(labels)
		}
		if got, err := Accessible(affinity, labels); got != want || err != nil {
			t.Fatalf("volume in %v, node with %v: accessible = %v, %v, want %v", list, labels, got, err, want)
		}
	}
}

func randomTopologies(random *rand.Rand) []*csi.Topology {
	var list []*csi.Topology
	for range random.IntN(5) {
		segments := map[string]string{"zone": pick(random, "a", "b")}
		if random.IntN(2) == 0 {
			segments["rack"] = pick(random, "1", "2")
		}
		list = append(list, &csi.Topology{Segments: segments})
	}
	return list
}

func pick[T any](random *rand.Rand, choices ...T) T {
	return choices[random.IntN(len(choices))]
}
