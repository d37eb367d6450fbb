package controller

import (
	"context"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"

	"github.com/longshore-csi/longshore/csikit/logging"
	"github.com/longshore-csi/longshore/csikit/reconcile"
)

const (
	// firstSpread and lastSpread are the longest pauses before an instance checks whether a node that has taken claims
	// exists, in multiples of Node.MaxDelay: the pauses of the instances are spread evenly up to there, so that a thousand
	// instances make one or two requests a second.
	firstSpread, lastSpread = 10, 30
	// holderMemory is how long a node is remembered after it was to be checked.
	holderMemory = time.Hour
)

// holder is a node that has taken claims with immediate binding.
type holder struct {
	// checks counts the times that the node was found to exist.
	checks int
	// next is the time of the next check.
	next time.Time
	// gone says that the node did not exist at the last one.
	gone bool
}

// holders remembers nodes that have taken claims: a check of the node answers for all of its claims. The zero value is empty.
type holders struct {
	mu sync.Mutex
	by map[string]holder
	// free is when the instance may check the next node: whatever the number of nodes, it makes one request in MaxDelay.
	free time.Time
}

// checkPause returns the pause of an instance before it checks a node that was found to exist some times.
func (n Node) checkPause(name string, checks int) time.Duration {
	longest := time.Duration(min(firstSpread*(checks+1), lastSpread)) * n.MaxDelay
	return n.MaxDelay + time.Duration(n.part(name, checks)*float64(longest-n.MaxDelay))
}

// get returns what is known of a node, of which the first check is ahead when nothing is.
func (h *holders) get(n Node, name string, now time.Time) holder {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.known(n, name, now)
}

// known is get with the lock held.
func (h *holders) known(n Node, name string, now time.Time) holder {
	known, ok := h.by[name]
	if ok && (!known.gone || now.Before(known.next)) {
		return known
	}
	for other, state := range h.by {
		if now.Sub(state.next) > holderMemory {
			delete(h.by, other)
		}
	}
	if h.by == nil {
		h.by = map[string]holder{}
	}
	known = holder{next: now.Add(n.checkPause(name, 0))}
	h.by[name] = known
	return known
}

// begin returns what is known of a node, and whether the caller is to check it now, and to report by end.
func (h *holders) begin(n Node, name string, now time.Time) (known holder, check bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	known = h.known(n, name, now)
	if now.Before(known.next) {
		return known, false
	}
	if check = !now.Before(h.free); check {
		h.free = now.Add(n.MaxDelay)
	}
	known.next = h.free
	h.by[name] = known
	return known, check
}

// end notes the result of a check. That a node is gone is valid for long enough to reach all of its claims.
func (h *holders) end(n Node, name string, gone bool, now time.Time) holder {
	h.mu.Lock()
	defer h.mu.Unlock()
	known := h.by[name]
	known.gone, known.checks = gone, known.checks+1
	known.next = now.Add(n.checkPause(name, known.checks))
	if gone {
		known.next = now.Add(2 * n.MaxDelay)
	}
	h.by[name] = known
	return known
}

// beginTurn returns the first turn for a claim. One that another node has taken waits until that node is checked.
func (c *Controller) beginTurn(s claimState, holder string) turn {
	if holder != "" {
		return turn{holder: holder, due: c.holders.get(s.node, holder, s.now).next}
	}
	return s.node.firstTurn(s.claim.UID, s.now)
}

// seek checks whether the node that has taken a claim still exists. When that cannot be found out, it is taken to exist.
func (c *Controller) seek(ctx context.Context, s claimState) reconcile.Result {
	known, check := c.holders.begin(s.node, s.turn.holder, s.now)
	if check {
		known = c.holders.end(s.node, s.turn.holder, c.nodeGone(ctx, s.turn.holder), time.Now())
	}
	if known.gone {
		return c.await(s, s.node.afterHolderGone(s.turn, s.claim.UID, s.now))
	}
	return c.await(s, turn{holder: s.turn.holder, due: known.next})
}

// nodeGone reports whether a node is known not to exist.
func (c *Controller) nodeGone(ctx context.Context, name string) bool {
	logger := klog.FromContext(ctx).WithValues(logging.KeyNode, name)
	ctx, cancel := context.WithTimeout(ctx, c.cfg.Settings.KubeTimeout)
	defer cancel()
	_, err := c.cfg.Kube.Nodes().Get(ctx, name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		logger.Info("Node does not exist any more")
		return true
	case err != nil:
		logger.Error(err, "Could not check whether a node exists")
	}
	return false
}
