package controller

import (
	groupv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumegroupsnapshot/v1"
	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/longshore-csi/longshore/csikit/snapshotapi"
)

// This file says what the caches keep: what is read, and no more. Of other drivers' objects they keep the name of the driver.

// slimMeta keeps what identifies an object and holds it, whether its snapshot is being taken, and the named annotations.
func slimMeta(meta metav1.ObjectMeta, annotations ...string) metav1.ObjectMeta {
	slim := metav1.ObjectMeta{
		Name: meta.Name, UID: meta.UID, ResourceVersion: meta.ResourceVersion, DeletionTimestamp: meta.DeletionTimestamp, Finalizers: meta.Finalizers,
	}
	if value, ok := meta.Labels[snapshotapi.LabelBeingCreated]; ok {
		slim.Labels = map[string]string{snapshotapi.LabelBeingCreated: value}
	}
	for _, name := range append(annotations, snapshotapi.AnnAbandon) {
		if value, ok := meta.Annotations[name]; ok {
			metav1.SetMetaDataAnnotation(&slim, name, value)
		}
	}
	return slim
}

// stubMeta keeps what identifies an object.
func stubMeta(meta metav1.ObjectMeta) metav1.ObjectMeta {
	return metav1.ObjectMeta{Name: meta.Name, UID: meta.UID, ResourceVersion: meta.ResourceVersion}
}

func slimRef(ref corev1.ObjectReference) corev1.ObjectReference {
	return corev1.ObjectReference{Namespace: ref.Namespace, Name: ref.Name, UID: ref.UID}
}

func slimContent(driver string) func(*snapshotv1.VolumeSnapshotContent) *snapshotv1.VolumeSnapshotContent {
	return func(content *snapshotv1.VolumeSnapshotContent) *snapshotv1.VolumeSnapshotContent {
		if content.Spec.Driver != driver {
			return &snapshotv1.VolumeSnapshotContent{ObjectMeta: stubMeta(content.ObjectMeta), Spec: snapshotv1.VolumeSnapshotContentSpec{Driver: content.Spec.Driver}}
		}
		spec := content.Spec
		return &snapshotv1.VolumeSnapshotContent{
			ObjectMeta: slimMeta(content.ObjectMeta, snapshotapi.AnnBeingCreated, snapshotapi.AnnBeingDeleted,
				snapshotapi.AnnDeletionSecretName, snapshotapi.AnnDeletionSecretNamespace, snapshotapi.AnnVolumeGroupSnapshotHandle,
				snapshotapi.AnnAccessibleTopology),
			Spec: snapshotv1.VolumeSnapshotContentSpec{
				VolumeSnapshotRef: slimRef(spec.VolumeSnapshotRef), DeletionPolicy: spec.DeletionPolicy, Driver: spec.Driver,
				VolumeSnapshotClassName: spec.VolumeSnapshotClassName, Source: spec.Source,
			},
			Status: content.Status,
		}
	}
}

func slimClass(driver string) func(*snapshotv1.VolumeSnapshotClass) *snapshotv1.VolumeSnapshotClass {
	return func(c *snapshotv1.VolumeSnapshotClass) *snapshotv1.VolumeSnapshotClass {
		slim := &snapshotv1.VolumeSnapshotClass{ObjectMeta: stubMeta(c.ObjectMeta), Driver: c.Driver}
		if c.Driver == driver {
			slim.ObjectMeta, slim.Parameters = slimMeta(c.ObjectMeta, snapshotapi.AnnAllowedTopologies), c.Parameters
		}
		return slim
	}
}

func slimGroupContent(driver string) func(*groupv1.VolumeGroupSnapshotContent) *groupv1.VolumeGroupSnapshotContent {
	return func(content *groupv1.VolumeGroupSnapshotContent) *groupv1.VolumeGroupSnapshotContent {
		if content.Spec.Driver != driver {
			return &groupv1.VolumeGroupSnapshotContent{ObjectMeta: stubMeta(content.ObjectMeta), Spec: groupv1.VolumeGroupSnapshotContentSpec{Driver: content.Spec.Driver}}
		}
		annotations := []string{
			snapshotapi.AnnGroupBeingCreated, snapshotapi.AnnGroupBeingDeleted,
			snapshotapi.AnnGroupDeletionSecretName, snapshotapi.AnnGroupDeletionSecretNamespace,
		}
		if content.Status == nil || len(content.Status.VolumeSnapshotInfoList) == 0 {
			annotations = append(annotations, snapshotapi.AnnGroupSnapshotInfoList)
		}
		spec := content.Spec
		spec.VolumeGroupSnapshotRef = slimRef(spec.VolumeGroupSnapshotRef)
		return &groupv1.VolumeGroupSnapshotContent{
			ObjectMeta: slimMeta(content.ObjectMeta, annotations...), Spec: spec, Status: content.Status,
		}
	}
}

func slimGroupClass(driver string) func(*groupv1.VolumeGroupSnapshotClass) *groupv1.VolumeGroupSnapshotClass {
	return func(c *groupv1.VolumeGroupSnapshotClass) *groupv1.VolumeGroupSnapshotClass {
		slim := &groupv1.VolumeGroupSnapshotClass{ObjectMeta: stubMeta(c.ObjectMeta), Driver: c.Driver}
		if c.Driver == driver {
			slim.Parameters = c.Parameters
		}
		return slim
	}
}
