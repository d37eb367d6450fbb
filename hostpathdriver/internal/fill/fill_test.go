package fill

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/longshore-csi/longshore/hostpathdriver/internal/volume"
)

// sortLog makes the log of concurrent copies comparable: neighbours with the
// same verb are put in order.
func (f *fixture) sortLog() {
	f.memory.mu.Lock()
	defer f.memory.mu.Unlock()
	slices.SortStableFunc(f.memory.log, func(a, b string) int {
		if strings.Fields(a)[0] == strings.Fields(b)[0] {
			return strings.Compare(a, b)
		}
		return 0
	})
}

func TestCallsWaitForTheCopy(t *testing.T) {
	eachKind(t, func(f *fixture, k kind) {
		begin := time.Now()
		f.makeIt(k)
		if took := time.Since(begin); took != copyTime {
			f.t.Errorf("took %v, want %v", took, copyTime)
		}
		f.wantLog("create "+string(k.id), "copy "+string(k.id), "complete "+string(k.id))
		f.makeIt(k)
		f.wantLog()
	})
}

// TestWhatIsCompleteIsAnsweredAtOnce: nothing is started for it.
func TestWhatIsCompleteIsAnsweredAtOnce(t *testing.T) {
	inBubble(t, 0, func(f *fixture) {
		_, err := f.Create(f.ctx, &volume.CreateRequest{Name: "empty"})
		f.must(err)
		f.wantLog("create empty")
	})
}

// TestCopyOutlivesItsCall: who calls again waits for the same copy.
func TestCopyOutlivesItsCall(t *testing.T) {
	eachKind(t, func(f *fixture, k kind) {
		begin := time.Now()
		for range 3 {
			ctx, cancel := context.WithTimeout(f.ctx, 10*time.Second)
			_, err := k.make(ctx, f)
			cancel()
			want(f.t, "impatient", err, volume.ErrBusy, context.DeadlineExceeded)
			if !strings.Contains(err.Error(), "still being copied; call again") {
				f.t.Errorf("message %q does not say how far it is", err)
			}
		}
		var group sync.WaitGroup
		for range 3 {
			group.Go(func() { f.makeIt(k) })
		}
		group.Wait()
		if took := time.Since(begin); took != copyTime {
			f.t.Errorf("took %v, want %v", took, copyTime)
		}
		f.wantLog("create "+string(k.id), "copy "+string(k.id), "complete "+string(k.id))
	})
}

// TestFailedCopyLeavesNothing: what cannot be filled is deleted, before anybody
// is told so; and the next call begins again.
func TestFailedCopyLeavesNothing(t *testing.T) {
	eachKind(t, func(f *fixture, k kind) {
		f.memory.work = func(ctx context.Context, _ volume.ID) error {
			f.must(pause(ctx, copyTime))
			return fmt.Errorf("%w: %w", volume.ErrExhausted, errBroken)
		}
		var group sync.WaitGroup
		for range 3 {
			group.Go(func() {
				_, err := k.make(f.ctx, f)
				want(f.t, "waiting", err, volume.ErrExhausted, errBroken)
				f.memory.mu.Lock()
				defer f.memory.mu.Unlock()
				f.memory.note("answer")
			})
		}
		group.Wait()
		f.wantLog("create "+string(k.id), "copy "+string(k.id), "delete "+string(k.id), "answer", "answer", "answer")
		f.memory.work = nil
		f.makeIt(k)
	})
}

// TestWhatCannotBeDeleted: both errors are told; the next call tries again.
func TestWhatCannotBeDeleted(t *testing.T) {
	eachKind(t, func(f *fixture, k kind) {
		f.memory.undeletable = errors.New("it sticks")
		f.memory.work = func(context.Context, volume.ID) error { return errBroken }
		for range 2 {
			_, err := k.make(f.ctx, f)
			want(f.t, "make", err, errBroken, f.memory.undeletable)
		}
		f.memory.undeletable, f.memory.work = nil, nil
		f.makeIt(k)
	})
}

// TestAnotherProcessCopies: this one waits for it with growing pauses, and
// holds no worker meanwhile.
func TestAnotherProcessCopies(t *testing.T) {
	inBubble(t, 1, func(f *fixture) {
		begin := time.Now()
		var looks []time.Duration
		f.memory.work = func(ctx context.Context, id volume.ID) error {
			if id != "v" {
				return pause(ctx, copyTime)
			}
			looks = append(looks, time.Since(begin))
			return fmt.Errorf("another process: %w", volume.ErrBusy)
		}
		var group sync.WaitGroup
		group.Go(func() { f.makeIt(kinds()["Volume"]) })
		synctest.Wait()
		ctx, cancel := context.WithTimeout(f.ctx, time.Millisecond)
		defer cancel()
		_, err := f.Create(ctx, &volume.CreateRequest{Name: "v"})
		if err == nil || !strings.Contains(err.Error(), "another process; call again") {
			f.t.Errorf("error %v, want one that names the other process", err)
		}
		time.Sleep(19 * time.Second)
		f.memory.complete("v")
		group.Wait()
		var wantLooks []time.Duration
		for _, ms := range []int{0, 100, 300, 700, 1500, 3100, 6300, 11300, 16300} {
			wantLooks = append(wantLooks, time.Duration(ms)*time.Millisecond)
		}
		if !slices.Equal(looks, wantLooks) {
			f.t.Errorf("looked at %v, want %v", looks, wantLooks)
		}
		f.makeIt(kinds()["Snapshot"])
	})
}

// TestAnotherProcessDies: this one takes over.
func TestAnotherProcessDies(t *testing.T) {
	inBubble(t, 1, func(f *fixture) {
		tries := 0
		f.memory.work = func(context.Context, volume.ID) error {
			if tries++; tries < 5 {
				return volume.ErrBusy
			}
			return nil
		}
		f.makeIt(kinds()["Volume"])
		f.wantLog("create v", "copy v", "copy v", "copy v", "copy v", "copy v", "complete v")
	})
}

// TestAnotherProcessDeletes: the CO calls again, and begins again.
func TestAnotherProcessDeletes(t *testing.T) {
	eachKind(t, func(f *fixture, k kind) {
		f.memory.work = func(context.Context, volume.ID) error { return volume.ErrBusy }
		var group sync.WaitGroup
		group.Go(func() {
			_, err := k.make(f.ctx, f)
			want(f.t, "deleted", err, volume.ErrBusy, volume.ErrNotFound)
		})
		synctest.Wait()
		f.must(k.remove(f.ctx, f.memory))
		group.Wait()
		f.memory.work = nil
		f.makeIt(k)
	})
}

// TestDeleteEndsTheCopy: first the copy, then the deletion. Who waited for the
// copy is told to call again.
func TestDeleteEndsTheCopy(t *testing.T) {
	eachKind(t, func(f *fixture, k kind) {
		var group sync.WaitGroup
		group.Go(func() {
			_, err := k.make(f.ctx, f)
			want(f.t, "make", err, volume.ErrBusy, errDeleted)
		})
		synctest.Wait()
		f.memory.mu.Lock()
		f.memory.log = nil
		f.memory.mu.Unlock()
		begin := time.Now()
		for range 3 {
			group.Go(func() { f.must(k.remove(f.ctx, f)) })
		}
		group.Wait()
		if took := time.Since(begin); took != 0 {
			f.t.Errorf("took %v, want no waiting for the copy", took)
		}
		f.wantLog(slices.Repeat([]string{"delete " + string(k.id)}, 3)...)
		f.makeIt(k)
	})
}

// TestCopyGoesOnWhenItIsNotDeleted: nobody else would begin again.
func TestCopyGoesOnWhenItIsNotDeleted(t *testing.T) {
	eachKind(t, func(f *fixture, k kind) {
		ctx, cancel := context.WithTimeout(f.ctx, time.Second)
		defer cancel()
		_, err := k.make(ctx, f)
		want(f.t, "make", err, volume.ErrBusy)
		f.memory.undeletable = volume.ErrInUse
		want(f.t, "delete", k.remove(f.ctx, f), volume.ErrInUse)
		time.Sleep(copyTime)
		synctest.Wait()
		left, err := f.Unfilled(f.ctx)
		if err != nil || len(left) > 0 {
			f.t.Errorf("unfilled %v, %v", left, err)
		}
		f.memory.undeletable = nil
	})
}

// TestCallsDuringADeletion are told to call again, and start no copy.
func TestCallsDuringADeletion(t *testing.T) {
	eachKind(t, func(f *fixture, k kind) {
		release, interrupted, err := f.claim(f.ctx, k.id)
		f.must(err)
		if interrupted != nil {
			f.t.Errorf("interrupted %v, want nothing", interrupted)
		}
		ctx, cancel := context.WithTimeout(f.ctx, time.Second)
		defer cancel()
		_, err = k.make(ctx, f)
		want(f.t, "make", err, volume.ErrBusy)
		if !strings.Contains(err.Error(), "being deleted") {
			f.t.Errorf("message %q does not say what is going on", err)
		}
		ctx, cancel = context.WithTimeout(f.ctx, time.Second)
		defer cancel()
		want(f.t, "delete", k.remove(ctx, f), volume.ErrBusy)
		var group sync.WaitGroup
		group.Go(func() {
			_, err := k.make(f.ctx, f)
			want(f.t, "make", err, volume.ErrBusy, errDeleted)
		})
		synctest.Wait()
		f.wantLog("create " + string(k.id))
		release()
		group.Wait()
	})
}

// TestStart goes on with what an earlier process left.
func TestStart(t *testing.T) {
	inBubble(t, 0, func(f *fixture) {
		for _, k := range kinds() {
			_, err := k.make(f.ctx, f.memory)
			f.must(err)
		}
		f.memory.snapshots["orphan"] = &volume.Snapshot{ID: "orphan", Group: "gone", Filling: true}
		f.memory.log = nil
		f.open(0)
		synctest.Wait()
		f.sortLog()
		f.wantLog("copy g", "copy s", "copy v")
		time.Sleep(copyTime)
		synctest.Wait()
		f.sortLog()
		f.wantLog("complete g", "complete s", "complete v")
	})
}

// TestStartWithHalfADeletion: a group whose deletion has begun is the CO's to
// delete, and keeps nobody from starting.
func TestStartWithHalfADeletion(t *testing.T) {
	inBubble(t, 0, func(f *fixture) {
		_, err := kinds()["Group"].make(f.ctx, f.memory)
		f.must(err)
		f.memory.broken = volume.ErrBusy
		f.memory.log = nil
		f.open(0)
		synctest.Wait()
		f.wantLog()
	})
}

// TestStartFails: nothing runs when the driver does not.
func TestStartFails(t *testing.T) {
	inBubble(t, 0, func(f *fixture) {
		_, err := kinds()["Volume"].make(f.ctx, f.memory)
		f.must(err)
		f.memory.unreadable = errBroken
		_, err = Open(f.ctx, Config{Next: f.memory})
		want(f.t, "open", err, errBroken)
		f.wantLog("create v")
	})
}

// TestClose ends the copies; the next process goes on with them.
func TestClose(t *testing.T) {
	eachKind(t, func(f *fixture, k kind) {
		var group sync.WaitGroup
		group.Go(func() {
			_, err := k.make(f.ctx, f)
			want(f.t, "waiting", err, volume.ErrBusy, errEnded)
		})
		synctest.Wait()
		f.must(f.Close(f.ctx), f.Close(f.ctx))
		group.Wait()
		_, err := k.make(f.ctx, f)
		want(f.t, "after the end", err, volume.ErrBusy, errEnded)
		left, err := f.Unfilled(f.ctx)
		if err != nil || !slices.Equal(left, []volume.ID{k.id}) {
			f.t.Errorf("unfilled %v, %v, want %v", left, err, k.id)
		}
		f.open(0)
		f.makeIt(k)
	})
}

// TestCloseIsNotHeldUp by a copy that does not end.
func TestCloseIsNotHeldUp(t *testing.T) {
	inBubble(t, 0, func(f *fixture) {
		stuck := make(chan struct{})
		f.memory.work = func(context.Context, volume.ID) error { <-stuck; return errBroken }
		ctx, cancel := context.WithTimeout(f.ctx, time.Second)
		defer cancel()
		_, err := kinds()["Volume"].make(ctx, f)
		want(f.t, "make", err, volume.ErrBusy)
		want(f.t, "close", f.Close(ctx), context.DeadlineExceeded)
		want(f.t, "delete", f.Delete(ctx, "v"), volume.ErrBusy, context.DeadlineExceeded)
		close(stuck)
	})
}

// TestWorkers: never more copies at once than there are workers, all of them
// busy while there is work, and calls without copies never wait.
func TestWorkers(t *testing.T) {
	const workers, copies = 3, 12
	inBubble(t, workers, func(f *fixture) {
		begin := time.Now()
		var group sync.WaitGroup
		for i := range copies {
			group.Go(func() {
				_, err := f.Create(f.ctx, &volume.CreateRequest{Name: fmt.Sprintf("v%d", i)})
				f.must(err)
			})
		}
		synctest.Wait()
		_, err := f.Create(f.ctx, &volume.CreateRequest{Name: "empty"})
		_, getErr := f.Get(f.ctx, "v3")
		f.must(err, getErr, f.Delete(f.ctx, "empty"))
		if took := time.Since(begin); took != 0 {
			f.t.Errorf("other calls took %v", took)
		}
		group.Wait()
		if took := time.Since(begin); took != copies/workers*copyTime || f.memory.most != workers {
			f.t.Errorf("took %v with %d at once, want %v and %d", took, f.memory.most, copies/workers*copyTime, workers)
		}
	})
}

// TestQueuedCall says that it waits for others.
func TestQueuedCall(t *testing.T) {
	inBubble(t, 1, func(f *fixture) {
		ctx, cancel := context.WithTimeout(f.ctx, time.Second)
		defer cancel()
		_, err := kinds()["Volume"].make(ctx, f)
		want(f.t, "first", err, volume.ErrBusy)
		ctx, cancel = context.WithTimeout(f.ctx, time.Second)
		defer cancel()
		_, err = kinds()["Snapshot"].make(ctx, f)
		want(f.t, "second", err, volume.ErrBusy)
		if !strings.Contains(err.Error(), "waiting for other copies to end") {
			f.t.Errorf("message %q does not say what it waits for", err)
		}
	})
}

// TestAnything calls at random, with copies that fail at random. Whatever
// happens, nobody deletes under a copy, no two copies have the same target,
// and in the end everything is complete or gone.
func TestAnything(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	inBubble(t, 2, func(f *fixture) {
		var mu sync.Mutex
		random := rand.New(rand.NewPCG(seed, 0))
		chance := func(n int) int {
			mu.Lock()
			defer mu.Unlock()
			return random.IntN(n)
		}
		f.memory.work = func(ctx context.Context, _ volume.ID) error {
			if err := pause(ctx, time.Duration(chance(60))*time.Second); err != nil {
				return err
			}
			return []error{nil, nil, volume.ErrBusy, errBroken}[chance(4)]
		}
		var group sync.WaitGroup
		for _, k := range kinds() {
			for range 4 {
				group.Go(func() {
					for range 40 {
						ctx, cancel := context.WithTimeout(f.ctx, time.Duration(chance(90))*time.Second)
						var err error
						filling := false
						if chance(3) == 0 {
							err = k.remove(ctx, f)
						} else {
							filling, err = k.make(ctx, f)
						}
						cancel()
						if filling || (err != nil && !errors.Is(err, volume.ErrBusy) && !errors.Is(err, errBroken)) {
							t.Errorf("%s: filling %t, %v", k.id, filling, err)
						}
					}
				})
			}
		}
		group.Wait()
		f.memory.mu.Lock()
		f.memory.work = nil
		f.memory.mu.Unlock()
		time.Sleep(time.Hour) // copies without calls may still fail
		for _, k := range kinds() {
			f.makeIt(k)
		}
		synctest.Wait() // the last job ends after the call that waited for it
		if left, err := f.Unfilled(f.ctx); err != nil || len(left) > 0 || len(f.jobs) > 0 || f.memory.most > 2 {
			t.Errorf("unfilled %v, %v, %d jobs, %d copies at once", left, err, len(f.jobs), f.memory.most)
		}
		for _, line := range f.memory.log {
			if strings.Contains(line, "under a copy") || strings.Contains(line, "two copies") {
				t.Error(line)
			}
		}
	})
}
