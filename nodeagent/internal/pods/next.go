package pods

import corev1 "k8s.io/api/core/v1"

// goal is what is to be done for a pod.
type goal int

const (
	// goalRun publishes the volumes and reports the pod as running.
	goalRun goal = iota
	// goalRelease unpublishes the volumes of a pod that has ended but stays in the API.
	goalRelease
	// goalTerminate ends the containers, unpublishes the volumes and deletes the pod.
	goalTerminate
	// goalForget unpublishes the volumes of a pod that is not in the API any more.
	goalForget
)

// next decides what to do for a pod; gone is true if it was deleted from the API, finished if the API has taken a final status from this agent.
func next(pod *corev1.Pod, gone, finished bool) goal {
	switch {
	case gone:
		return goalForget
	case pod.DeletionTimestamp != nil:
		return goalTerminate
	case ended(pod) || finished:
		return goalRelease
	default:
		return goalRun
	}
}

// ended reports whether the pod has reached a final phase.
func ended(pod *corev1.Pod) bool {
	return pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
}

// started reports whether the pod was reported as running.
func started(pod *corev1.Pod) bool {
	return pod.Status.Phase == corev1.PodRunning && len(pod.Status.ContainerStatuses) == len(pod.Spec.Containers)
}
