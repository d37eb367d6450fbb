package snapshot

import (
	"fmt"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/longshore-csi/longshore/csikit/snapshotapi"
)

// annotated returns the secret that the annotations of a content name; nil: none. They are what the snapshot controller has made of the class
// when it created the content.
func annotated(content *snapshotv1.VolumeSnapshotContent) (*corev1.SecretReference, error) {
	name, hasName := content.Annotations[snapshotapi.AnnDeletionSecretName]
	namespace, hasNamespace := content.Annotations[snapshotapi.AnnDeletionSecretNamespace]
	switch {
	case !hasName && !hasNamespace:
		return nil, nil //nolint:nilnil // no reference means no secret, which is not an error
	case name == "" || namespace == "":
		return nil, fmt.Errorf("VolumeSnapshotContent %q: annotations %s and %s must both name a secret, or be absent",
			content.Name, snapshotapi.AnnDeletionSecretName, snapshotapi.AnnDeletionSecretNamespace)
	}
	return &corev1.SecretReference{Name: name, Namespace: namespace}, nil
}

// parameterized returns the secret that the parameters of a class name for a content; nil: none.
func parameterized(class *snapshotv1.VolumeSnapshotClass, content *snapshotv1.VolumeSnapshotContent) (*corev1.SecretReference, error) {
	keys := snapshotapi.SecretKeys{Name: snapshotapi.ParamSecretName, Namespace: snapshotapi.ParamSecretNamespace, Token: "volumesnapshot"}
	of := content.Spec.VolumeSnapshotRef
	ref, err := snapshotapi.ClassSecret(keys, class.Parameters, content.Name, of.Namespace, of.Name)
	if err != nil {
		return nil, fmt.Errorf("VolumeSnapshotClass %q: %w", class.Name, err)
	}
	return ref, nil
}
