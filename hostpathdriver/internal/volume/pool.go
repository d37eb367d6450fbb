package volume

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"sync"

	"github.com/longshore-csi/longshore/driverkit"
)

// Unlimited is the size of a pool that takes what its disk takes.
const Unlimited = -1

// Pools account for space by kind: `--capacity fast=10Gi`. It is accounting
// only: no bytes are set aside. Without pools, capacity is not
// tracked. Pools are safe for concurrent use, and the available space is never
// negative.
type Pools struct {
	limits map[string]int64

	mu   sync.Mutex
	used map[string]int64
}

// NewPools returns empty pools of the given sizes in bytes, or Unlimited.
func NewPools(limits map[string]int64) *Pools {
	return &Pools{limits: maps.Clone(limits), used: map[string]int64{}}
}

// Empty returns pools of the same sizes that are not charged.
func (p *Pools) Empty() *Pools { return NewPools(p.limits) }

// Configured reports whether there are any pools.
func (p *Pools) Configured() bool {
	return len(p.limits) > 0
}

// Reserve charges a pool and returns its name. An empty kind takes the pool
// with the most space left, of equal ones the first by name; an unlimited one
// has the most. It is an ErrInvalid for an unknown kind and an ErrExhausted when space is lacking.
func (p *Pools) Reserve(kind string, size int64) (string, error) {
	if err := p.check(kind); err != nil {
		return "", err
	}
	if !p.Configured() {
		return "", nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if kind == "" {
		kind = p.roomiest()
	}
	if left := p.left(kind); size > left {
		return "", fmt.Errorf("reserve %d bytes of pool %q: %d bytes are left: %w", size, kind, left, driverkit.ErrExhausted)
	}
	p.used[kind] += size
	return kind, nil
}

// Adopt charges what exists already, whatever the limit is now.
func (p *Pools) Adopt(kind string, size int64) {
	if kind == "" {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.used[kind] += size
}

// Release undoes Reserve or Adopt.
func (p *Pools) Release(kind string, size int64) {
	p.Adopt(kind, -size)
}

// Capacity is the answer to "how much more can be made?", in bytes.
type Capacity struct {
	// Available is the sum over the pools in question.
	Available int64
	// Largest is the greatest volume that can be made.
	Largest int64
}

// Capacity returns what a kind has left; the empty kind means all. Unlimited
// kinds are not counted.
func (p *Pools) Capacity(kind string) (Capacity, error) {
	if err := p.check(kind); err != nil {
		return Capacity{}, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	var c Capacity
	for name, limit := range p.limits {
		if limit == Unlimited || (kind != "" && kind != name) {
			continue
		}
		left := p.left(name)
		c.Available += left
		c.Largest = max(c.Largest, left)
	}
	return c, nil
}

// Unlimited returns the unlimited pools of a kind, sorted; the empty kind stands
// for all.
func (p *Pools) Unlimited(kind string) []string {
	return slices.DeleteFunc(p.names(), func(name string) bool {
		return p.limits[name] != Unlimited || (kind != "" && kind != name)
	})
}

func (p *Pools) check(kind string) error {
	if _, known := p.limits[kind]; known || kind == "" {
		return nil
	}
	return fmt.Errorf("pool %q: must be one of [%s]: %w", kind, strings.Join(p.names(), " "), driverkit.ErrInvalid)
}

func (p *Pools) names() []string {
	return slices.Sorted(maps.Keys(p.limits))
}

// left needs the mutex. It is 0 for a limit that was lowered below the used space.
func (p *Pools) left(kind string) int64 {
	if p.limits[kind] == Unlimited {
		return math.MaxInt64
	}
	return max(0, p.limits[kind]-p.used[kind])
}

func (p *Pools) roomiest() string {
	best := ""
	for _, name := range p.names() {
		if best == "" || p.left(name) > p.left(best) {
			best = name
		}
	}
	return best
}
