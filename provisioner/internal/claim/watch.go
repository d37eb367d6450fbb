package claim

import (
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"

	"github.com/longshore-csi/longshore/provisioner/internal/view"
)

// watch fills the queues by what changes. Objects of other drivers are dropped here.
func (c *Controller) watch() {
	c.view.Claims.OnChange(c.claimChanged)
	c.view.Volumes.OnChange(c.volumeChanged)
	c.view.Classes.OnChange(c.classChanged)
	c.view.OnTopology(c.topologyChanged)
	c.view.OnNode(c.nodeChanged)
	if c.view.Attachments != nil {
		c.view.Attachments.OnChange(c.release.AttachmentChanged)
	}
	if c.view.Snapshots != nil {
		c.view.Snapshots.OnChange(c.sources.SnapshotChanged)
	}
	if c.view.Grants != nil {
		c.view.Grants.OnChange(c.sources.GrantChanged)
	}
}

// keyOf returns the key of a claim.
func keyOf(claim *corev1.PersistentVolumeClaim) claimKey {
	return claimKey{Namespace: claim.Namespace, Name: claim.Name, UID: claim.UID}
}

// relevant reports whether a claim is ours to look at: it is to be provisioned, or a volume in progress, or a former version has marked it.
func (c *Controller) relevant(claim *corev1.PersistentVolumeClaim) bool {
	if c.concerns(claim) || isMarked(claim) && view.DriverOf(claim) == c.driver {
		return true
	}
	_, open := c.cfg.Journal.Get(claim.UID)
	return open
}

// claimChanged looks at a claim. A watch that was interrupted may bring a claim and its successor of the
// same name as one change.
func (c *Controller) claimChanged(before, after *corev1.PersistentVolumeClaim) {
	if before != nil && (after == nil || after.UID != before.UID) {
		c.tidyClaim(before.UID, nil)
		if _, open := c.cfg.Journal.Get(before.UID); open {
			c.claims.Add(keyOf(before))
		}
	}
	c.sources.ClaimChanged(before, after)
	if after == nil {
		return
	}
	c.tidyClaim(after.UID, after)
	if c.relevant(after) {
		c.claims.Add(keyOf(after))
	}
}

// tidyKey is tidyClaim for a claim that came to its end while it was worked on: what was recorded meanwhile may have come
// too late for the event that says so.
func (c *Controller) tidyKey(key claimKey) {
	claim, _ := c.claim(key)
	c.tidyClaim(key.UID, claim)
}

// claim returns a claim from the cache, nil when it is not there or another has its name by now.
func (c *Controller) claim(key claimKey) (*corev1.PersistentVolumeClaim, bool) {
	claim, ok := c.view.Claims.Get(key.Namespace, key.Name)
	if !ok || claim.UID != key.UID {
		return nil, false
	}
	return claim, true
}

// volumeChanged looks at a volume of ours, and at the claim that wants a volume of its name. As with claims,
// a volume and its successor of the same name may come as one change.
func (c *Controller) volumeChanged(before, after *corev1.PersistentVolume) {
	if before != nil && (after == nil || after.UID != before.UID) {
		c.volumeGone(before)
	}
	c.release.Changed(before, after)
}

// volumeGone looks at the claim of a volume that is gone. The claim that it was for, should it still be there, is asked about live
// before it gets another one: the cache of claims may be behind that of volumes.
func (c *Controller) volumeGone(pv *corev1.PersistentVolume) {
	for _, claim := range c.view.ClaimsOfVolume(pv.Name) {
		if c.node().AssignedElsewhere(claim) != "" {
			continue
		}
		c.unverify(claim.UID)
		c.claims.Wake(keyOf(claim))
	}
}

// classChanged looks at the claims of a class.
func (c *Controller) classChanged(_, after *storagev1.StorageClass) {
	if after == nil {
		return
	}
	for _, claim := range c.view.ClaimsOfClass(after.Name) {
		if c.relevant(claim) {
			c.claims.Add(keyOf(claim))
		}
	}
}

// topologyChanged looks at the claims for which there was no topology, once more nodes have had time to
// follow: where a driver is being rolled out, the first node must not get all volumes.
func (c *Controller) topologyChanged() {
	for _, record := range c.claimRecords.Matching(func(r claimRecord) bool { return !r.unplaced.since.IsZero() }) {
		c.claims.WakeAfter(record.unplaced.key, topologySettle)
	}
}

// nodeChanged looks at the claims that wait for the topology of a node.
func (c *Controller) nodeChanged(name string) {
	for _, record := range c.claimRecords.Matching(func(r claimRecord) bool { return !r.unplaced.since.IsZero() && r.unplaced.node == name }) {
		c.claims.Wake(record.unplaced.key)
	}
}

// enqueueWaiting looks at claims that wait for their source. Those with a volume in progress do not, for its request is repeated as it was, unless
// another process has made it: it may be the claim that has to be asked about then.
func (c *Controller) enqueueWaiting(claims []*corev1.PersistentVolumeClaim) {
	for _, claim := range claims {
		if intent, open := c.cfg.Journal.Get(claim.UID); (!open || intent.Recovered) && c.concerns(claim) {
			c.claims.Wake(keyOf(claim))
		}
	}
}
