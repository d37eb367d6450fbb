package leader_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/longshore-csi/longshore/csikit/leader"
	"github.com/longshore-csi/longshore/csikit/reconcile"
	"github.com/longshore-csi/longshore/csikittest/kubetest"
)

// The others count from when they see the write, we from when we began it, however late the answer comes.
func TestLateAnswers(t *testing.T) {
	t.Parallel()
	late := func(cluster *kubetest.Cluster, verb string, by time.Duration) {
		cluster.Inject(kubetest.Fault{Verb: verb, Resource: "leases", After: true, Times: 1, Do: func() { time.Sleep(by) }})
	}
	tight := func(c *leader.Config) { c.RenewDeadline = 6500 * time.Millisecond }
	cases := map[string]struct {
		reason string
		play   func(t *testing.T, cluster *kubetest.Cluster, a *candidate)
		change func(*leader.Config)
		leads  bool
	}{
		"ElectionThenCut": {
			reason: "Work ends before others may see the lease expire, also if the first answer took long.",
			play: func(_ *testing.T, _ *kubetest.Cluster, a *candidate) {
				time.Sleep(9950 * time.Millisecond)
				a.session.Cut()
				time.Sleep(4850 * time.Millisecond) // 14.8s; others take over at 15s
			},
		},
		"Election": {
			reason: "A late first answer is followed by a renewal in time.", leads: true,
			play: func(_ *testing.T, _ *kubetest.Cluster, _ *candidate) { time.Sleep(time.Minute) },
		},
		"Renewal": {
			reason: "So is a late renewal.", leads: true, change: tight,
			play: func(_ *testing.T, cluster *kubetest.Cluster, _ *candidate) {
				time.Sleep(20 * time.Second)
				late(cluster, "update", 2*time.Second)
				time.Sleep(time.Minute)
			},
		},
	}
	for label, tc := range cases {
		t.Run(label, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				cluster, r := kubetest.New(), &leaderships{}
				var changes []func(*leader.Config)
				if tc.change != nil {
					changes = append(changes, tc.change)
				} else {
					late(cluster, "create", 9900*time.Millisecond)
				}
				a := ours(t, cluster, r, "a", 0, changes...)
				tc.play(t, cluster, a)
				if got := r.leads("a"); got != tc.leads {
					t.Errorf("%s: want a to lead: %t, got %q", tc.reason, tc.leads, r.lines)
				}
				if err := a.stop(); errors.Is(err, leader.ErrLost) == tc.leads {
					t.Errorf("%s: got %v", tc.reason, err)
				}
			})
		})
	}
}

func TestDeletedLeaseIsMadeAnew(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cluster, r := kubetest.New(), &leaderships{}
		a := ours(t, cluster, r, "a", 0)
		time.Sleep(20 * time.Second)
		if err := cluster.Remove("leases", namespace, name); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		if !r.leads("a") || *lease(t, cluster).Spec.HolderIdentity != "a" {
			t.Errorf("a still leads, got %q", r.lines)
		}
		a.stop()
	})
}

// The lease that is released may not be as we last saw it.
func TestReleaseAfterAConflict(t *testing.T) {
	t.Parallel()
	cases := map[string]struct{ reason, patch, want string }{
		"Labels": {reason: "Somebody's labels do not keep it.", patch: `{"metadata":{"labels":{"x":"y"}}}`},
		"Stolen": {reason: "Another's lease is not touched.", patch: `{"spec":{"holderIdentity":"thief"}}`, want: "thief"},
	}
	for label, tc := range cases {
		t.Run(label, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				cluster := kubetest.New()
				a := ours(t, cluster, &leaderships{}, "a", 0)
				synctest.Wait()
				if err := cluster.Merge("leases", namespace, name, []byte(tc.patch)); err != nil {
					t.Fatal(err)
				}
				a.stop()
				if got := *lease(t, cluster).Spec.HolderIdentity; got != tc.want {
					t.Errorf("%s: the holder is %q, want %q", tc.reason, got, tc.want)
				}
			})
		})
	}
}

// Work that is being finished when the lease gets lost is cut off: a successor begins soon.
func TestLossWhileWorkEnds(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		session := kubetest.New().NewSession()
		loop, err := reconcile.New(reconcile.Config[string]{Name: "work", Reconcile: func(ctx context.Context, _ string) (reconcile.Result, error) {
			<-ctx.Done()
			return reconcile.Result{}, ctx.Err()
		}})
		if err != nil {
			t.Fatal(err)
		}
		loop.Add("a")
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		time.AfterFunc(time.Second, session.Cut)
		began := time.Now()
		err = leader.Run(ctx, leader.Config{Client: session.Client(), Namespace: namespace, Name: name, Identity: "a"}, loop.Run)
		if took := time.Since(began); took > 10*time.Second {
			t.Errorf("want the work to end with the renew deadline, after 10s, got %v", took)
		}
		if !errors.Is(err, leader.ErrLost) {
			t.Errorf("want ErrLost, got %v", err)
		}
	})
}
