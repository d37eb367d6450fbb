package controller

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/ptr"

	"github.com/longshore-csi/longshore/csikit/snapshotapi"
)

// maxMessage is how much of an error the status has.
const maxMessage = 1024

// statusOf returns a copy of the status.
func statusOf(s *snapshotv1.VolumeSnapshot) *snapshotv1.VolumeSnapshotStatus {
	if s.Status == nil {
		return &snapshotv1.VolumeSnapshotStatus{}
	}
	return s.Status.DeepCopy()
}

// copiedStatus is the status of a snapshot that is bound to a content. What the driver reports of time and size stays as it was first reported;
// 0 is none.
func copiedStatus(s *snapshotv1.VolumeSnapshot, content *snapshotv1.VolumeSnapshotContent, group *groupRef) *snapshotv1.VolumeSnapshotStatus {
	status, from := statusOf(s), content.Status
	if from == nil {
		from = &snapshotv1.VolumeSnapshotContentStatus{}
	}
	status.BoundVolumeSnapshotContentName = &content.Name
	status.ReadyToUse = new(ptr.Deref(from.ReadyToUse, false))
	if ns := ptr.Deref(from.CreationTime, 0); ns != 0 && isUnknown(status.CreationTime) {
		status.CreationTime = seconds(time.Unix(0, ns))
	}
	if size := from.RestoreSize; size != nil && (status.RestoreSize == nil || status.RestoreSize.IsZero()) {
		status.RestoreSize = resource.NewQuantity(*size, resource.BinarySI)
	}
	if group != nil {
		status.VolumeGroupSnapshotName = &group.name
	}
	status.Error = copiedError(status.Error, from.Error)
	return status
}

// isUnknown reports whether a time is none, which some versions wrote as the beginning of 1970.
func isUnknown(t *metav1.Time) bool { return t == nil || t.Unix() == 0 }

// seconds is a time with the precision of the API.
func seconds(t time.Time) *metav1.Time { return new(metav1.NewTime(t.Truncate(time.Second))) }

// copiedError returns the error of a status after another one was reported, the old one if the cause is the same: drivers put request IDs
// into their messages, and a write per retry would help nobody.
func copiedError(old, reported *snapshotv1.VolumeSnapshotError) *snapshotv1.VolumeSnapshotError {
	switch {
	case reported == nil:
		return nil
	case old != nil && cause(messageOf(old)) == cause(messageOf(reported)):
		return old
	}
	message := messageOf(reported)
	return &snapshotv1.VolumeSnapshotError{Message: &message, Time: new(metav1.Now())}
}

// messageOf returns the text of an error, which may have none.
func messageOf(err *snapshotv1.VolumeSnapshotError) string {
	if err == nil || err.Message == nil {
		return "unknown error"
	}
	return cut(*err.Message)
}

// cut limits a text to what a status is to have, at the border of a character.
func cut(text string) string {
	text = strings.ToValidUTF8(text, "\uFFFD")
	if len(text) <= maxMessage {
		return text
	}
	end := maxMessage - len("...")
	for !utf8.RuneStart(text[end]) {
		end--
	}
	return text[:end] + "..."
}

// cause is a message without the words that have a digit: addresses, identities of requests, durations. What is quoted is kept, as
// it is the name of an object.
func cause(message string) string {
	words := strings.Fields(message)
	return strings.Join(slices.DeleteFunc(words, func(word string) bool {
		return strings.ContainsFunc(word, unicode.IsDigit) && !strings.ContainsAny(word, `"'`)
	}), " ")
}

// statusEvents are the events about what the content reports. There is none about a snapshot whose first status says that it is ready:
// nobody has waited for it.
func statusEvents(s *snapshotv1.VolumeSnapshot, content *snapshotv1.VolumeSnapshotContent, now *snapshotv1.VolumeSnapshotStatus) []event {
	var events []event
	was := statusOf(s)
	ready, wasReady := ptr.Deref(now.ReadyToUse, false), ptr.Deref(was.ReadyToUse, false)
	if boundName(s) == "" && content.Status == nil && content.Spec.Source.VolumeHandle != nil {
		events = append(events, event{reason: ReasonCreating, message: fmt.Sprintf("Waiting for a snapshot %s to be created by the CSI driver.", keyOf(s))})
	}
	if isCreated(now) && !isCreated(was) && !ready {
		events = append(events, event{reason: ReasonCreated, message: fmt.Sprintf("Snapshot %s was successfully created by the CSI driver.", keyOf(s))})
	}
	if ready && !wasReady && s.Status != nil {
		events = append(events, event{reason: ReasonReady, message: fmt.Sprintf("Snapshot %s is ready to use.", keyOf(s))})
	}
	if content.Status != nil && content.Status.Error != nil {
		events = append(events, event{true, ReasonCreationFailed, messageOf(now.Error)})
	}
	return events
}

// isCreated reports whether the driver has taken the snapshot.
func isCreated(status *snapshotv1.VolumeSnapshotStatus) bool {
	return status != nil && (!isUnknown(status.CreationTime) || ptr.Deref(status.ReadyToUse, false))
}

// planStatus writes a status if it differs from what the snapshot has.
func planStatus(s *snapshotv1.VolumeSnapshot, status *snapshotv1.VolumeSnapshotStatus) plan {
	if equality.Semantic.DeepEqual(s.Status, status) {
		return plan{verdict: doNothing}
	}
	return plan{verdict: doStatus, status: status}
}

// statusPatch is a merge patch that makes one status of another, for the object that was read.
func statusPatch(obj metav1.Object, before, after any) ([]byte, error) {
	from, err := fields(before)
	if err != nil {
		return nil, err
	}
	to, err := fields(after)
	if err != nil {
		return nil, err
	}
	status := map[string]any{}
	for name, value := range to {
		if !equality.Semantic.DeepEqual(from[name], value) {
			status[name] = value
		}
	}
	for name := range from {
		if _, ok := to[name]; !ok {
			status[name] = nil
		}
	}
	return json.Marshal(map[string]any{"metadata": asRead(obj), "status": status})
}

func fields(status any) (map[string]any, error) {
	data, err := json.Marshal(status)
	if err != nil {
		return nil, err
	}
	var fields map[string]any
	return fields, json.Unmarshal(data, &fields)
}

// asRead is the part of a patch's metadata that makes it a conflict for an object that has changed since.
func asRead(obj metav1.Object) map[string]any {
	return map[string]any{"uid": obj.GetUID(), "resourceVersion": obj.GetResourceVersion()}
}

// keyOf returns namespace/name.
func keyOf(obj metav1.Object) string { return obj.GetNamespace() + "/" + obj.GetName() }

// boundName returns the name of the content that the snapshot is bound to, or nothing.
func boundName(s *snapshotv1.VolumeSnapshot) string {
	if s.Status == nil {
		return ""
	}
	return ptr.Deref(s.Status.BoundVolumeSnapshotContentName, "")
}

// refersTo reports whether a reference is to this very snapshot, or group snapshot.
func refersTo(ref corev1.ObjectReference, obj metav1.Object) bool {
	return ref.Namespace == obj.GetNamespace() && ref.Name == obj.GetName() && ref.UID == obj.GetUID()
}

func refText(ref corev1.ObjectReference) string {
	if ref.UID == "" {
		return fmt.Sprintf("%s/%s", ref.Namespace, ref.Name)
	}
	return fmt.Sprintf("%s/%s with uid %s", ref.Namespace, ref.Name, ref.UID)
}

// ownerGroup returns the group snapshot that owns a snapshot, nil for none. The version in the reference is that in which somebody wrote it,
// and identifies nothing.
func ownerGroup(s *snapshotv1.VolumeSnapshot) *groupRef {
	for _, owner := range s.OwnerReferences {
		gv, err := schema.ParseGroupVersion(owner.APIVersion)
		if err == nil && gv.Group == snapshotapi.GroupSnapshotGroup && owner.Kind == snapshotapi.KindVolumeGroupSnapshot {
			return &groupRef{owner.Name, owner.UID}
		}
	}
	return nil
}

// groupOwner returns the reference from a member to its group snapshot, in the version that is served: the garbage collector looks up no other.
func groupOwner(group groupRef, version string) metav1.OwnerReference {
	return metav1.OwnerReference{
		APIVersion: schema.GroupVersion{Group: snapshotapi.GroupSnapshotGroup, Version: version}.String(), Kind: snapshotapi.KindVolumeGroupSnapshot, Name: group.name, UID: group.uid,
	}
}

// withAll returns a list with all of the elements.
func withAll(list []string, elements ...string) []string {
	list = slices.Clone(list)
	for _, e := range elements {
		if !slices.Contains(list, e) {
			list = append(list, e)
		}
	}
	return list
}

// without returns a list with none of the elements.
func without(list []string, elements ...string) []string {
	return slices.DeleteFunc(slices.Clone(list), func(e string) bool { return slices.Contains(elements, e) })
}
