package controller

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

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
	before, _ := c.claimRecords.Change(uid, func(r *claimRecord) { *r = claimRecord{} })
	if before.source != (volume.SourceRef{}) {
		c.sources.Add(before.source)
	}
}
