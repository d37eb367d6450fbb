package controller

import (
	groupv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumegroupsnapshot/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/longshore-csi/longshore/csikit/snapshotapi"
)

// newGroupContent makes the content of a group snapshot of the claims that its selector matches, with its class.
func newGroupContent(v groupView) (*groupv1.VolumeGroupSnapshotClass, *groupv1.VolumeGroupSnapshotContent, error) {
	group := v.group
	if v.selectorErr != nil {
		return nil, nil, problemf(ReasonValidation, "selector: %v", v.selectorErr)
	}
	if len(v.sources) == 0 {
		return nil, nil, problemf(ReasonContentCreationFailed, "the selector matches no PersistentVolumeClaim of namespace %s", group.Namespace)
	}
	var handles []string
	for _, s := range v.sources {
		if err := checkClaim(group.Namespace, s.claim.Name, s.claim, s.volume); err != nil {
			return nil, nil, err
		}
		handles = append(handles, s.volume.Spec.CSI.VolumeHandle)
	}
	class, err := chooseGroupClass(v, v.sources[0].volume.Spec.CSI.Driver)
	if err != nil {
		return nil, nil, err
	}
	for _, s := range v.sources {
		if driver := s.volume.Spec.CSI.Driver; driver != class.Driver {
			return nil, nil, problemf(ReasonValidation, "VolumeGroupSnapshotClass %q is for driver %q, claim %s has a volume of driver %q: all must have one driver",
				class.Name, class.Driver, keyOf(s.claim), driver)
		}
	}
	name := snapshotapi.GroupContentName(group.UID)
	secret, err := snapshotapi.ClassSecret(groupSecretKeys(), class.Parameters, name, group.Namespace, group.Name)
	if err != nil {
		return nil, nil, problemf(ReasonContentCreationFailed, "Failed to find the secret of VolumeGroupSnapshotClass %q: %v", class.Name, err)
	}
	content := &groupv1.VolumeGroupSnapshotContent{
		ObjectMeta: metav1.ObjectMeta{Name: name, Finalizers: []string{snapshotapi.FinalizerGroupContent}},
		Spec: groupv1.VolumeGroupSnapshotContentSpec{
			VolumeGroupSnapshotRef: corev1.ObjectReference{
				Kind: snapshotapi.KindVolumeGroupSnapshot, APIVersion: groupv1.SchemeGroupVersion.String(),
				Namespace: group.Namespace, Name: group.Name, UID: group.UID, ResourceVersion: group.ResourceVersion,
			},
			DeletionPolicy: class.DeletionPolicy, Driver: class.Driver, VolumeGroupSnapshotClassName: new(class.Name),
			Source: groupv1.VolumeGroupSnapshotContentSource{VolumeHandles: handles},
		},
	}
	if secret != nil {
		content.Annotations = map[string]string{
			snapshotapi.AnnGroupDeletionSecretName: secret.Name, snapshotapi.AnnGroupDeletionSecretNamespace: secret.Namespace,
		}
	}
	if v.node != "" {
		content.Labels = map[string]string{snapshotapi.LabelManagedBy: v.node}
	}
	return class, content, nil
}

func chooseGroupClass(v groupView, driver string) (*groupv1.VolumeGroupSnapshotClass, error) {
	if name := v.group.Spec.VolumeGroupSnapshotClassName; name != nil {
		if v.class == nil {
			return nil, problemf(ReasonClassFailed, "VolumeGroupSnapshotClass %q does not exist", *name)
		}
		return v.class, nil
	}
	var found []*groupv1.VolumeGroupSnapshotClass
	for _, class := range v.classes {
		if class.Driver == driver && class.Annotations[snapshotapi.AnnGroupDefaultClass] == "true" {
			found = append(found, class)
		}
	}
	if len(found) != 1 {
		return nil, noDefault("group snapshot", ReasonDefaultClassFailed, driver, found)
	}
	return found[0], nil
}
