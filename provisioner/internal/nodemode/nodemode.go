// Package nodemode decides which node has a claim with immediate binding where there is an instance on each (--node-deployment), and no scheduler selects one: each
// instance waits for its turn, and the first whose node can have the volume takes the claim. A node that is gone loses its claims. No worker waits: a turn is
// a time in a table, and a key that comes back to the queue then.
//
// Do not use it for claims with late binding, which the scheduler places.
package nodemode

import (
	"context"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/longshore-csi/longshore/csikit/kube"
	"github.com/longshore-csi/longshore/csikit/logging"
	"github.com/longshore-csi/longshore/csikit/reconcile"
	"github.com/longshore-csi/longshore/provisioner/internal/view"
)

// turnMemory is how long the turn for a claim is remembered after it was due: a claim that is competed for comes back by then.
const turnMemory = time.Hour

// Config of a Competition. All fields are required.
type Config struct {
	// Node is the name of the own node.
	Node string
	// BaseDelay is the longest first pause before an instance takes a claim, and MaxDelay the longest.
	BaseDelay, MaxDelay time.Duration
	// Nodes reads nodes that have taken claims, within Timeout.
	Nodes   kube.Nodes
	Timeout time.Duration
	// Warn tells the user of a claim, once, why the own node does not take it.
	Warn func(claim *corev1.PersistentVolumeClaim, why string)
}

// Candidate is a claim that the own node has not taken.
type Candidate struct {
	Claim *corev1.PersistentVolumeClaim
	// Obstacle says why the own node cannot have the volume at present.
	Obstacle func(ctx context.Context) Obstacle
	// Take selects the own node for the claim.
	Take func(ctx context.Context) error
}

// Obstacle is why a node cannot have a volume at present. The zero value is none.
type Obstacle struct {
	Why string
	// Quiet says that the user need not know, as another node can have it.
	Quiet bool
}

// Competition is the part of one instance in the competition. Its methods may be called concurrently.
type Competition struct {
	cfg     Config
	pauses  pauses
	holders holders

	mu    sync.Mutex
	turns map[types.UID]turn
	swept time.Time
}

// New returns a competition that knows of no claim.
func New(cfg Config) *Competition {
	return &Competition{cfg: cfg, pauses: pauses{node: cfg.Node, base: cfg.BaseDelay, max: cfg.MaxDelay}, turns: map[types.UID]turn{}}
}

// Compete takes the next step for a claim: it is to be called again after the time of the result, and when the claim changes.
func (c *Competition) Compete(ctx context.Context, candidate Candidate) (reconcile.Result, error) {
	claim, holder, now := candidate.Claim.UID, view.SelectedNode(candidate.Claim), time.Now()
	t := c.turn(claim)
	switch t.next(holder, now) {
	case begin:
		return c.await(claim, c.first(claim, holder, now), now), nil
	case wait:
		return reconcile.Result{After: t.due.Sub(now)}, nil
	case seek:
		return c.await(claim, c.seek(ctx, claim, t, now), now), nil
	case take:
	}
	obstacle := candidate.Obstacle(ctx)
	if obstacle == (Obstacle{}) {
		return reconcile.Result{}, candidate.Take(ctx)
	}
	klog.FromContext(ctx).V(4).Info("Claim is not taken", logging.KeyReason, obstacle.Why)
	next := c.pauses.nextTurn(t, claim, now)
	if !obstacle.Quiet && c.pauses.worthWarning(next) {
		next.warned = true
		c.cfg.Warn(candidate.Claim, obstacle.Why)
	}
	return c.await(claim, next, now), nil
}

// StepBack lets the other nodes go first for a claim that was taken and that the own node had no capacity for after all.
func (c *Competition) StepBack(claim types.UID) {
	now := time.Now()
	c.await(claim, c.pauses.afterNoCapacity(c.turn(claim), claim, now), now)
}

// turn returns the turn for a claim.
func (c *Competition) turn(claim types.UID) turn {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.turns[claim]
}

// await notes the next turn for a claim, and forgets those that nobody has come back for.
func (c *Competition) await(claim types.UID, next turn, now time.Time) reconcile.Result {
	c.mu.Lock()
	defer c.mu.Unlock()
	if now.Sub(c.swept) > turnMemory/2 {
		c.swept = now
		for other, t := range c.turns {
			if now.Sub(t.due) > turnMemory {
				delete(c.turns, other)
			}
		}
	}
	c.turns[claim] = next
	return reconcile.Result{After: max(soon, next.due.Sub(now))}
}

// first returns the first turn for a claim. One that another node has taken waits until that node is checked.
func (c *Competition) first(claim types.UID, holder string, now time.Time) turn {
	if holder != "" {
		return turn{holder: holder, due: c.holders.get(c.pauses, holder, now).next}
	}
	return turn{due: now.Add(c.pauses.pause(claim, 0))}
}

// seek checks whether the node that has taken a claim still exists. When that cannot be found out, it is taken to exist.
func (c *Competition) seek(ctx context.Context, claim types.UID, t turn, now time.Time) turn {
	known, check := c.holders.begin(c.pauses, t.holder, now)
	if check {
		known = c.holders.end(c.pauses, t.holder, IsGone(ctx, c.cfg.Nodes, t.holder, c.cfg.Timeout), time.Now())
	}
	if known.gone {
		return c.pauses.afterHolderGone(t, claim, now)
	}
	return turn{holder: t.holder, due: known.next}
}

// IsGone reports whether a node is known not to exist; timeout is the deadline of the request.
func IsGone(ctx context.Context, nodes kube.Nodes, name string, timeout time.Duration) bool {
	logger := klog.FromContext(ctx).WithValues(logging.KeyNode, name)
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	_, err := nodes.Get(ctx, name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		logger.Info("Node does not exist any more")
		return true
	case err != nil:
		logger.Error(err, "Could not check whether a node exists")
	}
	return false
}
