package topology

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
)

func TestFlatten(t *testing.T) {
	cases := map[string]struct {
		reason string
		terms  []corev1.TopologySelectorTerm
		want   []string
	}{
		"None":      {"nothing gives nothing", nil, nil},
		"EmptyTerm": {"a term without expressions selects nothing", allow(term()), nil},
		"OneValue":  {"one segment", allow(term(in("zone", "z1"))), []string{"zone=z1"}},
		"Values":    {"values are alternatives", allow(term(in("zone", "z2", "z1"))), []string{"zone=z1", "zone=z2"}},
		"Product": {"expressions are ANDed", allow(term(in("zone", "z1", "z2"), in("rack", "rA", "rB"))),
			[]string{"rack=rA,zone=z1", "rack=rA,zone=z2", "rack=rB,zone=z1", "rack=rB,zone=z2"}},
		"Terms": {"terms are alternatives", allow(term(in("zone", "z2")), term(in("zone", "z1"))), []string{"zone=z1", "zone=z2"}},
		"Overlap": {"each segment once", allow(term(in("zone", "z1", "z2", "z1")), term(in("zone", "z2", "z3"))),
			[]string{"zone=z1", "zone=z2", "zone=z3"}},
		"MixedKeys": {"fewer pairs first", allow(term(in("a", "1"), in("b", "1")), term(in("zone", "z1")), term()),
			[]string{"zone=z1", "a=1,b=1"}},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			segments, err := Flatten(tc.terms)
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, s := range segments {
				got = append(got, s.String())
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("%s: -want +got\n%s", tc.reason, diff)
			}
		})
	}
}

func TestFlattenErrors(t *testing.T) {
	many := make([]string, 200)
	for i := range many {
		many[i] = fmt.Sprint(i)
	}
	half := make([]string, maxFlattened/2+1)
	for i := range half {
		half[i] = fmt.Sprint(i)
	}
	cases := map[string]struct {
		reason string
		terms  []corev1.TopologySelectorTerm
		want   string
	}{
		"BadKey":      {"the key is named", allow(term(in("zone", "a")), term(in("?", "a"))), `term 2 of allowedTopologies: topology key "?"`},
		"BadValue":    {"the value is named", allow(term(in("zone", "a", "b c"))), `value "b c" of topology key "zone"`},
		"NoValues":    {"an expression needs values", allow(term(in("zone"))), `key "zone" has no values`},
		"RepeatedKey": {"the API server refuses it as well", allow(term(in("zone", "a"), in("rack", "1"), in("zone", "b"))), `key "zone" is repeated`},
		"HugeTerm":    {"200^3 segments are no request", allow(term(in("a", many...), in("b", many...), in("c", many...))), "more than 32768 combinations"},
		"HugeSum":     {"the sum of terms counts", allow(term(in("a", half...)), term(in("b", half...))), "more than 32768 combinations"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			segments, err := Flatten(tc.terms)
			if !errors.Is(err, ErrInvalid) || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("%s: got %d segments, error %v, want ErrInvalid with %q", tc.reason, len(segments), err, tc.want)
			}
		})
	}
}

func TestFlattenKeepsInput(t *testing.T) {
	terms := allow(term(in("zone", "b", "a"), in("rack", "2", "1")))
	before := terms[0].DeepCopy()
	if _, err := Flatten(terms); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(*before, terms[0]); diff != "" {
		t.Errorf("flatten changed its input: -before +after\n%s", diff)
	}
}

func TestPermits(t *testing.T) {
	cases := map[string]struct {
		reason  string
		terms   []corev1.TopologySelectorTerm
		segment string
		want    bool
	}{
		"Value":      {"one of the values", allow(term(in("zone", "a", "b"))), "rack=1,zone=b", true},
		"OtherValue": {"none of the values", allow(term(in("zone", "a", "b"))), "rack=1,zone=c", false},
		"UnknownKey": {"all keys of a term must be keys of the segment", allow(term(in("zone", "a"), in("room", "1"))), "zone=a", false},
		"And":        {"expressions are ANDed", allow(term(in("zone", "a"), in("rack", "2"))), "rack=1,zone=a", false},
		"Or":         {"terms are alternatives", allow(term(in("zone", "b")), term(in("rack", "1"))), "rack=1,zone=a", true},
		"EmptyTerm":  {"a term without expressions selects nothing", allow(term()), "zone=a", false},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			if got := permits(tc.terms, mustParse(t, tc.segment)); got != tc.want {
				t.Errorf("%s: %s permits %q = %v, want %v", tc.reason, describe(tc.terms), tc.segment, got, tc.want)
			}
		})
	}
}

func TestDescribe(t *testing.T) {
	terms := allow(term(in("zone", "a", "b"), in("rack", "1")), term(in("host", "h")))
	if got, want := describe(terms), "(zone in a, b and rack in 1) or (host in h)"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	many := make([]string, 1000)
	for i := range many {
		many[i] = "value"
	}
	if got := describe(allow(term(in("zone", many...)))); len(got) > 300 || !strings.HasSuffix(got, "...") {
		t.Errorf("long terms: got %d characters %q, want at most 300 that end in dots", len(got), got)
	}
}

// FuzzFlatten checks flatten and permits against each other: they are two
// readings of the same terms.
func FuzzFlatten(f *testing.F) {
	f.Add("zone", "a b", "rack", "1 2", "zone", "c")
	f.Add("zone", "a", "zone", "b", "rack", "")
	f.Add("", "", "?", "x", "a,b", "c=d")
	f.Fuzz(func(t *testing.T, key1, values1, key2, values2, key3, values3 string) {
		terms := allow(
			term(in(key1, strings.Split(values1, " ")...), in(key2, strings.Split(values2, " ")...)),
			term(in(key3, strings.Split(values3, " ")...)),
		)
		segments, err := Flatten(terms)
		if err != nil {
			if !errors.Is(err, ErrInvalid) {
				t.Fatalf("error %v is no ErrInvalid", err)
			}
			return
		}
		if len(segments) == 0 || !slices.IsSortedFunc(segments, Segment.Compare) {
			t.Errorf("flatten %s: not sorted: %v", describe(terms), segments)
		}
		for _, s := range segments {
			if !permits(terms, s) {
				t.Errorf("%s gives %q, but does not permit it", describe(terms), s)
			}
		}
		slices.Reverse(terms)
		again, err := Flatten(terms)
		if err != nil || !slices.Equal(segments, again) {
			t.Errorf("order of terms matters: %v, %v, %v", segments, again, err)
		}
	})
}

// TestPermitted checks what permits leaves open; the rest is in the tests of permits.
func TestPermitted(t *testing.T) {
	segment := mustParse(t, "zone=a")
	term := func(key string) []corev1.TopologySelectorTerm {
		return []corev1.TopologySelectorTerm{{MatchLabelExpressions: []corev1.TopologySelectorLabelRequirement{{Key: key, Values: []string{"a"}}}}}
	}
	cases := map[string]struct {
		reason string
		terms  []corev1.TopologySelectorTerm
		want   bool
	}{
		"None":  {reason: "A class without allowedTopologies permits every segment.", want: true},
		"Empty": {reason: "A term without expressions selects nothing.", terms: []corev1.TopologySelectorTerm{{}}},
		"Same":  {reason: "The segment has the key and the value.", terms: term("zone"), want: true},
		"Other": {reason: "The segment lacks the key.", terms: term("rack")},
	}
	for name, tc := range cases {
		if got := Permitted(tc.terms, segment); got != tc.want {
			t.Errorf("%s: %s\ngot %v, want %v", name, tc.reason, got, tc.want)
		}
	}
}
