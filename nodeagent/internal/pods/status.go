package pods

import (
	"encoding/json"
	"fmt"
	"hash/fnv"
	"net/netip"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

const (
	// exitUnknown is the kubelet's exit code of a container whose state is not known, and reasonUnknown the reason.
	exitUnknown   = 137
	reasonUnknown = "ContainerStatusUnknown"
	// exitTerminated is the exit code of a container that SIGTERM has ended, and reasonError the kubelet's reason.
	exitTerminated = 143
	reasonError    = "Error"

	reasonCompleted = "Completed"
)

// Running is the status of a pod whose volumes are all there. Times that the pod has already stay.
func Running(pod *corev1.Pod, hostIP string, now metav1.Time) corev1.PodStatus {
	s := corev1.PodStatus{
		Phase:              corev1.PodRunning,
		ObservedGeneration: pod.Generation,
		StartTime:          &now,
		HostIP:             hostIP,
		HostIPs:            []corev1.HostIP{{IP: hostIP}},
		PodIP:              podIP(pod, hostIP),
		PodIPs:             []corev1.PodIP{{IP: podIP(pod, hostIP)}},
	}
	if pod.Status.StartTime != nil {
		s.StartTime = pod.Status.StartTime
	}
	for i := range pod.Spec.InitContainers {
		c := &pod.Spec.InitContainers[i]
		if c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways {
			s.InitContainerStatuses = append(s.InitContainerStatuses, container(pod, c, runningState(now), true))
			continue
		}
		s.InitContainerStatuses = append(s.InitContainerStatuses, container(pod, c, terminated(0, reasonCompleted, now, now), true))
	}
	for i := range pod.Spec.Containers {
		s.ContainerStatuses = append(s.ContainerStatuses, container(pod, &pod.Spec.Containers[i], runningState(now), true))
	}
	s.Conditions = conditions(pod, corev1.ConditionTrue, "", now)
	return s
}

// Ended is the status of a deleted pod whose containers have ended. The deletion is no success: containers that were
// running were ended by SIGTERM, and the state of containers that never ran is not known.
func Ended(pod *corev1.Pod, now metav1.Time) corev1.PodStatus {
	if !started(pod) {
		return final(pod, corev1.PodFailed, exitUnknown, reasonUnknown, now)
	}
	return final(pod, corev1.PodFailed, exitTerminated, reasonError, now)
}

// Completed is the status of a running pod whose containers have ended by themselves, with success.
func Completed(pod *corev1.Pod, now metav1.Time) corev1.PodStatus {
	return final(pod, corev1.PodSucceeded, 0, reasonCompleted, now)
}

// final is the status of a pod whose containers have ended.
func final(pod *corev1.Pod, phase corev1.PodPhase, code int32, reason string, now metav1.Time) corev1.PodStatus {
	s, began := corev1.PodStatus{Phase: phase, ObservedGeneration: pod.Generation}, now
	if pod.Status.StartTime != nil {
		began = *pod.Status.StartTime
	}
	for i := range pod.Spec.Containers {
		s.ContainerStatuses = append(s.ContainerStatuses,
			container(pod, &pod.Spec.Containers[i], terminated(code, reason, began, now), false))
	}
	s.Conditions = conditions(pod, corev1.ConditionFalse, "PodCompleted", now)
	return s
}

// Rejected is the status of a pod that the node does not run.
func Rejected(pod *corev1.Pod, reason, message string, now metav1.Time) corev1.PodStatus {
	s := corev1.PodStatus{
		Phase: corev1.PodFailed, ObservedGeneration: pod.Generation, StartTime: &now,
		Reason: reason, Message: "Pod was rejected: " + message,
	}
	if pod.Status.StartTime != nil {
		s.StartTime = pod.Status.StartTime
	}
	return s
}

// Patch is a strategic merge patch for the status subresource. It applies only to the pod of that
// UID, not to a later one of the same name.
func Patch(uid types.UID, s corev1.PodStatus) ([]byte, error) {
	data, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": uid}, "status": s})
	if err != nil {
		return nil, fmt.Errorf("encode status of pod %q: %w", uid, err)
	}
	return data, nil
}

func container(pod *corev1.Pod, c *corev1.Container, state corev1.ContainerState, ready bool) corev1.ContainerStatus {
	isStarted := state.Running != nil
	return corev1.ContainerStatus{
		Name: c.Name, Image: c.Image, ImageID: "none://" + c.Image,
		ContainerID: fmt.Sprintf("none://%s/%s", pod.UID, c.Name),
		State:       state, Ready: ready, Started: &isStarted,
	}
}

func runningState(now metav1.Time) corev1.ContainerState {
	return corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: now}}
}

func terminated(code int32, reason string, began, now metav1.Time) corev1.ContainerState {
	return corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{
		ExitCode: code, Reason: reason, StartedAt: began, FinishedAt: now,
	}}
}

// conditions sets the conditions that a kubelet owns. What does not change keeps its time.
func conditions(pod *corev1.Pod, ready corev1.ConditionStatus, reason string, now metav1.Time) []corev1.PodCondition {
	all := []corev1.PodCondition{
		{Type: corev1.PodReadyToStartContainers, Status: ready},
		{Type: corev1.PodInitialized, Status: corev1.ConditionTrue},
		{Type: corev1.ContainersReady, Status: ready, Reason: reason},
		{Type: corev1.PodReady, Status: ready, Reason: reason},
	}
	for i := range all {
		all[i].LastTransitionTime, all[i].ObservedGeneration = now, pod.Generation
		for _, old := range pod.Status.Conditions {
			if old.Type == all[i].Type && old.Status == all[i].Status {
				all[i].LastTransitionTime = old.LastTransitionTime
			}
		}
	}
	return all
}

// podIP makes up an address: the host's for a pod on the host network, otherwise one of the
// network that is set aside for benchmarks (RFC 2544), always the same for the same pod.
func podIP(pod *corev1.Pod, hostIP string) string {
	if pod.Spec.HostNetwork {
		return hostIP
	}
	if pod.Status.PodIP != "" {
		return pod.Status.PodIP
	}
	h := fnv.New32a()
	_, _ = h.Write([]byte(pod.UID))
	n := h.Sum32()
	return netip.AddrFrom4([4]byte{198, 18 + byte(n>>16)&1, byte(n >> 8), byte(n)}).String()
}
