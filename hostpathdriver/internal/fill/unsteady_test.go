package fill

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/longshore-csi/longshore/hostpathdriver/internal/volume"
)

// TestNobodyHoldsStill: a moment at which nobody writes is looked for with
// growing pauses, in which other copies are made, and not forever.
func TestNobodyHoldsStill(t *testing.T) {
	inBubble(t, 1, func(f *fixture) {
		begin := time.Now()
		var looks []time.Duration
		f.memory.work = func(ctx context.Context, id volume.ID) error {
			if id != "g" {
				return pause(ctx, time.Second)
			}
			looks = append(looks, time.Since(begin))
			return fmt.Errorf("somebody writes: %w", volume.ErrConcurrentWrite)
		}
		var group sync.WaitGroup
		group.Go(func() {
			_, err := kinds()["Group"].make(f.ctx, f)
			want(t, "make", err, volume.ErrConcurrentWrite)
			if err == nil || !strings.Contains(err.Error(), "tried 10 times") {
				t.Errorf("error %v does not say how often it was tried", err)
			}
		})
		time.Sleep(20 * time.Second)
		ctx, cancel := context.WithTimeout(f.ctx, time.Millisecond)
		defer cancel()
		_, err := kinds()["Group"].make(ctx, f)
		if err == nil || !strings.Contains(err.Error(), "waiting for a moment at which nobody writes; call again") {
			t.Errorf("error %v does not say what it waits for", err)
		}
		f.makeIt(kinds()["Snapshot"])
		group.Wait()
		var wantLooks []time.Duration
		for _, ms := range []int{0, 100, 300, 700, 1500, 3100, 6300, 11300, 16300, 21300} {
			wantLooks = append(wantLooks, time.Duration(ms)*time.Millisecond)
		}
		if !slices.Equal(looks, wantLooks) {
			t.Errorf("looked at %v, want %v", looks, wantLooks)
		}
		if _, err := f.GetGroup(f.ctx, "g", nil); !errors.Is(err, volume.ErrNotFound) {
			t.Errorf("the group is left: %v", err)
		}
	})
}

// TestSomebodyStopsWriting: the next attempt succeeds.
func TestSomebodyStopsWriting(t *testing.T) {
	inBubble(t, 1, func(f *fixture) {
		tries := 0
		f.memory.work = func(context.Context, volume.ID) error {
			if tries++; tries < mostCuts {
				return volume.ErrConcurrentWrite
			}
			return nil
		}
		f.makeIt(kinds()["Group"])
	})
}
