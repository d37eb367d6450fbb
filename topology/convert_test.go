package topology

import (
	"errors"
	"strings"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
)

func TestNewSegmentRules(t *testing.T) {
	long := strings.Repeat("x", 64)
	cases := map[string]struct {
		reason     string
		key, value string
		wantErr    string // part of the text; empty: no error
	}{
		"Plain":          {"a name alone is a key", "zone", "a", ""},
		"SeedExample":    {"seed 001: prefix and name", "com.example.topology/rack", "rack1", ""},
		"SpecExample":    {"CSI v1.13, message Topology", "com.company/zone", "Z1", ""},
		"EmptyValue":     {"a label may be empty", "zone", "", ""},
		"InnerMarks":     {"dashes, dots and underscores inside", "a-b.c_d", "1-2.3_4", ""},
		"EmptyKey":       {"a key needs a name", "", "a", `topology key ""`},
		"EmptyPrefix":    {"a prefix may not be empty", "/zone", "a", `topology key "/zone"`},
		"TwoSlashes":     {"one prefix only", "a/b/c", "a", `topology key "a/b/c"`},
		"UpperPrefix":    {"a prefix is a DNS name", "Example.com/zone", "a", `topology key "Example.com/zone"`},
		"KeyStartsBad":   {"a key starts with an alphanumeric", "-zone", "a", `topology key "-zone"`},
		"KeySeparator":   {"a comma would break the text form", "zo,ne", "a", `topology key "zo,ne"`},
		"KeyEquals":      {"an equals sign would break the text form", "zo=ne", "a", `topology key "zo=ne"`},
		"LongKey":        {"a name has at most 63 characters", long, "a", "63"},
		"ValueSeparator": {"a comma would break the text form", "zone", "a,b", `value "a,b" of topology key "zone"`},
		"ValueEndsBad":   {"a value ends with an alphanumeric", "zone", "a-", `value "a-" of topology key "zone"`},
		"ValueSpace":     {"no spaces", "zone", "a b", `value "a b" of topology key "zone"`},
		"LongValue":      {"a value has at most 63 characters", "zone", long, "63"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			s, err := NewSegment(map[string]string{tc.key: tc.value})
			if tc.wantErr == "" {
				if got, _ := s.Value(tc.key); err != nil || got != tc.value {
					t.Errorf("%s: got %q, %v", tc.reason, s, err)
				}
				return
			}
			if !errors.Is(err, ErrInvalid) || !strings.Contains(err.Error(), tc.wantErr) {
				t.Errorf("%s: got error %v, want ErrInvalid with %q", tc.reason, err, tc.wantErr)
			}
			if !s.IsEmpty() {
				t.Errorf("%s: got segment %q with an error", tc.reason, s)
			}
		})
	}
}

func TestFromLabels(t *testing.T) {
	labels := map[string]string{"zone": "a", "rack": "1", "bad": "no label value"}
	cases := map[string]struct {
		reason   string
		keys     []string
		want     string
		wantErr  error
		wantText string
	}{
		"NoKeys":      {"no keys, no pairs", nil, "", nil, ""},
		"OneKey":      {"other labels do not count", []string{"zone"}, "zone=a", nil, ""},
		"AnyOrder":    {"keys come in any order", []string{"zone", "rack"}, "rack=1,zone=a", nil, ""},
		"Repeated":    {"repetitions do not count", []string{"zone", "zone"}, "zone=a", nil, ""},
		"Missing":     {"the missing key is named", []string{"zone", "host"}, "", ErrMissingLabel, `no label "host"`},
		"TwoMissing":  {"all missing keys are named, in order", []string{"row", "zone", "host", "row"}, "", ErrMissingLabel, `no label "host", "row"`},
		"NoLabelText": {"values are checked", []string{"bad"}, "", ErrInvalid, `"no label value"`},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			got, err := FromLabels(labels, tc.keys)
			if !errors.Is(err, tc.wantErr) {
				t.Fatalf("%s: got error %v, want %v", tc.reason, err, tc.wantErr)
			}
			if err != nil && !strings.Contains(err.Error(), tc.wantText) {
				t.Errorf("%s: error %q does not say %q", tc.reason, err, tc.wantText)
			}
			if got.String() != tc.want {
				t.Errorf("%s: got %q, want %q", tc.reason, got, tc.want)
			}
		})
	}
}

func TestFromTerm(t *testing.T) {
	in := func(key string, values ...string) corev1.NodeSelectorRequirement {
		return corev1.NodeSelectorRequirement{Key: key, Operator: corev1.NodeSelectorOpIn, Values: values}
	}
	cases := map[string]struct {
		reason  string
		term    corev1.NodeSelectorTerm
		want    string
		wantErr bool
	}{
		"Empty":     {"no expressions, no pairs", corev1.NodeSelectorTerm{}, "", false},
		"FormOne":   {"one value for each key", corev1.NodeSelectorTerm{MatchExpressions: []corev1.NodeSelectorRequirement{in("zone", "a"), in("rack", "1")}}, "rack=1,zone=a", false},
		"FormTwo":   {"two values are no segment", corev1.NodeSelectorTerm{MatchExpressions: []corev1.NodeSelectorRequirement{in("zone", "a", "b")}}, "", true},
		"NoValue":   {"no value is no segment", corev1.NodeSelectorTerm{MatchExpressions: []corev1.NodeSelectorRequirement{in("zone")}}, "", true},
		"Repeated":  {"a key may come once", corev1.NodeSelectorTerm{MatchExpressions: []corev1.NodeSelectorRequirement{in("zone", "a"), in("zone", "a")}}, "", true},
		"BadValue":  {"values are checked", corev1.NodeSelectorTerm{MatchExpressions: []corev1.NodeSelectorRequirement{in("zone", "?")}}, "", true},
		"HasFields": {"fields are no labels", corev1.NodeSelectorTerm{MatchFields: []corev1.NodeSelectorRequirement{in("metadata.name", "n1")}}, "", true},
		"NotIn": {"other operators are no segment", corev1.NodeSelectorTerm{MatchExpressions: []corev1.NodeSelectorRequirement{
			{Key: "zone", Operator: corev1.NodeSelectorOpNotIn, Values: []string{"a"}}}}, "", true},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			got, err := FromTerm(tc.term)
			if errors.Is(err, ErrInvalid) != tc.wantErr || (err != nil) != tc.wantErr {
				t.Fatalf("%s: got error %v, want ErrInvalid: %v", tc.reason, err, tc.wantErr)
			}
			if got.String() != tc.want {
				t.Errorf("%s: got %q, want %q", tc.reason, got, tc.want)
			}
		})
	}
}

func TestParseErrors(t *testing.T) {
	cases := map[string]struct {
		reason, text, want string
	}{
		"NoValue":  {"a pair has a value", "zone", `pair "zone" has no "="`},
		"NoPair":   {"an empty pair is none", "zone=a,", `pair "" has no "="`},
		"Repeated": {"a key may come once", "zone=a,zone=b", `key "zone" is repeated`},
		"BadKey":   {"keys are checked", "?=a", `topology key "?"`},
		"BadValue": {"values are checked", "zone=a=b", `value "a=b" of topology key "zone"`},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			s, err := Parse(tc.text)
			if !errors.Is(err, ErrInvalid) || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("%s: Parse(%q) = %q, %v, want ErrInvalid with %q", tc.reason, tc.text, s, err, tc.want)
			}
		})
	}
}

func TestConversionsDoNotShare(t *testing.T) {
	pairs := map[string]string{"zone": "a"}
	message := &csi.Topology{Segments: pairs}
	s, err := FromTopology(message)
	if err != nil {
		t.Fatal(err)
	}
	pairs["zone"] = "b"
	s.Map()["zone"] = "c"
	s.Topology().Segments["zone"] = "d"
	s.Term().MatchExpressions[0].Values[0] = "e"
	if diff := cmp.Diff("zone=a", s.String()); diff != "" {
		t.Errorf("segment changed: -want +got\n%s", diff)
	}
}
