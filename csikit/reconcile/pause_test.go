package reconcile_test

import (
	"testing"
	"time"

	"github.com/longshore-csi/longshore/csikit/flagset"
	"github.com/longshore-csi/longshore/csikit/reconcile"
)

// TestPause doubles up to the longest pause; each is lengthened by up to a fifth.
func TestPause(t *testing.T) {
	retry := flagset.Retry{Start: time.Second, Max: 10 * time.Second}
	for failures, least := range []time.Duration{time.Second, 2 * time.Second, 4 * time.Second, 8 * time.Second, 10 * time.Second, 10 * time.Second} {
		if got := reconcile.Pause(retry, "ns/claim", failures); got < least || got > least*6/5 {
			t.Errorf("after %d failures: %v, want %v and up to a fifth more", failures, got, least)
		}
	}
}
