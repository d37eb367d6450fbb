package sidecar

import (
	"context"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// recorded are the reasons of the events on CSIDriver objects.
type recorded struct {
	mu      sync.Mutex
	reasons []string
}

func (r *recorded) Normal(obj runtime.Object, reason, _ string)  { r.add(obj, reason) }
func (r *recorded) Warning(obj runtime.Object, reason, _ string) { r.add(obj, reason) }

func (r *recorded) add(obj runtime.Object, reason string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if ref := obj.(*corev1.ObjectReference); ref.Kind == "CSIDriver" && ref.Name == "d" {
		r.reasons = append(r.reasons, reason)
	}
}

// TestAwayIsReported: one event says that the driver is away, and one that it is back, unless it is back soon.
func TestAwayIsReported(t *testing.T) {
	for name, tc := range map[string]struct {
		away time.Duration
		want []string
	}{
		"Replaced": {awayGrace - time.Second, nil},
		"Away":     {awayGrace + time.Hour, []string{reasonAway, reasonBack}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancel(t.Context())
				c, r := &instance{}, &recorded{}
				go c.followAway(ctx, "d", r)
				var want []string
				for range 2 {
					synctest.Wait()
					c.presence.set(false)
					time.Sleep(tc.away)
					c.presence.set(true)
					want = append(want, tc.want...)
				}
				synctest.Wait()
				cancel()
				synctest.Wait()
				if !slices.Equal(r.reasons, want) {
					t.Errorf("events %q, want %q", r.reasons, want)
				}
			})
		})
	}
}
