package controller

import (
	"context"
	"slices"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/equality"

	"github.com/longshore-csi/longshore/csikit/kube"
)

// indexClaims finds claims by the VolumeAttributesClasses that they wait for.
func indexClaims() map[string]func(*corev1.PersistentVolumeClaim) []string {
	return map[string]func(*corev1.PersistentVolumeClaim) []string{
		indexClass: func(claim *corev1.PersistentVolumeClaim) []string {
			if !needsModify(claim) {
				return nil
			}
			target, _ := targetClass(claim)
			return slices.DeleteFunc(slices.Compact([]string{wantedClass(claim), target}), func(name string) bool { return name == "" })
		},
	}
}

// needsExpand reports whether the claim asks for more than it has. (The API server does not let it ask for less, even after a failure.)
func needsExpand(claim *corev1.PersistentVolumeClaim) bool {
	requested, capacity := storage(claim.Spec.Resources.Requests), storage(claim.Status.Capacity)
	return !capacity.IsZero() && requested.Cmp(capacity) > 0
}

// needsModify reports whether the claim asks for another VolumeAttributesClass, or a modification has not come to its end.
func needsModify(claim *corev1.PersistentVolumeClaim) bool {
	wanted := wantedClass(claim)
	return claim.Status.ModifyVolumeStatus != nil || wanted != "" && wanted != currentClass(claim) ||
		hasCondition(claim, corev1.PersistentVolumeClaimVolumeModifyVolumeError)
}

// needsSync reports whether there may be anything to do for the claim.
func (c *Controller) needsSync(claim *corev1.PersistentVolumeClaim) bool {
	return claim.Status.Phase == corev1.ClaimBound && (needsExpand(claim) || c.cfg.AttributesClasses && needsModify(claim))
}

// isNews reports whether a change of a claim may alter what it needs. Own writes do not.
func isNews(before, after *corev1.PersistentVolumeClaim) bool {
	switch {
	case before == nil, before.UID != after.UID:
		return true
	case before.ResourceVersion == after.ResourceVersion:
		return true // the periodic resync
	case before.Status.Phase != after.Status.Phase, !equality.Semantic.DeepEqual(before.Spec, after.Spec),
		before.Annotations[AnnotationResizer] != after.Annotations[AnnotationResizer]:
		return true
	}
	status := resizeStatus(after)
	return grown(before, after) || status != resizeStatus(before) && (status == "" || status == corev1.PersistentVolumeClaimNodeResizeInfeasible)
}

// grown reports whether the claim has another capacity than before.
func grown(before, after *corev1.PersistentVolumeClaim) bool {
	had, has := storage(before.Status.Capacity), storage(after.Status.Capacity)
	return had.Cmp(has) != 0
}

func (c *Controller) claimChanged(before, after *corev1.PersistentVolumeClaim) {
	if after == nil || before != nil && before.UID != after.UID {
		c.memory.forget(keyOf(before))
	}
	if after == nil || !isNews(before, after) {
		return
	}
	// The node has completed an expansion: what is recorded on the volume for that is not needed any more.
	completed := before != nil && grown(before, after) && after.Annotations[AnnotationNodeNotRequired] == ""
	if completed || c.needsSync(after) {
		c.queue.Add(keyOf(after))
	}
}

func (c *Controller) pvChanged(before, after *corev1.PersistentVolume) {
	if after == nil || after.Spec.CSI == nil || after.Spec.ClaimRef == nil {
		return
	}
	ref := after.Spec.ClaimRef
	if before != nil && before.Spec.CSI != nil && equality.Semantic.DeepEqual(before.Spec.ClaimRef, ref) {
		return
	}
	claim, ok := c.claims.Get(ref.Namespace, ref.Name)
	if ok && c.needsSync(claim) || after.Annotations[AnnotationPreResize] != "" {
		c.queue.Add(claimKey(after))
	}
}

// newClasses makes the informer of the VolumeAttributesClasses, which wake the claims that wait for them.
func (c *Controller) newClasses() *kube.Informer[*storagev1.VolumeAttributesClass] {
	classes := kube.NewInformer(c.cfg.Kube.VolumeAttributesClasses(), kube.InformerOptions[*storagev1.VolumeAttributesClass]{
		Name: "VolumeAttributesClass", AskAgain: kube.DefaultAskAgain,
	})
	classes.OnChange(func(before, after *storagev1.VolumeAttributesClass) {
		if after == nil || before != nil && before.UID == after.UID {
			return // parameters and driver of a class cannot be changed
		}
		for _, claim := range c.claims.ByIndex(indexClass, after.Name) {
			c.memory.retryModify(keyOf(claim))
			c.queue.Add(keyOf(claim))
		}
	})
	return classes
}

// DriverChanged retries all claims that wait.
func (c *Controller) DriverChanged(context.Context) {
	if c.started.Load() {
		c.queue.WakeAll(c.waiting)
	}
}

// waiting returns the sorted keys of the claims that wait, and ends their pauses.
func (c *Controller) waiting() []string {
	var keys []string
	for claim := range c.claims.All() {
		if c.needsSync(claim) {
			keys = append(keys, keyOf(claim))
			c.memory.retryNow(keyOf(claim))
		}
	}
	slices.Sort(keys)
	return keys
}
