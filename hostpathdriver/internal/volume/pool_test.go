package volume

import (
	"errors"
	"math/rand/v2"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/longshore-csi/longshore/csikittest/seeds"
	"github.com/longshore-csi/longshore/driverkit"
)

func TestPoolsReserve(t *testing.T) {
	cases := map[string]struct {
		reason string
		limits map[string]int64
		kind   string
		size   int64
		want   string
		err    error
	}{
		"NoPools":        {reason: "nothing is accounted for", size: 1 << 50},
		"NoPoolsButKind": {reason: "a kind that nobody configured is a mistake", kind: "fast", size: 1, err: driverkit.ErrInvalid},
		"Kind":           {reason: "the kind asked for", limits: map[string]int64{"fast": 10, "slow": 100}, kind: "fast", size: 10, want: "fast"},
		"KindFull":       {reason: "another pool does not help", limits: map[string]int64{"fast": 10, "slow": 100}, kind: "fast", size: 11, err: driverkit.ErrExhausted},
		"Roomiest":       {reason: "without a kind the most room", limits: map[string]int64{"a": 10, "b": 30, "c": 20}, size: 5, want: "b"},
		"RoomiestByName": {reason: "equal room: by name, not by chance", limits: map[string]int64{"d": 10, "b": 10, "c": 10}, size: 5, want: "b"},
		"RoomiestFull":   {reason: "no pool alone is enough", limits: map[string]int64{"a": 10, "b": 10}, size: 15, err: driverkit.ErrExhausted},
		"Unknown":        {reason: "a misspelt kind", limits: map[string]int64{"fast": 10}, kind: "fats", size: 1, err: driverkit.ErrInvalid},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			got, err := NewPools(c.limits).Reserve(c.kind, c.size)
			if !errors.Is(err, c.err) || got != c.want {
				t.Errorf("%s: Reserve = %q, %v, want %q, %v", c.reason, got, err, c.want, c.err)
			}
		})
	}
}

func TestPoolsCapacity(t *testing.T) {
	p := NewPools(map[string]int64{"fast": 100, "slow": 50})
	if _, err := p.Reserve("fast", 70); err != nil {
		t.Fatal(err)
	}
	for kind, want := range map[string]Capacity{
		"":     {Available: 80, Largest: 50},
		"fast": {Available: 30, Largest: 30},
		"slow": {Available: 50, Largest: 50},
	} {
		got, err := p.Capacity(kind)
		if err != nil {
			t.Errorf("Capacity(%q): %v", kind, err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("Capacity(%q) (-want +got):\n%s", kind, diff)
		}
	}
	if _, err := p.Capacity("other"); !errors.Is(err, driverkit.ErrInvalid) {
		t.Errorf("unknown kind: %v, want ErrInvalid", err)
	}
}

// TestPoolsLoweredLimit starts with more than the flag allows: what is there
// stays, and nothing more fits.
func TestPoolsLoweredLimit(t *testing.T) {
	p := NewPools(map[string]int64{"fast": 10})
	p.Adopt("fast", 25)
	p.Adopt("", 99)
	if got, err := p.Capacity("fast"); err != nil || got.Available != 0 {
		t.Errorf("available: %d, %v, want 0", got.Available, err)
	}
	if _, err := p.Reserve("fast", 1); !errors.Is(err, driverkit.ErrExhausted) {
		t.Errorf("reserve: %v, want ErrExhausted", err)
	}
	p.Release("fast", 20)
	if got, err := p.Capacity("fast"); err != nil || got.Available != 5 {
		t.Errorf("available after release: %d, %v, want 5", got.Available, err)
	}
}

// TestPoolsNeverNegative lets many reserve and release at random: what is
// available stays between zero and the limit, and all of it comes back.
func TestPoolsNeverNegative(t *testing.T) {
	const limit, workers, rounds = 1000, 8, 500
	seed := seeds.One(t)
	p := NewPools(map[string]int64{"fast": limit})
	var group sync.WaitGroup
	for worker := range workers {
		group.Go(func() {
			random := rand.New(rand.NewPCG(seed, uint64(worker)))
			for range rounds {
				size := 1 + random.Int64N(limit)
				_, err := p.Reserve("", size)
				c, capErr := p.Capacity("fast")
				if capErr != nil || c.Available < 0 || c.Available > limit {
					t.Errorf("available %d, %v", c.Available, capErr)
				}
				if err == nil {
					p.Release("fast", size)
				}
			}
		})
	}
	group.Wait()
	if c, err := p.Capacity("fast"); err != nil || c.Available != limit {
		t.Errorf("available at the end: %d, %v, want %d", c.Available, err, limit)
	}
}

func TestUnlimitedPools(t *testing.T) {
	p := NewPools(map[string]int64{"slow": Unlimited, "fast": 10, "more": Unlimited})
	if got, err := p.Reserve("", 1<<50); got != "more" || err != nil {
		t.Errorf("an unlimited pool has the most space, of equal ones the first by name: %q, %v", got, err)
	}
	for kind, want := range map[string][]string{"": {"more", "slow"}, "slow": {"slow"}, "fast": nil} {
		if diff := cmp.Diff(want, p.Unlimited(kind), cmpopts.EquateEmpty()); diff != "" {
			t.Errorf("Unlimited(%q) (-want +got):\n%s", kind, diff)
		}
	}
	if c, err := p.Capacity(""); err != nil || c != (Capacity{Available: 10, Largest: 10}) {
		t.Errorf("capacity %+v, %v: unlimited pools are not counted", c, err)
	}
	if c, err := p.Empty().Capacity("fast"); err != nil || c.Available != 10 || !p.Empty().Configured() {
		t.Errorf("pools of the same sizes: %+v, %v", c, err)
	}
}

// TestEmptyPoolsAreNotCharged: each node has its own.
func TestEmptyPoolsAreNotCharged(t *testing.T) {
	p := NewPools(map[string]int64{"fast": 10})
	p.Adopt("fast", 10)
	other := p.Empty()
	if _, err := other.Reserve("fast", 10); err != nil {
		t.Errorf("the pool of another node: %v", err)
	}
	if _, err := p.Reserve("fast", 1); !errors.Is(err, driverkit.ErrExhausted) {
		t.Errorf("the first pool: %v, want ErrExhausted", err)
	}
}
