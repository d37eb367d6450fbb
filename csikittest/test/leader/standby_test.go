package leader_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/longshore-csi/longshore/csikit/kube"
	"github.com/longshore-csi/longshore/csikit/leader"
	"github.com/longshore-csi/longshore/csikittest/kubetest"
)

// TestStandbyWatches has an instance wait for another one, which ends or crashes after some time.
func TestStandbyWatches(t *testing.T) {
	t.Parallel()
	released, crashed := func(c *candidate) { c.cancel(); <-c.done }, func(c *candidate) { c.session.Cut() }
	cases := map[string]struct {
		reason string
		fault  kubetest.Fault
		end    func(*candidate)
		// notBefore and within bound the time from the end until the other leads.
		notBefore, within time.Duration
	}{
		"Released":         {reason: "The watch shows that the Lease is free.", end: released, within: time.Millisecond},
		"Crashed":          {reason: "The Lease expires 15 s after the last renewal, which was up to 6 s before.", end: crashed, notBefore: 9 * time.Second, within: 17 * time.Second},
		"Forbidden":        {reason: "Without a watch the Lease is read every 5 to 6 s.", fault: kubetest.Fault{Err: apierrors.NewForbidden(coordinationv1.Resource("leases"), name, nil)}, end: released, within: 6 * time.Second},
		"ForbiddenCrashed": {reason: "And expires 15 s after it was last read as renewed.", fault: kubetest.Fault{Err: apierrors.NewForbidden(coordinationv1.Resource("leases"), name, nil)}, end: crashed, notBefore: 9 * time.Second, within: 28 * time.Second},
		"Mute":             {reason: "A watch that brings nothing any more: the Lease is read when it seems to expire.", fault: kubetest.Fault{Hang: true}, end: released, within: 17 * time.Second},
	}
	for label, tc := range cases {
		t.Run(label, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				cluster, r := kubetest.New(), &leaderships{}
				if tc.fault.Err != nil || tc.fault.Hang {
					tc.fault.Verb, tc.fault.Resource = "watch", "leases"
					cluster.Inject(tc.fault)
				}
				first := ours(t, cluster, r, "first", 0)
				synctest.Wait()
				second := ours(t, cluster, r, "second", 0)
				time.Sleep(20 * time.Minute)
				tc.end(first)
				time.Sleep(tc.notBefore)
				synctest.Wait()
				if tc.notBefore > 0 && r.leads("second") {
					t.Errorf("%s\nthe other leads after %v already", tc.reason, tc.notBefore)
				}
				time.Sleep(tc.within - tc.notBefore)
				synctest.Wait()
				if !r.leads("second") || r.twice {
					t.Errorf("%s\nafter %v: %q, two at a time: %t", tc.reason, tc.within, r.lines, r.twice)
				}
				second.stop()
				<-first.done
			})
		})
	}
}

// TestStandbyReadsNothing counts the requests of an instance that waits for an hour: it has one watch at a time.
func TestStandbyReadsNothing(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cluster, r := kubetest.New(), &leaderships{}
		first := ours(t, cluster, r, "first", 0)
		synctest.Wait()
		counter := &reads{}
		second := ours(t, cluster, r, "second", 0, func(c *leader.Config) { c.Client = counter.of(c.Client) })
		time.Sleep(time.Hour)
		first.stop()
		second.stop()
		// A watch is used for five minutes, and the Lease is read before the next.
		if counter.gets > 15 || counter.watches > 15 || counter.watches == 0 {
			t.Errorf("%d reads, %d watches in an hour, want at most 15 of each", counter.gets, counter.watches)
		}
	})
}

// reads counts requests for Leases. Only one instance uses it.
type reads struct{ gets, watches int }

// of returns a client whose requests are counted.
func (r *reads) of(c kube.Client) kube.Client { return countingClient{Client: c, reads: r} }

type countingClient struct {
	kube.Client
	reads *reads
}

// Leases implements kube.Client.
func (c countingClient) Leases(namespace string) kube.Leases {
	return countingLeases{Leases: c.Client.Leases(namespace), reads: c.reads}
}

type countingLeases struct {
	kube.Leases
	reads *reads
}

// Get implements kube.Resource.
func (l countingLeases) Get(ctx context.Context, name string, o metav1.GetOptions) (*coordinationv1.Lease, error) {
	l.reads.gets++
	return l.Leases.Get(ctx, name, o)
}

// Watch implements kube.Resource.
func (l countingLeases) Watch(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
	l.reads.watches++
	return l.Leases.Watch(ctx, o)
}
