package keymutex_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/longshore-csi/longshore/csikit/keymutex"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func mustLock(t *testing.T, l *keymutex.Locks[string], key string) func() {
	t.Helper()
	unlock, err := l.Lock(t.Context(), key)
	if err != nil {
		t.Fatalf("Lock(%q): %v", key, err)
	}
	return unlock
}

func TestLockWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var l keymutex.Locks[string]
		unlock := mustLock(t, &l, "a")
		var order []string
		done := make(chan struct{})
		go func() {
			defer close(done)
			second := mustLock(t, &l, "a")
			order = append(order, "second")
			second()
		}()
		synctest.Wait()
		order = append(order, "first")
		unlock()
		<-done
		if got := strings.Join(order, " "); got != "first second" {
			t.Errorf("order %q, want first second", got)
		}
	})
}

func TestKeysAreIndependent(t *testing.T) {
	var l keymutex.Locks[string]
	a, b := mustLock(t, &l, "a"), mustLock(t, &l, "b")
	if n := l.Len(); n != 2 {
		t.Errorf("%d keys are locked, want 2", n)
	}
	a()
	b()
}

func TestLockEndsWithContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var l keymutex.Locks[string]
		unlock := mustLock(t, &l, "vol-1")
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err := l.Lock(ctx, "vol-1")
		if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "vol-1") {
			t.Errorf("Lock: %v, want the context's error with the key", err)
		}
		unlock()
		if n := l.Len(); n != 0 {
			t.Errorf("%d keys are remembered, want none", n)
		}
	})
}

// A free key is given even to a context that has ended: to clean up needs the
// lock, too.
func TestLockOfFreeKeyNeedsNoContext(t *testing.T) {
	var l keymutex.Locks[string]
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	unlock, err := l.Lock(ctx, "a")
	if err != nil {
		t.Fatalf("Lock: %v", err)
	}
	unlock()
}

func TestTryLock(t *testing.T) {
	var l keymutex.Locks[int]
	unlock, ok := l.TryLock(1)
	if !ok {
		t.Fatal("a free key was not given")
	}
	if _, ok := l.TryLock(1); ok {
		t.Error("a locked key was given")
	}
	unlock()
	again, ok := l.TryLock(1)
	if !ok {
		t.Fatal("an unlocked key was not given")
	}
	again()
	if n := l.Len(); n != 0 {
		t.Errorf("%d keys are remembered, want none", n)
	}
}

// An unlock that is called twice must not free the lock of the next holder.
func TestUnlockTwice(t *testing.T) {
	var l keymutex.Locks[string]
	first := mustLock(t, &l, "a")
	first()
	second := mustLock(t, &l, "a")
	first()
	if _, ok := l.TryLock("a"); ok {
		t.Error("the second holder has lost its lock")
	}
	second()
}

// Many goroutines on few keys: counters without other protection stay exact,
// which the race detector watches as well.
func TestExclusion(t *testing.T) {
	const workers, rounds, keys = 8, 200, 3
	seed := uint64(1) // decides which keys the workers lock; their order is the scheduler's
	if text := os.Getenv("SEED"); text != "" {
		var err error
		if seed, err = strconv.ParseUint(text, 10, 64); err != nil {
			t.Fatalf("parse SEED %q: %v", text, err)
		}
	} else if os.Getenv("LONGSHORE_EXHAUSTIVE") != "" {
		seed = rand.Uint64N(1e9)
	}
	t.Logf("seed: SEED=%d", seed)
	var l keymutex.Locks[int]
	counters := make([]int, keys)
	var wg sync.WaitGroup
	for w := range workers {
		random := rand.New(rand.NewPCG(seed, uint64(w)))
		wg.Go(func() {
			for range rounds {
				key := random.IntN(keys)
				unlock, err := l.Lock(t.Context(), key)
				if err != nil {
					t.Errorf("Lock(%d): %v", key, err)
					return
				}
				counters[key]++
				unlock()
			}
		})
	}
	wg.Wait()
	sum := 0
	for _, n := range counters {
		sum += n
	}
	if sum != workers*rounds || l.Len() != 0 {
		t.Errorf("counted %d with %d keys left, want %d with none", sum, l.Len(), workers*rounds)
	}
}

func BenchmarkLock(b *testing.B) {
	var l keymutex.Locks[string]
	key := fmt.Sprintf("vol-%d", 1)
	b.ReportAllocs()
	for b.Loop() {
		unlock, err := l.Lock(b.Context(), key)
		if err != nil {
			b.Fatal(err)
		}
		unlock()
	}
}

// Those that share a key do not wait for each other, and one that wants it alone waits for them, but not for those that come after it.
func TestRLock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var l keymutex.Locks[string]
		share := func() func() {
			unlock, err := l.RLock(t.Context(), "a")
			if err != nil {
				t.Error(err)
			}
			return unlock
		}
		first, second := share(), share()
		order := make(chan string, 2)
		go func() {
			defer mustLock(t, &l, "a")()
			order <- "alone"
		}()
		synctest.Wait()
		go func() {
			defer share()()
			order <- "shared"
		}()
		synctest.Wait()
		first()
		if _, ok := l.TryLock("a"); ok || len(order) != 0 {
			t.Error("one still has the key")
		}
		second()
		if a, b := <-order, <-order; a != "alone" || b != "shared" {
			t.Errorf("%s came before %s", a, b)
		}
		synctest.Wait()
		if n := l.Len(); n != 0 {
			t.Errorf("%d keys are remembered, want none", n)
		}
	})
}
