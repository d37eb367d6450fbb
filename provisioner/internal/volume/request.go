package volume

import (
	"errors"
	"fmt"
	"maps"

	"github.com/container-storage-interface/spec/lib/go/csi"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"

	"github.com/longshore-csi/longshore/csikit/capability"
	"github.com/longshore-csi/longshore/provisioner/internal/params"
)

// Spec is all that decides what one volume is: the claim and what stands behind it, before the driver is
// asked. It is kept from the first CreateVolume to the PersistentVolume, so that every attempt asks for
// the same and the PersistentVolume shows what was asked for.
type Spec struct {
	// Name is the name of the volume and of its PersistentVolume.
	Name string
	// Claim is the claim as it was when the volume was first asked for.
	Claim *corev1.PersistentVolumeClaim
	// Class is the StorageClass as it was then.
	Class *storagev1.StorageClass
	// InTree is the name of the in-tree plugin that the class is of, and in whose form the PersistentVolume is written; empty for CSI.
	InTree string
	// FSType is the file system type; empty for raw block volumes and where none is set.
	FSType string
	// Parameters are the parameters for the driver.
	Parameters map[string]string
	// AttributesClass is the VolumeAttributesClass of the volume; empty for none.
	AttributesClass string
	// MutableParameters are the parameters of the VolumeAttributesClass.
	MutableParameters map[string]string
	// Topology is where the volume must be accessible from; nil when the driver does not care.
	Topology *csi.TopologyRequirement
	// Source is what the volume is filled with; nil for an empty one.
	Source *Source
	// Secrets refers to the secrets of every operation on the volume.
	Secrets params.Secrets
	// SingleNodeModes says that the driver distinguishes SINGLE_NODE_SINGLE_WRITER from
	// SINGLE_NODE_MULTI_WRITER (capability SINGLE_NODE_MULTI_WRITER).
	SingleNodeModes bool
}

// SourceRef names the object that a volume is made from.
type SourceRef struct {
	// Kind is PersistentVolumeClaim or VolumeSnapshot.
	Kind string
	// Namespace and Name are those of the object.
	Namespace, Name string
}

// String names the object for people, and in indexes.
func (r SourceRef) String() string {
	return r.Kind + " " + r.Namespace + "/" + r.Name
}

// Source is what a volume is filled with.
type Source struct {
	// Ref is the object that the claim names.
	Ref SourceRef
	// Content is the volume or snapshot behind it.
	Content *csi.VolumeContentSource
}

// Request returns what CreateVolume is asked for, without the values of secrets.
func (s Spec) Request() (*csi.CreateVolumeRequest, error) {
	size, sizeErr := RequestedBytes(s.Claim)
	capabilities, capErr := s.capabilities()
	if err := errors.Join(sizeErr, capErr); err != nil {
		return nil, err
	}
	request := &csi.CreateVolumeRequest{
		Name:                      s.Name,
		CapacityRange:             &csi.CapacityRange{RequiredBytes: size},
		VolumeCapabilities:        capabilities,
		Parameters:                s.Parameters,
		MutableParameters:         s.MutableParameters,
		AccessibilityRequirements: s.Topology,
	}
	if s.Source != nil {
		request.VolumeContentSource = s.Source.Content
	}
	return request, nil
}

// RequestedBytes returns the storage that a claim requests, in bytes.
func RequestedBytes(claim *corev1.PersistentVolumeClaim) (int64, error) {
	quantity, ok := claim.Spec.Resources.Requests[corev1.ResourceStorage]
	if !ok {
		return 0, errors.New("claim field spec.resources.requests.storage: must be set")
	}
	bytes := quantity.Value()
	if bytes < 0 {
		return 0, fmt.Errorf("claim field spec.resources.requests.storage %q: must not be negative", quantity.String())
	}
	return bytes, nil
}

// IsBlock reports whether a claim asks for a raw block volume.
func IsBlock(claim *corev1.PersistentVolumeClaim) bool {
	return claim.Spec.VolumeMode != nil && *claim.Spec.VolumeMode == corev1.PersistentVolumeBlock
}

// capabilities returns one VolumeCapability for each access mode of the claim, never merged: the volume
// must do each.
func (s Spec) capabilities() ([]*csi.VolumeCapability, error) {
	if len(s.Claim.Spec.AccessModes) == 0 {
		return nil, errors.New("claim field spec.accessModes: must name at least one mode")
	}
	capabilities := make([]*csi.VolumeCapability, 0, len(s.Claim.Spec.AccessModes))
	for _, mode := range s.Claim.Spec.AccessModes {
		use := capability.Use{AccessMode: mode, VolumeMode: s.Claim.Spec.VolumeMode, FSType: s.FSType, MountFlags: s.Class.MountOptions}
		c := use.Capability(s.SingleNodeModes)
		if c.GetAccessMode().GetMode() == csi.VolumeCapability_AccessMode_UNKNOWN {
			return nil, fmt.Errorf("access mode %q: not a mode that CSI knows", mode)
		}
		capabilities = append(capabilities, c)
	}
	return capabilities, nil
}

// WithMetadata returns the parameters with the names of the claim and of the PersistentVolume added, as
// --extra-create-metadata asks.
func WithMetadata(parameters map[string]string, claim *corev1.PersistentVolumeClaim, pvName string) map[string]string {
	extended := make(map[string]string, len(parameters)+3)
	maps.Copy(extended, parameters)
	extended[params.KeyClaimName] = claim.Name
	extended[params.KeyClaimNamespace] = claim.Namespace
	extended[params.KeyPVName] = pvName
	return extended
}

// BlockedError is an error which repetition cannot cure: it depends on nothing but the claim and its class, whose changes are watched.
type BlockedError struct{ Err error }

// Error implements error.
func (e BlockedError) Error() string { return e.Err.Error() }

// Unwrap returns the reason.
func (e BlockedError) Unwrap() error { return e.Err }
