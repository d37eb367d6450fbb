package controller

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/longshore-csi/longshore/csikit/kube"
)

const (
	// notReadyTime is how long a node must be not ready until it counts as failed. It is upstream's.
	notReadyTime = 5 * time.Minute
	// nodeInterval is the pause between two checks of the nodes that are not ready.
	nodeInterval = 10 * time.Second
	// goneTime is how long a deleted node is remembered, for it may come back.
	goneTime = time.Hour
	// nodePrefix begins the messages about nodes; the name follows.
	nodePrefix = "Node "
	// outOfService ends them for a node that is not ready.
	outOfService = ". If the node does not come back, taint it with node.kubernetes.io/out-of-service, so that the volume can be used elsewhere"
)

// nodes are those that are not ready.
type nodes struct {
	informer *kube.Informer[*corev1.Node]

	mu   sync.Mutex
	down map[string]*downNode
}

// downNode is a node that is not ready, or was deleted.
type downNode struct {
	deleted time.Time // when the deletion was seen; zero while there is the node
	// claims are those that have an event about it, by UID.
	claims map[types.UID]string
}

// newNodes makes the node watcher.
func (c *Controller) newNodes() *nodes {
	n := &nodes{down: map[string]*downNode{}}
	n.informer = kube.NewInformer(c.cfg.Kube.Nodes(), kube.InformerOptions[*corev1.Node]{Name: "Node", Transform: slimNode, AskAgain: kube.DefaultAskAgain})
	n.informer.OnChange(func(before, after *corev1.Node) {
		n.mu.Lock()
		defer n.mu.Unlock()
		switch {
		case after == nil:
			n.ofLocked(before.Name).deleted = time.Now()
		case !readiness(after).ready:
			n.ofLocked(after.Name).deleted = time.Time{}
		}
	})
	return n
}

// ofLocked returns the entry of a node, a new one if there is none.
func (n *nodes) ofLocked(name string) *downNode {
	if n.down[name] == nil {
		n.down[name] = &downNode{claims: map[types.UID]string{}}
	}
	return n.down[name]
}

// restore notes that a claim has an event about a node that is down.
func (n *nodes) restore(node string, claim types.UID, key string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.ofLocked(node).claims[claim] = key
}

// readyState is whether a node is ready, and since when it is not.
type readyState struct {
	ready bool
	since time.Time
}

// readiness reads the condition Ready. A node that has none yet counts as ready: it has not been seen working.
func readiness(node *corev1.Node) readyState {
	for _, c := range node.Status.Conditions {
		if c.Type == corev1.NodeReady && c.Status != corev1.ConditionTrue {
			return readyState{since: c.LastTransitionTime.Time}
		}
	}
	return readyState{ready: true}
}

// watchNodes reports nodes that fail and that recover, until ctx ends.
func (c *Controller) watchNodes(ctx context.Context) error {
	if kube.WaitAllSynced(ctx, c.nodes.informer) != nil {
		return nil //nolint:nilerr // ctx has ended
	}
	for wait(ctx, nil, nodeInterval) {
		c.checkNodes(ctx, time.Now())
	}
	return nil
}

// checkNodes reports what has changed.
func (c *Controller) checkNodes(ctx context.Context, now time.Time) {
	c.nodes.mu.Lock()
	defer c.nodes.mu.Unlock()
	for _, name := range slices.Sorted(maps.Keys(c.nodes.down)) {
		d := c.nodes.down[name]
		node, exists := c.nodes.informer.Get("", name)
		switch {
		case exists && readiness(node).ready:
			c.nodeRecovered(name, d)
			delete(c.nodes.down, name)
		case exists && now.Sub(readiness(node).since) >= notReadyTime:
			c.nodeFailed(ctx, name, fmt.Sprintf("has not been ready for %v", notReadyTime), outOfService, d)
		case exists:
		case d.deleted.IsZero(): // it was deleted before the start
			d.deleted = now
		case now.Sub(d.deleted) >= goneTime:
			delete(c.nodes.down, name)
		default:
			c.nodeFailed(ctx, name, "was deleted", "", d)
		}
	}
}

// nodeFailed records an event on each claim that pods use on a node, once.
func (c *Controller) nodeFailed(ctx context.Context, name, why, remedy string, d *downNode) {
	informer := c.pods.get(ctx)
	if informer == nil {
		return
	}
	users := map[string][]string{}
	for _, pod := range informer.ByIndex(indexNode, name) {
		for _, key := range claimsOf(pod) {
			users[key] = append(users[key], pod.Name)
		}
	}
	for _, key := range slices.Sorted(maps.Keys(users)) {
		claim, ok := c.ownClaim(key)
		if !ok || d.claims[claim.UID] != "" {
			continue
		}
		d.claims[claim.UID] = key
		slices.Sort(users[key])
		c.cfg.Events.Warning(claim, ReasonNodeFailed, kube.Cut(fmt.Sprintf("%s%s %s, and pods use the claim there: %s%s",
			nodePrefix, name, why, strings.Join(users[key], ", "), remedy), maxMessage))
	}
}

// nodeRecovered records an event on each claim that has one about the failure.
func (c *Controller) nodeRecovered(name string, d *downNode) {
	for uid, key := range d.claims {
		if claim, ok := c.ownClaim(key); ok && claim.UID == uid {
			c.cfg.Events.Normal(claim, ReasonNodeRecovered, nodePrefix+name+" is ready again")
		}
	}
}

// ownClaim returns a claim whose volume is the driver's.
func (c *Controller) ownClaim(key string) (*corev1.PersistentVolumeClaim, bool) {
	namespace, name, _ := strings.Cut(key, "/")
	claim, ok := c.claims.Get(namespace, name)
	if !ok || claim.Spec.VolumeName == "" {
		return nil, false
	}
	pv, _ := c.pvs.Get("", claim.Spec.VolumeName)
	if bound, ok := c.claimOf(pv); !ok || bound.UID != claim.UID {
		return nil, false
	}
	return claim, true
}
