package reconcile

import (
	"fmt"
	"hash/fnv"
	"sync"
	"time"
)

// jitter is the largest part by which a pause is shortened.
const jitter = 0.2

// backoff counts failures per key and computes the pause after each.
type backoff[K comparable] struct {
	longest time.Duration

	mu       sync.Mutex
	failures map[K]int
}

func newBackoff[K comparable](longest time.Duration) *backoff[K] {
	return &backoff[K]{longest: longest, failures: map[K]int{}}
}

// next counts a failure and returns the pause after it: start, doubled with each failure
// before, at most the longest.
func (b *backoff[K]) next(key K, start time.Duration) time.Duration {
	b.mu.Lock()
	n := b.failures[key]
	b.failures[key] = n + 1
	b.mu.Unlock()
	return spread(key, n, exponential(start, b.longest, n))
}

func (b *backoff[K]) forget(key K) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.failures, key)
}

func (b *backoff[K]) len() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.failures)
}

// exponential returns start * 2^n, at most longest.
func exponential(start, longest time.Duration, n int) time.Duration {
	pause := start
	for range n {
		if pause >= longest/2 {
			return longest
		}
		pause *= 2
	}
	return min(pause, longest)
}

// spread shortens a pause by a part that depends on the key and the attempt only: keys come apart,
// and yet every run is like the last.
func spread[K comparable](key K, n int, pause time.Duration) time.Duration {
	h := fnv.New64a()
	fmt.Fprintf(h, "%v#%d", key, n)
	part := float64(mix(h.Sum64())>>32) / (1 << 32)
	return pause - time.Duration(jitter*part*float64(pause))
}

// mix spreads the bits of a hash over all of its bits, as FNV changes little with the last
// character (the finalizer of MurmurHash3).
func mix(x uint64) uint64 {
	x ^= x >> 33
	x *= 0xff51afd7ed558ccd
	x ^= x >> 33
	return x
}
