package poll_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/klog/v2"
	"k8s.io/klog/v2/textlogger"

	"github.com/longshore-csi/longshore/csikit/poll"
)

// TestUntil tries again until it succeeds, with the pause in between, and says each reason once.
func TestUntil(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log strings.Builder
		ctx := klog.NewContext(t.Context(), textlogger.NewLogger(textlogger.NewConfig(textlogger.Output(&log))))
		start, errs := time.Now(), []error{errors.New("away"), errors.New("away"), errors.New("busy\nnow"), errors.New("away"), nil}
		var at []time.Duration
		err := poll.Until(ctx, time.Minute, "Waiting for it", func(context.Context) error {
			at = append(at, time.Since(start))
			return errs[len(at)-1]
		})
		if want := []time.Duration{0, time.Minute, 2 * time.Minute, 3 * time.Minute, 4 * time.Minute}; err != nil || !slices.Equal(at, want) {
			t.Errorf("error %v, attempts after %v, want %v", err, at, want)
		}
		lines := strings.Split(strings.TrimSpace(log.String()), "\n")
		for i, reason := range []string{`reason="away"`, `reason="busy now"`, `reason="away"`} {
			if len(lines) != 3 || !strings.Contains(lines[i], `"Waiting for it" `+reason) {
				t.Fatalf("log:\n%s\nwant three lines, the reason of line %d being %s", log.String(), i+1, reason)
			}
		}
	})
}

// TestUntilEnds returns when the context ends, and says nothing of the error that this causes.
func TestUntilEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log strings.Builder
		ctx, cancel := context.WithTimeout(klog.NewContext(t.Context(), textlogger.NewLogger(textlogger.NewConfig(textlogger.Output(&log)))), time.Hour)
		defer cancel()
		err := poll.Until(ctx, time.Second, "Waiting for it", func(ctx context.Context) error {
			<-ctx.Done()
			return ctx.Err()
		})
		if err == nil || log.Len() > 0 {
			t.Errorf("error %v, log %q, want an error and no log", err, log.String())
		}
	})
}
