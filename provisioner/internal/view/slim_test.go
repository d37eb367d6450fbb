package view

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/longshore-csi/longshore/csikit/kube"
	"github.com/longshore-csi/longshore/provisioner/internal/kubeapi"
	"github.com/longshore-csi/longshore/provisioner/internal/volume"
)

// checkSlim applies a transform twice: it must give what is wanted, and accept what it has seen before.
func checkSlim[T kube.Object](t *testing.T, reason string, transform func(T) T, full, want T) {
	t.Helper()
	got := transform(full)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("%s\nslim object (-want +got):\n%s", reason, diff)
	}
	if diff := cmp.Diff(want, transform(got)); diff != "" {
		t.Errorf("%s\nthe second time (-want +got):\n%s", reason, diff)
	}
}

func TestSlimClaim(t *testing.T) {
	pending := newClaim()
	pending.Annotations["example.com/secret"] = "needed by templates"
	pending.Status.Phase = corev1.ClaimPending
	want := pending.DeepCopy()
	pending.Annotations[corev1.LastAppliedConfigAnnotation] = "{}"
	pending.Status.Conditions = []corev1.PersistentVolumeClaimCondition{{}}
	checkSlim(t, "A claim that is to be provisioned keeps all that a request is made of.", slimClaim(driver), pending, want)

	bound := newClaim()
	bound.Spec.VolumeName = "pvc-uid-1"
	bound.Labels, bound.Finalizers = map[string]string{"a": "b"}, []string{"other", FinalizerClone}
	bound.Status.Phase = corev1.ClaimBound
	checkSlim(t, "Of a bound claim only its volume is of interest, and what clones of it wait for.", slimClaim(driver), bound, &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "data", UID: "uid-1", ResourceVersion: "7", Finalizers: []string{FinalizerClone}},
		Spec:       corev1.PersistentVolumeClaimSpec{VolumeName: "pvc-uid-1"},
		Status:     corev1.PersistentVolumeClaimStatus{Phase: corev1.ClaimBound},
	})

	recorded := bound.DeepCopy()
	recorded.Finalizers = []string{volume.FinalizerInProgress}
	recorded.Annotations = map[string]string{AnnProvisioner: "kubernetes.io/aws-ebs", volume.AnnMigratedTo: driver, volume.AnnInProgress: "record", "example.com/note": "long text"}
	want = recorded.DeepCopy()
	want.Labels, want.Spec.StorageClassName = nil, nil
	delete(want.Annotations, "example.com/note")
	checkSlim(t, "A bound claim with a record keeps it, and what says whose it is.", slimClaim(driver), recorded.DeepCopy(), want)

	foreign := newClaim()
	foreign.Annotations[AnnProvisioner] = "other"
	checkSlim(t, "A claim of another driver is of no interest.", slimClaim(driver), foreign, &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "data", UID: "uid-1", ResourceVersion: "7"},
	})
}

func TestSlimSnapshot(t *testing.T) {
	content, is := "content", true
	snapshot := &snapshotv1.VolumeSnapshot{
		ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "monday", UID: "u", Labels: map[string]string{"a": "b"}, Finalizers: []string{"other", FinalizerRestore}},
		Spec:       snapshotv1.VolumeSnapshotSpec{Source: snapshotv1.VolumeSnapshotSource{PersistentVolumeClaimName: &content}},
		Status:     &snapshotv1.VolumeSnapshotStatus{BoundVolumeSnapshotContentName: &content, ReadyToUse: &is, Error: &snapshotv1.VolumeSnapshotError{}},
	}
	checkSlim(t, "Of a snapshot remains what claims wait for.", slimSnapshot, snapshot, &snapshotv1.VolumeSnapshot{
		ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "monday", UID: "u", Finalizers: []string{FinalizerRestore}},
		Status:     &snapshotv1.VolumeSnapshotStatus{BoundVolumeSnapshotContentName: &content, ReadyToUse: &is},
	})
	checkSlim(t, "A new one has nothing yet.", slimSnapshot, &snapshotv1.VolumeSnapshot{}, &snapshotv1.VolumeSnapshot{})
}

func TestSlimGrant(t *testing.T) {
	spec := kubeapi.ReferenceGrantSpec{From: []kubeapi.ReferenceGrantFrom{{Kind: KindClaim, Namespace: "team"}}, To: []kubeapi.ReferenceGrantTo{{Kind: KindClaim}}}
	grant := &kubeapi.ReferenceGrant{ObjectMeta: metav1.ObjectMeta{Namespace: "store", Name: "teams", UID: "u", Labels: map[string]string{"a": "b"}}, Spec: spec}
	checkSlim(t, "Of a grant remains what it allows.", slimGrant, grant, &kubeapi.ReferenceGrant{
		ObjectMeta: metav1.ObjectMeta{Namespace: "store", Name: "teams", UID: "u"}, Spec: spec,
	})
}

// byUID returns what is kept of the claim of a volume that nothing is to be done about.
func byUID(ref *corev1.ObjectReference) *corev1.ObjectReference {
	return &corev1.ObjectReference{UID: ref.UID}
}

func TestSlimVolume(t *testing.T) {
	now := metav1.Now()
	ours := newPV()
	ours.Annotations[volume.AnnDeletionSecretName] = "s"
	ours.Annotations[AnnBetaClass] = "old"
	ours.DeletionTimestamp = &now
	ours.Spec.NodeAffinity = affinity(corev1.NodeSelectorOpIn, "n1")
	want := ours.DeepCopy()
	ours.Annotations["example.com/note"] = "long text"
	ours.Labels = map[string]string{"a": "b"}
	ours.Spec.CSI.VolumeAttributes = map[string]string{"a": "b"}
	ours.Status.Message = "text"
	checkSlim(t, "A volume of ours keeps what deletion reads.", slimVolume(driver, Node{}), ours, want)

	used := newPV()
	used.Status.Phase = corev1.VolumeBound
	want = used.DeepCopy()
	want.Spec.ClaimRef = byUID(want.Spec.ClaimRef)
	used.Annotations[volume.AnnDeletionSecretName], used.Spec.NodeAffinity = "s", ours.Spec.NodeAffinity
	checkSlim(t, "Of a volume of ours that is in use, DeleteVolume needs nothing yet.", slimVolume(driver, Node{}), used, want)

	foreign := newPV()
	foreign.Annotations[volume.AnnProvisionedBy] = "other"
	least := &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: "pvc-uid-1", UID: "pv-1", Annotations: map[string]string{volume.AnnProvisionedBy: "other"}},
		Spec:       corev1.PersistentVolumeSpec{ClaimRef: byUID(foreign.Spec.ClaimRef)},
	}
	held := least.DeepCopy()
	held.Spec.CSI = foreign.Spec.CSI
	checkSlim(t, "A volume of our driver that another made keeps its handle, for nobody else may delete it.", slimVolume(driver, Node{}), foreign.DeepCopy(), held)
	foreign.Spec.CSI.Driver = "other"
	checkSlim(t, "A volume of another provisioner keeps its claim, as it may have the name of ours.", slimVolume(driver, Node{}), foreign, least)

	static := newPV()
	static.Annotations, static.Spec.CSI.Driver = nil, "other"
	got := slimVolume(driver, Node{})(static)
	if Ours(got, driver) {
		t.Errorf("a volume of another driver becomes ours by being slim: %+v", got)
	}
}

func TestSlimAttachment(t *testing.T) {
	name := "pv"
	attachment := &storagev1.VolumeAttachment{
		ObjectMeta: metav1.ObjectMeta{Name: "va", UID: "u", Annotations: map[string]string{"a": "b"}},
		Spec:       storagev1.VolumeAttachmentSpec{Attacher: driver, NodeName: "n", Source: storagev1.VolumeAttachmentSource{PersistentVolumeName: &name}},
		Status:     storagev1.VolumeAttachmentStatus{Attached: true},
	}
	checkSlim(t, "An attachment says which volume is attached to which node.", slimAttachment, attachment, &storagev1.VolumeAttachment{
		ObjectMeta: metav1.ObjectMeta{Name: "va", UID: "u"},
		Spec:       storagev1.VolumeAttachmentSpec{NodeName: "n", Source: storagev1.VolumeAttachmentSource{PersistentVolumeName: &name}},
	})
	if got := AttachedVolume(&storagev1.VolumeAttachment{}); got != nil {
		t.Errorf("an attachment of an inline volume is filed under %q", got)
	}
}

func TestSlimCSINode(t *testing.T) {
	count := int32(5)
	node := &storagev1.CSINode{
		ObjectMeta: metav1.ObjectMeta{Name: "n", Labels: map[string]string{"a": "b"}},
		Spec: storagev1.CSINodeSpec{Drivers: []storagev1.CSINodeDriver{
			{Name: "other", NodeID: "x", TopologyKeys: []string{"k"}},
			{Name: driver, NodeID: "y", TopologyKeys: []string{"zone"}, Allocatable: &storagev1.VolumeNodeResources{Count: &count}},
		}},
	}
	checkSlim(t, "Of a node only what our driver has registered counts.", slimCSINode(driver), node, &storagev1.CSINode{
		ObjectMeta: metav1.ObjectMeta{Name: "n"},
		Spec:       storagev1.CSINodeSpec{Drivers: []storagev1.CSINodeDriver{{Name: driver, NodeID: "y", TopologyKeys: []string{"zone"}}}},
	})
}

func TestIndexes(t *testing.T) {
	indexes := claimIndexes(driver, volume.Naming{Prefix: "pvc", UUIDLength: -1})
	claim := newClaim()
	if got := indexes[claimsByClass](claim); !cmp.Equal(got, []string{"fast"}) {
		t.Errorf("classes %q", got)
	}
	if got := indexes[claimsByVolume](claim); !cmp.Equal(got, []string{"pvc-uid-1"}) {
		t.Errorf("volumes %q", got)
	}
	claim.Spec.VolumeName = "pvc-uid-1"
	if got := indexes[claimsByVolume](claim); got != nil {
		t.Errorf("a bound claim is filed under %q", got)
	}
	if got := Handles(driver)(newPV()); !cmp.Equal(got, []string{"vol-1"}) {
		t.Errorf("handles %q", got)
	}
	if got := Handles("other")(newPV()); got != nil {
		t.Errorf("a volume of another driver is filed under %q", got)
	}
}

// TestSlimVolumeOfAnotherNode keeps nothing by which the volume of another node could be taken for one of this node.
func TestSlimVolumeOfAnotherNode(t *testing.T) {
	pv := newPV()
	pv.Spec.NodeAffinity = affinity(corev1.NodeSelectorOpIn, "n2")
	want := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: pv.Name, UID: pv.UID}, Spec: corev1.PersistentVolumeSpec{ClaimRef: byUID(pv.Spec.ClaimRef)}}
	checkSlim(t, "A volume of another node keeps its claim alone.", slimVolume(driver, Node{Name: "n1", Segments: map[string]string{"node": "n1"}}), pv.DeepCopy(), want)
	if Ours(want, driver) || Handles(driver)(want) != nil {
		t.Error("a volume of another node is taken for one of this node")
	}
	pv.Spec.NodeAffinity = affinity(corev1.NodeSelectorOpIn, "n1")
	if got := slimVolume(driver, Node{Name: "n1", Segments: map[string]string{"node": "n1"}})(pv); !Ours(got, driver) || got.Spec.NodeAffinity != nil {
		t.Errorf("a volume of this node is kept as %+v", got)
	}
}
