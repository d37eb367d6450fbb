package reconcile

import (
	"math"
	"testing"
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
		if pause < time.Second || pause > 1200*time.Millisecond {
			t.Fatalf("key %d: want a pause of 1s to 1.2s, got %v", key, pause)
		}
		if again := spread(key, 0, time.Second); again != pause {
			t.Fatalf("key %d: want the same pause in every run, got %v and %v", key, pause, again)
		}
		sum += pause
	}
	if mean := sum / keys; mean < 1090*time.Millisecond || mean > 1110*time.Millisecond {
		t.Errorf("pauses are spread evenly: want a mean of 1.1s, got %v", mean)
	}
	if spread("key", 0, time.Second) == spread("key", 1, time.Second) {
		t.Error("attempts of one key differ, too")
	}
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
