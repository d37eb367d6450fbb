package leader_test

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	"k8s.io/utils/ptr"

	"github.com/longshore-csi/longshore/csikit/kube"
	"github.com/longshore-csi/longshore/csikittest/kubetest"
	"github.com/longshore-csi/longshore/csikittest/seeds"
)

// lock lets client-go's elector work on a kube.Client.
type lock struct {
	client kube.Client
	who    string
	lease  *coordinationv1.Lease
}

var _ resourcelock.Interface = (*lock)(nil)

func (l *lock) Get(ctx context.Context) (*resourcelock.LeaderElectionRecord, []byte, error) {
	lease, err := l.client.Leases(namespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return nil, nil, err
	}
	l.lease = lease
	record := resourcelock.LeaseSpecToLeaderElectionRecord(&lease.Spec)
	data, err := json.Marshal(record)
	return record, data, err
}

func (l *lock) Create(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	lease := &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: resourcelock.LeaderElectionRecordToLeaseSpec(&record),
	}
	stored, err := l.client.Leases(namespace).Create(ctx, lease, metav1.CreateOptions{})
	if err == nil {
		l.lease = stored
	}
	return err
}

// Update refuses to release the Lease of another: client-go's elector does that when it was late, and would end the leadership of ours.
func (l *lock) Update(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	lease := l.lease.DeepCopy()
	if holder := ptr.Deref(lease.Spec.HolderIdentity, ""); record.HolderIdentity == "" && holder != l.who {
		return fmt.Errorf("release the Lease of %q: %q is not its holder", holder, l.who)
	}
	lease.Spec = resourcelock.LeaderElectionRecordToLeaseSpec(&record)
	stored, err := l.client.Leases(namespace).Update(ctx, lease, metav1.UpdateOptions{})
	if err == nil {
		l.lease = stored
	}
	return err
}

func (l *lock) RecordEvent(string) {}
func (l *lock) Identity() string   { return l.who }
func (l *lock) Describe() string   { return namespace + "/" + name }

// theirs starts an instance with client-go's elector.
func theirs(t *testing.T, cluster *kubetest.Cluster, r *leaderships, who string) *candidate {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	c := &candidate{cancel: cancel, session: cluster.NewSession(), done: make(chan struct{})}
	elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Lock: &lock{client: c.session.Client(), who: who}, Name: name, ReleaseOnCancel: true,
		LeaseDuration: 15 * time.Second, RenewDeadline: 10 * time.Second, RetryPeriod: 5 * time.Second,
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: func(context.Context) { r.begin(who) },
			OnStoppedLeading: func() {},
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		defer close(c.done)
		elector.Run(ctx)
		if r.leads(who) {
			r.end(who)
		}
	}()
	return c
}

// Ours and client-go's follow each other in both directions, as during an upgrade.
func TestHandOverBothWays(t *testing.T) {
	t.Parallel()
	type start func(t *testing.T, cluster *kubetest.Cluster, r *leaderships, who string) *candidate
	our := func(t *testing.T, cluster *kubetest.Cluster, r *leaderships, who string) *candidate {
		t.Helper()
		return ours(t, cluster, r, who, 0)
	}
	cases := map[string]struct {
		reason        string
		first, second start
		crash         bool
		within        time.Duration
	}{
		"OursStops":    {reason: "They take over what we release.", first: our, second: theirs, within: 15 * time.Second},
		"TheirsStops":  {reason: "We take over what they release.", first: theirs, second: our, within: 7 * time.Second},
		"OursCrash":    {reason: "They wait until our lease expires.", first: our, second: theirs, crash: true, within: 40 * time.Second},
		"TheirsCrash":  {reason: "We wait until their lease expires.", first: theirs, second: our, crash: true, within: 28 * time.Second},
		"OursTwice":    {reason: "We among ourselves.", first: our, second: our, within: 7 * time.Second},
		"OursTwiceEnd": {reason: "We among ourselves, with a crash.", first: our, second: our, crash: true, within: 28 * time.Second},
	}
	for label, tc := range cases {
		t.Run(label, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				cluster, r := kubetest.New(), &leaderships{}
				first := tc.first(t, cluster, r, "first")
				synctest.Wait()
				second := tc.second(t, cluster, r, "second")
				time.Sleep(time.Minute)
				if !r.leads("first") || r.leads("second") {
					t.Fatalf("the first one leads, got %q", r.lines)
				}
				if tc.crash {
					first.session.Cut()
				} else {
					first.cancel()
				}
				time.Sleep(tc.within)
				if !r.leads("second") || r.twice {
					t.Errorf("%s: got %q, twice: %t", tc.reason, r.lines, r.twice)
				}
				first.cancel()
				second.cancel()
				<-first.done
				<-second.done
			})
		})
	}
}

// Whatever happens, nobody begins while ours leads, and after the trouble there is one leader.
// (client-go's elector may lead a moment longer than its lease is valid: its deadline counts from
// the beginning of the renewal, ours from the last success.)
func TestNeverTwoLeaders(t *testing.T) {
	t.Parallel()
	seeds.Each(t, func(t *testing.T, seed uint64) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			random := rand.New(rand.NewPCG(seed, 1)) //nolint:gosec // no secret
			cluster, r := kubetest.New(), &leaderships{excused: "theirs"}
			candidates := map[string]*candidate{}
			launch := func(who string) {
				if who[0] == 'o' {
					candidates[who] = ours(t, cluster, r, who, time.Duration(random.IntN(3000))*time.Millisecond)
					return
				}
				candidates[who] = theirs(t, cluster, r, who)
			}
			names := []string{"ours-1", "ours-2", "theirs-1", "theirs-2"}
			for _, who := range names {
				launch(who)
			}
			replace := func() {
				for _, who := range names {
					select {
					case <-candidates[who].done:
						launch(who)
					default:
					}
				}
			}
			for range 60 {
				disturb(random, cluster)
				time.Sleep(time.Duration(random.IntN(20000)) * time.Millisecond)
				if random.IntN(4) == 0 {
					candidates[names[random.IntN(len(names))]].cancel()
				}
				replace()
			}
			cluster.Heal()
			time.Sleep(time.Minute)
			replace()
			time.Sleep(time.Minute)
			leaders := 0
			for _, who := range names {
				if r.leads(who) {
					leaders++
				}
			}
			for _, who := range names {
				candidates[who].cancel()
				<-candidates[who].done
			}
			if r.twice {
				t.Errorf("another instance began to lead while ours led: %q", r.lines)
			}
			if leaders != 1 {
				t.Errorf("want one leader after all that, got %d: %q", leaders, r.lines)
			}
		})
	})
}

// disturb makes the API answer badly for a while.
func disturb(random *rand.Rand, cluster *kubetest.Cluster) {
	switch random.IntN(4) {
	case 0:
		cluster.Heal()
	case 1:
		cluster.Fail("update", "leases", apierrors.NewServiceUnavailable("down"), 1+random.IntN(3))
	case 2:
		cluster.Inject(kubetest.Fault{Verb: "update", Resource: "leases", Delay: time.Duration(random.IntN(8000)) * time.Millisecond, Times: 1})
	case 3:
		cluster.Inject(kubetest.Fault{Verb: "update", Resource: "leases", After: true, Err: apierrors.NewTimeoutError("lost", 1), Times: 1})
	}
}
