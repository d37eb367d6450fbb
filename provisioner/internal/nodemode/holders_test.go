package nodemode

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
	"k8s.io/klog/v2"

	"github.com/longshore-csi/longshore/csikit/kube"
	"github.com/longshore-csi/longshore/provisioner/internal/view"
)

// nodesOnly is an API server that has nodes, and counts how often one is read.
type nodesOnly struct {
	reads atomic.Int64
	gone  atomic.Bool
}

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
	ctx, cancel := context.WithTimeout(klog.NewContext(t.Context(), klog.Logger{}), d)
	defer cancel()
	list := heldClaims(claims, holders)
	var running sync.WaitGroup
	for i := range instances {
		running.Go(func() { follow(ctx, newCompetition(fmt.Sprint("n", i), server), list) })
	}
	running.Wait()
}

// heldClaims returns claims that some other nodes have taken.
func heldClaims(claims, holders int) (list []*corev1.PersistentVolumeClaim) {
	for i := range claims {
		list = append(list, &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{
			UID: types.UID(fmt.Sprint("u", i)), Annotations: map[string]string{view.AnnSelectedNode: fmt.Sprint("holder", i%holders)},
		}})
	}
	return list
}

// newCompetition returns the competition of a node with the defaults of the binary.
func newCompetition(node string, server *nodesOnly) *Competition {
	return New(Config{Node: node, BaseDelay: 20 * time.Second, MaxDelay: time.Minute, Nodes: getter{server: server}, Timeout: time.Minute, Warn: func(*corev1.PersistentVolumeClaim, string) {}})
}

// follow does for claims what the queue does: it looks at each when its turn is due. It returns how many could be taken.
func follow(ctx context.Context, c *Competition, claims []*corev1.PersistentVolumeClaim) (taken int) {
	due := make([]time.Time, len(claims))
	for ctx.Err() == nil {
		next := time.Now().Add(time.Hour)
		for i, claim := range claims {
			if now := time.Now(); !now.Before(due[i]) {
				free := false
				result, _ := c.Compete(ctx, Candidate{Claim: claim, Obstacle: func(context.Context) Obstacle { return Obstacle{} }, Take: func(context.Context) error {
					free = true
					return nil
				}})
				due[i] = now.Add(result.After)
				if free {
					taken++
					due[i] = now.Add(24 * time.Hour)
				}
			}
			if due[i].Before(next) {
				next = due[i]
			}
		}
		select {
		case <-ctx.Done():
		case <-time.After(time.Until(next)):
		}
	}
	return taken
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
		c := newCompetition("n1", server)
		ctx, cancel := context.WithTimeout(klog.NewContext(t.Context(), klog.Logger{}), 13*time.Minute)
		defer cancel()
		if taken := follow(ctx, c, heldClaims(20, 1)); taken != 20 {
			t.Errorf("%d of 20 claims of a node that is gone could be taken", taken)
		}
		if got := server.reads.Load(); got != 1 {
			t.Errorf("%d reads of the node, want 1 for its 20 claims", got)
		}
		n, now := c.pauses, time.Now()
		if got := c.holders.get(n, "holder0", now.Add(time.Hour)); got.gone || got.checks != 0 {
			t.Errorf("%+v is known of a node that is back", got)
		}
		c.holders.get(n, "n3", now.Add(24*time.Hour))
		if len(c.holders.by) != 1 {
			t.Errorf("%d nodes are remembered, want the last one", len(c.holders.by))
		}
	})
}

// TestTurnsAreForgotten has claims that nobody comes back for.
func TestTurnsAreForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCompetition("n1", &nodesOnly{})
		for range 10 {
			for i := range 100 {
				c.StepBack(types.UID(fmt.Sprint(time.Now().Unix(), i)))
			}
			time.Sleep(time.Hour)
		}
		if n := len(c.turns); n > 300 {
			t.Errorf("%d turns are remembered, of which 100 an hour are begun", n)
		}
	})
}

// TestWarning has a node that cannot have a volume: the user hears of it once, unless another node can.
func TestWarning(t *testing.T) {
	for quiet, want := range map[bool]int{false: 1, true: 0} {
		synctest.Test(t, func(t *testing.T) {
			c, warnings := newCompetition("n1", &nodesOnly{}), 0
			c.cfg.Warn = func(_ *corev1.PersistentVolumeClaim, why string) {
				if warnings++; why != "full" {
					t.Errorf("warning %q", why)
				}
			}
			claim := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{UID: "u"}}
			for range 10 {
				result, err := c.Compete(klog.NewContext(t.Context(), klog.Logger{}), Candidate{Claim: claim, Obstacle: func(context.Context) Obstacle { return Obstacle{Why: "full", Quiet: quiet} }})
				if err != nil {
					t.Fatal(err)
				}
				time.Sleep(result.After)
			}
			if warnings != want {
				t.Errorf("%d warnings, want %d where the obstacle is quiet: %t", warnings, want, quiet)
			}
		})
	}
}

// TestCheckPause checks that the pauses grow, within their limits, and differ from instance to instance.
func TestCheckPause(t *testing.T) {
	seen := map[time.Duration]bool{}
	for i := range 100 {
		n := newPauses()
		n.node = fmt.Sprint("n", i)
		for checks, longest := range []time.Duration{10 * time.Minute, 20 * time.Minute, 30 * time.Minute, 30 * time.Minute} {
			pause := n.checkPause("holder", checks)
			if pause < n.max || pause > longest {
				t.Errorf("pause %v after %d checks, want %v to %v", pause, checks, n.max, longest)
			}
			seen[pause] = true
		}
	}
	if len(seen) < 390 {
		t.Errorf("%d different pauses of 400", len(seen))
	}
}
