package topology

import (
	"encoding/json"
	"errors"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestSegmentIsCanonical(t *testing.T) {
	pairs := map[string]string{"zone": "a", "rack": "1", "host": "h"}
	fromPairs, err := NewSegment(pairs)
	if err != nil {
		t.Fatal(err)
	}
	fromLabels, err := FromLabels(map[string]string{"zone": "a", "rack": "1", "host": "h", "other": "x"},
		[]string{"zone", "host", "rack", "zone"})
	if err != nil {
		t.Fatal(err)
	}
	fromTopology, err := FromTopology(fromPairs.Topology())
	if err != nil {
		t.Fatal(err)
	}
	fromTerm, err := FromTerm(fromPairs.Term())
	if err != nil {
		t.Fatal(err)
	}
	fromText := mustParse(t, "zone=a,host=h,rack=1")
	for i, s := range []Segment{fromLabels, fromTopology, fromTerm, fromText} {
		if s != fromPairs {
			t.Errorf("segment %d: got %q, want the same segment as %q", i, s, fromPairs)
		}
	}
	if got, want := fromPairs.String(), "host=h,rack=1,zone=a"; got != want {
		t.Errorf("String() = %q, want %q", got, want)
	}
}

func TestSegmentAccessors(t *testing.T) {
	s := mustParse(t, "zone=a,rack=1,empty=")
	if s.IsEmpty() || s.Len() != 3 {
		t.Errorf("IsEmpty() = %v, Len() = %d, want false, 3", s.IsEmpty(), s.Len())
	}
	if diff := cmp.Diff([]string{"empty", "rack", "zone"}, s.Keys()); diff != "" {
		t.Errorf("Keys(): -want +got\n%s", diff)
	}
	if diff := cmp.Diff(map[string]string{"zone": "a", "rack": "1", "empty": ""}, s.Map()); diff != "" {
		t.Errorf("Map(): -want +got\n%s", diff)
	}
	if value, ok := s.Value("zone"); !ok || value != "a" {
		t.Errorf(`Value("zone") = %q, %v, want "a", true`, value, ok)
	}
	if value, ok := s.Value("empty"); !ok || value != "" {
		t.Errorf(`Value("empty") = %q, %v, want "", true`, value, ok)
	}
	if value, ok := s.Value("zon"); ok {
		t.Errorf(`Value("zon") = %q, true, want none`, value)
	}
	for key := range s.All() {
		if key != "empty" {
			t.Errorf("All() goes on after break: %q", key)
		}
		break
	}
}

func TestZeroSegment(t *testing.T) {
	var zero Segment
	made, err := NewSegment(map[string]string{})
	if err != nil {
		t.Fatal(err)
	}
	fromNil, err := FromTopology(nil)
	if err != nil {
		t.Fatal(err)
	}
	if made != zero || fromNil != zero || mustParse(t, "") != zero {
		t.Error("empty segments differ from the zero segment")
	}
	if !zero.IsEmpty() || zero.Len() != 0 || zero.String() != "" || zero.Map() != nil || len(zero.Keys()) != 0 {
		t.Errorf("zero segment is not empty: %q", zero)
	}
	if !zero.Matches(nil) || !zero.Within(zero) || zero.Compare(zero) != 0 {
		t.Error("zero segment must match everything, lie within itself and equal itself")
	}
	if len(zero.Topology().GetSegments()) != 0 || len(zero.Term().MatchExpressions) != 0 {
		t.Error("zero segment converts to something that is not empty")
	}
}

func TestSegmentWithin(t *testing.T) {
	cases := map[string]struct {
		reason       string
		inner, outer string
		want         bool
	}{
		"Same":           {"a segment lies within itself", "zone=a", "zone=a", true},
		"EmptyOuter":     {"everything lies within the empty segment", "zone=a", "", true},
		"EmptyInner":     {"the empty segment lies only within itself", "", "zone=a", false},
		"FirstPair":      {"the first pair is a subset", "rack=1,zone=a", "rack=1", true},
		"LastPair":       {"the last pair is a subset", "rack=1,zone=a", "zone=a", true},
		"Apart":          {"pairs need not be neighbours", "host=h,rack=1,zone=a", "host=h,zone=a", true},
		"OtherValue":     {"the value counts", "rack=1,zone=a", "zone=b", false},
		"OtherKey":       {"the key counts", "rack=1,zone=a", "room=1", false},
		"Larger":         {"more pairs are a smaller place", "zone=a", "rack=1,zone=a", false},
		"KeyIsPrefix":    {"zone is another key than zone-2", "zone-2=a", "zone=a", false},
		"ValueIsPrefix":  {"a is another value than ab", "zone=ab", "zone=a", false},
		"SecondMismatch": {"all pairs must match", "rack=1,zone=a", "rack=1,zone=b", false},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			inner, outer := mustParse(t, tc.inner), mustParse(t, tc.outer)
			if got := inner.Within(outer); got != tc.want {
				t.Errorf("%s: %q within %q = %v, want %v", tc.reason, inner, outer, got, tc.want)
			}
			if tc.inner == "" {
				return
			}
			if got := outer.Matches(inner.Map()); got != tc.want {
				t.Errorf("%s: %q matches labels %q = %v, want %v", tc.reason, outer, inner, got, tc.want)
			}
		})
	}
}

func TestSegmentCompare(t *testing.T) {
	// In ascending order. A plain comparison of the texts would put zone-2
	// before zone, as '-' sorts before '='.
	ordered := []string{
		"", "a=1", "a=2", "zone=", "zone=a", "zone=ab", "zone-2=a",
		"a=1,b=1", "a=1,b=2", "a=1,c=0", "zone=a,zone-2=b", "a=0,b=0,c=0",
	}
	for i, a := range ordered {
		for j, b := range ordered {
			want := sign(i - j)
			if got := mustParse(t, a).Compare(mustParse(t, b)); got != want {
				t.Errorf("%q compared with %q = %d, want %d", a, b, got, want)
			}
		}
	}
}

func TestSegmentAsJSON(t *testing.T) {
	want := map[Segment]int{mustParse(t, "zone=a,rack=1"): 1, {}: 2}
	data, err := json.Marshal(want)
	if err != nil {
		t.Fatal(err)
	}
	if text := `{"":2,"rack=1,zone=a":1}`; string(data) != text {
		t.Errorf("got %s, want %s", data, text)
	}
	var got map[Segment]int
	if err := json.Unmarshal(data, &got); err != nil {
		t.Fatal(err)
	}
	if len(got) != len(want) || got[mustParse(t, "zone=a,rack=1")] != 1 || got[Segment{}] != 2 {
		t.Errorf("got %v, want %v", got, want)
	}
	var s Segment
	if err := s.UnmarshalText([]byte("zone")); !errors.Is(err, ErrInvalid) {
		t.Errorf("unmarshal text without =: got %v, want ErrInvalid", err)
	}
}

// FuzzNewSegment checks that a segment either is refused or converts to every
// other form and back.
func FuzzNewSegment(f *testing.F) {
	f.Add("zone", "a", "rack", "1")
	f.Add("com.example.topology/rack", "rack1", "topology.kubernetes.io/zone", "")
	f.Add("a,b", "c", "d", "e=f")
	f.Add("", "", "-", "_")
	f.Add("zone", "a\x00", "zone-2", "ä")
	f.Fuzz(func(t *testing.T, key1, value1, key2, value2 string) {
		pairs := map[string]string{key1: value1, key2: value2}
		s, err := NewSegment(pairs)
		if err != nil {
			if !errors.Is(err, ErrInvalid) {
				t.Fatalf("error %v is no ErrInvalid", err)
			}
			return
		}
		if diff := cmp.Diff(pairs, s.Map()); diff != "" {
			t.Errorf("Map(): -want +got\n%s", diff)
		}
		if !slices.IsSorted(s.Keys()) || s.Len() != len(pairs) || !s.Matches(pairs) {
			t.Errorf("segment %q: keys %q, length %d, for %q", s, s.Keys(), s.Len(), pairs)
		}
		again, err := FromTerm(s.Term())
		if err != nil || again != s || mustParse(t, s.String()) != s {
			t.Errorf("round trip of %q gives %q, %v", s, again, err)
		}
	})
}

// FuzzParse checks that what parses is read again from its canonical text.
func FuzzParse(f *testing.F) {
	for _, text := range []string{"", "zone=a", "zone=a,rack=1", "zone", "=", ",", "a=b=c", "a=1,a=1", "a=,b="} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		s, err := Parse(text)
		if err != nil {
			if !errors.Is(err, ErrInvalid) {
				t.Fatalf("error %v is no ErrInvalid", err)
			}
			return
		}
		if again := mustParse(t, s.String()); again != s {
			t.Errorf("%q parses to %q, which parses to %q", text, s, again)
		}
		if len(s.String()) != len(text) {
			t.Errorf("%q parses to %q, of another length", text, s)
		}
	})
}

// FuzzSegmentOrder checks that Compare is an order that agrees with equality.
func FuzzSegmentOrder(f *testing.F) {
	f.Add("zone=a", "zone-2=a", "rack=1,zone=a")
	f.Add("", "a=", "a=0")
	f.Fuzz(func(t *testing.T, textA, textB, textC string) {
		var list []Segment
		for _, text := range []string{textA, textB, textC} {
			s, err := Parse(text)
			if err != nil {
				return
			}
			list = append(list, s)
		}
		a, b, c := list[0], list[1], list[2]
		if a.Compare(b) != -b.Compare(a) || (a.Compare(b) == 0) != (a == b) {
			t.Errorf("%q and %q: %d and %d", a, b, a.Compare(b), b.Compare(a))
		}
		if a.Compare(b) <= 0 && b.Compare(c) <= 0 && a.Compare(c) > 0 {
			t.Errorf("%q <= %q <= %q, but not the first and the last", a, b, c)
		}
	})
}
