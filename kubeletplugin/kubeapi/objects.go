// Package kubeapi gives a Plugin what it asks of an API server: the objects of volumes, secrets, service account tokens and the claims that ask for expansions. It needs
// no more than the rights of a node. A Plugin without an API server does not link it.
package kubeapi

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/longshore-csi/longshore/csikit/kube"
	"github.com/longshore-csi/longshore/kubeletplugin/volume"
)

// Objects are what Kubernetes knows of the volumes of pods (resolve.Objects).
type Objects struct {
	// API reads claims and PersistentVolumes one at a time, which is all that a node may do.
	API kube.Client
	// CSIDriver returns a CSIDriver object, which is watched; nil if there is none.
	CSIDriver func(name string) *storagev1.CSIDriver
	// Self returns this node's object, which is watched; nil if it is not known.
	Self func() *corev1.Node
}

// Claim implements resolve.Objects.
func (o Objects) Claim(ctx context.Context, namespace, name string) (*corev1.PersistentVolumeClaim, error) {
	return o.API.PersistentVolumeClaims(namespace).Get(ctx, name, metav1.GetOptions{})
}

// Volume implements resolve.Objects.
func (o Objects) Volume(ctx context.Context, name string) (*corev1.PersistentVolume, error) {
	return o.API.PersistentVolumes().Get(ctx, name, metav1.GetOptions{})
}

// Driver implements resolve.Objects.
func (o Objects) Driver(name string) *storagev1.CSIDriver { return o.CSIDriver(name) }

// Node implements resolve.Objects.
func (o Objects) Node() *corev1.Node { return o.Self() }

// Secrets reads the secrets for calls to drivers. A node gets the right to read them after the pod: a refusal is tried again.
type Secrets struct {
	// API reads with the rights of a node.
	API kube.Client
}

var _ volume.Secrets = Secrets{}

// Secret implements volume.Secrets.
func (s Secrets) Secret(ctx context.Context, ref *corev1.SecretReference) (map[string]string, error) {
	data, err := kube.SecretData(ctx, s.API, ref)
	return data, passing(err)
}

// passing marks an error that ends when the node gets its rights.
func passing(err error) error {
	if apierrors.IsForbidden(err) {
		return fmt.Errorf("%w: %w", volume.ErrTransient, err)
	}
	return err
}
