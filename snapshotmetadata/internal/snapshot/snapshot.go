// Package snapshot finds the driver's snapshot behind a VolumeSnapshot: its handle, and the secrets of calls about it.
package snapshot

import (
	"context"
	"errors"
	"fmt"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/longshore-csi/longshore/csikit/kube"
	"github.com/longshore-csi/longshore/csikit/snapshotapi"
)

var (
	// ErrNotFound is the error for a VolumeSnapshot that does not exist.
	ErrNotFound = errors.New("no such VolumeSnapshot")
	// ErrNotReady is the error for a VolumeSnapshot that has no snapshot yet, or one that is not ready to use.
	ErrNotReady = errors.New("snapshot is not ready")
	// ErrOtherDriver is the error for a snapshot of another driver.
	ErrOtherDriver = errors.New("snapshot of another driver")
	// ErrNoRight is the error for a snapshot that needs a right which this service does not have. It does not pass until an admin grants the right.
	ErrNoRight = errors.New("the service account of csi-snapshot-metadata lacks a right")
)

// Finder reads the objects from the API server, not from a cache: a call about a snapshot may take minutes, so that a few requests do not
// matter, and a cache of all snapshots would take memory for nothing.
type Finder struct {
	// Driver is the name of the driver.
	Driver string
	// Snapshots reads VolumeSnapshots, their contents and classes.
	Snapshots snapshotapi.Client
	// Secrets reads secrets.
	Secrets *kube.SecretCache
}

// Snapshot is a snapshot of the driver.
type Snapshot struct {
	// Handle is the CSI snapshot_id.
	Handle string
	// Secrets are those of calls about it; nil: none.
	Secrets map[string]string
}

// Find returns the snapshot of a VolumeSnapshot. Other errors than those of this package come from the API server.
func (f *Finder) Find(ctx context.Context, namespace, name string) (*Snapshot, error) {
	vs, err := f.Snapshots.VolumeSnapshots(namespace).Get(ctx, name, metav1.GetOptions{})
	switch {
	case snapshotapi.IsAbsent(err):
		return nil, fmt.Errorf("get VolumeSnapshot %s/%s: the CustomResourceDefinitions of snapshots are not installed: %w", namespace, name, err)
	case apierrors.IsNotFound(err):
		return nil, fmt.Errorf("%w: %s/%s", ErrNotFound, namespace, name)
	case err != nil:
		return nil, fmt.Errorf("get VolumeSnapshot %s/%s: %w", namespace, name, err)
	}
	bound, err := contentName(vs)
	if err != nil {
		return nil, err
	}
	content, err := f.Snapshots.VolumeSnapshotContents().Get(ctx, bound, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return nil, fmt.Errorf("%w: VolumeSnapshotContent %q of VolumeSnapshot %s/%s does not exist", ErrNotReady, bound, namespace, name)
	case err != nil:
		return nil, fmt.Errorf("get VolumeSnapshotContent %q: %w", bound, err)
	}
	handle, err := handleOf(f.Driver, vs, content)
	if err != nil {
		return nil, err
	}
	secrets, err := f.secrets(ctx, content)
	if err != nil {
		return nil, err
	}
	return &Snapshot{Handle: handle, Secrets: secrets}, nil
}

// contentName returns the content that a ready VolumeSnapshot is bound to.
func contentName(vs *snapshotv1.VolumeSnapshot) (string, error) {
	status := vs.Status
	switch {
	case status == nil || status.BoundVolumeSnapshotContentName == nil || *status.BoundVolumeSnapshotContentName == "":
		return "", fmt.Errorf("%w: VolumeSnapshot %s/%s is not bound to a VolumeSnapshotContent", ErrNotReady, vs.Namespace, vs.Name)
	case status.ReadyToUse == nil || !*status.ReadyToUse:
		return "", fmt.Errorf("%w: VolumeSnapshot %s/%s has no status.readyToUse", ErrNotReady, vs.Namespace, vs.Name)
	default:
		return *status.BoundVolumeSnapshotContentName, nil
	}
}

// handleOf returns the handle of a content that belongs to the driver and to the VolumeSnapshot, which has named it. The user may have
// written that name, so that only the reference of the content proves that they belong together.
func handleOf(driver string, vs *snapshotv1.VolumeSnapshot, content *snapshotv1.VolumeSnapshotContent) (string, error) {
	ref := content.Spec.VolumeSnapshotRef
	switch {
	case ref.Namespace != vs.Namespace || ref.Name != vs.Name || ref.UID != vs.UID || vs.UID == "":
		return "", fmt.Errorf("%w: VolumeSnapshotContent %q is not bound to VolumeSnapshot %s/%s", ErrNotReady, content.Name, vs.Namespace, vs.Name)
	case content.Spec.Driver != driver:
		return "", fmt.Errorf("%w: VolumeSnapshot %s/%s is of driver %q, this service is for driver %q", ErrOtherDriver, vs.Namespace, vs.Name, content.Spec.Driver, driver)
	}
	status := content.Status
	switch {
	case status == nil || status.SnapshotHandle == nil || *status.SnapshotHandle == "":
		return "", fmt.Errorf("%w: VolumeSnapshotContent %q has no status.snapshotHandle", ErrNotReady, content.Name)
	case status.ReadyToUse == nil || !*status.ReadyToUse:
		return "", fmt.Errorf("%w: VolumeSnapshotContent %q has no status.readyToUse", ErrNotReady, content.Name)
	default:
		return *status.SnapshotHandle, nil
	}
}

// secrets returns the values of the secret that the content names, or else its class.
func (f *Finder) secrets(ctx context.Context, content *snapshotv1.VolumeSnapshotContent) (map[string]string, error) {
	ref, err := annotated(content)
	if ref == nil && err == nil {
		ref, err = f.ofClass(ctx, content)
	}
	if err != nil {
		return nil, err
	}
	return f.Secrets.Data(ctx, ref)
}

// ofClass returns the secret that the class of a pre-provisioned content names; nil: none. A class that is gone names none. The contents of other
// snapshots have in their annotations what their class names.
func (f *Finder) ofClass(ctx context.Context, content *snapshotv1.VolumeSnapshotContent) (*corev1.SecretReference, error) {
	name := content.Spec.VolumeSnapshotClassName
	switch {
	case content.Spec.Source.SnapshotHandle == nil:
		return nil, nil //nolint:nilnil // no reference means no secret, which is not an error
	case name == nil || *name == "":
		return f.ofDefaultClass(ctx, content)
	}
	class, err := f.Snapshots.VolumeSnapshotClasses().Get(ctx, *name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return nil, nil //nolint:nilnil // as above
	case apierrors.IsForbidden(err):
		return nil, fmt.Errorf("%w: get volumesnapshotclasses.%s, for the VolumeSnapshotClass %q of the pre-provisioned VolumeSnapshotContent %q: %w",
			ErrNoRight, snapshotapi.Group, *name, content.Name, err)
	case err != nil:
		return nil, fmt.Errorf("get VolumeSnapshotClass %q: %w", *name, err)
	default:
		return parameterized(class, content)
	}
}

// ofDefaultClass returns the secret that the default class of the driver names for a content that names no class, as those that backup programs restore. Without the
// right to list classes, and without a default one, there is none.
func (f *Finder) ofDefaultClass(ctx context.Context, content *snapshotv1.VolumeSnapshotContent) (*corev1.SecretReference, error) {
	list, err := f.Snapshots.VolumeSnapshotClasses().List(ctx, metav1.ListOptions{})
	if apierrors.IsForbidden(err) {
		return nil, nil //nolint:nilnil // as above
	}
	if err != nil {
		return nil, fmt.Errorf("list VolumeSnapshotClasses: %w", err)
	}
	var found []*snapshotv1.VolumeSnapshotClass
	for i := range list.Items {
		if class := &list.Items[i]; class.Driver == f.Driver && class.Annotations[snapshotapi.AnnDefaultClass] == "true" {
			found = append(found, class)
		}
	}
	switch len(found) {
	case 0:
		return nil, nil //nolint:nilnil // as above
	case 1:
		return parameterized(found[0], content)
	}
	return nil, fmt.Errorf("VolumeSnapshotContent %q names no class, and driver %q has %d default ones, %q and %q among them: keep one", content.Name, f.Driver, len(found), found[0].Name, found[1].Name)
}
