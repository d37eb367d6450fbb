package leader_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/longshore-csi/longshore/csikit/leader"
	"github.com/longshore-csi/longshore/csikittest/kubetest"
)

// TestTerms has several instances lead one after the other: each knows the Lease and how many holders were before it. A container that is restarted after a
// kill is the holder that it was; one that has given the Lease back is a new one. One that has done nothing is not counted.
func TestTerms(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cluster := kubetest.New()
		var got []int32
		errDone := errors.New("done")
		lead := func(who string, killed bool, ends error) {
			session := cluster.NewSession()
			err := leader.Run(t.Context(), leader.Config{Client: session.Client(), Namespace: namespace, Name: name, Identity: who}, func(ctx context.Context) error {
				term, ok := leader.TermOf(ctx)
				if l := lease(t, cluster); !ok || term.Lease != l.UID || term.Transitions != *l.Spec.LeaseTransitions {
					t.Errorf("term %+v of %s, %v: want that of the Lease %+v", term, who, ok, l)
				}
				got = append(got, term.Transitions)
				if killed {
					session.Cut()
				}
				return ends
			})
			if want := errors.Is(ends, errDone); errors.Is(err, errDone) != want || err != nil && !want {
				t.Errorf("error %v of work that ended with %v", err, ends)
			}
		}
		lead("a", false, errDone)
		lead("b", false, errDone)
		lead("b", true, errDone)
		lead("b", true, errDone)
		lead("a", false, errDone)
		lead("b", false, leader.ErrUnused)
		lead("a", false, leader.ErrUnused)
		lead("a", false, errDone)
		if diff := cmp.Diff([]int32{0, 1, 2, 2, 3, 4, 4, 4}, got); diff != "" {
			t.Errorf("transitions (-want +got):\n%s", diff)
		}
		if _, ok := leader.TermOf(t.Context()); ok {
			t.Error("a context of no leader has a term")
		}
	})
}

// TestResign has a leader give the Lease back while its work goes on: another one leads at once, and the work is not cancelled.
func TestResign(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cluster, r := kubetest.New(), &leaderships{excused: "a"}
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		leader.Resign(ctx) // which does nothing
		go func() {
			ended <- leader.Run(ctx, leader.Config{Client: cluster.Client(), Namespace: namespace, Name: name, Identity: "a"}, func(ctx context.Context) error {
				<-ctx.Done()
				work, cancel := context.WithCancel(context.WithoutCancel(ctx))
				defer cancel()
				leader.Resign(work)
				leader.Resign(work)
				time.Sleep(time.Minute)
				return context.Cause(ctx)
			})
		}()
		synctest.Wait()
		b := ours(t, cluster, r, "b", 0)
		synctest.Wait()
		stop()
		time.Sleep(time.Second)
		if !r.leads("b") {
			t.Errorf("b does not lead after a has resigned: %+v", lease(t, cluster).Spec)
		}
		if err := <-ended; !errors.Is(err, context.Canceled) || errors.Is(err, leader.ErrLost) {
			t.Errorf("the work of a ended with %v", err)
		}
		time.Sleep(time.Minute)
		if l := lease(t, cluster); *l.Spec.HolderIdentity != "b" {
			t.Errorf("the Lease is %+v, want that of b", l.Spec)
		}
		_ = b.stop()
	})
}
