package reconcile

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/klog/v2"
)

// classOf reads a class from a key of the form pool:group/name. Both parts may be absent.
func classOf(key string) (c Class) {
	if pool, rest, ok := strings.Cut(key, ":"); ok {
		c.Pool, key = pool, rest
	}
	if group, _, ok := strings.Cut(key, "/"); ok {
		c.Group = group
	}
	return c
}

// takeAll begins what may begin.
func takeAll(q *fairQueue[string]) (taken []string) {
	q.mu.Lock()
	for q.chooseLocked() {
		q.mu.Unlock()
		taken = append(taken, q.Pop())
		q.mu.Lock()
	}
	q.mu.Unlock()
	return taken
}

// many returns n keys of a group.
func many(group string, n int) (keys []string) {
	for i := range n {
		keys = append(keys, fmt.Sprintf("%s/%d", group, i))
	}
	return keys
}

func TestFairQueue(t *testing.T) {
	t.Parallel()
	cases := map[string]struct {
		reason  string
		workers int
		push    []string
		want    []string // begun at once
		release []string
		then    []string // begun then
	}{
		"Order":    {reason: "without classes, keys are served in their order", workers: 2, push: []string{"b", "a", "c"}, want: []string{"b", "a"}, release: []string{"b"}, then: []string{"c"}},
		"NoGroup":  {reason: "keys without a group may take all workers", workers: 3, push: []string{"a", "b", "c"}, want: []string{"a", "b", "c"}},
		"Priority": {reason: "keys of high priority are served first, each kind in its order", workers: 4, push: []string{"a", "!b", "c", "!d"}, want: []string{"!b", "!d", "a", "c"}},
		"InTurn":   {reason: "groups are served in turn, whatever came first", workers: 100, push: []string{"x/1", "x/2", "x/3", "y/1", "y/2"}, want: []string{"x/1", "y/1", "x/2", "y/2", "x/3"}},
		"Half":     {reason: "a group alone gets half of the workers", workers: 10, push: many("bad", 500), want: many("bad", 5), release: []string{"bad/0"}, then: []string{"bad/5"}},
		"OneWorker": {
			reason: "the only worker serves the groups in turn", workers: 1, push: []string{"x/1", "x/2", "y/1"}, want: []string{"x/1"},
			release: []string{"x/1"}, then: []string{"y/1"},
		},
		"Free": {
			reason: "the last free worker is for a group that holds none", workers: 4, push: []string{"bad/1", "bad/2", "bad/3", "y/1", "z/1"},
			want: []string{"bad/1", "y/1", "z/1"},
		},
		"Pools": {
			reason: "a pool without free workers delays no other", workers: 1, push: []string{"attach:x/1", "attach:x/2", "detach:x/1", "detach:y/1"},
			want: []string{"attach:x/1", "detach:x/1"}, release: []string{"detach:x/1"}, then: []string{"detach:y/1"},
		},
		"Limit": {
			reason: "a group at its limit does not delay those behind it", workers: 5, push: append(many("bad", 9), "y/1"),
			want: []string{"bad/0", "y/1", "bad/1"}, release: []string{"bad/0", "bad/1"}, then: []string{"bad/2", "bad/3"},
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			q := newFairQueue(Config[string]{Workers: tc.workers, Class: classOf, HighPriority: func(key string) bool { return key[0] == '!' }})
			for _, key := range tc.push {
				q.Push(key)
			}
			if diff := cmp.Diff(tc.want, takeAll(q)); diff != "" {
				t.Errorf("%s (-want +got):\n%s", tc.reason, diff)
			}
			for _, key := range tc.release {
				q.release(key)
			}
			if diff := cmp.Diff(tc.then, takeAll(q)); diff != "" {
				t.Errorf("%s: after the release (-want +got):\n%s", tc.reason, diff)
			}
			if n := len(q.list()) + q.Len() + len(tc.release); n != len(tc.push) {
				t.Errorf("%s: %d keys, want %d", tc.reason, n, len(tc.push))
			}
		})
	}
}

// TestNewGroupsFindWorkers has one group after the other that hangs, with more keys than there are workers.
func TestNewGroupsFindWorkers(t *testing.T) {
	t.Parallel()
	q := newFairQueue(Config[string]{Workers: 10, Class: classOf})
	held := map[string]int{}
	for i, want := range []int{5, 3, 1, 1, 0} {
		group := fmt.Sprintf("group-%d", i)
		for _, key := range many(group, 20) {
			q.Push(key)
		}
		for _, key := range takeAll(q) {
			held[classOf(key).Group]++
		}
		if held[group] != want {
			t.Errorf("%s got %d workers, want %d", group, held[group], want)
		}
	}
}

func TestQueueKeepsPlaces(t *testing.T) {
	t.Parallel()
	classes := map[string]Class{"a": {Group: "x"}, "b": {Group: "x"}, "c": {Group: "x"}}
	q := newFairQueue(Config[string]{Workers: 1, Class: func(key string) Class { return classes[key] }})
	for _, key := range []string{"a", "b", "c"} {
		q.Push(key)
	}
	q.Touch("a")
	q.Touch("unknown")
	classes["b"] = Class{Pool: "other", Group: "x"}
	q.Touch("b")
	if diff := cmp.Diff([]string{"a", "b"}, takeAll(q)); diff != "" {
		t.Errorf("a key that is added again keeps its place, or gets one of its new class (-want +got):\n%s", diff)
	}
	q.release("a")
	if diff := cmp.Diff([]string{"c"}, takeAll(q)); diff != "" {
		t.Errorf("the others stay (-want +got):\n%s", diff)
	}
	if !q.isRunning("c") || q.isRunning("a") {
		t.Errorf("running: %v", q.list())
	}
}

func TestQueueAges(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		q := newFairQueue(Config[string]{Workers: 1, Class: classOf})
		if age := q.oldest(time.Now()); age != 0 || q.Len() != 0 {
			t.Errorf("nothing waits in an empty queue, got %v", age)
		}
		q.Push("x/1")
		time.Sleep(time.Minute)
		q.Push("y/1")
		if age := q.oldest(time.Now()); age != time.Minute || q.Len() != 2 {
			t.Errorf("%d wait, the first for %v, want a minute", q.Len(), age)
		}
		if age := q.oldest(time.Now().Add(-time.Hour)); age != 0 {
			t.Errorf("a clock that went back is no age, got %v", age)
		}
		takeAll(q)
		if age := q.oldest(time.Now()); age != 0 || q.Len() != 1 {
			t.Errorf("%d wait, the first for %v, want 0s", q.Len(), age)
		}
	})
}

// TestHangingGroup has 500 keys of one node whose calls hang, and the same work on ten other nodes with and without them.
func TestHangingGroup(t *testing.T) {
	t.Parallel()
	alone, beside := otherNodes(t, 0), otherNodes(t, 500)
	if len(alone) != 10 || len(beside) != 10 {
		t.Fatalf("%d and %d of 10 keys were reconciled", len(alone), len(beside))
	}
	for key, took := range beside {
		if limit := 2 * alone[key]; took > limit {
			t.Errorf("key %s took %v beside calls that hang, want at most twice the %v without", key, took, alone[key])
		}
	}
}

// otherNodes reconciles a key on each of ten nodes, each for a second, when so many keys of another node hang for 15 seconds, as the node
// has done for an hour. It returns the times until each key was done.
func otherNodes(t *testing.T, hanging int) map[string]time.Duration {
	t.Helper()
	took := map[string]time.Duration{}
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		var began time.Time
		c, err := New(Config[string]{Name: "test", Workers: 10, Class: classOf, Reconcile: func(_ context.Context, key string) (Result, error) {
			if classOf(key).Group == "bad" {
				time.Sleep(15 * time.Second)
				return Result{After: time.Second}, nil
			}
			time.Sleep(time.Second)
			mu.Lock()
			defer mu.Unlock()
			took[key] = time.Since(began)
			return Result{}, nil
		}})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(klog.NewContext(t.Context(), klog.Logger{}))
		done := make(chan error, 1)
		go func() { done <- c.Run(ctx) }()
		for _, key := range many("bad", hanging) {
			c.Add(key)
		}
		time.Sleep(time.Hour)
		began = time.Now()
		for i := range 10 {
			c.Add(fmt.Sprintf("node-%d/volume", i))
		}
		time.Sleep(time.Minute)
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return took
}

// TestKeyMovesToFreePool changes the class of a key that waits in a pool without free workers.
func TestKeyMovesToFreePool(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		pools := map[string]string{"busy": "attach", "key": "attach"}
		var done []string
		c, err := New(Config[string]{
			Name: "test", Class: func(key string) Class { mu.Lock(); defer mu.Unlock(); return Class{Pool: pools[key]} },
			Reconcile: func(_ context.Context, key string) (Result, error) {
				if key == "busy" {
					time.Sleep(time.Hour)
				}
				mu.Lock()
				defer mu.Unlock()
				done = append(done, key)
				return Result{}, nil
			},
		})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(klog.NewContext(t.Context(), klog.Logger{}))
		ended := make(chan error, 1)
		go func() { ended <- c.Run(ctx) }()
		c.Add("busy")
		synctest.Wait()
		c.Add("key")
		synctest.Wait()
		mu.Lock()
		if len(done) > 0 {
			t.Errorf("%v done, the only worker is busy", done)
		}
		pools["key"] = "detach"
		mu.Unlock()
		c.Add("key")
		synctest.Wait()
		mu.Lock()
		if !slices.Equal(done, []string{"key"}) {
			t.Errorf("%v done, want the key in its new pool", done)
		}
		mu.Unlock()
		want := []Running[string]{{Key: "busy", Class: Class{Pool: "attach"}, Since: time.Now()}}
		if diff := cmp.Diff(want, c.Running()); diff != "" || !c.IsRunning("busy") || c.IsRunning("key") {
			t.Errorf("running (-want +got):\n%s", diff)
		}
		cancel()
		time.Sleep(time.Hour)
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

func BenchmarkFairQueue(b *testing.B) {
	for _, groups := range []int{1, 10_000} {
		b.Run(fmt.Sprintf("%dGroups", groups), func(b *testing.B) {
			q := newFairQueue(Config[int]{Workers: 10, Class: func(key int) Class { return Class{Group: fmt.Sprint(key % groups)} }})
			for i := range 10_000 {
				q.Push(i)
			}
			b.ReportAllocs()
			for b.Loop() {
				q.take()
				key := q.Pop()
				q.release(key)
				q.Push(key)
			}
		})
	}
}
