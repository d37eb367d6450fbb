package lease

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/longshore-csi/longshore/csikittest/kubetest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func scenario(t *testing.T, f func(t *testing.T, c *kubetest.Cluster, get func() *coordinationv1.Lease)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		c := kubetest.New()
		leases := c.Client().Leases(corev1.NamespaceNodeLease)
		r, err := New(Config{Leases: leases, Node: "node-1", NodeUID: func() types.UID { return "node-uid" }})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		wg.Go(func() { _ = r.Run(ctx) })
		synctest.Wait()
		f(t, c, func() *coordinationv1.Lease {
			l, err := leases.Get(t.Context(), "node-1", metav1.GetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			return l
		})
		cancel()
		wg.Wait()
	})
}

// age is how old the last renewal is; the node dies when it is older than the duration.
func age(l *coordinationv1.Lease) time.Duration { return time.Since(l.Spec.RenewTime.Time) }

func TestRenew(t *testing.T) {
	scenario(t, func(t *testing.T, _ *kubetest.Cluster, get func() *coordinationv1.Lease) {
		l := get()
		if *l.Spec.HolderIdentity != "node-1" || *l.Spec.LeaseDurationSeconds != 40 {
			t.Errorf("lease is held by %q for %d s, want node-1 for 40 s", *l.Spec.HolderIdentity, *l.Spec.LeaseDurationSeconds)
		}
		if len(l.OwnerReferences) != 1 || l.OwnerReferences[0].UID != "node-uid" {
			t.Errorf("owners are %v, want the node", l.OwnerReferences)
		}
		for range 100 {
			time.Sleep(7 * time.Second)
			if a := age(get()); a > 11*time.Second {
				t.Fatalf("the last renewal was %v ago, want every 10 s", a)
			}
		}
	})
}

func TestRenewThroughTrouble(t *testing.T) {
	cases := map[string]struct {
		reason string
		cause  func(t *testing.T, c *kubetest.Cluster)
	}{
		"Deleted": {reason: "somebody has deleted it", cause: func(t *testing.T, c *kubetest.Cluster) {
			t.Helper()
			if err := c.Client().Leases(corev1.NamespaceNodeLease).Delete(t.Context(), "node-1", metav1.DeleteOptions{}); err != nil {
				t.Fatal(err)
			}
		}},
		"Conflict": {reason: "somebody has changed it", cause: func(t *testing.T, c *kubetest.Cluster) {
			t.Helper()
			patch := []byte(`{"metadata":{"labels":{"a":"b"}}}`)
			if _, err := c.Client().Leases(corev1.NamespaceNodeLease).Patch(t.Context(), "node-1", types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
				t.Fatal(err)
			}
		}},
		"Errors": {reason: "the server fails for a while", cause: func(_ *testing.T, c *kubetest.Cluster) {
			c.Fail("update", "leases", errors.New("away"), 3)
		}},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			scenario(t, func(t *testing.T, c *kubetest.Cluster, get func() *coordinationv1.Lease) {
				tc.cause(t, c)
				time.Sleep(21 * time.Second)
				if a := age(get()); a > 11*time.Second {
					t.Errorf("%s: the last renewal was %v ago", tc.reason, a)
				}
			})
		})
	}
}

func TestNew(t *testing.T) {
	leases := kubetest.New().Client().Leases("x")
	uid := func() types.UID { return "" }
	cases := map[string]struct {
		reason string
		cfg    Config
	}{
		"NoClient": {reason: "nothing to write with", cfg: Config{Node: "n", NodeUID: uid}},
		"NoNode":   {reason: "nothing to write", cfg: Config{Leases: leases, NodeUID: uid}},
		"TooShort": {reason: "the API counts in seconds", cfg: Config{Leases: leases, Node: "n", NodeUID: uid, Duration: time.Millisecond}},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			if _, err := New(tc.cfg); err == nil {
				t.Errorf("%s: no error", tc.reason)
			}
		})
	}
}
