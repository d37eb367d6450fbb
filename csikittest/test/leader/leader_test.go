package leader_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"

	"github.com/longshore-csi/longshore/csikit/leader"
	"github.com/longshore-csi/longshore/csikittest/kubetest"
)

const (
	namespace = "ns"
	name      = "lease"
)

// leaderships records which instance leads, and whether two led at the same time.
type leaderships struct {
	mu      sync.Mutex
	current map[string]bool
	lines   []string
	twice   bool
	excused string // prefix of those beside whom others may begin
}

func (r *leaderships) begin(who string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.current == nil {
		r.current = map[string]bool{}
	}
	for other := range r.current {
		if r.excused == "" || !strings.HasPrefix(other, r.excused) {
			r.twice = true
		}
	}
	r.current[who] = true
	r.lines = append(r.lines, "+"+who)
}

func (r *leaderships) end(who string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.current, who)
	r.lines = append(r.lines, "-"+who)
}

func (r *leaderships) leads(who string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.current[who]
}

// candidate is one instance.
type candidate struct {
	cancel  context.CancelFunc
	session *kubetest.Session
	done    chan struct{}
	err     error
}

// ours starts an instance whose work takes cleanup to end.
func ours(t *testing.T, cluster *kubetest.Cluster, r *leaderships, who string, cleanup time.Duration, change ...func(*leader.Config)) *candidate {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	c := &candidate{cancel: cancel, session: cluster.NewSession(), done: make(chan struct{})}
	cfg := leader.Config{Client: c.session.Client(), Namespace: namespace, Name: name, Identity: who}
	for _, f := range change {
		f(&cfg)
	}
	go func() {
		defer close(c.done)
		c.err = leader.Run(ctx, cfg, func(ctx context.Context) error {
			r.begin(who)
			defer r.end(who)
			<-ctx.Done()
			time.Sleep(cleanup)
			return ctx.Err()
		})
	}()
	return c
}

func (c *candidate) stop() error {
	c.cancel()
	<-c.done
	return c.err
}

func lease(t *testing.T, cluster *kubetest.Cluster) *coordinationv1.Lease {
	t.Helper()
	objs := cluster.Objects("leases")
	if len(objs) != 1 {
		t.Fatalf("want one lease, got %d", len(objs))
	}
	l, ok := objs[0].(*coordinationv1.Lease)
	if !ok {
		t.Fatalf("want a lease, got %T", objs[0])
	}
	return l
}

func TestFirstOneLeads(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cluster, r := kubetest.New(), &leaderships{}
		a := ours(t, cluster, r, "a", 0, func(c *leader.Config) { c.Labels = map[string]string{"app": "x"} })
		synctest.Wait()
		b := ours(t, cluster, r, "b", 0)
		time.Sleep(time.Hour)
		if !r.leads("a") || r.leads("b") {
			t.Errorf("a leads and keeps it, got %q", r.lines)
		}
		l := lease(t, cluster)
		if *l.Spec.HolderIdentity != "a" || *l.Spec.LeaseDurationSeconds != 15 || *l.Spec.LeaseTransitions != 0 || l.Labels["app"] != "x" {
			t.Errorf("the lease says so, got %+v", l)
		}
		if since := time.Since(l.Spec.RenewTime.Time); since > 10*time.Second {
			t.Errorf("it is renewed, last %v ago", since)
		}
		if err := a.stop(); !errors.Is(err, context.Canceled) {
			t.Errorf("Run returns the error of the work, got %v", err)
		}
		if l := released(cluster); l == nil || *l.Spec.LeaseDurationSeconds != 1 || l.Labels["app"] != "x" {
			t.Errorf("the lease is released, got %+v", l)
		}
		time.Sleep(10 * time.Second)
		if !r.leads("b") {
			t.Errorf("b takes over without waiting for the expiry, got %q", r.lines)
		}
		if l := lease(t, cluster); *l.Spec.LeaseTransitions != 1 {
			t.Errorf("transitions are counted, got %d", *l.Spec.LeaseTransitions)
		}
		b.stop()
		if r.twice {
			t.Error("two led at a time")
		}
	})
}

// released returns the lease as it was released, nil if it was not: another candidate may have taken it at once.
func released(cluster *kubetest.Cluster) *coordinationv1.Lease {
	for _, w := range slices.Backward(cluster.Writes()) {
		if l, ok := w.Object.(*coordinationv1.Lease); ok && *l.Spec.HolderIdentity == "" {
			return l
		}
	}
	return nil
}

// The lease is kept as long as the work takes to end, and released only then.
func TestLeaseIsKeptWhileWorkEnds(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cluster, r := kubetest.New(), &leaderships{}
		a := ours(t, cluster, r, "a", 5*time.Minute)
		synctest.Wait()
		b := ours(t, cluster, r, "b", 0)
		a.cancel()
		time.Sleep(4 * time.Minute)
		if !r.leads("a") || r.leads("b") {
			t.Errorf("a is still at work, got %q", r.lines)
		}
		<-a.done
		time.Sleep(10 * time.Second)
		if !r.leads("b") || r.twice {
			t.Errorf("b leads after a has ended, got %q", r.lines)
		}
		b.stop()
	})
}

func TestCrashedLeaderIsReplacedAfterExpiry(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cluster, r := kubetest.New(), &leaderships{}
		a := ours(t, cluster, r, "a", 0)
		synctest.Wait()
		b := ours(t, cluster, r, "b", 0)
		synctest.Wait()
		a.session.Cut()
		err := func() error { <-a.done; return a.err }()
		if !errors.Is(err, leader.ErrLost) {
			t.Errorf("a finds out that it cannot renew, got %v", err)
		}
		if r.leads("b") {
			t.Error("b waits for the expiry")
		}
		time.Sleep(15 * time.Second)
		if !r.leads("b") || r.twice {
			t.Errorf("then b leads, got %q", r.lines)
		}
		b.stop()
	})
}

func TestLostLeaseEndsTheWork(t *testing.T) {
	t.Parallel()
	cases := map[string]struct {
		reason string
		harm   func(t *testing.T, cluster *kubetest.Cluster)
		within time.Duration
	}{
		"Stolen": {
			reason: "Somebody else holds it.", within: 7 * time.Second,
			harm: func(t *testing.T, cluster *kubetest.Cluster) {
				t.Helper()
				if err := cluster.Merge("leases", namespace, name, []byte(`{"spec":{"holderIdentity":"thief"}}`)); err != nil {
					t.Fatal(err)
				}
			},
		},
		"Hanging": {
			reason: "No answer comes.", within: 16 * time.Second,
			harm: func(_ *testing.T, cluster *kubetest.Cluster) {
				cluster.Inject(kubetest.Fault{Resource: "leases", Hang: true})
			},
		},
		"Failing": {
			reason: "Only errors come.", within: 16 * time.Second,
			harm: func(_ *testing.T, cluster *kubetest.Cluster) {
				cluster.Fail("", "leases", apierrors.NewServiceUnavailable("down"), 0)
			},
		},
	}
	for label, tc := range cases {
		t.Run(label, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				cluster := kubetest.New()
				var cause error
				done := make(chan error, 1)
				cfg := leader.Config{Client: cluster.Client(), Namespace: namespace, Name: name, Identity: "a"}
				go func() {
					done <- leader.Run(t.Context(), cfg, func(ctx context.Context) error {
						<-ctx.Done()
						cause = context.Cause(ctx)
						return fmt.Errorf("work: %w", ctx.Err())
					})
				}()
				time.Sleep(30 * time.Second)
				tc.harm(t, cluster)
				began := time.Now()
				err := <-done
				if took := time.Since(began); took > tc.within {
					t.Errorf("%s: found out after %v, want %v", tc.reason, took, tc.within)
				}
				if !errors.Is(err, leader.ErrLost) || !errors.Is(cause, leader.ErrLost) {
					t.Errorf("%s: want ErrLost, as error and cause, got %v, %v", tc.reason, err, cause)
				}
				var abort interface{ Abort() bool }
				if !errors.As(cause, &abort) || !abort.Abort() {
					t.Errorf("%s: the cause forbids to finish, got %v", tc.reason, cause)
				}
			})
		})
	}
}

// A short outage does not cost the leadership.
func TestRenewalIsRepeated(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cluster, r := kubetest.New(), &leaderships{}
		a := ours(t, cluster, r, "a", 0)
		time.Sleep(20 * time.Second)
		cluster.Fail("update", "leases", apierrors.NewServiceUnavailable("down"), 1)
		time.Sleep(20 * time.Second)
		// Somebody else's write, of the labels only: a conflict, and the lease is still ours.
		if err := cluster.Merge("leases", namespace, name, []byte(`{"metadata":{"labels":{"x":"y"}}}`)); err != nil {
			t.Fatal(err)
		}
		time.Sleep(20 * time.Second)
		if !r.leads("a") {
			t.Errorf("a still leads, got %q", r.lines)
		}
		a.stop()
		if l := lease(t, cluster); l.Labels["x"] != "y" || *l.Spec.HolderIdentity != "" {
			t.Errorf("what others wrote stays, got %+v", l)
		}
	})
}

func TestEndBeforeElection(t *testing.T) {
	t.Parallel()
	cases := map[string]struct {
		reason string
		fault  *kubetest.Fault
		holder string
	}{
		"Waiting":   {reason: "The candidate waits for another.", holder: "other"},
		"Hanging":   {reason: "The API hangs.", fault: &kubetest.Fault{Hang: true}},
		"Failing":   {reason: "The API fails.", fault: &kubetest.Fault{Err: apierrors.NewInternalError(errors.New("x"))}},
		"TooLate":   {reason: "The lease comes when it is not wanted any more.", fault: &kubetest.Fault{Verb: "create", Delay: time.Second}},
		"BadCreate": {reason: "Creation fails.", fault: &kubetest.Fault{Verb: "create", Err: apierrors.NewInternalError(errors.New("x"))}},
	}
	for label, tc := range cases {
		t.Run(label, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				cluster := kubetest.New()
				if tc.holder != "" {
					now := metav1.NowMicro()
					err := cluster.Apply(&coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}, Spec: coordinationv1.LeaseSpec{
						HolderIdentity: &tc.holder, LeaseDurationSeconds: ptr.To[int32](3600), RenewTime: &now,
					}})
					if err != nil {
						t.Fatal(err)
					}
				}
				if tc.fault != nil {
					cluster.Inject(*tc.fault)
				}
				ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
				defer cancel()
				cfg := leader.Config{Client: cluster.Client(), Namespace: namespace, Name: name, Identity: "a"}
				err := leader.Run(ctx, cfg, func(context.Context) error { t.Error("nobody was elected"); return nil })
				if err != nil {
					t.Errorf("%s: the end is no error, got %v", tc.reason, err)
				}
			})
		})
	}
}

// The lease arrives at the moment the context ends: it is given back, unused.
func TestElectionAtTheLastMoment(t *testing.T) {
	t.Parallel()
	for _, verb := range []string{"create", "update"} {
		t.Run(verb, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				cluster, want := kubetest.New(), int32(0)
				if verb == "update" {
					want = 5
					free := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}, Spec: coordinationv1.LeaseSpec{LeaseTransitions: &want}}
					if err := cluster.Apply(free); err != nil {
						t.Fatal(err)
					}
				}
				ctx, cancel := context.WithCancel(t.Context())
				cluster.Inject(kubetest.Fault{Verb: verb, After: true, Do: cancel})
				cfg := leader.Config{Client: cluster.Client(), Namespace: namespace, Name: name, Identity: "a"}
				if err := leader.Run(ctx, cfg, func(context.Context) error { t.Error("it is too late"); return nil }); err != nil {
					t.Error(err)
				}
				if l := lease(t, cluster); *l.Spec.HolderIdentity != "" || *l.Spec.LeaseTransitions != want {
					t.Errorf("the lease is given back, got %q after %d transitions, want %d", *l.Spec.HolderIdentity, *l.Spec.LeaseTransitions, want)
				}
			})
		})
	}
}

func TestWorkThatEndsByItself(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cluster := kubetest.New()
		cfg := leader.Config{Client: cluster.Client(), Namespace: namespace, Name: name, Identity: "a"}
		boom := errors.New("boom")
		if err := leader.Run(t.Context(), cfg, func(context.Context) error { return boom }); !errors.Is(err, boom) {
			t.Errorf("want the error of the work, got %v", err)
		}
		if l := lease(t, cluster); *l.Spec.HolderIdentity != "" {
			t.Errorf("the lease is released, got %q", *l.Spec.HolderIdentity)
		}
		// An error that comes with the loss is not swallowed.
		err := leader.Run(t.Context(), cfg, func(ctx context.Context) error {
			cluster.Fail("", "leases", apierrors.NewServiceUnavailable("down"), 0)
			<-ctx.Done()
			return boom
		})
		if !errors.Is(err, boom) || !errors.Is(err, leader.ErrLost) {
			t.Errorf("want both errors, got %v", err)
		}
	})
}

// A restarted instance with the same identity need not wait for itself.
func TestSameIdentityContinues(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cluster, r := kubetest.New(), &leaderships{}
		first := ours(t, cluster, r, "a", 0)
		synctest.Wait()
		first.session.Cut()
		first.cancel()
		<-first.done
		second := ours(t, cluster, r, "a", 0)
		synctest.Wait()
		if !r.leads("a") {
			t.Errorf("it leads at once, got %q", r.lines)
		}
		if l := lease(t, cluster); *l.Spec.LeaseTransitions != 0 {
			t.Errorf("that is no transition, got %d", *l.Spec.LeaseTransitions)
		}
		second.stop()
	})
}

// A strategy says that the API server chooses the holder among candidates. This elector is none of them; like client-go's own, it
// ends the coordination when it acquires the Lease, and never takes a Lease that another instance holds.
func TestCoordinatedLease(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cluster, r := kubetest.New(&coordinationv1.Lease{
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
			Spec: coordinationv1.LeaseSpec{
				HolderIdentity: ptr.To("other"), LeaseDurationSeconds: ptr.To[int32](15), RenewTime: ptr.To(metav1.NowMicro()),
				Strategy: ptr.To(coordinationv1.OldestEmulationVersion), PreferredHolder: ptr.To("third"),
			},
		}), &leaderships{}
		a := ours(t, cluster, r, "a", 0)
		time.Sleep(14 * time.Second)
		if l := lease(t, cluster); r.leads("a") || l.Spec.Strategy == nil || l.Spec.PreferredHolder == nil {
			t.Errorf("another instance holds the Lease, got %q, %+v", r.lines, l.Spec)
		}
		time.Sleep(time.Minute)
		if l := lease(t, cluster); !r.leads("a") || l.Spec.Strategy != nil || l.Spec.PreferredHolder != nil {
			t.Errorf("the holder is gone, got %q, %+v", r.lines, l.Spec)
		}
		a.stop()
	})
}

// A renewal that finds the Lease changed by another writer reads it first, and is counted.
func TestSlowpathIsCounted(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cluster, w := kubetest.New(), &watcher{}
		a := ours(t, cluster, &leaderships{}, "a", 0, func(c *leader.Config) { c.Metrics = w })
		time.Sleep(time.Minute)
		if err := cluster.Merge("leases", namespace, name, []byte(`{"metadata":{"labels":{"a":"b"}}}`)); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		a.stop()
		if d := cmp.Diff([]string{"off lease", "on lease", "slowpath lease", "off lease"}, w.lines); d != "" {
			t.Errorf("metrics (-want +got):\n%s", d)
		}
	})
}

// Leases of others may lack every field.
func TestEmptyLeaseIsFree(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cluster, r := kubetest.New(&coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}), &leaderships{}
		a := ours(t, cluster, r, "a", 0, func(c *leader.Config) { c.LeaseDuration = 15500 * time.Millisecond })
		synctest.Wait()
		l := lease(t, cluster)
		if !r.leads("a") || *l.Spec.LeaseDurationSeconds != 16 {
			t.Errorf("a leads, for whole seconds that are not shorter, got %+v", l.Spec)
		}
		a.stop()
	})
}

// watcher is a Recorder and Metrics that records its calls.
type watcher struct {
	mu    sync.Mutex
	lines []string
}

func (w *watcher) note(line string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.lines = append(w.lines, line)
}

func (w *watcher) On(name string)  { w.note("on " + name) }
func (w *watcher) Off(name string) { w.note("off " + name) }

func (w *watcher) SlowpathExercised(name string) { w.note("slowpath " + name) }

func (w *watcher) Normal(obj runtime.Object, reason, message string) {
	w.note(fmt.Sprintf("%T %s %s", obj, reason, message))
}

func TestOthersAreTold(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := &watcher{}
		a := ours(t, kubetest.New(), &leaderships{}, "a", 0, func(c *leader.Config) { c.Metrics, c.Recorder = w, w })
		time.Sleep(time.Minute)
		a.stop()
		want := []string{"off lease", "*v1.Lease LeaderElection a became leader", "on lease", "off lease"}
		if d := cmp.Diff(want, w.lines); d != "" {
			t.Errorf("recorded (-want +got):\n%s", d)
		}
	})
}

func TestHealth(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cluster, health := kubetest.New(), &leader.Health{}
		a := ours(t, cluster, &leaderships{}, "a", time.Hour, func(c *leader.Config) { c.Health = health })
		if err := health.Check(); err != nil {
			t.Errorf("who does not lead is healthy, got %v", err)
		}
		time.Sleep(time.Minute)
		if err := health.Check(); err != nil {
			t.Errorf("who renews is healthy, got %v", err)
		}
		cluster.Inject(kubetest.Fault{Resource: "leases", Hang: true})
		time.Sleep(28 * time.Second)
		if err := health.Check(); err != nil {
			t.Errorf("an expired lease is excused for 20 seconds, got %v", err)
		}
		time.Sleep(10 * time.Second)
		if err := health.Check(); err == nil || !strings.Contains(err.Error(), "lease expired") {
			t.Errorf("then not any more, as the work does not end, got %v", err)
		}
		a.stop()
		if err := health.Check(); err != nil {
			t.Errorf("who has stopped leading is healthy, got %v", err)
		}
	})
}
