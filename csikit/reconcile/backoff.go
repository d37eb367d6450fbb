package reconcile

import (
	"cmp"
	"fmt"
	"hash/fnv"
	"slices"
	"sync"
	"time"
)

// jitter is the largest part by which a pause is lengthened.
const jitter = 0.2

// maxFailing is the number of failing keys that State lists.
const maxFailing = 100

// backoff has the keys that wait for another attempt, and the failures of each.
type backoff[K comparable] struct {
	start time.Duration

	mu    sync.Mutex
	waits map[K]wait
}

// wait is the pause of a key between two attempts.
type wait struct {
	// failures counts the failures in a row, err is the last one; 0 and nil if the last attempt succeeded and asked for another one.
	failures int
	err      error
	// due is when the key is attempted again, unless its inputs have changed from what they were before the last attempt.
	due    time.Time
	inputs any
	// changed is when other inputs ended the wait last.
	changed time.Time
	// woken says that the wait was ended, since the last attempt began or while none was running: the attempt may not have seen what ended it.
	woken bool
}

// Failing is a key whose last attempt failed, for /debug/state.
type Failing struct {
	// Key is the key as text.
	Key string `json:"key"`
	// Failures counts the failures in a row.
	Failures int `json:"failures"`
	// Error is the last one.
	Error string `json:"error"`
	// Next is the time of the next attempt, if nothing changes before.
	Next time.Time `json:"next"`
}

func newBackoff[K comparable](start time.Duration) *backoff[K] {
	return &backoff[K]{start: start, waits: map[K]wait{}}
}

// left returns how long the key has to wait yet, before an attempt. Other inputs than those of the last attempt end the wait and the failures, once within the
// shortest pause: a user who may change the inputs must not get an attempt for each change.
func (b *backoff[K]) left(key K, inputs any) time.Duration {
	b.mu.Lock()
	defer b.mu.Unlock()
	w, ok := b.waits[key]
	switch {
	case !ok:
		return 0
	case w.woken:
		w.woken = false
		b.waits[key] = w
		return 0
	case w.inputs != inputs:
		now := time.Now()
		if early := w.changed.Add(b.start).Sub(now); early > 0 {
			return early
		}
		b.waits[key] = wait{changed: now}
		return 0
	}
	return time.Until(w.due)
}

// fail counts a failure and returns the pause after it: start, doubled with each failure
// before, at most the longest.
func (b *backoff[K]) fail(key K, inputs any, err error, start, longest time.Duration) time.Duration {
	b.mu.Lock()
	defer b.mu.Unlock()
	before := b.waits[key]
	pause := spread(key, before.failures, exponential(start, longest, before.failures))
	b.waits[key] = wait{failures: before.failures + 1, err: err, due: time.Now().Add(pause), inputs: inputs, changed: before.changed, woken: before.woken}
	return pause
}

// succeed ends the failures of a key, which waits for that long before the next attempt.
func (b *backoff[K]) succeed(key K, inputs any, pause time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	before := b.waits[key]
	if pause <= 0 && !before.woken {
		delete(b.waits, key)
		return
	}
	b.waits[key] = wait{due: time.Now().Add(pause), inputs: inputs, changed: before.changed, woken: before.woken}
}

// wake ends the wait of a key, also that after an attempt which is running, and the failures before if forget is true.
func (b *backoff[K]) wake(key K, forget bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	w := b.waits[key]
	if forget {
		w = wait{}
	}
	w.woken = true
	b.waits[key] = w
}

// failing returns how many keys fail, and the first of them by their text.
func (b *backoff[K]) failing() (count int, first []Failing) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for key, w := range b.waits {
		if w.failures > 0 {
			first = append(first, Failing{Key: fmt.Sprint(key), Failures: w.failures, Error: w.err.Error(), Next: w.due})
		}
	}
	slices.SortFunc(first, func(a, b Failing) int { return cmp.Compare(a.Key, b.Key) })
	return len(first), first[:min(len(first), maxFailing)]
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

// spread lengthens a pause by a part that depends on the key and the attempt only: keys come apart, and yet every run is like the last, and none is attempted
// more often than the pause alone allows.
func spread[K comparable](key K, n int, pause time.Duration) time.Duration {
	return pause + time.Duration(jitter*Part(fmt.Sprintf("%v#%d", key, n))*float64(pause))
}

// Part returns a number from 0 up to 1 that depends on a text only: what has different texts comes apart by it, and yet every run is like the last.
func Part(text string) float64 {
	h := fnv.New64a()
	_, _ = h.Write([]byte(text)) // never fails
	return float64(mix(h.Sum64())>>32) / (1 << 32)
}

// mix spreads the bits of a hash over all of its bits, as FNV changes little with the last
// character (the finalizer of MurmurHash3).
func mix(x uint64) uint64 {
	x ^= x >> 33
	x *= 0xff51afd7ed558ccd
	x ^= x >> 33
	return x
}
