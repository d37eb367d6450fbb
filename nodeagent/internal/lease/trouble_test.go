package lease

import (
	"errors"
	"strings"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/longshore-csi/longshore/csikittest/kubetest"
)

// TestHungServer: a renewal that hangs is given up in time for the next one.
func TestHungServer(t *testing.T) {
	scenario(t, func(t *testing.T, c *kubetest.Cluster, get func() *coordinationv1.Lease) {
		c.Inject(kubetest.Fault{Verb: "update", Resource: "leases", Hang: true, Times: 1})
		time.Sleep(30 * time.Second)
		if a := age(get()); a > 12*time.Second {
			t.Errorf("the last renewal was %v ago; a node dies after 40 s", a)
		}
	})
}

// TestErrorsNameTheNode and what was attempted.
func TestErrorsNameTheNode(t *testing.T) {
	cases := map[string]struct {
		reason, verb string
		renewed      bool // once, before the failure
		want         string
	}{
		"Get":    {reason: "nobody knows whether it exists", verb: "get", want: `create lease of node "node-1": away`},
		"Create": {reason: "it does not exist", verb: "create", want: `create lease of node "node-1": away`},
		"Update": {reason: "it exists", verb: "update", renewed: true, want: `renew lease of node "node-1": away`},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			c := kubetest.New()
			r, err := New(Config{Leases: c.Client().Leases(corev1.NamespaceNodeLease), Node: "node-1", NodeUID: func() types.UID { return "" }})
			if err != nil {
				t.Fatal(err)
			}
			if tc.renewed {
				if err := r.renew(t.Context(), time.Second); err != nil {
					t.Fatal(err)
				}
			}
			c.Fail(tc.verb, "leases", errors.New("away"), 0)
			if err := r.renew(t.Context(), time.Second); err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("%s: got %v, want %q", tc.reason, err, tc.want)
			}
		})
	}
}

// TestOwnerComesLater: the Lease is made before the Node is known, and is collected with it all
// the same.
func TestOwnerComesLater(t *testing.T) {
	var uid types.UID
	c := kubetest.New()
	leases := c.Client().Leases(corev1.NamespaceNodeLease)
	r, err := New(Config{Leases: leases, Node: "node-1", NodeUID: func() types.UID { return uid }})
	if err != nil {
		t.Fatal(err)
	}
	for _, now := range []types.UID{"", "uid-1", "uid-2"} {
		uid = now
		if err := r.renew(t.Context(), time.Second); err != nil {
			t.Fatal(err)
		}
		l, err := leases.Get(t.Context(), "node-1", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		owned := len(l.OwnerReferences) == 1 && l.OwnerReferences[0].UID == now
		if owned != (now != "") {
			t.Errorf("owners of the lease of node %q are %v", now, l.OwnerReferences)
		}
	}
}
