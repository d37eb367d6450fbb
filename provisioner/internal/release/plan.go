package release

import (
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/longshore-csi/longshore/provisioner/internal/capabilities"
	"github.com/longshore-csi/longshore/provisioner/internal/view"
	"github.com/longshore-csi/longshore/provisioner/internal/volume"
)

// volumeVerb is what is to be done about a PersistentVolume.
type volumeVerb int

const (
	// volumeLeave: nothing.
	volumeLeave volumeVerb = iota
	// volumeProtect: put the finalizer on.
	volumeProtect
	// volumeRelease: take the finalizer off.
	volumeRelease
	// volumeWait: it is to be deleted once it is attached to no node.
	volumeWait
	// volumeRefuse: it cannot be deleted; report that by an event.
	volumeRefuse
	// volumeDelete: delete the volume, then the object.
	volumeDelete
	// volumeRemove: the volume is deleted already, the object is left.
	volumeRemove
)

// volumeState is all that the decision about a PersistentVolume depends on.
type volumeState struct {
	// driver is the name of our driver.
	driver string
	// caps is what the driver can do.
	caps capabilities.Set
	// pv is the PersistentVolume in the cache, nil when it is gone.
	pv *corev1.PersistentVolume
	// attachments is the number of VolumeAttachments of the PersistentVolume.
	attachments int
	// deleted says that this process has deleted the volume.
	deleted bool
	// removed says that it has deleted the object as well, which may still show in the cache.
	removed bool
}

// volumePlan is the decision about a PersistentVolume.
type volumePlan struct {
	verb volumeVerb
	why  string
}

// planVolume decides what is to be done about a PersistentVolume.
func planVolume(s volumeState) volumePlan {
	switch {
	case s.pv == nil:
		return volumePlan{why: "volume is gone"}
	case !view.Ours(s.pv, s.driver):
		return volumePlan{why: "volume is of another provisioner"}
	case s.pv.Spec.PersistentVolumeReclaimPolicy != corev1.PersistentVolumeReclaimDelete:
		return planRetained(s)
	case s.removed && !hasFinalizer(s.pv):
		return volumePlan{why: "volume and object were deleted"}
	case s.deleted:
		return volumePlan{verb: volumeRemove, why: "volume was deleted"}
	case !deletable(s.pv):
		return planKept(s)
	}
	return planDelete(s)
}

// planRetained lets volumes go that are not to be deleted.
func planRetained(s volumeState) volumePlan {
	if hasFinalizer(s.pv) {
		return volumePlan{verb: volumeRelease, why: "reclaim policy keeps the volume"}
	}
	return volumePlan{why: "reclaim policy keeps the volume"}
}

// planKept protects volumes in use that are to be deleted later. A volume that no claim has released is not deleted even
// when its PersistentVolume is, for the reclaim policy is about volumes that were released; the finalizer, from a
// former claim, then keeps the object until an administrator decides.
func planKept(s volumeState) volumePlan {
	leaving, protected := s.pv.DeletionTimestamp != nil, hasFinalizer(s.pv)
	switch phase := s.pv.Status.Phase; {
	case phase == corev1.VolumeBound && !leaving && !protected && s.pv.Spec.CSI != nil:
		return volumePlan{verb: volumeProtect, why: "reclaim policy deletes the volume"}
	case phase == corev1.VolumeAvailable && leaving && protected && s.pv.Spec.ClaimRef == nil:
		return volumePlan{verb: volumeRefuse, why: "The volume is kept: its phase is Available, it was not released by a claim. Set the reclaim policy Retain to let the PersistentVolume go"}
	}
	return volumePlan{why: "volume is not released"}
}

// planDelete decides about a volume that nothing but its attachments keeps.
func planDelete(s volumeState) volumePlan {
	switch {
	case s.pv.Spec.CSI == nil && s.pv.Status.Message != "":
		return volumePlan{verb: volumeRefuse, why: "PersistentVolume has no CSI form, a CSI driver cannot delete it: " + s.pv.Status.Message}
	case s.pv.Spec.CSI == nil:
		return volumePlan{verb: volumeRefuse, why: "PersistentVolume has no spec.csi, a CSI driver cannot delete it"}
	case !s.caps.Create:
		return volumePlan{verb: volumeRefuse, why: "CSI driver " + s.driver + " cannot delete volumes: it lacks the capability CONTROLLER_SERVICE or CREATE_DELETE_VOLUME"}
	case s.caps.Publish && s.attachments > 0:
		return volumePlan{verb: volumeWait, why: "volume is attached"}
	}
	return volumePlan{verb: volumeDelete, why: "volume was released"}
}

// deletable reports whether the volume behind a PersistentVolume may be deleted now: its claim has released it, and
// it was not deleted before. A missing finalizer on an object under deletion shows that it was. Phase Failed is left to
// volumes that this provisioner has made or protected: another one that is in it, an administrator has to look at.
func deletable(pv *corev1.PersistentVolume) bool {
	_, made := pv.Annotations[volume.AnnProvisionedBy]
	switch {
	case pv.DeletionTimestamp != nil && !hasFinalizer(pv):
		return false
	case pv.Status.Phase == corev1.VolumeFailed:
		return made || hasFinalizer(pv)
	}
	return pv.Status.Phase == corev1.VolumeReleased
}

// hasFinalizer reports whether the PersistentVolume is kept until its volume is deleted.
func hasFinalizer(pv *corev1.PersistentVolume) bool {
	return slices.Contains(pv.Finalizers, volume.Finalizer)
}
