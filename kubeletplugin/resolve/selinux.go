package resolve

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/sets"
)

// seLinuxContext is the context with which a volume is mounted (KEP-1710); empty if it is mounted without. Where the containers of the pod that
// mount the volume have several contexts, it cannot be mounted.
func (r *Resolver) seLinuxContext(q *request) (string, error) {
	if r.cfg.FileLabel == nil || !asksForContext(q) {
		return "", nil
	}
	labels := sets.Set[string]{}
	for _, o := range seLinuxOptions(q.Pod, q.Volume.Name) {
		labels.Insert(r.cfg.FileLabel(o))
	}
	if labels.Len() > 1 {
		return "", fmt.Errorf("multiple SELinux labels found: %s", strings.Join(sets.List(labels), ","))
	}
	label, _ := labels.PopAny()
	return label, nil
}

// asksForContext reports whether the driver mounts with a context and the pod wants that. It is done for volumes with a file system, as in a kubelet since 1.37, where
// the feature gate SELinuxMount is on.
func asksForContext(q *request) bool {
	d, c := q.Driver, q.Pod.Spec.SecurityContext
	if d == nil || d.Spec.SELinuxMount == nil || !*d.Spec.SELinuxMount || isBlock(q.PV) {
		return false
	}
	return c == nil || c.SELinuxChangePolicy == nil || *c.SELinuxChangePolicy != corev1.SELinuxChangePolicyRecursive
}

// seLinuxOptions lists the options of the containers that mount a volume. Those of a container replace those of the pod.
func seLinuxOptions(pod *corev1.Pod, volume string) []*corev1.SELinuxOptions {
	var all []*corev1.SELinuxOptions
	for _, c := range slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers) {
		if !slices.ContainsFunc(c.VolumeMounts, func(m corev1.VolumeMount) bool { return m.Name == volume }) {
			continue
		}
		switch {
		case c.SecurityContext != nil && c.SecurityContext.SELinuxOptions != nil:
			all = append(all, c.SecurityContext.SELinuxOptions)
		case pod.Spec.SecurityContext != nil && pod.Spec.SecurityContext.SELinuxOptions != nil:
			all = append(all, pod.Spec.SecurityContext.SELinuxOptions)
		}
	}
	return all
}
