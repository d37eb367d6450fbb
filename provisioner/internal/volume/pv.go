package volume

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/container-storage-interface/spec/lib/go/csi"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/longshore-csi/longshore/topology"
)

// Names that users and other components know, and which therefore never change.
const (
	// AnnProvisionedBy names the provisioner of a PersistentVolume.
	AnnProvisionedBy = "pv.kubernetes.io/provisioned-by"
	// AnnMigratedTo names the CSI driver that a claim or PersistentVolume of an in-tree plugin was migrated to; the controller
	// manager writes it.
	AnnMigratedTo = "pv.kubernetes.io/migrated-to"
	// AnnDeletionSecretName and AnnDeletionSecretNamespace refer to the secret for DeleteVolume. Both are
	// always written, and empty when there is no secret.
	AnnDeletionSecretName      = "volume.kubernetes.io/provisioner-deletion-secret-name"
	AnnDeletionSecretNamespace = "volume.kubernetes.io/provisioner-deletion-secret-namespace"
	// AnnModifySecretName and AnnModifySecretNamespace refer to the secret for ControllerModifyVolume,
	// for which a PersistentVolume has no field.
	AnnModifySecretName      = "volume.kubernetes.io/controller-modify-secret-name"
	AnnModifySecretNamespace = "volume.kubernetes.io/controller-modify-secret-namespace"
	// FinalizerInProgress keeps a claim while the driver may be making its volume, and AnnInProgress has the record of that.
	FinalizerInProgress = "csi.longshore.dev/provisioner-in-progress"
	AnnInProgress       = "csi.longshore.dev/provisioner-journal"
	// Finalizer keeps a PersistentVolume until its reclaim policy was honoured (KEP-2644).
	Finalizer = "external-provisioner.volume.kubernetes.io/finalizer"
	// AttrIdentity is the volume attribute that identifies the process that made the volume.
	AttrIdentity = "storage.kubernetes.io/csiProvisionerIdentity"
)

// ErrIncomplete is returned for an answer of CreateVolume without a volume in it. Nothing is known then:
// the volume may exist.
var ErrIncomplete = errors.New("the driver answered without a volume ID")

// Check reports whether a volume is what was asked for. A volume that fails the check must be deleted,
// except after ErrIncomplete, when there is nothing to call it by.
func Check(request *csi.CreateVolumeRequest, created *csi.Volume) error {
	if created.GetVolumeId() == "" {
		return fmt.Errorf("create volume %q: %w", request.GetName(), ErrIncomplete)
	}
	asked, got := request.GetCapacityRange().GetRequiredBytes(), created.GetCapacityBytes()
	if got != 0 && got < asked {
		return fmt.Errorf("volume %q (%s): has %d bytes, must have at least the %d bytes that were requested",
			created.GetVolumeId(), request.GetName(), got, asked)
	}
	if request.GetVolumeContentSource() != nil && created.GetContentSource() == nil {
		return fmt.Errorf("volume %q (%s): names no content source, must name the one that was requested: it may be empty",
			created.GetVolumeId(), request.GetName())
	}
	return nil
}

// Policy is what the options of the provisioner add to a PersistentVolume.
type Policy struct {
	// Driver is the name of the driver.
	Driver string
	// Identity goes into AttrIdentity.
	Identity string
	// PublishReadOnly marks volumes read-only whose only access mode is ReadOnlyMany.
	PublishReadOnly bool
	// Topology turns the accessible topology of a volume into a node affinity. Without it the answer of the driver about the
	// topology is neither checked nor used.
	Topology bool
}

// PersistentVolume returns the PersistentVolume of a volume that was created.
func (s Spec) PersistentVolume(created *csi.Volume, policy Policy) (*corev1.PersistentVolume, error) {
	var affinity *corev1.VolumeNodeAffinity // nil: accessible from everywhere
	if policy.Topology {
		var err error
		if affinity, err = topology.NodeAffinity(created.GetAccessibleTopology()); err != nil {
			return nil, fmt.Errorf("accessible topology of volume %q: %w", created.GetVolumeId(), err)
		}
	}
	capacity, err := s.capacity(created)
	if err != nil {
		return nil, err
	}
	return &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{
			Name:        s.Name,
			Annotations: s.annotations(),
			Finalizers:  s.finalizers(),
		},
		Spec: corev1.PersistentVolumeSpec{
			AccessModes:                   slices.Clone(s.Claim.Spec.AccessModes),
			MountOptions:                  slices.Clone(s.Class.MountOptions),
			Capacity:                      corev1.ResourceList{corev1.ResourceStorage: capacity},
			ClaimRef:                      claimRef(s.Claim),
			PersistentVolumeReclaimPolicy: s.reclaimPolicy(),
			StorageClassName:              s.Class.Name,
			VolumeMode:                    s.Claim.Spec.VolumeMode,
			VolumeAttributesClassName:     s.attributesClass(),
			NodeAffinity:                  affinity,
			PersistentVolumeSource:        corev1.PersistentVolumeSource{CSI: s.source(created, policy)},
		},
	}, nil
}

// capacity returns the size of the volume; a driver which does not know says zero (CSI v1.13, "Volume"),
// and then it is as large as was asked for.
func (s Spec) capacity(created *csi.Volume) (resource.Quantity, error) {
	if bytes := created.GetCapacityBytes(); bytes > 0 {
		return *resource.NewQuantity(bytes, resource.BinarySI), nil
	}
	asked, err := RequestedBytes(s.Claim)
	return *resource.NewQuantity(asked, resource.BinarySI), err
}

// attributesClass returns the VolumeAttributesClass, nil for none.
func (s Spec) attributesClass() *string {
	if s.AttributesClass == "" {
		return nil
	}
	return &s.AttributesClass
}

// source returns the CSI part of the PersistentVolume.
func (s Spec) source(created *csi.Volume, policy Policy) *corev1.CSIPersistentVolumeSource {
	attributes := maps.Clone(created.GetVolumeContext())
	if attributes == nil {
		attributes = map[string]string{}
	}
	attributes[AttrIdentity] = policy.Identity
	source := &corev1.CSIPersistentVolumeSource{
		Driver:                     policy.Driver,
		VolumeHandle:               created.GetVolumeId(),
		VolumeAttributes:           attributes,
		ReadOnly:                   policy.PublishReadOnly && slices.Equal(s.Claim.Spec.AccessModes, []corev1.PersistentVolumeAccessMode{corev1.ReadOnlyMany}),
		ControllerPublishSecretRef: s.Secrets.ControllerPublish,
		NodeStageSecretRef:         s.Secrets.NodeStage,
		NodePublishSecretRef:       s.Secrets.NodePublish,
		ControllerExpandSecretRef:  s.Secrets.ControllerExpand,
		NodeExpandSecretRef:        s.Secrets.NodeExpand,
	}
	if !IsBlock(s.Claim) {
		source.FSType = s.FSType
	}
	return source
}

// annotations records who made the volume and which secrets it is deleted and modified with.
func (s Spec) annotations() map[string]string {
	annotations := map[string]string{
		AnnProvisionedBy:           cmp.Or(s.InTree, s.Class.Provisioner),
		AnnDeletionSecretName:      "",
		AnnDeletionSecretNamespace: "",
	}
	if ref := s.Secrets.Provision; ref != nil {
		annotations[AnnDeletionSecretName], annotations[AnnDeletionSecretNamespace] = ref.Name, ref.Namespace
	}
	if ref := s.Secrets.ControllerModify; ref != nil {
		annotations[AnnModifySecretName], annotations[AnnModifySecretNamespace] = ref.Name, ref.Namespace
	}
	return annotations
}

// finalizers returns the finalizer of volumes which are deleted along with their PersistentVolume.
func (s Spec) finalizers() []string {
	if s.reclaimPolicy() != corev1.PersistentVolumeReclaimDelete {
		return nil
	}
	return []string{Finalizer}
}

// reclaimPolicy returns the policy of the class, whose default is Delete.
func (s Spec) reclaimPolicy() corev1.PersistentVolumeReclaimPolicy {
	if s.Class.ReclaimPolicy == nil {
		return corev1.PersistentVolumeReclaimDelete
	}
	return *s.Class.ReclaimPolicy
}

// claimRef binds the PersistentVolume to the one claim, by UID, that it was made for.
func claimRef(claim *corev1.PersistentVolumeClaim) *corev1.ObjectReference {
	return &corev1.ObjectReference{
		APIVersion:      "v1",
		Kind:            "PersistentVolumeClaim",
		Namespace:       claim.Namespace,
		Name:            claim.Name,
		UID:             claim.UID,
		ResourceVersion: claim.ResourceVersion,
	}
}

// Match says how an existing PersistentVolume relates to one that was to be created under its name.
type Match int

const (
	// Taken: it has the same volume, for another claim. The volume is that claim's. It is the zero value,
	// for of all the relations this is the one where nothing may be deleted.
	Taken Match = iota
	// Same: it is the one that was to be created.
	Same
	// Leaving: it was the one, and is being deleted.
	Leaving
	// Foreign: it has another volume.
	Foreign
)

// Compare reports whether an existing PersistentVolume is the wanted one: same driver, handle and claim
// UID. The name alone proves nothing, for a volume of a deleted claim may still bear it.
func Compare(existing, wanted *corev1.PersistentVolume) Match {
	is, want := existing.Spec, wanted.Spec
	switch {
	case is.CSI == nil || want.CSI == nil || is.CSI.Driver != want.CSI.Driver || is.CSI.VolumeHandle != want.CSI.VolumeHandle:
		return Foreign
	case is.ClaimRef == nil || want.ClaimRef == nil || is.ClaimRef.UID != want.ClaimRef.UID:
		return Taken
	case existing.DeletionTimestamp != nil:
		return Leaving
	}
	return Same
}
