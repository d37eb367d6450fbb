package claim

import (
	"context"
	"fmt"

	"github.com/container-storage-interface/spec/lib/go/csi"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/longshore-csi/longshore/csikit/events"
	"github.com/longshore-csi/longshore/csikit/logging"
	"github.com/longshore-csi/longshore/csikit/reconcile"
	"github.com/longshore-csi/longshore/provisioner/internal/backend"
	"github.com/longshore-csi/longshore/provisioner/internal/nodemode"
	"github.com/longshore-csi/longshore/provisioner/internal/view"
	"github.com/longshore-csi/longshore/topology"
)

// Competition decides which of the instances on all nodes provisions a claim with immediate binding: package nodemode.
type Competition interface {
	// Compete takes the next step for a claim that the own node has not taken.
	Compete(ctx context.Context, candidate nodemode.Candidate) (reconcile.Result, error)
	// StepBack lets the other nodes go first for a claim that the own node has no capacity for after all.
	StepBack(claim types.UID)
}

// planNode decides about a claim that is not for the own node: it is left to another one, or competed for.
func planNode(s claimState) (claimPlan, bool) {
	switch {
	case s.node.Mine(s.claim):
		return claimPlan{}, false
	case view.WaitsForConsumer(s.class):
		return leave(fmt.Sprintf("claim is for node %q", view.SelectedNode(s.claim))), true
	case !s.competes:
		return leave("claims with immediate binding are left to other nodes"), true
	case s.excluded != nil:
		return leave("the own node may not have it: " + s.excluded.Error()), true
	}
	if plan, ok := planSource(s); ok && plan.verb == claimPopulator {
		return leave(plan.why), true
	}
	return claimPlan{verb: claimCompete, why: "nodes compete for it"}, true
}

// WarnOfFailure returns what tells the user of a claim, by events, why it gets no volume: nodemode.Config.Warn.
func WarnOfFailure(recorder events.Recorder) func(claim *corev1.PersistentVolumeClaim, why string) {
	return func(claim *corev1.PersistentVolumeClaim, why string) { recorder.Warning(claim, reasonFailed, why) }
}

// concerns reports whether a claim is to be provisioned, and may be so by this instance.
func (c *Controller) concerns(claim *corev1.PersistentVolumeClaim) bool {
	return view.Pending(claim, c.driver) && (c.node().AssignedElsewhere(claim) == "" || c.isContested(claim))
}

// isContested reports whether claims like this one go to the node that takes them first.
func (c *Controller) isContested(claim *corev1.PersistentVolumeClaim) bool {
	if c.cfg.Competition == nil {
		return false
	}
	class, ok := c.view.Class(view.ClassName(claim))
	return ok && !view.WaitsForConsumer(class)
}

// node returns the node that the instance provisions for.
func (c *Controller) node() view.Node {
	return c.cfg.Settings.Node
}

// excluded says why the own node may not have the volume of a class at all.
func (c *Controller) excluded(s claimState) error {
	if c.node().Mine(s.claim) || c.view.Index == nil {
		return nil
	}
	_, err := c.view.Index.Require(topology.Request{
		Policy:            c.policy(),
		AllowedTopologies: s.class.AllowedTopologies,
		SelectedNode:      c.node().Name,
		ClaimName:         s.claim.Name,
		ClaimUID:          s.claim.UID,
	})
	return err
}

// compete takes part in the competition for a claim.
func (c *Controller) compete(ctx context.Context, s claimState) (reconcile.Result, error) {
	return c.cfg.Competition.Compete(ctx, nodemode.Candidate{
		Claim:    s.claim,
		Obstacle: func(ctx context.Context) nodemode.Obstacle { return c.obstacle(ctx, s) },
		Take:     func(ctx context.Context) error { return c.take(ctx, s.claim) },
	})
}

// obstacle says why the own node cannot have the volume of a claim at present.
func (c *Controller) obstacle(ctx context.Context, s claimState) nodemode.Obstacle {
	if why := c.sources.Elsewhere(ctx, s.claim, c.hasSource(s.claim)); why != nil {
		return nodemode.Obstacle{Why: backend.Describe(why), Quiet: true}
	}
	return nodemode.Obstacle{Why: c.insufficient(ctx, s)}
}

// insufficient asks the driver how much capacity the own node has for a claim, and says why that is not enough, empty if it is. Nothing is read from the API, and
// nothing is written. A driver that does not report its capacity is taken to have some, and a request that cannot be made is no reason to leave the claim:
// CreateVolume, or the one node that takes it, finds out.
func (c *Controller) insufficient(ctx context.Context, s claimState) string {
	if !s.caps.Capacity {
		return ""
	}
	spec, err := c.classSpec(s)
	if err != nil {
		return ""
	}
	request, err := spec.Request()
	if err != nil {
		return ""
	}
	available, err := c.backend.Capacity(ctx, &csi.GetCapacityRequest{
		VolumeCapabilities: request.GetVolumeCapabilities(),
		Parameters:         request.GetParameters(),
		AccessibleTopology: &csi.Topology{Segments: c.node().Segments},
	})
	switch wanted := request.GetCapacityRange().GetRequiredBytes(); {
	case err != nil:
		return fmt.Sprintf("GetCapacity failed on node %q: %s", c.node().Name, backend.Describe(err))
	case available < wanted:
		return fmt.Sprintf("Node %q has not enough capacity for the volume: %d bytes are available, %d bytes are requested", c.node().Name, available, wanted)
	}
	return ""
}

// take selects the own node for a claim, unless the claim has changed hands or needs no volume any more. In both cases the
// watch brings the claim back: a second look besides that one would come before the pause after a first failure. Nodes
// that have a conflict look again.
func (c *Controller) take(ctx context.Context, claim *corev1.PersistentVolumeClaim) error {
	taken, err := c.editClaim(ctx, claim, func(live *corev1.PersistentVolumeClaim) (bool, error) {
		if !view.Pending(live, c.driver) || leaving(live) || view.SelectedNode(live) != view.SelectedNode(claim) {
			return false, nil
		}
		if live.Annotations == nil {
			live.Annotations = map[string]string{}
		}
		live.Annotations[view.AnnSelectedNode] = c.node().Name
		return true, nil
	})
	if err != nil {
		return fmt.Errorf("take claim for node %q: %w", c.node().Name, err)
	}
	if taken {
		klog.FromContext(ctx).V(2).Info("Claim is taken", logging.KeyNode, c.node().Name)
		c.claimRecords.Change(claim.UID, func(r *claimRecord) { r.unverified = false })
	}
	return nil
}
