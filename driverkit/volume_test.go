package driverkit_test

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/longshore-csi/longshore/csikittest/seeds"
	"github.com/longshore-csi/longshore/driverkit"
)

// TestChooseSize compares Range.Choose with a search through all sizes.
func TestChooseSize(t *testing.T) {
	random := rand.New(rand.NewPCG(seeds.One(t), 0))
	const most = 60
	for range 20_000 {
		r := driverkit.Range{Required: random.Int64N(most), Limit: random.Int64N(most)}
		least, step, greatest := random.Int64N(most), random.Int64N(9), random.Int64N(most)
		want := int64(0)
		for size := int64(1); size < 3*most && want == 0; size++ {
			if r.Holds(size) && size >= least && size%max(step, 1) == 0 && (greatest == 0 || size <= greatest) {
				want = size
			}
		}
		got, err := r.Choose(least, step, greatest)
		if got != want || (err != nil) != (want == 0) || err != nil && !errors.Is(err, driverkit.ErrOutOfRange) {
			t.Fatalf("%+v.Choose(%d, %d, %d): %d, %v, want %d", r, least, step, greatest, got, err, want)
		}
	}
	if size, err := (driverkit.Range{Required: math.MaxInt64}).Choose(1, 1<<20, 0); !errors.Is(err, driverkit.ErrOutOfRange) {
		t.Errorf("the largest number: %d, %v, want ErrOutOfRange", size, err)
	}
}

// TestTopology chooses segments with two keys.
func TestTopology(t *testing.T) {
	place := func(zone, rack string) driverkit.Segments {
		return driverkit.Segments{"zone": zone, "rack": rack}
	}
	inZone := func(zone string) driverkit.Segments { return driverkit.Segments{"zone": zone} }
	offers := []driverkit.Segments{inZone("a"), inZone("b")}
	for name, tc := range map[string]struct {
		requisite, preferred []driverkit.Segments
		want                 string
	}{
		"Nothing":            {want: "zone=a"},
		"Requisite":          {requisite: []driverkit.Segments{place("b", "7")}, want: "zone=b"},
		"Preferred":          {requisite: []driverkit.Segments{place("a", "1"), place("b", "7")}, preferred: []driverkit.Segments{place("b", "7")}, want: "zone=b"},
		"PreferredIsNoOffer": {requisite: []driverkit.Segments{place("b", "7")}, preferred: []driverkit.Segments{place("c", "1"), place("a", "1")}, want: "zone=b"},
		"Excluded":           {requisite: []driverkit.Segments{place("c", "1")}},
		"KeyIsMissing":       {requisite: []driverkit.Segments{{"rack": "7"}}},
	} {
		t.Run(name, func(t *testing.T) {
			r := driverkit.TopologyRequirement{Requisite: tc.requisite, Preferred: tc.preferred}
			got, err := r.Choose(offers)
			if got.String() != tc.want || (err == nil) != (tc.want != "") || err != nil && !errors.Is(err, driverkit.ErrExhausted) {
				t.Errorf("got %q, %v, want %q", got, err, tc.want)
			}
			if err == nil && !r.Allows([]driverkit.Segments{got}) {
				t.Errorf("%v is chosen and not allowed", got)
			}
		})
	}
	if !(driverkit.TopologyRequirement{Requisite: offers}).Allows(nil) {
		t.Error("a volume that is reachable from everywhere is not allowed")
	}
}

// TestPage compares pages of any size with the whole.
func TestPage(t *testing.T) {
	all := []string{"d", "a", "c", "b", "e"}
	same := func(s string) string { return s }
	for limit := range 7 {
		var got []string
		for after := ""; ; {
			page := driverkit.PageOf(all, same, after, limit).Entries
			if len(page) == 0 {
				break
			}
			got, after = append(got, page...), page[len(page)-1]
		}
		if want := "abcde"; strings.Join(got, "") != want {
			t.Errorf("pages of %d have %q, want %q", limit, got, want)
		}
	}
	if got := driverkit.PageOf(all, same, "bb", 0).Entries; !slices.Equal(got, []string{"c", "d", "e"}) {
		t.Errorf("after an entry that does not exist any more: %q", got)
	}
	if all[0] != "d" {
		t.Error("the slice was changed")
	}
}

// TestSecretsPrint prints secrets in every way.
func TestSecretsPrint(t *testing.T) {
	req := driverkit.CreateRequest{Name: "pvc-1", Secrets: driverkit.Secrets{"password": "swordfish"}}
	for _, format := range []string{"%v", "%+v", "%#v", "%s"} {
		for _, value := range []any{req, &req, req.Secrets} {
			if text := fmt.Sprintf(format, value); strings.Contains(text, "swordfish") {
				t.Errorf("%s prints %s", format, text)
			}
		}
	}
	if text, err := req.Secrets.MarshalText(); err != nil || string(text) != "[password:***stripped***]" {
		t.Errorf("text %q, %v", text, err)
	}
}

// TestTopologyChoose chooses among three racks.
func TestTopologyChoose(t *testing.T) {
	at := func(zone, rack string) driverkit.Segments { return driverkit.Segments{"zone": zone, "rack": rack} }
	host := at("b", "1")
	host["host"] = "h"
	offers := []driverkit.Segments{at("a", "1"), at("a", "2"), at("b", "1")}
	type segments = []driverkit.Segments
	for name, test := range map[string]struct {
		reason               string
		requisite, preferred segments
		want                 driverkit.Segments
		err                  error
	}{
		"Anywhere":    {reason: "the first offer", want: at("a", "1")},
		"Preferred":   {reason: "both are allowed", requisite: segments{at("a", "1"), at("a", "2")}, preferred: segments{at("a", "2"), at("a", "1")}, want: at("a", "2")},
		"Unpreferred": {reason: "what is preferred is not allowed", requisite: segments{at("b", "1")}, preferred: segments{at("a", "2")}, want: at("b", "1")},
		"ZoneAlone":   {reason: "any rack of the zone", requisite: segments{{"zone": "b"}}, want: at("b", "1")},
		"ZoneLiked":   {reason: "any rack of the zone", preferred: segments{{"zone": "b"}}, want: at("b", "1")},
		"MoreKeys":    {reason: "the node has a key that the storage has not", requisite: segments{host}, want: at("b", "1")},
		"OtherRack":   {reason: "the zone is not enough", requisite: segments{at("b", "2")}, err: driverkit.ErrExhausted},
		"OtherKey":    {reason: "the storage does not know the key", requisite: segments{{"host": "h"}}, err: driverkit.ErrExhausted},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := driverkit.TopologyRequirement{Requisite: test.requisite, Preferred: test.preferred}.Choose(offers)
			if !errors.Is(err, test.err) || !maps.Equal(got, test.want) {
				t.Errorf("%s: %v, %v, want %v, %v", test.reason, got, err, test.want, test.err)
			}
		})
	}
}
