package events

import (
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
)

const (
	// maxMessage is the API's limit on the bytes of a message.
	maxMessage = 1024
	ellipsis   = "..."
	// maxNameBase leaves space for the suffix within the 253 characters of a name.
	maxNameBase = 236
)

// identity is what makes two events the same.
type identity struct {
	ref                        objectKey
	eventType, reason, message string
}

type objectKey struct {
	kind, namespace, name string
	uid                   types.UID
}

// memory is the history of an event.
type memory struct {
	first, last time.Time // when it was first seen, and last written
	count       int32     // how often it was seen
}

func identify(ref corev1.ObjectReference, eventType, reason, message string) identity {
	object := objectKey{kind: ref.Kind, namespace: ref.Namespace, name: ref.Name, uid: ref.UID}
	return identity{ref: object, eventType: eventType, reason: reason, message: message}
}

// rememberLocked counts an event; it returns nil for a repetition that must not be written.
func (a *Async) rememberLocked(id identity, now time.Time) *memory {
	if m, ok := a.memory[id]; ok {
		m.count++
		if now.Sub(m.last) < a.cfg.Repeat {
			return nil
		}
		m.last = now
		return m
	}
	if len(a.memory) >= maxMemory {
		a.forgetLocked(now)
	}
	m := &memory{first: now, last: now, count: 1}
	a.memory[id] = m
	return m
}

// forgetLocked removes an eighth of the entries, as it reads all of them: first the old ones, then any
// others. The worst consequence is one repetition of each.
func (a *Async) forgetLocked(now time.Time) {
	for id, m := range a.memory {
		if now.Sub(m.last) >= a.cfg.Repeat {
			delete(a.memory, id)
		}
	}
	for id := range a.memory {
		if len(a.memory) <= maxMemory-maxMemory/8 {
			return
		}
		delete(a.memory, id)
	}
}

// build makes the event.
func build(cfg Config, ref corev1.ObjectReference, eventType, reason, message string, m memory, now time.Time, serial uint64) *corev1.Event {
	namespace := ref.Namespace
	if namespace == "" {
		namespace = metav1.NamespaceDefault // where the API wants events about objects without a namespace
	}
	base := ref.Name[:min(len(ref.Name), maxNameBase)]
	return &corev1.Event{
		ObjectMeta:          metav1.ObjectMeta{Namespace: namespace, Name: fmt.Sprintf("%s.%016x", base, serial)},
		InvolvedObject:      ref,
		Type:                eventType,
		Reason:              reason,
		Message:             message,
		FirstTimestamp:      metav1.NewTime(m.first),
		LastTimestamp:       metav1.NewTime(now),
		Count:               m.count,
		Source:              corev1.EventSource{Component: cfg.Component, Host: cfg.Host},
		ReportingController: cfg.Component,
		ReportingInstance:   cfg.Host,
	}
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
