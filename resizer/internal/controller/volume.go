package controller

import (
	"errors"
	"fmt"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/client-go/tools/cache"

	"github.com/longshore-csi/longshore/csikit/capability"
	"github.com/longshore-csi/longshore/csikit/migration"
)

// errHandle is a PersistentVolume that does not identify its volume.
var errHandle = errors.New("its volume handle is empty")

// volume is a claim with the PersistentVolume that it is bound to, which translate has returned.
type volume struct {
	claim *corev1.PersistentVolumeClaim
	pv    *corev1.PersistentVolume
	// migrated: a volume of the in-tree plugin that the driver replaces.
	migrated bool
}

// keyOf returns the key of a claim in the queue: namespace/name.
func keyOf(claim *corev1.PersistentVolumeClaim) string {
	return cache.NewObjectName(claim.Namespace, claim.Name).String()
}

// claimKey returns the key of the claim that pv is bound to, or nothing.
func claimKey(pv *corev1.PersistentVolume) string {
	if pv.Spec.ClaimRef == nil {
		return ""
	}
	return cache.NewObjectName(pv.Spec.ClaimRef.Namespace, pv.Spec.ClaimRef.Name).String()
}

// newVolume pairs a claim with its PersistentVolume, if they are bound to each other and the volume is the driver's: one of its own, or
// one of the in-tree plugin that it replaces, whose expansion kube-controller-manager has handed over.
func newVolume(driver string, claim *corev1.PersistentVolumeClaim, pv *corev1.PersistentVolume) (volume, bool) {
	ref := pv.Spec.ClaimRef
	bound := ref != nil && claim.Status.Phase == corev1.ClaimBound && claim.Spec.VolumeName == pv.Name &&
		ref.Namespace == claim.Namespace && ref.Name == claim.Name && ref.UID == claim.UID
	v := volume{claim: claim, pv: pv, migrated: migration.Of(driver).Owns(pv)}
	if !bound || pv.Spec.CSI == nil || pv.Spec.CSI.Driver != driver {
		return volume{}, false
	}
	return v, !v.migrated || claim.Annotations[AnnotationResizer] == driver
}

// storage returns the amount of storage of a list, 0 if it has none.
func storage(list corev1.ResourceList) resource.Quantity { return list[corev1.ResourceStorage] }

// resizeStatus returns the state of the expansion in the claim's status.
func resizeStatus(claim *corev1.PersistentVolumeClaim) corev1.ClaimResourceStatus {
	return claim.Status.AllocatedResourceStatuses[corev1.ResourceStorage]
}

// wantedClass returns the name of the VolumeAttributesClass that the claim asks for, or nothing.
func wantedClass(claim *corev1.PersistentVolumeClaim) string {
	return valueOf(claim.Spec.VolumeAttributesClassName)
}

// currentClass returns the name of the VolumeAttributesClass that is in effect, or nothing.
func currentClass(claim *corev1.PersistentVolumeClaim) string {
	return valueOf(claim.Status.CurrentVolumeAttributesClassName)
}

// targetClass returns the VolumeAttributesClass of the modification in progress, and its status; nothing if there is none.
func targetClass(claim *corev1.PersistentVolumeClaim) (string, corev1.PersistentVolumeClaimModifyVolumeStatus) {
	if claim.Status.ModifyVolumeStatus == nil {
		return "", ""
	}
	return claim.Status.ModifyVolumeStatus.TargetVolumeAttributesClassName, claim.Status.ModifyVolumeStatus.Status
}

func valueOf(s *string) string {
	if s == nil {
		return ""
	}
	return *s
}

// expandRequest returns the call that expands the volume, without secrets.
func (v volume) expandRequest(size resource.Quantity, singleNodeModes bool) (*csi.ControllerExpandVolumeRequest, error) {
	source := v.pv.Spec.CSI
	if source.VolumeHandle == "" {
		return nil, fmt.Errorf("PersistentVolume %q: %w", v.pv.Name, errHandle)
	}
	mode, err := capability.Widest(v.pv.Spec.AccessModes)
	if err != nil {
		return nil, fmt.Errorf("PersistentVolume %q: %w", v.pv.Name, err)
	}
	use := capability.Use{AccessMode: mode, VolumeMode: v.pv.Spec.VolumeMode, FSType: source.FSType, MountFlags: v.pv.Spec.MountOptions}
	return &csi.ControllerExpandVolumeRequest{
		VolumeId:         source.VolumeHandle,
		CapacityRange:    &csi.CapacityRange{RequiredBytes: size.Value()},
		VolumeCapability: use.Capability(singleNodeModes),
	}, nil
}

// modifySecret returns the secret of ControllerModifyVolume, by default that of ControllerExpandVolume. nil: none.
func (v volume) modifySecret() *corev1.SecretReference {
	name, namespace := v.pv.Annotations[AnnotationModifySecretName], v.pv.Annotations[AnnotationModifySecretNamespace]
	if name != "" && namespace != "" {
		return &corev1.SecretReference{Name: name, Namespace: namespace}
	}
	return v.pv.Spec.CSI.ControllerExpandSecretRef
}

// attempt is what is remembered of the last attempt of an operation on a claim, by the target of the operation. What is
// forgotten, as by a restart, counts as an attempt whose outcome is not known.
type attempt struct {
	target string
	// final: the driver has answered that it failed, so nothing is in progress and another target may be set.
	final bool
	// inUse: the driver did not expand the volume because it is in use.
	inUse    bool
	failures int
	// due is when the same target is tried again.
	due time.Time
	// err is the text of the failure, code that of the driver's answer; infeasible: it will never succeed.
	err, code  string
	infeasible bool
	// unsaved: the claim does not say yet how the attempt has failed, as the write has failed.
	unsaved bool
}

// of returns the attempt if it had this target, else one that never was.
func (a attempt) of(target string) attempt {
	if a.target != target {
		return attempt{target: target}
	}
	return a
}
