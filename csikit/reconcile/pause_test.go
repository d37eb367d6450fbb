package reconcile_test

import (
	"testing"
	"time"

	"github.com/longshore-csi/longshore/csikit/flagset"
	"github.com/longshore-csi/longshore/csikit/reconcile"
)

// TestPause doubles up to the longest pause, less up to a fifth.
func TestPause(t *testing.T) {
	retry := flagset.Retry{Start: time.Second, Max: 10 * time.Second}
	for failures, longest := range []time.Duration{time.Second, 2 * time.Second, 4 * time.Second, 8 * time.Second, 10 * time.Second, 10 * time.Second} {
		if got := reconcile.Pause(retry, "ns/claim", failures); got > longest || got < longest*4/5 {
			t.Errorf("after %d failures: %v, want %v less up to a fifth", failures, got, longest)
		}
	}
}
