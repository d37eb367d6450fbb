package controller

import (
	"sync"
	"time"

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

// volumeRecord is what this process remembers of a PersistentVolume beside the cache. The zero value says nothing.
type volumeRecord struct {
	// deleted says that its volume is deleted, and removed that the PersistentVolume is deleted, too.
	deleted, removed bool
	// attached is the time since when the deletion waits for the volume to be detached.
	attached time.Time
}

// records has a record for each object, by UID: without one there is the zero value, and with the zero value there is none.
// The zero value of records is empty.
type records[R comparable] struct {
	mu sync.Mutex
	by map[types.UID]R
}

// get returns the record of an object.
func (r *records[R]) get(uid types.UID) R {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.by[uid]
}

// change changes the record of an object and returns it as it was and as it is.
func (r *records[R]) change(uid types.UID, edit func(*R)) (before, after R) {
	r.mu.Lock()
	defer r.mu.Unlock()
	before = r.by[uid]
	after = before
	edit(&after)
	var none R
	switch {
	case after == none:
		delete(r.by, uid)
	case r.by == nil:
		r.by = map[types.UID]R{uid: after}
	default:
		r.by[uid] = after
	}
	return before, after
}

// drop forgets an object.
func (r *records[R]) drop(uid types.UID) {
	r.change(uid, func(record *R) { *record = *new(R) })
}

// matching returns the records that satisfy a condition.
func (r *records[R]) matching(holds func(R) bool) []R {
	r.mu.Lock()
	defer r.mu.Unlock()
	var found []R
	for _, record := range r.by {
		if holds(record) {
			found = append(found, record)
		}
	}
	return found
}

// unverify has a claim read from the server before a volume is requested for it.
func (c *Controller) unverify(uid types.UID) {
	c.claimRecords.change(uid, func(r *claimRecord) { r.unverified = true })
}

// tidyClaim drops the record of a claim, which is nil once it is gone, that needs no volume from here. It frees the source.
func (c *Controller) tidyClaim(uid types.UID, claim *corev1.PersistentVolumeClaim) {
	if claim != nil && c.concerns(claim) && c.node().AssignedElsewhere(claim) == "" {
		return
	}
	before, _ := c.claimRecords.change(uid, func(r *claimRecord) { *r = claimRecord{} })
	if before.source != (volume.SourceRef{}) {
		c.sources.Add(before.source)
	}
}

// tidyVolume drops the record of a PersistentVolume that is gone.
func (c *Controller) tidyVolume(name string, uid types.UID) {
	if pv, ok := c.view.Volumes.Get("", name); !ok || pv.UID != uid {
		c.volumeRecords.drop(uid)
	}
}
