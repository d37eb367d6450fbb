package controller

import (
	"strings"
	"time"

	groupv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumegroupsnapshot/v1"
	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/longshore-csi/longshore/csikit/snapshotapi"
)

// view collects what the caches have about a snapshot.
func (c *Controller) view(s *snapshotv1.VolumeSnapshot) view {
	v := view{snapshot: s, content: c.contentOf(s), sourceVolumeMode: c.cfg.SourceVolumeMode}
	if v.content == nil {
		_, v.contentGone = c.gone.Load(contentName(s))
	} else {
		_, v.contentDeleted = c.deleted.Load(v.content.UID)
		v.grace = c.graceOf(v.content)
	}
	var group *groupv1.VolumeGroupSnapshot
	v.group, group, v.groupKnown = c.groupOf(s, v.content)
	v.groupExists = group != nil
	v.groupVersion = c.groupVersion()
	v.groupDeleting = group != nil && group.DeletionTimestamp != nil
	if s.DeletionTimestamp != nil {
		v.restoring = c.restoring(s)
	}
	if v.content == nil && s.DeletionTimestamp == nil && s.Spec.Source.PersistentVolumeClaimName != nil {
		v.claim, v.volume = c.claimOf(s.Namespace, *s.Spec.Source.PersistentVolumeClaimName)
		if name := s.Spec.VolumeSnapshotClassName; name != nil {
			v.class, _ = c.classes.Get("", *name)
		} else {
			v.classes = c.classes.List()
		}
		if v.volume != nil && v.volume.Spec.CSI != nil {
			v.node = c.nodeFor(nil, v.volume.Spec.CSI.Driver, v.volume)
		}
	}
	if content := v.content; content != nil && content.Spec.Source.VolumeHandle != nil {
		v.node = c.nodeFor(content, content.Spec.Driver, c.volumeOf(content.Spec.Driver, *content.Spec.Source.VolumeHandle))
	}
	return v
}

// bindGrace is how long a new content may have no status before its snapshot is shown as bound to it.
const bindGrace = time.Second

// graceOf returns how much of bindGrace is left of a content that this instance has created.
func (c *Controller) graceOf(content *snapshotv1.VolumeSnapshotContent) time.Duration {
	if at, ok := c.created.Load(content.UID); ok {
		if at, ok := at.(time.Time); ok && content.Status == nil {
			return bindGrace - time.Since(at)
		}
		c.created.Delete(content.UID)
	}
	return 0
}

// contentOf returns the content that the snapshot names, or is bound to, or that was made for it; nil if there is none.
func (c *Controller) contentOf(s *snapshotv1.VolumeSnapshot) *snapshotv1.VolumeSnapshotContent {
	if content, ok := c.contents.Get("", contentName(s)); ok {
		return content
	}
	return nil
}

// contentName returns the name of the snapshot's content, whether it exists or not.
func contentName(s *snapshotv1.VolumeSnapshot) string {
	if name := s.Spec.Source.VolumeSnapshotContentName; name != nil {
		return *name
	}
	if name := boundName(s); name != "" {
		return name
	}
	if suffix, ok := strings.CutPrefix(s.Name, "snapshot-"); ok && ownerGroup(s) != nil {
		return "snapcontent-" + suffix // a member, whose two names have the same hash
	}
	return snapshotapi.ContentName(s.UID)
}

// claimOf returns a claim and its volume, nil for what does not exist.
func (c *Controller) claimOf(namespace, name string) (*corev1.PersistentVolumeClaim, *corev1.PersistentVolume) {
	claim, ok := c.claims.Get(namespace, name)
	if !ok {
		return nil, nil
	}
	if pv, ok := c.pvs.Get("", claim.Spec.VolumeName); ok && claim.Spec.VolumeName != "" {
		return claim, pv
	}
	return claim, nil
}

// restoring returns the name of a claim that is being restored from the snapshot, the first of them, or nothing.
func (c *Controller) restoring(s *snapshotv1.VolumeSnapshot) string {
	first := ""
	for _, claim := range c.claims.ByIndex(indexRestored, keyOf(s)) {
		if first == "" || keyOf(claim) < first {
			first = keyOf(claim)
		}
	}
	return first
}
