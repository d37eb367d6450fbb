package events

import (
	"encoding/json"
	"fmt"
	"strings"
	"unicode/utf8"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

const (
	// maxMessage is the API's limit on the bytes of a message.
	maxMessage = 1024
	ellipsis   = "..."
	// maxNameBase leaves space for the suffix within the 253 characters of a name.
	maxNameBase = 236
)

// build makes an Event object.
func (a *Async) build(w *write) *corev1.Event {
	base := w.ref.Name[:min(len(w.ref.Name), maxNameBase)]
	return &corev1.Event{
		ObjectMeta:          metav1.ObjectMeta{Namespace: w.namespace(), Name: fmt.Sprintf("%s.%016x", base, a.serial.Add(1))},
		InvolvedObject:      w.ref,
		Type:                w.key.eventType,
		Reason:              w.key.reason,
		Message:             w.message,
		FirstTimestamp:      metav1.NewTime(w.first),
		LastTimestamp:       metav1.NewTime(w.last),
		Count:               w.count,
		Source:              corev1.EventSource{Component: a.cfg.Component, Host: a.cfg.Host},
		ReportingController: a.cfg.Component,
		ReportingInstance:   a.cfg.Host,
	}
}

// change is what a repetition changes in the Event object.
func (w *write) change() ([]byte, error) {
	return json.Marshal(map[string]any{"count": w.count, "lastTimestamp": metav1.NewTime(w.last), "message": w.message})
}

// namespace is where the API wants the event.
func (w *write) namespace() string {
	if w.ref.Namespace == "" {
		return metav1.NamespaceDefault
	}
	return w.ref.Namespace
}

// reference names the object; objects of kinds that the scheme does not have must carry their kind.
func reference(scheme *runtime.Scheme, obj runtime.Object) (corev1.ObjectReference, bool) {
	if ref, ok := obj.(*corev1.ObjectReference); ok {
		if ref == nil {
			return corev1.ObjectReference{}, false
		}
		return *ref, ref.Name != ""
	}
	accessor, err := meta.Accessor(obj)
	if err != nil || accessor.GetName() == "" {
		return corev1.ObjectReference{}, false
	}
	gvk := obj.GetObjectKind().GroupVersionKind()
	if known, _, err := scheme.ObjectKinds(obj); err == nil && gvk.Kind == "" {
		gvk = known[0]
	}
	version, kind := gvk.ToAPIVersionAndKind()
	return corev1.ObjectReference{
		Kind:            kind,
		APIVersion:      version,
		Namespace:       accessor.GetNamespace(),
		Name:            accessor.GetName(),
		UID:             accessor.GetUID(),
		ResourceVersion: accessor.GetResourceVersion(),
	}, true
}

// cut limits a message to what the API takes, at the border of a character, and makes
// it valid UTF-8.
func cut(message string) string {
	message = strings.ToValidUTF8(message, "\uFFFD")
	if len(message) <= maxMessage {
		return message
	}
	end := maxMessage - len(ellipsis)
	for !utf8.RuneStart(message[end]) {
		end--
	}
	return message[:end] + ellipsis
}
