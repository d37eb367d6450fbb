package controller

import (
	"fmt"
	"slices"
	"strings"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/longshore-csi/longshore/csikit/snapshotapi"
)

// newContent makes the content of a snapshot of a claim, with its class.
func newContent(v view) (*snapshotv1.VolumeSnapshotClass, *snapshotv1.VolumeSnapshotContent, error) {
	s := v.snapshot
	if err := checkClaim(s.Namespace, *s.Spec.Source.PersistentVolumeClaimName, v.claim, v.volume); err != nil {
		return nil, nil, err
	}
	driver := v.volume.Spec.CSI.Driver
	class, err := chooseClass(v, driver)
	if err != nil {
		return nil, nil, err
	}
	name := snapshotapi.ContentName(s.UID)
	secret, err := snapshotapi.ClassSecret(snapshotSecretKeys(), class.Parameters, name, s.Namespace, s.Name)
	if err != nil {
		return nil, nil, problemf(ReasonContentCreationFailed, "Failed to find the secret of VolumeSnapshotClass %q: %v", class.Name, err)
	}
	content := &snapshotv1.VolumeSnapshotContent{
		ObjectMeta: metav1.ObjectMeta{Name: name, Finalizers: []string{snapshotapi.FinalizerContent}},
		Spec: snapshotv1.VolumeSnapshotContentSpec{
			VolumeSnapshotRef: corev1.ObjectReference{
				Kind: snapshotapi.KindVolumeSnapshot, APIVersion: snapshotv1.SchemeGroupVersion.String(),
				Namespace: s.Namespace, Name: s.Name, UID: s.UID, ResourceVersion: s.ResourceVersion,
			},
			Source:         snapshotv1.VolumeSnapshotContentSource{VolumeHandle: new(v.volume.Spec.CSI.VolumeHandle)},
			Driver:         driver,
			DeletionPolicy: class.DeletionPolicy, VolumeSnapshotClassName: new(class.Name),
		},
	}
	if v.sourceVolumeMode {
		content.Spec.SourceVolumeMode = v.volume.Spec.VolumeMode
	}
	if secret != nil {
		content.Annotations = map[string]string{
			snapshotapi.AnnDeletionSecretName: secret.Name, snapshotapi.AnnDeletionSecretNamespace: secret.Namespace,
		}
	}
	if v.node != "" {
		content.Labels = map[string]string{snapshotapi.LabelManagedBy: v.node}
	}
	return class, content, nil
}

// checkClaim returns why no snapshot can be taken of a claim now.
func checkClaim(namespace, name string, claim *corev1.PersistentVolumeClaim, pv *corev1.PersistentVolume) error {
	key := namespace + "/" + name
	switch {
	case claim == nil:
		return problemf(ReasonClaimMissing, "PersistentVolumeClaim %s does not exist", key)
	case claim.Status.Phase != corev1.ClaimBound || claim.Spec.VolumeName == "":
		return problemf(ReasonContentCreationFailed, "PersistentVolumeClaim %s is not yet bound to a PersistentVolume: no snapshot is taken until it is", key)
	case claim.DeletionTimestamp != nil && !slices.Contains(claim.Finalizers, snapshotapi.FinalizerClaim):
		return problemf(ReasonContentCreationFailed, "PersistentVolumeClaim %s is being deleted: no snapshot is taken of it", key)
	case pv == nil:
		return problemf(ReasonContentCreationFailed, "PersistentVolume %q of claim %s does not exist", claim.Spec.VolumeName, key)
	}
	ref := pv.Spec.ClaimRef
	switch {
	case ref == nil || ref.Namespace != claim.Namespace || ref.Name != claim.Name || ref.UID != claim.UID:
		return problemf(ReasonContentCreationFailed, "PersistentVolume %q is not bound to claim %s", pv.Name, key)
	case pv.Spec.CSI == nil:
		return problemf(ReasonContentCreationFailed, "PersistentVolume %q of claim %s is not one of a CSI driver", pv.Name, key)
	}
	return nil
}

// chooseClass returns the class that the snapshot names, or else the default one of the volume's driver.
func chooseClass(v view, driver string) (*snapshotv1.VolumeSnapshotClass, error) {
	if name := v.snapshot.Spec.VolumeSnapshotClassName; name != nil {
		switch {
		case v.class == nil:
			return nil, problemf(ReasonClassFailed, "VolumeSnapshotClass %q does not exist", *name)
		case v.class.Driver != driver:
			return nil, problemf(ReasonValidation, "VolumeSnapshotClass %q is for driver %q, PersistentVolume %q is of driver %q: choose a class of that driver",
				*name, v.class.Driver, v.volume.Name, driver)
		}
		return v.class, nil
	}
	var found []*snapshotv1.VolumeSnapshotClass
	for _, class := range v.classes {
		if class.Driver == driver && class.Annotations[snapshotapi.AnnDefaultClass] == "true" {
			found = append(found, class)
		}
	}
	if len(found) != 1 {
		return nil, noDefault("snapshot", ReasonDefaultClassFailed, driver, found)
	}
	return found[0], nil
}

// noDefault says why there is no default class, in the words of the external-snapshotter: Kubernetes' storage suite looks for them.
func noDefault[T metav1.Object](what, reason, driver string, found []T) error {
	if len(found) == 0 {
		return problemf(reason, "cannot find default %s class for driver %q: name a class, or mark one as the default", what, driver)
	}
	names := make([]string, 0, len(found))
	for _, class := range found {
		names = append(names, fmt.Sprintf("%q", class.GetName()))
	}
	slices.Sort(names)
	return problemf(reason, "%d default snapshot classes were found: %s of driver %q; keep one default %s class", len(found), strings.Join(names, ", "), driver, what)
}
