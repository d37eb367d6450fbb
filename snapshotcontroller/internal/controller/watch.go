package controller

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/longshore-csi/longshore/csikit/snapshotapi"
)

// Indexes of the caches.
const (
	indexClaim    = "claim"    // snapshots by the claim that they are to be taken of
	indexContent  = "content"  // snapshots by the content that they name or are bound to
	indexWaiting  = "waiting"  // snapshots without a content, by class; those without a class by ""
	indexRef      = "ref"      // contents by the snapshot that they refer to
	indexHandle   = "handle"   // contents, and volumes, by driver and volume handle
	indexRestored = "restored" // unbound claims by the snapshot that they are restored from
	indexGroup    = "group"    // snapshots by the UID of the group snapshot that owns them, contents by the handle of the group
)

// waitingDefault is the value of indexWaiting for snapshots that wait for a default class: no class can have the name.
const waitingDefault = "/"

func indexSnapshots() map[string]func(*snapshotv1.VolumeSnapshot) []string {
	return map[string]func(*snapshotv1.VolumeSnapshot) []string{
		indexClaim: func(s *snapshotv1.VolumeSnapshot) []string {
			if name := s.Spec.Source.PersistentVolumeClaimName; name != nil {
				return []string{s.Namespace + "/" + *name}
			}
			return nil
		},
		indexContent: func(s *snapshotv1.VolumeSnapshot) []string { return []string{contentName(s)} },
		indexGroup: func(s *snapshotv1.VolumeSnapshot) []string {
			if group := ownerGroup(s); group != nil {
				return []string{string(group.uid)}
			}
			return nil
		},
		indexWaiting: func(s *snapshotv1.VolumeSnapshot) []string {
			switch {
			case boundName(s) != "" || s.Spec.Source.PersistentVolumeClaimName == nil:
				return nil
			case s.Spec.VolumeSnapshotClassName == nil:
				return []string{waitingDefault}
			}
			return []string{*s.Spec.VolumeSnapshotClassName}
		},
	}
}

func indexContents() map[string]func(*snapshotv1.VolumeSnapshotContent) []string {
	return map[string]func(*snapshotv1.VolumeSnapshotContent) []string{
		indexRef: func(content *snapshotv1.VolumeSnapshotContent) []string { return []string{refKey(content)} },
		indexGroup: func(content *snapshotv1.VolumeSnapshotContent) []string {
			if content.Status != nil && content.Status.VolumeGroupSnapshotHandle != nil {
				return []string{*content.Status.VolumeGroupSnapshotHandle}
			}
			return nil
		},
		indexHandle: func(content *snapshotv1.VolumeSnapshotContent) []string {
			if handle := content.Spec.Source.VolumeHandle; handle != nil {
				return []string{handleKey(content.Spec.Driver, *handle)}
			}
			return nil
		},
	}
}

func indexClaims() map[string]func(*corev1.PersistentVolumeClaim) []string {
	return map[string]func(*corev1.PersistentVolumeClaim) []string{
		indexRestored:  restoredFrom,
		indexNamespace: func(claim *corev1.PersistentVolumeClaim) []string { return []string{claim.Namespace} },
	}
}

func indexPVs() map[string]func(*corev1.PersistentVolume) []string {
	return map[string]func(*corev1.PersistentVolume) []string{indexHandle: func(pv *corev1.PersistentVolume) []string {
		if pv.Spec.CSI == nil {
			return nil
		}
		return []string{handleKey(pv.Spec.CSI.Driver, pv.Spec.CSI.VolumeHandle)}
	}}
}

func handleKey(driver, handle string) string { return driver + "/" + handle }

// refKey returns the key of the snapshot that a content refers to.
func refKey(content *snapshotv1.VolumeSnapshotContent) string {
	return content.Spec.VolumeSnapshotRef.Namespace + "/" + content.Spec.VolumeSnapshotRef.Name
}

// restoredFrom returns the keys of the snapshots that an unbound claim is to be restored from.
func restoredFrom(claim *corev1.PersistentVolumeClaim) []string {
	if claim.Status.Phase != corev1.ClaimPending && claim.Status.Phase != "" {
		return nil
	}
	var keys []string
	if ref := claim.Spec.DataSourceRef; ref != nil && isSnapshot(ref.APIGroup, ref.Kind) {
		namespace := claim.Namespace
		if ref.Namespace != nil && *ref.Namespace != "" {
			namespace = *ref.Namespace
		}
		keys = append(keys, namespace+"/"+ref.Name)
	}
	if ref := claim.Spec.DataSource; ref != nil && isSnapshot(ref.APIGroup, ref.Kind) {
		keys = append(keys, claim.Namespace+"/"+ref.Name)
	}
	slices.Sort(keys)
	return slices.Compact(keys)
}

func isSnapshot(group *string, kind string) bool {
	return group != nil && *group == snapshotapi.Group && kind == snapshotapi.KindVolumeSnapshot
}

// isResync reports whether nothing has changed: the period of Config.Resync has passed.
func isResync(before, after metav1.Object) bool {
	return before.GetResourceVersion() == after.GetResourceVersion()
}

func (c *Controller) snapshotChanged(before, after *snapshotv1.VolumeSnapshot) {
	if after == nil || before != nil && before.UID != after.UID {
		c.gone.Delete(contentName(before))
		c.contentKnown(before.UID)
	}
	if before != nil && (after == nil || after.UID != before.UID) {
		c.deleted.Delete(before.UID)
		c.vanished.note(before)
	}
	if after == nil {
		after = before
	}
	c.queue.Add(keyOf(after))
}

func (c *Controller) contentChanged(before, after *snapshotv1.VolumeSnapshotContent) {
	last := cmp.Or(after, before)
	named := c.snapshots.ByIndex(indexContent, last.Name)
	c.noteContent(before, after, len(named) > 0)
	for _, s := range named {
		c.queue.Add(keyOf(s))
	}
	c.queue.Add(refKey(last))
	if before != nil && refKey(before) != refKey(last) {
		c.queue.Add(refKey(before))
	}
	if before != nil && after != nil && isResync(before, after) {
		return
	}
	c.wakeClaims(last, named)
	if before != nil && after != nil && before.UID != after.UID { // another content of that name
		c.wakeClaims(before, nil)
	}
}

// noteContent remembers that the content of a snapshot is gone, and forgets what was known of contents that are.
func (c *Controller) noteContent(before, after *snapshotv1.VolumeSnapshotContent, named bool) {
	if after != nil {
		c.gone.Delete(after.Name)
	} else if named {
		c.gone.Store(before.Name, nil)
	}
	if before != nil && (after == nil || after.UID != before.UID) {
		c.deleted.Delete(before.UID)
		c.created.Delete(before.UID)
	}
}

// wakeClaims queues the claim of the volume of a content, and those that the snapshots that are bound to it have been taken of.
func (c *Controller) wakeClaims(content *snapshotv1.VolumeSnapshotContent, named []*snapshotv1.VolumeSnapshot) {
	if content.Spec.Source.VolumeHandle == nil {
		return
	}
	c.wakeClaimsOf(handleKey(content.Spec.Driver, *content.Spec.Source.VolumeHandle))
	for _, s := range named {
		if name := s.Spec.Source.PersistentVolumeClaimName; name != nil {
			c.claimQueue.Add(s.Namespace + "/" + *name)
		}
	}
}

// wakeClaimsOf queues the claim of a volume.
func (c *Controller) wakeClaimsOf(handle string) {
	for _, pv := range c.pvs.ByIndex(indexHandle, handle) {
		if ref := pv.Spec.ClaimRef; ref != nil {
			c.claimQueue.Add(ref.Namespace + "/" + ref.Name)
		}
	}
}

func (c *Controller) classChanged(before, after *snapshotv1.VolumeSnapshotClass) {
	if after == nil {
		after = before
	}
	for _, value := range []string{after.Name, waitingDefault} {
		for _, s := range c.snapshots.ByIndex(indexWaiting, value) {
			c.queue.Add(keyOf(s))
		}
	}
}

func (c *Controller) claimChanged(before, after *corev1.PersistentVolumeClaim) {
	for _, claim := range []*corev1.PersistentVolumeClaim{before, after} {
		if claim == nil {
			continue
		}
		for _, key := range restoredFrom(claim) {
			c.queue.Add(key)
			c.wakeGroupOf(key)
		}
	}
	if after == nil {
		after = before
	}
	if isProtected(after) {
		c.claimQueue.Add(keyOf(after))
	}
	if before == nil || !equality.Semantic.DeepEqual(before.Spec, after.Spec) || before.Status.Phase != after.Status.Phase || before.UID != after.UID ||
		!maps.Equal(before.Labels, after.Labels) {
		c.wakeWaiting(keyOf(after))
	}
}

func (c *Controller) pvChanged(before, after *corev1.PersistentVolume) {
	if after == nil || after.Spec.ClaimRef == nil || before != nil && equality.Semantic.DeepEqual(before.Spec, after.Spec) {
		return
	}
	c.wakeWaiting(after.Spec.ClaimRef.Namespace + "/" + after.Spec.ClaimRef.Name)
}

// wakeGroupOf queues the group snapshot that a snapshot is a member of.
func (c *Controller) wakeGroupOf(key string) {
	namespace, name, _ := strings.Cut(key, "/")
	on, _ := c.served()
	s, ok := c.snapshots.Get(namespace, name)
	if !ok || on == nil {
		return
	}
	if group := ownerGroup(s); group != nil {
		on.groupQueue.Add(namespace + "/" + group.name)
	}
}

// wakeWaiting queues the snapshots of a claim, and the group snapshots in its namespace, that have no content.
func (c *Controller) wakeWaiting(claim string) {
	if on, _ := c.served(); on != nil {
		namespace, _, _ := strings.Cut(claim, "/")
		on.wakeWaitingGroups(namespace)
	}
	for _, s := range c.snapshots.ByIndex(indexClaim, claim) {
		if boundName(s) == "" {
			c.queue.Add(keyOf(s))
		}
	}
}
