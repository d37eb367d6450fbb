package controller

import (
	"strings"
	"testing"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/longshore-csi/longshore/csikit/snapshotapi"
)

// testView is a snapshot of a claim that is bound, with its class; change makes another case of it.
func testView(change func(v *view)) view {
	csi := &corev1.CSIPersistentVolumeSource{Driver: "d", VolumeHandle: "vol"}
	v := view{
		snapshot: &snapshotv1.VolumeSnapshot{
			ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "s", UID: "1"},
			Spec:       snapshotv1.VolumeSnapshotSpec{Source: snapshotv1.VolumeSnapshotSource{PersistentVolumeClaimName: new("c")}, VolumeSnapshotClassName: new("fast")},
		},
		class: &snapshotv1.VolumeSnapshotClass{ObjectMeta: metav1.ObjectMeta{Name: "fast"}, Driver: "d", DeletionPolicy: "Delete"},
		claim: &corev1.PersistentVolumeClaim{
			ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "c", UID: "2"}, Spec: corev1.PersistentVolumeClaimSpec{VolumeName: "pv"},
			Status: corev1.PersistentVolumeClaimStatus{Phase: corev1.ClaimBound},
		},
		volume: &corev1.PersistentVolume{
			ObjectMeta: metav1.ObjectMeta{Name: "pv"},
			Spec: corev1.PersistentVolumeSpec{
				ClaimRef: &corev1.ObjectReference{Namespace: "ns", Name: "c", UID: "2"}, PersistentVolumeSource: corev1.PersistentVolumeSource{CSI: csi},
			},
		},
		groupKnown: true,
	}
	change(&v)
	return v
}

// bind gives the snapshot its finalizers and a content.
func bind(v *view) {
	v.snapshot.Finalizers = []string{snapshotapi.FinalizerAsSource, snapshotapi.FinalizerBound}
	v.content = &snapshotv1.VolumeSnapshotContent{
		ObjectMeta: metav1.ObjectMeta{Name: snapshotapi.ContentName("1"), UID: "3", Finalizers: []string{snapshotapi.FinalizerContent}},
		Spec: snapshotv1.VolumeSnapshotContentSpec{
			Driver: "d", DeletionPolicy: "Delete", Source: snapshotv1.VolumeSnapshotContentSource{VolumeHandle: new("vol")},
			VolumeSnapshotRef: corev1.ObjectReference{Namespace: "ns", Name: "s", UID: "1"},
		},
	}
	v.snapshot.Status = copiedStatus(v.snapshot, v.content, nil)
}

// remove deletes the snapshot of the view.
func remove(v *view) {
	bind(v)
	v.snapshot.DeletionTimestamp = new(metav1.Now())
}

func TestPlanSnapshot(t *testing.T) {
	tests := map[string]struct {
		reason string
		change func(v *view)
		want   verdict
		event  string // reason of the last event, and a part of its message
		part   string
	}{
		"Finalizers": {"they come before the content", func(*view) {}, doPatch, "", ""},
		"Create": {"claim and content are next", func(v *view) {
			v.snapshot.Finalizers = []string{snapshotapi.FinalizerAsSource, snapshotapi.FinalizerBound}
		}, doCreate, "", ""},
		"Grace":   {"most drivers are quick: one write of the status is enough", func(v *view) { bind(v); v.snapshot.Status = nil; v.grace = 1 }, doNothing, "", ""},
		"Waiting": {"this driver is not", func(v *view) { bind(v); v.snapshot.Status = nil }, doStatus, ReasonCreating, "ns/s"},
		"AtOnce": {"the driver was quick: nobody has waited", func(v *view) {
			bind(v)
			v.snapshot.Status, v.grace = nil, 1
			v.content.Status = &snapshotv1.VolumeSnapshotContentStatus{SnapshotHandle: new("h"), CreationTime: new(int64(1)), ReadyToUse: new(true)}
		}, doStatus, "", ""},
		"Ready": {"the status has said that it is not", func(v *view) {
			bind(v)
			v.content.Status = &snapshotv1.VolumeSnapshotContentStatus{SnapshotHandle: new("h"), CreationTime: new(int64(1)), ReadyToUse: new(true)}
		}, doStatus, ReasonReady, "ns/s"},
		"Created": {"it has been taken, and is not ready", func(v *view) {
			bind(v)
			v.content.Status = &snapshotv1.VolumeSnapshotContentStatus{SnapshotHandle: new("h"), CreationTime: new(int64(1e9)), ReadyToUse: new(false)}
		}, doStatus, ReasonCreated, "ns/s"},
		"NoSource": {"nothing is asked for", func(v *view) { v.snapshot.Spec.Source = snapshotv1.VolumeSnapshotSource{} }, doStatus, ReasonValidation, "exactly one"},
		"NoClaim":  {"it may come", func(v *view) { v.claim = nil }, doStatus, ReasonClaimMissing, "ns/c"},
		"ClaimIsDeleted": {"a finalizer cannot be added any more", func(v *view) { v.claim.DeletionTimestamp = new(metav1.Now()) }, doStatus,
			ReasonContentCreationFailed, "being deleted"},
		"OtherClaim": {"the volume is that of a claim of the same name", func(v *view) { v.volume.Spec.ClaimRef.UID = "9" }, doStatus, ReasonContentCreationFailed, "not bound"},
		"NoClass":    {"it may come", func(v *view) { v.class = nil }, doStatus, ReasonClassFailed, `"fast"`},
		"S24":        {"the driver of the class cannot know the volume", func(v *view) { v.class.Driver = "e" }, doStatus, ReasonValidation, `driver "e"`},
		"S14":        {"the class is needed until the content exists", func(v *view) { bind(v); v.class = nil }, doNothing, "", ""},
		"Lost":       {"no content is made in place of one that was deleted", func(v *view) { bind(v); v.content = nil }, doStatus, ReasonContentMissing, "was deleted"},
		"S2":         {"an older controller has created the content", func(v *view) { bind(v); v.content.Finalizers = nil }, doPatchContent, "", ""},
		"S17": {"a content of that name refers to another snapshot", func(v *view) { bind(v); v.snapshot.Status = nil; v.content.Spec.VolumeSnapshotRef.UID = "9" },
			doStatus, ReasonContentMisbound, "uid 9"},
		"S28Error": {"an error may have no message", func(v *view) {
			bind(v)
			v.content.Status = &snapshotv1.VolumeSnapshotContentStatus{Error: &snapshotv1.VolumeSnapshotError{}}
		}, doStatus, ReasonCreationFailed, "unknown error"},
		"S25Epoch": {"0 is no time", func(v *view) {
			bind(v)
			v.content.Status = &snapshotv1.VolumeSnapshotContentStatus{CreationTime: new(int64(0))}
		}, doNothing, "", ""},
		"Mark":         {"the mark comes first", remove, doMark, "", ""},
		"Delete":       {"then the deletion", func(v *view) { remove(v); mark(v) }, doDelete, "", ""},
		"Deleted":      {"then the content is awaited", func(v *view) { remove(v); mark(v); v.contentDeleted = true }, doNothing, "", ""},
		"Verify":       {"a content that is not in the cache may exist", func(v *view) { remove(v); v.content = nil }, doVerify, "", ""},
		"Release":      {"the content is gone", func(v *view) { remove(v); v.content, v.contentGone = nil, true }, doPatch, "", ""},
		"Retain":       {"the content stays", func(v *view) { remove(v); mark(v); v.content.Spec.DeletionPolicy = "Retain" }, doPatch, "", ""},
		"Restoring":    {"a restore reads it", func(v *view) { remove(v); v.restoring = "ns/r" }, doNothing, ReasonDeletePending, "ns/r"},
		"Member":       {"it is deleted with its group", func(v *view) { remove(v); v.group, v.groupExists = &groupRef{"g", "8"}, true }, doStatus, ReasonDeletePending, `"g"`},
		"GroupUnknown": {"nobody knows whether the group exists", func(v *view) { remove(v); v.group, v.groupKnown = &groupRef{"g", "8"}, false }, doNothing, "", ""},
		"S8": {"the driver may still be taking it", func(v *view) {
			remove(v)
			mark(v)
			v.contentDeleted = true
			metav1.SetMetaDataAnnotation(&v.content.ObjectMeta, snapshotapi.AnnBeingCreated, "yes")
			v.content.Status = &snapshotv1.VolumeSnapshotContentStatus{Error: &snapshotv1.VolumeSnapshotError{Message: new("quota")}}
		}, doStatus, ReasonDeleteError, "is deleted when the driver has answered"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			p := planSnapshot(testView(tt.change))
			var last event
			if len(p.events) > 0 {
				last = p.events[len(p.events)-1]
			}
			if p.verdict != tt.want || last.reason != tt.event || !strings.Contains(last.message, tt.part) {
				t.Errorf("%s: got %s, event %+v; want %s, %s, %q", tt.reason, p.verdict, last, tt.want, tt.event, tt.part)
			}
		})
	}
}

func mark(v *view) {
	metav1.SetMetaDataAnnotation(&v.content.ObjectMeta, snapshotapi.AnnBeingDeleted, "yes")
}

func TestIsOpen(t *testing.T) {
	failed := &snapshotv1.VolumeSnapshotContentStatus{Error: &snapshotv1.VolumeSnapshotError{}}
	tests := map[string]struct {
		reason   string
		change   func(content *snapshotv1.VolumeSnapshotContent)
		deleting bool // the claim
		want     bool
	}{
		"New": {"the driver will be asked", func(*snapshotv1.VolumeSnapshotContent) {}, true, true},
		"Taken": {"the outcome is known", func(c *snapshotv1.VolumeSnapshotContent) {
			c.Status = &snapshotv1.VolumeSnapshotContentStatus{SnapshotHandle: new("x")}
		}, false, false},
		"Refused":      {"it is tried again", func(c *snapshotv1.VolumeSnapshotContent) { c.Status = failed }, false, true},
		"RefusedClaim": {"a claim is not held by what fails", func(c *snapshotv1.VolumeSnapshotContent) { c.Status = failed }, true, false},
		"Uncertain": {"the driver may be taking it", func(c *snapshotv1.VolumeSnapshotContent) {
			c.Status = failed
			metav1.SetMetaDataAnnotation(&c.ObjectMeta, snapshotapi.AnnBeingCreated, "yes")
		}, true, true},
		"Member": {"the group counts", func(c *snapshotv1.VolumeSnapshotContent) {
			metav1.SetMetaDataAnnotation(&c.ObjectMeta, snapshotapi.AnnVolumeGroupSnapshotHandle, "g")
		}, false, false},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			content := testView(bind).content
			tt.change(content)
			if got := isOpen(content, tt.deleting); got != tt.want {
				t.Errorf("%s: got %v", tt.reason, got)
			}
		})
	}
}

func TestCause(t *testing.T) {
	const a, b = `rpc error: code = Internal desc = volume "v1" busy, request 7f3a`, `rpc error: code = Internal desc = volume "v1" busy, request 8b21`
	if cause(a) != cause(b) {
		t.Error("an ID is no other cause")
	}
	if cause(a) == cause(strings.Replace(a, "v1", "v2", 1)) {
		t.Error("another volume is another cause")
	}
}
