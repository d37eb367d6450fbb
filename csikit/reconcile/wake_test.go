package reconcile_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/longshore-csi/longshore/csikit/flagset"
	"github.com/longshore-csi/longshore/csikit/reconcile"
)

// TestWakeAll wakes keys three times: the second comes within the longest pause, and is not for them.
func TestWakeAll(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var done diary
		f := launch(t, reconcile.Config[string]{
			Workers: 1, Retry: flagset.Retry{Start: time.Second, Max: time.Minute},
			Reconcile: func(_ context.Context, key string) (reconcile.Result, error) {
				done.note("%s", key)
				return reconcile.Result{}, nil
			},
		})
		wake := func(keys ...string) { f.WakeAll(func() []string { return keys }) }
		wake("a", "b", "c", "d", "e", "f")
		time.Sleep(59 * time.Second)
		wake("too soon")
		time.Sleep(time.Second)
		wake("again")
		time.Sleep(time.Second)
		f.end(t, nil)
		want := []string{"0s a", "0s b", "0s c", "100ms d", "100ms e", "100ms f", "1m0s again"}
		if diff := cmp.Diff(want, done.read()); diff != "" {
			t.Errorf("by time, rounded to 100ms (-want +got):\n%s", diff)
		}
	})
}
