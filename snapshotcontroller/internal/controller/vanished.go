package controller

import (
	"sync"
	"time"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// vanishGrace is how long a snapshot may have been taken when its owner vanishes, and how late its content may be seen: the API server
// reads an object that it deletes once, and the content is made right after the finalizers are put on. It has room for a watch that was broken.
const vanishGrace = 2 * time.Minute

// vanished knows the owners that this process has seen go without a deletion that waits for finalizers, until their contents are
// dealt with. An API server may delete an object although a finalizer was put on it: it has read the object before, and has found none.
// No other process would delete the content that is made for it. An owner whose finalizers an admin has removed by hand was seen as being deleted,
// and its content stays: also if the watch was broken meanwhile, unless the snapshot was just taken.
type vanished struct {
	mu   sync.Mutex
	keys map[string]map[types.UID]time.Time // when which owners of a name have vanished
}

// isDependent reports whether this controller has made a content for the owner that it refers to, to be deleted with it.
func (k *kind) isDependent(c *content) bool {
	return c.GetName() == k.contentName(c.ref.UID) && len(c.volumes) > 0 && c.policy == snapshotv1.VolumeSnapshotContentDelete
}

// isOf reports whether a content may be that of an owner that has vanished at a moment: its snapshot was taken at about that time, or not yet.
func (c *content) isOf(at time.Time) bool {
	return c.GetDeletionTimestamp() == nil && (c.status == nil || c.status.created.IsZero() || at.Sub(c.status.created).Abs() < vanishGrace)
}

// note remembers an owner that is gone, unless it was seen as being deleted.
func (v *vanished) note(gone metav1.Object) {
	if gone.GetDeletionTimestamp() != nil {
		return
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.keys == nil {
		v.keys = map[string]map[types.UID]time.Time{}
	}
	if v.keys[keyOf(gone)] == nil {
		v.keys[keyOf(gone)] = map[types.UID]time.Time{}
	}
	v.keys[keyOf(gone)][gone.GetUID()] = time.Now()
}

// has reports whether the owner of a content was seen to vanish, about when its snapshot was taken.
func (v *vanished) has(c *content) bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	at, ok := v.keys[c.refKey()][c.ref.UID]
	return ok && c.isOf(at)
}

// forget forgets the vanished owners of a key that have left none of the contents, once vanishGrace is over: until then, a content may come that an
// earlier instance has created. It returns when to look again, 0 for never.
func (v *vanished) forget(k *kind, key string, contents []*content) (after time.Duration) {
	v.mu.Lock()
	defer v.mu.Unlock()
	for uid, at := range v.keys[key] {
		rest, left := vanishGrace-time.Since(at), false
		for _, c := range contents {
			left = left || c.ref.UID == uid && k.isDependent(c) && c.isOf(at)
		}
		if !left && rest <= 0 {
			delete(v.keys[key], uid)
		}
		after = max(after, rest)
	}
	if len(v.keys[key]) == 0 {
		delete(v.keys, key)
	}
	return after
}
