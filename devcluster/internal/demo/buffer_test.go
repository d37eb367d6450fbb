package demo

import (
	"strings"
	"testing"
	"time"

	"github.com/longshore-csi/longshore/csikittest/logtest"
)

// syncBuffer is a buffer that one goroutine writes while another reads.
type syncBuffer struct{ logtest.Log }

// waitFor waits until the text was written; the deadline only ends a test that would hang.
func (b *syncBuffer) waitFor(t *testing.T, text string) {
	t.Helper()
	deadline := time.After(3 * time.Minute)
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !strings.Contains(b.String(), text) {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("%q was never written:\n%s", text, b)
		}
	}
}
