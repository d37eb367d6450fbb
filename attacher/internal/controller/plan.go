package controller

import (
	"errors"
	"fmt"
	"strings"

	"github.com/container-storage-interface/spec/lib/go/csi"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
)

var (
	// errNodeUnknown is a node on which the driver is not registered.
	errNodeUnknown = errors.New("is not registered on the node")
	// errSourceDeleting is a PersistentVolume that is being deleted.
	errSourceDeleting = errors.New("is being deleted")
	// errHandleUnknown is a VolumeAttachment whose volume handle is neither recorded nor in a PersistentVolume.
	errHandleUnknown = errors.New("volume handle is unknown")
)

// isAwaited reports whether the failure ends with an event that the controller watches for: it needs no backoff.
func isAwaited(failure error) bool {
	return errors.Is(failure, errNodeUnknown) || errors.Is(failure, errPublishLost)
}

// step is what a VolumeAttachment needs next.
type step int

const (
	stepNone step = iota
	stepAttach
	stepDetach
)

// String names the step in logs, state and the status.
func (s step) String() string {
	switch s {
	case stepAttach:
		return "attach"
	case stepDetach:
		return "detach"
	default:
		return "none"
	}
}

// nextStep decides what to do with a VolumeAttachment that belongs to this driver.
//
// One that is being deleted is detached whenever our finalizer is on it, whether or
// not its status is attached: an attach call may have had an effect that was not recorded.
// One that says attached and carries an error was to be attached again, which did not
// succeed so far.
func nextStep(va *storagev1.VolumeAttachment, finalizer string, forced bool) step {
	switch {
	case isDeleting(va) && hasFinalizer(va, finalizer):
		return stepDetach
	case isDeleting(va):
		return stepNone
	case va.Status.Attached && va.Status.AttachError == nil && !forced:
		return stepNone
	}
	return stepAttach
}

// attachInput is everything that a decision to attach depends on.
type attachInput struct {
	va        *storagev1.VolumeAttachment
	source    source
	nodeID    string
	recorded  string // the node ID of an earlier attempt, "" for none
	features  Features
	fsType    string
	finalizer string
}

// attachPlan is how to attach: first the patches (nil where none is needed), then the calls.
type attachPlan struct {
	// pvPatch puts the finalizer on the PersistentVolume.
	pvPatch []byte
	// vaPatch puts the finalizer on the VolumeAttachment, together with what is
	// needed to detach when CSINode and PersistentVolume are gone.
	vaPatch []byte
	// stale undoes an attempt to attach to the node's former ID. nil: there was none.
	stale *csi.ControllerUnpublishVolumeRequest
	// publish lacks the secrets, which are read from secret.
	publish *csi.ControllerPublishVolumeRequest
	secret  *corev1.SecretReference
}

// planAttach decides how to attach.
func planAttach(in attachInput) (attachPlan, error) {
	volume, err := in.source.csi(in.va.Spec.Attacher)
	if err != nil {
		return attachPlan{}, err
	}
	if in.source.pv != nil && isDeleting(in.source.pv) {
		return attachPlan{}, fmt.Errorf("%s %w", in.source.label(), errSourceDeleting)
	}
	if in.nodeID == "" {
		return attachPlan{}, fmt.Errorf("driver %q %w", in.va.Spec.Attacher, errNodeUnknown)
	}
	capability, err := volumeCapability(in.source.spec, in.features, in.fsType)
	if err != nil {
		return attachPlan{}, fmt.Errorf("%s: %w", in.source.label(), err)
	}
	plan := attachPlan{
		secret: volume.ControllerPublishSecretRef,
		stale:  in.staleRequest(volume.VolumeHandle),
		publish: &csi.ControllerPublishVolumeRequest{
			VolumeId:         volume.VolumeHandle,
			NodeId:           in.nodeID,
			VolumeCapability: capability,
			Readonly:         volume.ReadOnly && in.features.Readonly,
			VolumeContext:    volume.VolumeAttributes,
		},
	}
	return plan, plan.addPatches(in, volume)
}

// addPatches fills in the patches that are needed.
func (p *attachPlan) addPatches(in attachInput, volume *corev1.CSIPersistentVolumeSource) error {
	var err error
	if in.source.pv != nil {
		if p.pvPatch, err = metadataPatch(in.source.pv, withFinalizer(in.finalizer)); err != nil {
			return err
		}
	}
	record := volumeRecord(volume)
	record[AnnotationNodeID] = in.nodeID
	p.vaPatch, err = metadataPatch(in.va, withFinalizer(in.finalizer), withAnnotations(record))
	return err
}

// volumeRecord returns the annotations of a VolumeAttachment with which the volume can be detached when its PersistentVolume is gone.
func volumeRecord(volume *corev1.CSIPersistentVolumeSource) map[string]string {
	return map[string]string{
		AnnotationVolumeHandle:  volume.VolumeHandle,
		AnnotationPublishSecret: formatSecretRef(volume.ControllerPublishSecretRef),
	}
}

// planRecord returns the patch that adds the record to a VolumeAttachment that the external-attacher has attached, before its deleted
// PersistentVolume goes away. nil: there is a record, the volume was never attached, or it cannot be detached anyway.
func planRecord(va *storagev1.VolumeAttachment, pv *corev1.PersistentVolume, finalizer string) ([]byte, error) {
	if !isDeleting(pv) || !hasFinalizer(va, finalizer) || va.Annotations[AnnotationVolumeHandle] != "" {
		return nil, nil
	}
	volume, err := source{spec: &pv.Spec}.csi(va.Spec.Attacher)
	if err != nil {
		return nil, nil //nolint:nilerr // attaching and detaching report it
	}
	return metadataPatch(va, withAnnotations(volumeRecord(volume)))
}

// staleRequest returns the call that undoes an earlier attempt on another node ID or
// with another handle, before the record of it is overwritten. A volume that is attached according to the status may be in
// use, so nothing is taken away from the node: its ID may just have got another format.
func (in attachInput) staleRequest(handle string) *csi.ControllerUnpublishVolumeRequest {
	oldHandle := attachedHandle(in.va, in.source, handle)
	if in.va.Status.Attached || !hasFinalizer(in.va, in.finalizer) || in.recorded == "" || in.recorded == in.nodeID && oldHandle == handle {
		return nil
	}
	return &csi.ControllerUnpublishVolumeRequest{VolumeId: oldHandle, NodeId: in.recorded}
}

// attachedHandle returns the handle of the volume that was attached for va. Many may patch VolumeAttachments, but only few PersistentVolumes: while the one is there
// that va was made for, its handle counts. The recorded one counts where another PersistentVolume has got its name since.
func attachedHandle(va *storagev1.VolumeAttachment, source source, handle string) string {
	if recorded := va.Annotations[AnnotationVolumeHandle]; recorded != "" && source.pv != nil && va.CreationTimestamp.Before(&source.pv.CreationTimestamp) {
		return recorded
	}
	return handle
}

// detachInput is everything that a decision to detach depends on.
type detachInput struct {
	va *storagev1.VolumeAttachment
	// source is the zero value when the volume cannot be found any more.
	source source
	// nodeIDs are tried in this order.
	nodeIDs   []string
	finalizer string
}

// detachPlan is how to detach: the calls, then the patch.
type detachPlan struct {
	// unpublish holds the requests, of which the next is made if the driver does not know the node of the one before. They
	// lack the secrets, which are read from secret.
	unpublish []*csi.ControllerUnpublishVolumeRequest
	secret    *corev1.SecretReference
	// vaPatch removes the finalizer, so that the object can be deleted.
	vaPatch []byte
}

// volume returns what the source says of the volume, or why that is not known.
func (in detachInput) volume() (*corev1.CSIPersistentVolumeSource, error) {
	if in.source.spec == nil {
		return nil, fmt.Errorf("PersistentVolume %q is gone and annotation %s is missing: %w",
			pvName(in.va), AnnotationVolumeHandle, errHandleUnknown)
	}
	return in.source.csi(in.va.Spec.Attacher)
}

// planDetach decides how to detach. What is recorded of handle and secret counts only if the volume has no description any more, or has another one: see
// attachedHandle.
func planDetach(in detachInput) (detachPlan, error) {
	if len(in.nodeIDs) == 0 {
		return detachPlan{}, fmt.Errorf("driver %q %w", in.va.Spec.Attacher, errNodeUnknown)
	}
	handle, secret := in.va.Annotations[AnnotationVolumeHandle], parseSecretRef(in.va.Annotations[AnnotationPublishSecret])
	volume, err := in.volume()
	switch {
	case err == nil:
		handle, secret = attachedHandle(in.va, in.source, volume.VolumeHandle), volume.ControllerPublishSecretRef
	case handle == "":
		return detachPlan{}, err
	}
	plan := detachPlan{secret: secret}
	for _, id := range in.nodeIDs {
		plan.unpublish = append(plan.unpublish, &csi.ControllerUnpublishVolumeRequest{VolumeId: handle, NodeId: id})
	}
	plan.vaPatch, err = metadataPatch(in.va, withoutFinalizer(in.finalizer))
	return plan, err
}

// formatSecretRef renders a reference for an annotation, "" for none.
func formatSecretRef(ref *corev1.SecretReference) string {
	if ref == nil {
		return ""
	}
	return ref.Namespace + "/" + ref.Name
}

// parseSecretRef is the inverse of formatSecretRef.
func parseSecretRef(text string) *corev1.SecretReference {
	namespace, name, ok := strings.Cut(text, "/")
	if !ok {
		return nil
	}
	return &corev1.SecretReference{Namespace: namespace, Name: name}
}
