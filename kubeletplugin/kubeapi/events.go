package kubeapi

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/longshore-csi/longshore/csikit/events"
	"github.com/longshore-csi/longshore/kubeletplugin/volume"
)

// Events sends events on pods and their claims.
type Events struct {
	// Recorder sends the events.
	Recorder events.Recorder
}

var _ volume.Events = Events{}

// Failed implements volume.Events.
func (e Events) Failed(pod volume.Pod, reason, message string) {
	if pod.Name == "" {
		return // found on disk; its name is no longer known
	}
	e.Recorder.Warning(podObject(pod), reason, message)
}

// Mapped implements volume.Events.
func (e Events) Mapped(pod volume.Pod, message string) {
	e.Recorder.Normal(podObject(pod), volume.ReasonMapped, message)
}

// Expansion implements volume.Events.
func (e Events) Expansion(pod volume.Pod, claim volume.Claim, reason, message string) {
	send := e.Recorder.Warning
	if reason == volume.ReasonExpanded {
		send = e.Recorder.Normal
	}
	send(podObject(pod), reason, message)
	send(&corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{
		Namespace: claim.Namespace, Name: claim.Name, UID: claim.UID,
	}}, reason, message)
}

// Condition implements volume.Events.
func (e Events) Condition(pod volume.Pod, reason, message string) {
	send := e.Recorder.Warning
	if reason == volume.ReasonNormal {
		send = e.Recorder.Normal
	}
	send(podObject(pod), reason, message)
}

func podObject(pod volume.Pod) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID}}
}
