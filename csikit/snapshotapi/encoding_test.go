package snapshotapi

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	groupv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumegroupsnapshot/v1"
	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/longshore-csi/longshore/csikit/kube"
)

// roundTrip encodes and decodes an object.
func roundTrip[T kube.Object](t *testing.T, obj, empty T) (encoded int) {
	t.Helper()
	encoding := Encoding[T]()
	want := obj.DeepCopyObject()
	data, err := encoding.Encode(obj)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, any(obj)); diff != "" {
		t.Errorf("Encode has changed the object:\n%s", diff)
	}
	if err := encoding.Decode(data, empty); err != nil {
		t.Fatalf("%q: %v", data, err)
	}
	empty.SetNamespace(obj.GetNamespace())
	empty.SetName(obj.GetName())
	if diff := cmp.Diff(any(obj), any(empty)); diff != "" {
		t.Errorf("%q (-want +got):\n%s", data, diff)
	}
	return len(data)
}

// TestEncoding encodes objects of all kinds, those with odd texts among them.
func TestEncoding(t *testing.T) {
	t.Parallel()
	if words := commonWords(); len(words) > 31 {
		t.Fatalf("%d words have no code of one control character", len(words))
	}
	at := new(metav1.NewTime(time.Unix(1700000000, 0)))
	meta := metav1.ObjectMeta{
		Namespace: "team", Name: "monday", UID: "3f2504e0-4f89-11d3-9a0c-0305e82c3301", ResourceVersion: "12345678",
		Finalizers: []string{FinalizerAsSource, FinalizerBound}, Labels: map[string]string{LabelManagedBy: "n"},
		OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "VolumeGroupSnapshot", Name: "g", UID: "u"}},
	}
	odd := "\x01\x02 \"quoted\" <&> \u2028 \\ \x1f é"
	failed := &snapshotv1.VolumeSnapshotError{Message: &odd, Time: at}
	snapshot := &snapshotv1.VolumeSnapshot{
		ObjectMeta: meta, Spec: snapshotv1.VolumeSnapshotSpec{Source: snapshotv1.VolumeSnapshotSource{PersistentVolumeClaimName: new("data")}, VolumeSnapshotClassName: new("fast")},
		Status: &snapshotv1.VolumeSnapshotStatus{
			BoundVolumeSnapshotContentName: new("snapcontent-1"), CreationTime: at, ReadyToUse: new(true), RestoreSize: new(resource.MustParse("1Gi")),
		},
	}
	if n := roundTrip(t, snapshot, &snapshotv1.VolumeSnapshot{}); n > 320 {
		t.Errorf("a snapshot has %d bytes", n)
	}
	snapshot.Status.Error, snapshot.Annotations = failed, map[string]string{odd: strings.Repeat(odd, 3)}
	roundTrip(t, snapshot, &snapshotv1.VolumeSnapshot{})
	meta.Namespace = ""
	roundTrip(t, &snapshotv1.VolumeSnapshotContent{
		ObjectMeta: meta, Spec: snapshotv1.VolumeSnapshotContentSpec{
			VolumeSnapshotRef: corev1.ObjectReference{Namespace: "ns", Name: "s", UID: "u"}, DeletionPolicy: "Delete", Driver: "d", VolumeSnapshotClassName: new("fast"),
			Source: snapshotv1.VolumeSnapshotContentSource{VolumeHandle: new("vol")},
		},
		Status: &snapshotv1.VolumeSnapshotContentStatus{SnapshotHandle: new("h"), CreationTime: new(int64(1700000000123456789)), RestoreSize: new(int64(0)), ReadyToUse: new(false), Error: failed},
	}, &snapshotv1.VolumeSnapshotContent{})
	roundTrip(t, &snapshotv1.VolumeSnapshotContent{ObjectMeta: metav1.ObjectMeta{Name: "empty"}, Status: &snapshotv1.VolumeSnapshotContentStatus{}}, &snapshotv1.VolumeSnapshotContent{})
	roundTrip(t, &snapshotv1.VolumeSnapshot{}, &snapshotv1.VolumeSnapshot{})
	roundTrip(t, &groupv1.VolumeGroupSnapshotContent{
		ObjectMeta: meta, Spec: groupv1.VolumeGroupSnapshotContentSpec{Driver: "d", Source: groupv1.VolumeGroupSnapshotContentSource{VolumeHandles: []string{"a", "b"}}},
		Status: &groupv1.VolumeGroupSnapshotContentStatus{VolumeSnapshotInfoList: []groupv1.VolumeSnapshotInfo{{VolumeHandle: "a", SnapshotHandle: "s"}}},
	}, &groupv1.VolumeGroupSnapshotContent{})
}
