package controller

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/longshore-csi/longshore/csikit/kube"
	"github.com/longshore-csi/longshore/provisioner/internal/kubeapi"
	"github.com/longshore-csi/longshore/provisioner/internal/view"
)

// nodesOnly is an API server that has nodes, and counts how often one is read.
type nodesOnly struct {
	kubeapi.Client
	reads atomic.Int64
	gone  atomic.Bool
}

// Nodes implements kube.Client.
func (n *nodesOnly) Nodes() kube.Nodes { return getter{server: n} }

// TestEachInstanceReadTheNodeOfEachClaim has many instances look at a hundred claims that other nodes have taken and do
// not provision. The number of requests must not be the product of both.
func TestEachInstanceReadTheNodeOfEachClaim(t *testing.T) {
	cases := map[string]struct {
		reason             string
		instances, holders int
		most               int64
	}{
		"OneNode":   {reason: "The driver of one node is dead: five requests per second.", instances: 1000, holders: 1, most: 3000},
		"Everybody": {reason: "The driver is dead on many nodes: each instance makes one request per minute.", instances: 100, holders: 100, most: 1100},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				server := &nodesOnly{}
				play(t, server, tc.instances, 100, tc.holders, 10*time.Minute)
				if got := server.reads.Load(); got > tc.most || got == 0 {
					t.Errorf("%s\n%d reads of nodes in ten minutes, want at most %d", tc.reason, got, tc.most)
				}
			})
		})
	}
}

// play runs instances for some time, at claims that some other nodes have taken.
func play(t *testing.T, server *nodesOnly, instances, claims, holders int, d time.Duration) {
	t.Helper()
	ctx, cancel := context.WithTimeout(quiet(t), d)
	defer cancel()
	var list []*corev1.PersistentVolumeClaim
	for i := range claims {
		claim := newClaim()
		claim.UID = types.UID(fmt.Sprint("u", i))
		claim.Annotations[view.AnnSelectedNode] = fmt.Sprint("holder", i%holders)
		list = append(list, claim)
	}
	var running sync.WaitGroup
	for i := range instances {
		node := newNode()
		node.Name = fmt.Sprint("n", i)
		c := &Controller{cfg: Config{Kube: server, Settings: Settings{Node: node}}}
		running.Go(func() { c.follow(ctx, list) })
	}
	running.Wait()
}

// follow does for claims what the queue does: it looks at each when its turn is due.
func (c *Controller) follow(ctx context.Context, claims []*corev1.PersistentVolumeClaim) {
	for _, claim := range claims {
		s := claimState{claim: claim, node: c.node(), now: time.Now()}
		c.await(s, c.beginTurn(s, view.SelectedNode(claim)))
	}
	for ctx.Err() == nil {
		next := time.Now().Add(time.Hour)
		for _, claim := range claims {
			s := claimState{claim: claim, node: c.node(), now: time.Now()}
			if s.turn = c.claimRecords.get(claim.UID).turn; !s.turn.gone && !s.now.Before(s.turn.due) {
				c.seek(ctx, s)
				s.turn = c.claimRecords.get(claim.UID).turn
			}
			if !s.turn.gone && s.turn.due.Before(next) {
				next = s.turn.due
			}
		}
		pause(ctx, time.Until(next))
	}
}

// getter reads nodes.
type getter struct {
	kube.Nodes
	server *nodesOnly
}

// Get counts, and finds the node unless it is gone.
func (g getter) Get(_ context.Context, name string, _ metav1.GetOptions) (*corev1.Node, error) {
	g.server.reads.Add(1)
	if g.server.gone.Load() {
		return nil, apierrors.NewNotFound(corev1.Resource("nodes"), name)
	}
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}, nil
}

// TestHolders follows the checks of one node: its absence holds for all of its claims, and is found within ten minutes.
func TestHolders(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := &nodesOnly{}
		server.gone.Store(true)
		c := &Controller{cfg: Config{Kube: server, Settings: Settings{Node: newNode()}}}
		var claims []*corev1.PersistentVolumeClaim
		for i := range 20 {
			claim := newClaim()
			claim.UID = types.UID(fmt.Sprint("u", i))
			claim.Annotations[view.AnnSelectedNode] = "n2"
			claims = append(claims, claim)
		}
		ctx, cancel := context.WithTimeout(quiet(t), 12*time.Minute)
		defer cancel()
		c.follow(ctx, claims)
		for _, claim := range claims {
			if turn := c.claimRecords.get(claim.UID).turn; !turn.gone {
				t.Errorf("claim %s still waits for a node that is gone: %+v", claim.UID, turn)
			}
		}
		if got := server.reads.Load(); got != 1 {
			t.Errorf("%d reads of the node, want 1 for its 20 claims", got)
		}
		n, now := newNode(), time.Now()
		if got := c.holders.get(n, "n2", now.Add(time.Hour)); got.gone || got.checks != 0 {
			t.Errorf("%+v is known of a node that is back", got)
		}
		c.holders.get(n, "n3", now.Add(24*time.Hour))
		if len(c.holders.by) != 1 {
			t.Errorf("%d nodes are remembered, want the last one", len(c.holders.by))
		}
	})
}

// TestCheckPause checks that the pauses grow, within their limits, and differ from instance to instance.
func TestCheckPause(t *testing.T) {
	seen := map[time.Duration]bool{}
	for i := range 100 {
		n := newNode()
		n.Name = fmt.Sprint("n", i)
		for checks, longest := range []time.Duration{10 * time.Minute, 20 * time.Minute, 30 * time.Minute, 30 * time.Minute} {
			pause := n.checkPause("holder", checks)
			if pause < n.MaxDelay || pause > longest {
				t.Errorf("pause %v after %d checks, want %v to %v", pause, checks, n.MaxDelay, longest)
			}
			seen[pause] = true
		}
	}
	if len(seen) < 390 {
		t.Errorf("%d different pauses of 400", len(seen))
	}
}
