package claim

import (
	"context"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/longshore-csi/longshore/provisioner/internal/journal"
	"github.com/longshore-csi/longshore/provisioner/internal/volume"
)

// claimRecord is what this process remembers of a claim beside the cache and the intent. The zero value says nothing.
type claimRecord struct {
	// unverified says that the cache may show a state from before the claim was provisioned.
	unverified bool
	// unplaced is the wait for a topology of the claim.
	unplaced unplaced
	// former says that the volume which a former version may have left was settled.
	former bool
	// source is what the volume of the claim is made from, which is kept meanwhile.
	source volume.SourceRef
}

// unverify has a claim read from the server before a volume is requested for it.
func (c *Controller) unverify(uid types.UID) {
	c.claimRecords.Change(uid, func(r *claimRecord) { r.unverified = true })
}

// tidyClaim drops the record of a claim, which is nil once it is gone, that needs no volume from here. It frees the source.
func (c *Controller) tidyClaim(uid types.UID, claim *corev1.PersistentVolumeClaim) {
	if claim != nil && c.concerns(claim) && c.node().AssignedElsewhere(claim) == "" {
		return
	}
	c.forget(uid, func(r *claimRecord) { *r = claimRecord{} })
}

// forget drops the source of a claim from its record, and frees it.
func (c *Controller) forget(uid types.UID, edit func(r *claimRecord)) {
	if before, _ := c.claimRecords.Change(uid, edit); before.source != (volume.SourceRef{}) {
		c.sources.Free(before.source)
	}
}

// hasSource reports whether this process keeps the source of a claim.
func (c *Controller) hasSource(claim *corev1.PersistentVolumeClaim) bool {
	return c.claimRecords.Get(claim.UID).source != volume.SourceRef{}
}

// sourceInUse reports whether a volume may be in creation from a source, as far as this process knows: one is, or a claim that it has begun to serve, or found at its
// start, waits for one.
func (c *Controller) sourceInUse(ref volume.SourceRef) bool {
	return len(c.claimRecords.Matching(func(r claimRecord) bool { return r.source == ref })) > 0 || slices.ContainsFunc(c.cfg.Journal.List(), func(intent journal.Intent) bool {
		return intent.Spec.Source != nil && intent.Spec.Source.Ref == ref
	})
}

// dropSourceOf frees the source of a claim that may not use it, or not any more, unless its volume is in progress: anyone who creates such
// a claim could hold up the deletion of the source.
func (c *Controller) dropSourceOf(ctx context.Context, s claimState) {
	if s.claim == nil || s.intent != nil || !c.hasSource(s.claim) || c.sources.Allowed(ctx, s.claim) == nil {
		return
	}
	c.forget(s.claim.UID, func(r *claimRecord) { r.source = volume.SourceRef{} })
}
