package pods

import (
	"context"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/longshore-csi/longshore/kubeletplugin/volume"
)

// reportHealth writes the health of the volumes of a pod to its status, if it has changed.
func (c *Controller) reportHealth(ctx context.Context, e *entry, pod *corev1.Pod) error {
	if c.cfg.Health == nil {
		return nil
	}
	// The watch may be late, and an API server whose gate CSIVolumeHealth is off drops the field: neither causes another write.
	if e.health == nil {
		e.health = pod.Status.VolumeHealth
	}
	health, changed := withHealth(e.health, e.wanted, c.cfg.Health(pod.UID), metav1.Now())
	if !changed {
		return nil
	}
	err := c.patch(ctx, pod, corev1.PodStatus{VolumeHealth: health})
	if err == nil {
		e.health = health
	}
	if replaced(err) {
		return nil // The watch brings the deletion.
	}
	return err
}

// withHealth returns the list with the conditions of volumes, each under its names in the pod, and whether it differs. Volumes whose drivers have reported nothing
// stay as they are. One that is well again keeps an entry without conditions, which has the time of that.
func withHealth(
	before []corev1.PodVolumeHealth, wanted []volume.Publication, reported map[volume.Key][]corev1.VolumeHealthCondition, now metav1.Time,
) (after []corev1.PodVolumeHealth, differs bool) {
	after = slices.Clone(before)
	for i := range wanted {
		conditions, known := reported[wanted[i].Key()]
		if !known {
			continue
		}
		for _, name := range wanted[i].PodVolumes {
			at := slices.IndexFunc(after, func(h corev1.PodVolumeHealth) bool { return h.Name == name })
			if at < 0 && len(conditions) == 0 || at >= 0 && sameConditions(after[at].HealthConditions, conditions) {
				continue
			}
			if at < 0 {
				at, after = len(after), append(after, corev1.PodVolumeHealth{Name: name})
			}
			after[at].HealthConditions, after[at].LastTransitionTime, differs = conditions, now, true
		}
	}
	return after, differs
}

// sameConditions reports whether two lists have the same conditions in any order. Messages do not count.
func sameConditions(a, b []corev1.VolumeHealthCondition) bool {
	subset := func(a, b []corev1.VolumeHealthCondition) bool {
		return !slices.ContainsFunc(a, func(x corev1.VolumeHealthCondition) bool {
			return !slices.ContainsFunc(b, func(y corev1.VolumeHealthCondition) bool { return x.Status == y.Status && x.Reason == y.Reason })
		})
	}
	return subset(a, b) && subset(b, a)
}
