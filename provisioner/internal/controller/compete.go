package controller

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"

	"github.com/longshore-csi/longshore/csikit/logging"
	"github.com/longshore-csi/longshore/csikit/reconcile"
	"github.com/longshore-csi/longshore/provisioner/internal/view"
	"github.com/longshore-csi/longshore/topology"
)

// await notes the next turn and lets the claim come back for it.
func (c *Controller) await(s claimState, next turn) reconcile.Result {
	c.setTurn(s.claim.UID, next)
	return reconcile.Result{After: max(soon, next.due.Sub(s.now))}
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

// compete takes the claim if the own node has enough capacity for it, and waits for a later turn if it has not.
func (c *Controller) compete(ctx context.Context, s claimState) (reconcile.Result, error) {
	if why := c.sourceElsewhere(ctx, s.claim); why != nil {
		klog.FromContext(ctx).V(4).Info("Claim is not taken", logging.KeyReason, describe(why))
		return c.await(s, c.node().nextTurn(s.turn, s.claim.UID, s.now)), nil
	}
	missing := c.offer(ctx, s).insufficient(c.node().Name)
	if missing == "" {
		return reconcile.Result{}, c.take(ctx, s.claim)
	}
	klog.FromContext(ctx).V(4).Info("Claim is not taken", logging.KeyReason, missing)
	next := c.node().nextTurn(s.turn, s.claim.UID, s.now)
	if c.node().worthWarning(next) {
		next.warned = true
		c.cfg.Events.Warning(s.claim, reasonFailed, missing)
	}
	return c.await(s, next), nil
}

// sourceElsewhere says why the volume cannot be made from its source on the own node. Whatever else is wrong with the
// source, the one node that takes the claim reports it.
func (c *Controller) sourceElsewhere(ctx context.Context, claim *corev1.PersistentVolumeClaim) error {
	ref, ok := view.SourceOf(claim)
	if !ok || c.mayUseSource(claim) != nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, c.cfg.Settings.KubeTimeout)
	defer cancel()
	var elsewhere elsewhereError
	if _, err := c.validateSource(ctx, claim, ref); errors.As(err, &elsewhere) {
		return err
	}
	return nil
}

// offer asks the driver how much capacity the own node has for a claim. Nothing is read from the API, and nothing is
// written. A request that cannot be made is no reason to leave the claim: the one node that takes it reports that.
func (c *Controller) offer(ctx context.Context, s claimState) offer {
	if !s.caps.capacity {
		return offer{}
	}
	spec, err := c.classSpec(s)
	if err != nil {
		return offer{}
	}
	request, err := spec.Request()
	if err != nil {
		return offer{}
	}
	available, err := c.callCapacity(ctx, &csi.GetCapacityRequest{
		VolumeCapabilities: request.GetVolumeCapabilities(),
		Parameters:         request.GetParameters(),
		AccessibleTopology: &csi.Topology{Segments: c.node().Segments},
	})
	return offer{wanted: request.GetCapacityRange().GetRequiredBytes(), available: available, known: true, err: err}
}

// callCapacity calls GetCapacity and returns how large a volume can be, in bytes.
func (c *Controller) callCapacity(ctx context.Context, request *csi.GetCapacityRequest) (int64, error) {
	ctx, cancel := context.WithTimeout(ctx, c.cfg.Settings.Timeout)
	defer cancel()
	answer, err := c.cfg.Driver.GetCapacity(ctx, request)
	if err != nil {
		return 0, callError{what: "get capacity", err: err}
	}
	return largest(answer), nil
}

// largest returns how large a volume can be, in bytes: the available capacity, unless the driver reports a maximum.
func largest(answer *csi.GetCapacityResponse) int64 {
	if most := answer.GetMaximumVolumeSize(); most != nil {
		return most.GetValue()
	}
	return answer.GetAvailableCapacity()
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
		c.claimRecords.change(claim.UID, func(r *claimRecord) { r.unverified = false })
	}
	return nil
}

// stepBack lets the other nodes go first for a claim that was taken and that the own node had no capacity for after all.
// Claims with late binding are the scheduler's.
func (c *Controller) stepBack(claim *corev1.PersistentVolumeClaim) {
	if c.claimableByAnyNode(claim) {
		last := c.claimRecords.get(claim.UID).turn
		c.setTurn(claim.UID, c.node().afterNoCapacity(last, claim.UID, time.Now()))
	}
}
