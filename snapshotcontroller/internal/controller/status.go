package controller

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/ptr"

	"github.com/longshore-csi/longshore/csikit/kube"
	"github.com/longshore-csi/longshore/csikit/snapshotapi"
)

// maxMessage is how much of an error the status has.
const maxMessage = 1024

// copiedStatus is the status of an owner that is bound to a content. What the driver reports of time and size stays as it was first reported;
// 0 is none.
func (v view) copiedStatus() *status {
	now, from := v.owner.copyStatus(), v.content.status
	if from == nil {
		from = &contentStatus{}
	}
	now.Bound, now.Ready = v.content.GetName(), new(from.ready)
	if !from.created.IsZero() && isUnknown(now.Created) {
		now.Created = seconds(from.created)
	}
	if size := from.size; size != nil && (now.Size == nil || now.Size.IsZero()) {
		now.Size = resource.NewQuantity(*size, resource.BinarySI)
	}
	if v.group != nil {
		now.Group = &v.group.name
	}
	now.Error = copiedError(now.Error, from.err)
	return now
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
	return kube.Cut(*err.Message, maxMessage)
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
func (v view) statusEvents(now *status) []event {
	var events []event
	o, from := v.owner, v.content.status
	ready := ptr.Deref(now.Ready, false)
	if o.bound() == "" && from == nil && len(v.content.volumes) > 0 {
		events = append(events, event{reason: ReasonCreating, message: fmt.Sprintf("Waiting for a %s %s to be created by the CSI driver.", v.what, keyOf(o))})
	}
	if now.isCreated() && !o.status.isCreated() && !ready {
		events = append(events, event{reason: ReasonCreated, message: fmt.Sprintf("%s %s was successfully created by the CSI driver.", v.What, keyOf(o))})
	}
	if ready && !o.isReady() && o.status != nil {
		events = append(events, event{reason: ReasonReady, message: fmt.Sprintf("%s %s is ready to use.", v.What, keyOf(o))})
	}
	if from != nil && from.err != nil {
		events = append(events, event{true, ReasonCreationFailed, messageOf(now.Error)})
	}
	return events
}

// planStatus writes a status if it differs from what the owner has.
func planStatus(o *owner, now *status) plan {
	if equality.Semantic.DeepEqual(o.status, now) {
		return plan{verdict: doNothing}
	}
	return plan{verdict: doStatus, status: now}
}

// fields are those of a status in the API.
func (k *kind) fields(s *status) map[string]any {
	fields := map[string]any{}
	if s == nil {
		return fields
	}
	if s.Bound != "" {
		fields[k.boundField] = s.Bound
	}
	if s.Ready != nil {
		fields["readyToUse"] = *s.Ready
	}
	if s.Created != nil {
		fields["creationTime"] = s.Created
	}
	if s.Size != nil {
		fields["restoreSize"] = s.Size
	}
	if s.Error != nil {
		fields["error"] = s.Error
	}
	if s.Group != nil {
		fields["volumeGroupSnapshotName"] = *s.Group
	}
	return fields
}

// statusPatch is a merge patch that makes one status of another, for the object that was read.
func statusPatch(obj metav1.Object, from, to map[string]any) ([]byte, error) {
	changes := map[string]any{}
	for name, value := range to {
		if !equality.Semantic.DeepEqual(from[name], value) {
			changes[name] = value
		}
	}
	for name := range from {
		if _, ok := to[name]; !ok {
			changes[name] = nil
		}
	}
	return json.Marshal(map[string]any{"metadata": asRead(obj), "status": changes})
}

// asRead is the part of a patch's metadata that makes it a conflict for an object that has changed since.
func asRead(obj metav1.Object) map[string]any {
	return map[string]any{"uid": obj.GetUID(), "resourceVersion": obj.GetResourceVersion()}
}

// keyOf returns namespace/name.
func keyOf(obj metav1.Object) string { return obj.GetNamespace() + "/" + obj.GetName() }

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
func ownerGroup(obj metav1.Object) *groupRef {
	for _, owner := range obj.GetOwnerReferences() {
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
