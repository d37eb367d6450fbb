package controller

import (
	"encoding/json"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// edit changes the status of a claim, and the annotation that says whether the node is required.
type edit func(claim *corev1.PersistentVolumeClaim)

// edited returns a copy of claim with the changes.
func edited(claim *corev1.PersistentVolumeClaim, edits ...edit) *corev1.PersistentVolumeClaim {
	claim = claim.DeepCopy()
	for _, e := range edits {
		e(claim)
	}
	return claim
}

// beginExpansion records that the volume is being expanded to size. An operation that the driver may be working on has its condition, which tells it after a
// restart from one that has failed so far.
func beginExpansion(size resource.Quantity) edit {
	return func(claim *corev1.PersistentVolumeClaim) {
		setResizeStatus(claim, corev1.PersistentVolumeClaimControllerResizeInProgress)
		setAllocated(claim, size)
		setCondition(claim, corev1.PersistentVolumeClaimResizing, "", "")
		delete(claim.Annotations, AnnotationNodeNotRequired)
	}
}

// failExpansion records an error. infeasible: the driver will never expand the volume to this size.
func failExpansion(message string, infeasible bool) edit {
	return func(claim *corev1.PersistentVolumeClaim) {
		if infeasible {
			setResizeStatus(claim, corev1.PersistentVolumeClaimControllerResizeInfeasible)
			dropConditions(claim, corev1.PersistentVolumeClaimResizing)
		}
		setCondition(claim, corev1.PersistentVolumeClaimControllerResizeError, "", message)
	}
}

// awaitNode records that the volume has a new capacity, to which the node has to expand the file system.
func awaitNode(capacity resource.Quantity) edit {
	return func(claim *corev1.PersistentVolumeClaim) {
		setResizeStatus(claim, corev1.PersistentVolumeClaimNodeResizePending)
		setAllocated(claim, capacity)
		setCondition(claim, corev1.PersistentVolumeClaimFileSystemResizePending, "",
			"Waiting for the node to expand the file system of the volume; that happens when a pod uses the volume")
		dropConditions(claim, corev1.PersistentVolumeClaimResizing, corev1.PersistentVolumeClaimControllerResizeError, corev1.PersistentVolumeClaimNodeResizeError)
	}
}

// endExpansion records that the volume has a new capacity and nothing is left to do.
func endExpansion(capacity resource.Quantity) edit {
	return func(claim *corev1.PersistentVolumeClaim) {
		if claim.Status.Capacity == nil {
			claim.Status.Capacity = corev1.ResourceList{}
		}
		claim.Status.Capacity[corev1.ResourceStorage] = capacity
		setAllocated(claim, capacity)
		delete(claim.Status.AllocatedResourceStatuses, corev1.ResourceStorage)
		dropConditions(claim, corev1.PersistentVolumeClaimResizing, corev1.PersistentVolumeClaimFileSystemResizePending,
			corev1.PersistentVolumeClaimControllerResizeError, corev1.PersistentVolumeClaimNodeResizeError)
		metav1.SetMetaDataAnnotation(&claim.ObjectMeta, AnnotationNodeNotRequired, "true")
	}
}

// beginModification records that a VolumeAttributesClass is being applied. For conditions, see beginExpansion.
func beginModification(target string) edit {
	return func(claim *corev1.PersistentVolumeClaim) {
		setModifyStatus(claim, target, corev1.PersistentVolumeClaimModifyVolumeInProgress)
		setCondition(claim, corev1.PersistentVolumeClaimVolumeModifyingVolume, "", "")
		dropConditions(claim, corev1.PersistentVolumeClaimResizing)
	}
}

// failModification records an error, by the code of the driver's answer. infeasible: the driver will never apply the class, and has
// applied none of it.
func failModification(target, code, message string, infeasible bool) edit {
	return func(claim *corev1.PersistentVolumeClaim) {
		if infeasible {
			setModifyStatus(claim, target, corev1.PersistentVolumeClaimModifyVolumeInfeasible)
			dropConditions(claim, corev1.PersistentVolumeClaimVolumeModifyingVolume)
		}
		setCondition(claim, corev1.PersistentVolumeClaimVolumeModifyVolumeError, code, message)
	}
}

// awaitClass records that a modification waits for a VolumeAttributesClass that there is not, or that the driver cannot apply the one that
// there is. A modification that may be in progress stays so.
func awaitClass(target, message string, exists bool) edit {
	return func(claim *corev1.PersistentVolumeClaim) {
		if current, status := targetClass(claim); current != target || status != corev1.PersistentVolumeClaimModifyVolumeInProgress {
			next := corev1.PersistentVolumeClaimModifyVolumePending
			if exists {
				next = corev1.PersistentVolumeClaimModifyVolumeInfeasible
			}
			setModifyStatus(claim, target, next)
			dropConditions(claim, corev1.PersistentVolumeClaimVolumeModifyingVolume)
		}
		setCondition(claim, corev1.PersistentVolumeClaimVolumeModifyVolumeError, "ClassNotUsable", message)
	}
}

// endModification records that a VolumeAttributesClass is in effect.
func endModification(target string) edit {
	return func(claim *corev1.PersistentVolumeClaim) {
		claim.Status.CurrentVolumeAttributesClassName = &target
		cancelModification(claim)
	}
}

// cancelModification forgets a modification that the user has taken back.
func cancelModification(claim *corev1.PersistentVolumeClaim) {
	claim.Status.ModifyVolumeStatus = nil
	dropConditions(claim, corev1.PersistentVolumeClaimVolumeModifyingVolume, corev1.PersistentVolumeClaimVolumeModifyVolumeError)
}

func setResizeStatus(claim *corev1.PersistentVolumeClaim, status corev1.ClaimResourceStatus) {
	if claim.Status.AllocatedResourceStatuses == nil {
		claim.Status.AllocatedResourceStatuses = map[corev1.ResourceName]corev1.ClaimResourceStatus{}
	}
	claim.Status.AllocatedResourceStatuses[corev1.ResourceStorage] = status
}

func setAllocated(claim *corev1.PersistentVolumeClaim, size resource.Quantity) {
	if claim.Status.AllocatedResources == nil {
		claim.Status.AllocatedResources = corev1.ResourceList{}
	}
	claim.Status.AllocatedResources[corev1.ResourceStorage] = size
}

func setModifyStatus(claim *corev1.PersistentVolumeClaim, target string, status corev1.PersistentVolumeClaimModifyVolumeStatus) {
	claim.Status.ModifyVolumeStatus = &corev1.ModifyVolumeStatus{TargetVolumeAttributesClassName: target, Status: status}
}

func hasCondition(claim *corev1.PersistentVolumeClaim, kind corev1.PersistentVolumeClaimConditionType) bool {
	return slices.ContainsFunc(claim.Status.Conditions, func(c corev1.PersistentVolumeClaimCondition) bool {
		return c.Type == kind && c.Status == corev1.ConditionTrue
	})
}

// setCondition makes a condition true. One that says the same already keeps its time.
func setCondition(claim *corev1.PersistentVolumeClaim, kind corev1.PersistentVolumeClaimConditionType, reason, message string) {
	condition := corev1.PersistentVolumeClaimCondition{
		Type: kind, Status: corev1.ConditionTrue, Reason: reason, Message: message, LastTransitionTime: metav1.NewTime(time.Now()),
	}
	for i, had := range claim.Status.Conditions {
		if had.Type != kind {
			continue
		}
		if had.Status == corev1.ConditionTrue {
			condition.LastTransitionTime = had.LastTransitionTime
		}
		claim.Status.Conditions[i] = condition
		return
	}
	claim.Status.Conditions = append(claim.Status.Conditions, condition)
}

func dropConditions(claim *corev1.PersistentVolumeClaim, kinds ...corev1.PersistentVolumeClaimConditionType) {
	claim.Status.Conditions = slices.DeleteFunc(claim.Status.Conditions, func(c corev1.PersistentVolumeClaimCondition) bool {
		return slices.Contains(kinds, c.Type)
	})
}

// statusPatch renders the changes from one state of a claim to another as a strategic merge patch, nil if there are none; a merge patch
// costs the API server more. Conditions are a list, which is replaced as a whole: the resourceVersion sees to it that no change of another
// writer is lost.
func statusPatch(before, after *corev1.PersistentVolumeClaim) ([]byte, error) {
	status := map[string]any{}
	diffResource(status, "capacity", before.Status.Capacity, after.Status.Capacity)
	diffResource(status, "allocatedResources", before.Status.AllocatedResources, after.Status.AllocatedResources)
	diffResource(status, "allocatedResourceStatuses", before.Status.AllocatedResourceStatuses, after.Status.AllocatedResourceStatuses)
	if !equality.Semantic.DeepEqual(before.Status.Conditions, after.Status.Conditions) {
		status["conditions"] = replaced(after.Status.Conditions)
	}
	if currentClass(before) != currentClass(after) {
		status["currentVolumeAttributesClassName"] = after.Status.CurrentVolumeAttributesClassName
	}
	if !equality.Semantic.DeepEqual(before.Status.ModifyVolumeStatus, after.Status.ModifyVolumeStatus) {
		status["modifyVolumeStatus"] = after.Status.ModifyVolumeStatus
	}
	metadata := preconditions(before)
	if now := after.Annotations[AnnotationNodeNotRequired]; now != before.Annotations[AnnotationNodeNotRequired] {
		metadata["annotations"] = map[string]any{AnnotationNodeNotRequired: orNull(now)}
	} else if len(status) == 0 {
		return nil, nil
	}
	return json.Marshal(map[string]any{"metadata": metadata, "status": status})
}

// preconditions is the metadata of a patch that applies only to the very state of a claim that was read.
func preconditions(claim *corev1.PersistentVolumeClaim) map[string]any {
	return map[string]any{"uid": claim.UID, "resourceVersion": claim.ResourceVersion}
}

// diffResource adds the difference of the entries for storage.
func diffResource[V any](status map[string]any, field string, before, after map[corev1.ResourceName]V) {
	had, hadAny := before[corev1.ResourceStorage]
	has, hasAny := after[corev1.ResourceStorage]
	switch {
	case !hasAny && hadAny:
		status[field] = map[string]any{string(corev1.ResourceStorage): nil}
	case hasAny && (!hadAny || !equality.Semantic.DeepEqual(had, has)):
		status[field] = map[string]any{string(corev1.ResourceStorage): has}
	}
}

func orNull(s string) any {
	if s == "" {
		return nil
	}
	return s
}

// volumePatch is a strategic merge patch of a PersistentVolume, which applies only to the very object that was read.
func volumePatch(pv *corev1.PersistentVolume, annotations, spec map[string]any) ([]byte, error) {
	metadata := map[string]any{"uid": pv.UID}
	patch := map[string]any{"metadata": metadata}
	if len(annotations) > 0 {
		metadata["annotations"] = annotations
	}
	if len(spec) > 0 {
		patch["spec"] = spec
	}
	return json.Marshal(patch)
}

// replaced renders a list that replaces the one that the object has.
func replaced[T any](list []T) []any {
	all := make([]any, 1, 1+len(list))
	all[0] = map[string]any{"$patch": "replace"}
	for _, item := range list {
		all = append(all, item)
	}
	return all
}
