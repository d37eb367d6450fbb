package topology

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"strings"
	"testing"
)

// fnv1 is the FNV-1 hash (32 bit), written down from its definition.
func fnv1(text string) uint32 {
	hash := uint32(2166136261)
	for _, b := range []byte(text) {
		hash *= 16777619
		hash ^= uint32(b)
	}
	return hash
}

func TestFNV1Vectors(t *testing.T) {
	// Published test vectors of FNV-1, 32 bit.
	for text, want := range map[string]uint32{"": 0x811c9dc5, "a": 0x050c5d7e, "foobar": 0x31f0b262} {
		if got := fnv1(text); got != want {
			t.Errorf("fnv1(%q) = %#x, want %#x", text, got, want)
		}
	}
}

func TestSplitOrdinal(t *testing.T) {
	cases := map[string]struct {
		reason, name, base string
		ordinal            uint32
		ok                 bool
	}{
		"StatefulSet":    {"template-set-ordinal: the set counts", "data-web-3", "web", 3, true},
		"NameAndOrdinal": {"set-like names made by hand count too", "disk-12", "disk", 12, true},
		"DashedSet":      {"only what follows the last dash counts", "data-my-web-0", "web", 0, true},
		"DashedTemplate": {"dashes of the template do not matter", "my-data-web-0", "web", 0, true},
		"LeadingZero":    {"decimal, not octal", "data-web-010", "web", 10, true},
		"Largest":        {"2^32-1 is an ordinal", "data-web-4294967295", "web", 4294967295, true},
		"TooLarge":       {"2^32 is none", "data-web-4294967296", "", 0, false},
		"NoDash":         {"a name without dash has no ordinal", "claim", "", 0, false},
		"OnlyDigits":     {"digits without dash are no ordinal", "42", "", 0, false},
		"Word":           {"a word is no ordinal", "data-web", "", 0, false},
		"Hex":            {"only decimal digits", "data-web-0x1", "", 0, false},
		"Sign":           {"no signs", "data-web-+1", "", 0, false},
		"TrailingDash":   {"nothing is no ordinal", "data-web-", "", 0, false},
		"LeadingDash":    {"the base may be empty", "-7", "", 7, true},
		"DoubleDash":     {"the base may be empty", "web--7", "", 7, true},
		"Empty":          {"no name", "", "", 0, false},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			base, ordinal, ok := splitOrdinal(tc.name)
			if base != tc.base || ordinal != tc.ordinal || ok != tc.ok {
				t.Errorf("%s: splitOrdinal(%q) = %q, %d, %v, want %q, %d, %v",
					tc.reason, tc.name, base, ordinal, ok, tc.base, tc.ordinal, tc.ok)
			}
		})
	}
}

func TestSpreadIndex(t *testing.T) {
	cases := map[string]struct {
		reason, name string
		n            int
		want         uint32
	}{
		"WholeName":   {"without ordinal the whole name counts", "my-claim", 3, fnv1("my-claim") % 3},
		"StatefulSet": {"the set's hash plus the ordinal", "data-web-4", 3, (fnv1("web") + 4) % 3},
		"Wraps":       {"the sum is taken modulo 2^32 first", "data-web-4294967295", 7, (fnv1("web") - 1) % 7},
		"OnePlace":    {"one place is the place", "data-web-4", 1, 0},
		"Empty":       {"an empty name is a name", "", 5, 0x811c9dc5 % 5},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			if got := spreadIndex(tc.name, tc.n); got != int(tc.want) {
				t.Errorf("%s: spreadIndex(%q, %d) = %d, want %d", tc.reason, tc.name, tc.n, got, tc.want)
			}
		})
	}
}

func TestSpreadIsEven(t *testing.T) {
	const places, rounds = 3, 4
	counts := make([]int, places)
	for ordinal := range places * rounds {
		place := spreadIndex(fmt.Sprintf("data-web-%d", ordinal), places)
		counts[place]++
		if other := spreadIndex(fmt.Sprintf("log-web-%d", ordinal), places); other != place {
			t.Errorf("replica %d: claims data and log are in places %d and %d, want the same", ordinal, place, other)
		}
		if next := spreadIndex(fmt.Sprintf("data-web-%d", ordinal+1), places); next != (place+1)%places {
			t.Errorf("replica %d is in place %d, the next one in %d", ordinal, place, next)
		}
	}
	for place, count := range counts {
		if count != rounds {
			t.Errorf("place %d has %d replicas, want %d", place, count, rounds)
		}
	}
}

func TestSpreadPrefers(t *testing.T) {
	cases := map[string]struct {
		reason string
		spread Spread
		name   string
		want   bool
	}{
		"AnyNameSet":        {"the default prefers for all", SpreadAnyName, "data-web-0", true},
		"AnyNameOther":      {"the default prefers for all", SpreadAnyName, "claim", true},
		"StatefulSetsSet":   {"names with ordinal only", SpreadStatefulSets, "data-web-0", true},
		"StatefulSetsOther": {"names with ordinal only", SpreadStatefulSets, "claim", false},
		"OffSet":            {"never", SpreadOff, "data-web-0", false},
		"OffOther":          {"never", SpreadOff, "claim", false},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			if got := tc.spread.prefers(tc.name); got != tc.want {
				t.Errorf("%s: %s prefers for %q = %v, want %v", tc.reason, tc.spread, tc.name, got, tc.want)
			}
		})
	}
}

func TestSpreadIsAFlag(t *testing.T) {
	for _, mode := range []Spread{SpreadAnyName, SpreadStatefulSets, SpreadOff} {
		var got Spread
		flags := flag.NewFlagSet("test", flag.ContinueOnError)
		flags.TextVar(&got, "topology-spread", SpreadAnyName, "usage")
		if err := flags.Parse([]string{"--topology-spread=" + mode.String()}); err != nil || got != mode {
			t.Errorf("flag value %q: got %v, %v", mode, got, err)
		}
	}
	flags := flag.NewFlagSet("test", flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	var got Spread
	flags.TextVar(&got, "topology-spread", SpreadAnyName, "usage")
	err := flags.Parse([]string{"--topology-spread=zones"})
	if err == nil || !strings.Contains(err.Error(), `"zones" is none of "any-name", "statefulsets", "off"`) {
		t.Errorf("unknown mode: got error %v, want the known ones named", err)
	}
	if err := got.UnmarshalText([]byte("zones")); !errors.Is(err, ErrInvalid) {
		t.Errorf("unknown mode: got error %v, want ErrInvalid", err)
	}
	if text, err := Spread(7).MarshalText(); !errors.Is(err, ErrInvalid) {
		t.Errorf("MarshalText of mode 7 = %q, %v, want ErrInvalid", text, err)
	}
	if got, want := Spread(7).String(), "Spread(7)"; got != want {
		t.Errorf("String of mode 7 = %q, want %q", got, want)
	}
}

// FuzzSplitOrdinal checks the parsing of claim names against the properties
// that define it.
func FuzzSplitOrdinal(f *testing.F) {
	for _, name := range []string{"", "data-web-3", "a-1", "-1", "a--1", "a-+1", "a-1_0", "a-4294967296", "ä-١"} {
		f.Add(name, 3)
	}
	f.Fuzz(func(t *testing.T, name string, n int) {
		base, ordinal, ok := splitOrdinal(name)
		if ok {
			prefix := name[:strings.LastIndexByte(name, '-')]
			digits := strings.TrimLeft(name[len(prefix)+1:], "0")
			if want := strings.TrimLeft(fmt.Sprint(ordinal), "0"); digits != want {
				t.Errorf("splitOrdinal(%q): ordinal %d", name, ordinal)
			}
			if strings.Contains(base, "-") || !strings.HasSuffix("-"+prefix, "-"+base) {
				t.Errorf("splitOrdinal(%q): base %q", name, base)
			}
		}
		if n < 1 || n > 1<<20 {
			return
		}
		if place := spreadIndex(name, n); place < 0 || place >= n {
			t.Errorf("spreadIndex(%q, %d) = %d", name, n, place)
		}
	})
}
