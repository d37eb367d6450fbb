package controller

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/types"
)

// watch fills the queues by what changes. Objects of other drivers are dropped here.
func (c *Controller) watch() {
	c.caches.claims.OnChange(c.claimChanged)
	c.caches.volumes.OnChange(c.volumeChanged)
	c.caches.classes.OnChange(c.classChanged)
	if c.caches.attachments != nil {
		c.caches.attachments.OnChange(c.attachmentChanged)
	}
	if c.caches.snapshots != nil {
		c.caches.snapshots.OnChange(c.snapshotChanged)
	}
}

// keyOf returns the key of a claim.
func keyOf(claim *corev1.PersistentVolumeClaim) claimKey {
	return claimKey{Namespace: claim.Namespace, Name: claim.Name, UID: claim.UID}
}

// relevant reports whether a claim is ours to look at: it is to be provisioned, or has an open intent.
func (c *Controller) relevant(claim *corev1.PersistentVolumeClaim) bool {
	if c.concerns(claim) {
		return true
	}
	_, open := c.cfg.Intents.Get(claim.UID)
	return open
}

// claimChanged looks at a claim. A watch that was interrupted may bring a claim and its successor of the
// same name as one change.
func (c *Controller) claimChanged(before, after *corev1.PersistentVolumeClaim) {
	if before != nil && (after == nil || after.UID != before.UID) {
		c.claimGone(before)
	}
	c.claimAsSource(before, after)
	c.sourceElsewhereFree(before, after)
	if after == nil {
		return
	}
	c.tidyNotes(after)
	if c.relevant(after) {
		c.claims.Add(keyOf(after))
	}
}

// claimGone forgets a claim, but for its open intent.
func (c *Controller) claimGone(claim *corev1.PersistentVolumeClaim) {
	c.forgetClaim(claim.UID)
	if _, open := c.cfg.Intents.Get(claim.UID); open {
		c.claims.Add(keyOf(claim))
	}
}

// forgetClaim drops the notes about a claim that needs no volume any more.
func (c *Controller) forgetClaim(uid types.UID) {
	c.forgetWork(uid)
	c.turns.drop(uid)
}

// forgetWork drops the notes about the work on a claim.
func (c *Controller) forgetWork(uid types.UID) {
	c.unverified.drop(uid)
	c.unplaced.drop(uid)
	c.resting.drop(uid)
	if source, ok := c.holds.drop(uid); ok {
		c.sources.Add(source)
	}
}

// tidyNotes drops what was noted about a claim and is of no use any more. Of a claim that another node has taken only the
// turn is kept, for as long as it may have to be taken from there.
func (c *Controller) tidyNotes(claim *corev1.PersistentVolumeClaim) {
	switch {
	case !c.concerns(claim):
		c.forgetClaim(claim.UID)
	case c.node().assignedElsewhere(claim) != "":
		c.forgetWork(claim.UID)
	}
}

// tidyClaim forgets a claim that came to its end while it was worked on: what was noted meanwhile may have come too late
// for the event that says so.
func (c *Controller) tidyClaim(key claimKey) {
	claim, ok := c.claim(key)
	if !ok {
		c.forgetClaim(key.UID)
		return
	}
	c.tidyNotes(claim)
}

// claim returns a claim from the cache, unless another has its name by now.
func (c *Controller) claim(key claimKey) (*corev1.PersistentVolumeClaim, bool) {
	claim, ok := c.caches.claims.Get(key.Namespace, key.Name)
	return claim, ok && claim.UID == key.UID
}

// volumeChanged looks at a volume of ours, and at the claim that wants a volume of its name. As with claims,
// a volume and its successor of the same name may come as one change.
func (c *Controller) volumeChanged(before, after *corev1.PersistentVolume) {
	if before != nil && (after == nil || after.UID != before.UID) {
		c.volumeGone(before)
	}
	if after != nil && ours(after, c.driver) {
		c.volumes.Add(after.Name)
	}
}

// volumeGone forgets a volume. The claim that it was for, should it still be there, is asked about live
// before it gets another one: the cache of claims may be behind that of volumes.
func (c *Controller) volumeGone(pv *corev1.PersistentVolume) {
	c.forgetVolume(pv.UID)
	for _, claim := range c.caches.claims.ByIndex(claimsByVolume, pv.Name) {
		if c.node().assignedElsewhere(claim) != "" {
			continue
		}
		c.unverified.put(claim.UID, time.Now())
		c.claims.Add(keyOf(claim))
	}
}

// forgetVolume drops the notes about a PersistentVolume that is gone.
func (c *Controller) forgetVolume(uid types.UID) {
	c.deleted.drop(uid)
	c.removed.drop(uid)
	c.attached.drop(uid)
}

// tidyVolume is tidyClaim for PersistentVolumes.
func (c *Controller) tidyVolume(name string, uid types.UID) {
	if pv, ok := c.caches.volumes.Get("", name); !ok || pv.UID != uid {
		c.forgetVolume(uid)
	}
}

// classChanged looks at the claims of a class.
func (c *Controller) classChanged(before, after *storagev1.StorageClass) {
	if after == nil {
		c.capacity.ClassChanged(before.Name)
		return
	}
	c.capacity.ClassChanged(after.Name)
	for _, claim := range c.caches.claims.ByIndex(claimsByClass, after.Name) {
		if c.relevant(claim) {
			c.claims.Add(keyOf(claim))
		}
	}
}

// attachmentChanged looks at the volume that was detached.
func (c *Controller) attachmentChanged(before, after *storagev1.VolumeAttachment) {
	if before == nil || after != nil {
		return
	}
	for _, name := range attachmentVolume(before) {
		if pv, ok := c.caches.volumes.Get("", name); ok && ours(pv, c.driver) {
			c.volumes.Add(name)
		}
	}
}

// topologyChanged looks at the claims for which there was no topology, once more nodes have had time to
// follow: where a driver is being rolled out, the first node must not get all volumes.
func (c *Controller) topologyChanged() {
	c.capacity.TopologyChanged()
	c.unplaced.each(func(waiting unplaced) { c.claims.AddAfter(waiting.key, topologySettle) })
}

// nodeChanged looks at the claims that wait for the topology of a node.
func (c *Controller) nodeChanged(name string) {
	c.unplaced.each(func(waiting unplaced) {
		if waiting.node == name {
			c.claims.Add(waiting.key)
		}
	})
}
