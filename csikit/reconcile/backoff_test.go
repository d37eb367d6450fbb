package reconcile

import (
	"math"
	"testing"
	"testing/synctest"
	"time"
)

func TestExponential(t *testing.T) {
	t.Parallel()
	cases := map[string]struct {
		reason         string
		start, longest time.Duration
		n              int
		want           time.Duration
	}{
		"First":    {reason: "The first pause is the start.", start: time.Second, longest: time.Minute, want: time.Second},
		"Third":    {reason: "Pauses double.", start: time.Second, longest: time.Minute, n: 2, want: 4 * time.Second},
		"Longest":  {reason: "They end at the longest.", start: time.Second, longest: time.Minute, n: 6, want: time.Minute},
		"Much":     {reason: "Many failures overflow nothing.", start: time.Second, longest: math.MaxInt64, n: 1 << 20, want: math.MaxInt64},
		"Short":    {reason: "The longest may be shorter than the start.", start: time.Minute, longest: time.Second, want: time.Second},
		"Unchosen": {reason: "No pause stays none.", longest: time.Second, n: 5},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if got := exponential(tc.start, tc.longest, tc.n); got != tc.want {
				t.Errorf("%s: want %v, got %v", tc.reason, tc.want, got)
			}
		})
	}
}

func TestSpread(t *testing.T) {
	t.Parallel()
	var sum time.Duration
	const keys = 1000
	for key := range keys {
		pause := spread(key, 0, time.Second)
		if pause < 800*time.Millisecond || pause > time.Second {
			t.Fatalf("key %d: want a pause of 0.8s to 1s, got %v", key, pause)
		}
		if again := spread(key, 0, time.Second); again != pause {
			t.Fatalf("key %d: want the same pause in every run, got %v and %v", key, pause, again)
		}
		sum += pause
	}
	if mean := sum / keys; mean < 890*time.Millisecond || mean > 910*time.Millisecond {
		t.Errorf("pauses are spread evenly: want a mean of 0.9s, got %v", mean)
	}
	if spread("key", 0, time.Second) == spread("key", 1, time.Second) {
		t.Error("attempts of one key differ, too")
	}
}

func TestAgeQueue(t *testing.T) {
	t.Parallel()
	var q ageQueue[string]
	if got := q.oldest(time.Now()); got != 0 || q.Len() != 0 {
		t.Errorf("nothing waits in an empty queue, got %v", got)
	}
	q.Push("a")
	q.Push("b")
	q.Touch("a") // keeps its place
	if got := q.oldest(time.Now().Add(time.Minute)); got < time.Minute {
		t.Errorf("the head waits for a minute, got %v", got)
	}
	if got := q.oldest(time.Now().Add(-time.Minute)); got != 0 {
		t.Errorf("a clock that went back is no age, got %v", got)
	}
	if a, b := q.Pop(), q.Pop(); a != "a" || b != "b" || q.Len() != 0 {
		t.Errorf("first in, first out: got %q, %q", a, b)
	}
}

// TestAgeQueueHighPriority gives keys that begin with an exclamation mark high priority.
func TestAgeQueueHighPriority(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := ageQueue[string]{highPriority: func(key string) bool { return key[0] == '!' }}
		for _, key := range []string{"a", "!b", "c", "!d"} {
			q.Push(key)
			time.Sleep(time.Second)
		}
		if n, age := q.Len(), q.oldest(time.Now()); n != 4 || age != 4*time.Second {
			t.Errorf("%d wait, the oldest for %v", n, age)
		}
		for i, want := range []string{"!b", "!d", "a", "c"} {
			if got := q.Pop(); got != want {
				t.Errorf("key %d is %s, want %s", i, got, want)
			}
		}
		if age := q.oldest(time.Now()); age != 0 {
			t.Errorf("nothing waits for %v", age)
		}
	})
}

// TestNoMetrics calls all metrics of a queue without a provider, which must not panic.
func TestNoMetrics(t *testing.T) {
	t.Parallel()
	var m noMetrics
	m.NewDepthMetric("").Inc()
	m.NewDepthMetric("").Dec()
	m.NewAddsMetric("").Inc()
	m.NewLatencyMetric("").Observe(1)
	m.NewWorkDurationMetric("").Observe(1)
	m.NewUnfinishedWorkSecondsMetric("").Set(1)
	m.NewLongestRunningProcessorSecondsMetric("").Set(1)
	m.NewRetriesMetric("").Inc()
}

func BenchmarkSpread(b *testing.B) {
	for n := range b.N {
		spread("default/claim", n, time.Second)
	}
}
