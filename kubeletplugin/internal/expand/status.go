package expand

import (
	"encoding/json"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Started returns the patch of the claim's status before the call to the driver; nil if it says so already.
func Started(claim *corev1.PersistentVolumeClaim) ([]byte, error) {
	if progress(claim) == corev1.PersistentVolumeClaimNodeResizeInProgress {
		return nil, nil
	}
	return patch(claim, change{progress: corev1.PersistentVolumeClaimNodeResizeInProgress})
}

// Finished returns the patch of the status of a claim whose volume has a size.
func Finished(claim *corev1.PersistentVolumeClaim, size resource.Quantity) ([]byte, error) {
	others := slices.DeleteFunc(slices.Clone(claim.Status.Conditions), func(c corev1.PersistentVolumeClaimCondition) bool {
		switch c.Type {
		case corev1.PersistentVolumeClaimFileSystemResizePending, corev1.PersistentVolumeClaimResizing,
			corev1.PersistentVolumeClaimControllerResizeError, corev1.PersistentVolumeClaimNodeResizeError:
			return true
		default:
			return false
		}
	})
	return patch(claim, change{capacity: &size, conditions: &others})
}

// Stopped returns the patch of the status of a claim whose expansion has failed; nil if it says so already. The message of a
// condition is kept as long as the progress is the same.
func Stopped(claim *corev1.PersistentVolumeClaim, infeasible bool, message string, now time.Time) ([]byte, error) {
	c := change{progress: progress(claim)}
	if infeasible {
		c.progress = corev1.PersistentVolumeClaimNodeResizeInfeasible
	}
	if c.progress == progress(claim) && hasCondition(claim, corev1.PersistentVolumeClaimNodeResizeError) {
		return nil, nil
	}
	failed := corev1.PersistentVolumeClaimCondition{
		Type: corev1.PersistentVolumeClaimNodeResizeError, Status: corev1.ConditionTrue,
		LastTransitionTime: metav1.NewTime(now), Message: message,
	}
	conditions := slices.DeleteFunc(slices.Clone(claim.Status.Conditions), func(old corev1.PersistentVolumeClaimCondition) bool {
		if old.Type == failed.Type && old.Status == failed.Status {
			failed.LastTransitionTime = old.LastTransitionTime
		}
		return old.Type == failed.Type
	})
	conditions = append(conditions, failed)
	c.conditions = &conditions
	return patch(claim, c)
}

// change is what becomes different in the status of a claim; nil leaves a field unchanged, and no progress removes it.
type change struct {
	progress   corev1.ClaimResourceStatus
	capacity   *resource.Quantity
	conditions *[]corev1.PersistentVolumeClaimCondition
}

// patch returns a JSON merge patch that applies to this version of the claim only, so that the list of conditions can be
// replaced.
func patch(claim *corev1.PersistentVolumeClaim, c change) ([]byte, error) {
	status := map[string]any{}
	if c.progress != progress(claim) {
		var value any
		if c.progress != "" {
			value = c.progress
		}
		status["allocatedResourceStatuses"] = map[string]any{string(corev1.ResourceStorage): value}
	}
	if c.capacity != nil {
		status["capacity"] = corev1.ResourceList{corev1.ResourceStorage: *c.capacity}
	}
	if c.conditions != nil {
		status["conditions"] = *c.conditions
	}
	data, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"uid": claim.UID, "resourceVersion": claim.ResourceVersion}, "status": status,
	})
	if err != nil {
		return nil, fmt.Errorf("encode status of claim %q: %w", claim.Name, err)
	}
	return data, nil
}
