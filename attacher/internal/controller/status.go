package controller

import (
	"errors"
	"fmt"
	"maps"
	"time"

	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/longshore-csi/longshore/csikit/kube"
	"github.com/longshore-csi/longshore/csikit/outcome"
)

// Limits of the API server, in bytes.
const (
	maxErrorMessage = 1024
	maxMetadata     = 256 << 10
)

// errMetadataTooLarge is a publish context that the API server would refuse.
var errMetadataTooLarge = errors.New("publish context is too large")

// checkMetadata reports a publish context that does not fit into a VolumeAttachment.
func checkMetadata(metadata map[string]string) error {
	size := 0
	for key, value := range metadata {
		size += len(key) + len(value)
	}
	if size > maxMetadata {
		return fmt.Errorf("%w: %d bytes, a VolumeAttachment holds at most %d", errMetadataTooLarge, size, maxMetadata)
	}
	return nil
}

// attachedPatch returns the status patch for a volume that is attached, nil if the
// status has that already.
func attachedPatch(va *storagev1.VolumeAttachment, metadata map[string]string) ([]byte, error) {
	current := va.Status
	if current.Attached && current.AttachError == nil && maps.Equal(current.AttachmentMetadata, metadata) {
		return nil, nil
	}
	ops := []operation{op("add", "/status/attached", true)}
	if !maps.Equal(current.AttachmentMetadata, metadata) {
		// Replaces the whole map: an entry of an earlier publish must not survive.
		ops = append(ops, op("add", "/status/attachmentMetadata", metadata))
	}
	if current.AttachError != nil {
		ops = append(ops, op("add", "/status/attachError", nil))
	}
	return jsonPatch(va, ops...)
}

// detachedPatch returns the status patch for a volume that is detached, nil if the
// status has that already. It is needed only while finalizers of others keep the object.
func detachedPatch(va *storagev1.VolumeAttachment) ([]byte, error) {
	if !va.Status.Attached && va.Status.DetachError == nil {
		return nil, nil
	}
	return jsonPatch(va, op("add", "/status", storagev1.VolumeAttachmentStatus{}))
}

// volumeError describes err for the status, cut to the limit of the API server. The code is set if err is an answer of
// the driver.
func volumeError(err error, now time.Time, withCode bool) *storagev1.VolumeError {
	e := &storagev1.VolumeError{Time: metav1.NewTime(now), Message: kube.Cut(outcome.Text(err), maxErrorMessage)}
	if withCode && outcome.FromDriver(err) {
		number := int32(outcome.Code(err)) //nolint:gosec // there are 17 codes
		e.ErrorCode = &number
	}
	return e
}

// errorPatch returns the status patch that sets attachError or detachError, nil if
// nothing but the time would change.
func errorPatch(va *storagev1.VolumeAttachment, during step, now *storagev1.VolumeError) ([]byte, error) {
	if had := currentError(va, during); had != nil && sameError(had, now) {
		return nil, nil
	}
	return jsonPatch(va, op("add", "/status/"+during.String()+"Error", now))
}

// currentError returns the attachError or detachError of the status.
func currentError(va *storagev1.VolumeAttachment, during step) *storagev1.VolumeError {
	if during == stepDetach {
		return va.Status.DetachError
	}
	return va.Status.AttachError
}

// sameError compares errors but for the time. A server that does not store codes drops
// ours, which must not end in a write each time.
func sameError(had, now *storagev1.VolumeError) bool {
	return had.Message == now.Message && (had.ErrorCode == nil || now.ErrorCode != nil && *had.ErrorCode == *now.ErrorCode)
}
