package controller

import (
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// verdict is what to do with one operation on a claim.
type verdict int

// The zero value is to do nothing: the claim has what it asks for, or the node is to act.
const (
	// doExpand: expand to a size.
	doExpand verdict = iota + 1
	// doCancel: the user has taken back a class that was not possible; the status is cleared.
	doCancel
	// doModify: apply a VolumeAttributesClass.
	doModify
	// doWait: the VolumeAttributesClass cannot be applied until it exists.
	doWait
)

// expandPlan is a decision on the size of a volume.
type expandPlan struct {
	verdict verdict
	size    resource.Quantity
}

// planExpand decides how to expand a volume (KEP-1790, "Resizing controller"). A size that the driver may be working on is driven to its
// end before another one is begun; the claim's status tells that size, and last whether its attempt has failed for good. canExpand
// says that the controller, not only the node, expands.
func planExpand(v volume, last attempt, canExpand bool) expandPlan {
	if !needsExpand(v.claim) {
		return expandPlan{}
	}
	requested, allocated, status := storage(v.claim.Spec.Resources.Requests), storage(v.claim.Status.AllocatedResources), resizeStatus(v.claim)
	volumeSize := storage(v.pv.Spec.Capacity)
	if volumeSize.Cmp(requested) < 0 {
		return planGrow(requested, allocated, volumeSize, status, last)
	}
	switch status {
	case corev1.PersistentVolumeClaimNodeResizePending, corev1.PersistentVolumeClaimNodeResizeInProgress:
		return expandPlan{}
	case corev1.PersistentVolumeClaimNodeResizeInfeasible:
		if canExpand {
			return expandTo(allocated, requested)
		}
		return expandTo(requested, requested)
	case corev1.PersistentVolumeClaimControllerResizeInProgress, corev1.PersistentVolumeClaimControllerResizeInfeasible:
		return expandTo(allocated, requested)
	}
	if allocated.IsZero() && hasCondition(v.claim, corev1.PersistentVolumeClaimFileSystemResizePending) {
		return expandPlan{} // an older resizer has left the rest to the node
	}
	return expandTo(allocated, requested)
}

// planGrow decides for a volume that is smaller than requested.
func planGrow(requested, allocated, volumeSize resource.Quantity, status corev1.ClaimResourceStatus, last attempt) expandPlan {
	switch status {
	case corev1.PersistentVolumeClaimNodeResizePending, corev1.PersistentVolumeClaimNodeResizeInProgress:
		if plan := expandTo(allocated, requested); volumeSize.Cmp(plan.size) < 0 {
			return plan
		}
		return expandPlan{} // the node has not completed the expansion before this one
	case corev1.PersistentVolumeClaimNodeResizeInfeasible:
		return expandTo(allocated, requested)
	case corev1.PersistentVolumeClaimControllerResizeInProgress:
		if !last.of(allocated.String()).final {
			return expandTo(allocated, requested)
		}
	case corev1.PersistentVolumeClaimControllerResizeInfeasible:
	}
	return expandTo(requested, requested)
}

// expandTo returns the plan to expand to size, or to requested without a size.
func expandTo(size, requested resource.Quantity) expandPlan {
	if size.IsZero() {
		size = requested
	}
	return expandPlan{verdict: doExpand, size: size}
}

// expanding reports whether the driver may be expanding the volume.
func expanding(claim *corev1.PersistentVolumeClaim, last attempt) bool {
	allocated := storage(claim.Status.AllocatedResources)
	return resizeStatus(claim) == corev1.PersistentVolumeClaimControllerResizeInProgress &&
		hasCondition(claim, corev1.PersistentVolumeClaimResizing) && !last.of(allocated.String()).final
}

// modifying reports whether the driver may be modifying the volume.
func modifying(claim *corev1.PersistentVolumeClaim, last attempt) bool {
	target, status := targetClass(claim)
	return status == corev1.PersistentVolumeClaimModifyVolumeInProgress &&
		hasCondition(claim, corev1.PersistentVolumeClaimVolumeModifyingVolume) && !last.of(target).final
}

// modifyPlan is a decision on the VolumeAttributesClass of a volume.
type modifyPlan struct {
	verdict verdict
	// target is the name of the class, for doModify and doWait.
	target string
	// class is what to apply, for doModify.
	class *storagev1.VolumeAttributesClass
}

// planModify decides how to modify a volume (KEP-3751). A class that the driver may be applying is applied to its end before another one
// is begun. find returns a class, nil if there is none of that name.
func planModify(v volume, last attempt, find func(name string) *storagev1.VolumeAttributesClass) modifyPlan {
	wanted, current := wantedClass(v.claim), currentClass(v.claim)
	target, status := targetClass(v.claim)
	if status == "" && (wanted == current || wanted == "") {
		if hasCondition(v.claim, corev1.PersistentVolumeClaimVolumeModifyVolumeError) {
			return modifyPlan{verdict: doCancel} // of a modification that did not even begin
		}
		return modifyPlan{}
	}
	if status == corev1.PersistentVolumeClaimModifyVolumeInProgress && (wanted == "" || modifying(v.claim, last)) {
		class := find(target)
		if class != nil || wanted == "" || wanted == target {
			return applyClass(v, target, class)
		}
		// The class is gone and so is the knowledge of what it was to set: only the class that is wanted now can be applied.
	}
	if wanted == "" {
		return modifyPlan{verdict: doCancel}
	}
	return applyClass(v, wanted, find(wanted))
}

// applyClass returns the plan to apply a class, or to wait for one that the driver can apply.
func applyClass(v volume, target string, class *storagev1.VolumeAttributesClass) modifyPlan {
	if class == nil || class.DriverName != v.pv.Spec.CSI.Driver {
		return modifyPlan{verdict: doWait, target: target, class: class}
	}
	return modifyPlan{verdict: doModify, target: target, class: class}
}
