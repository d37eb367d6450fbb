package controller

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	csitranslation "k8s.io/csi-translation-lib"

	"github.com/longshore-csi/longshore/csikit/migration"
)

// isRolledBack reports whether pv is a volume of the in-tree plugin that driver replaces, and kube-controller-manager leaves it to
// the plugin. Only the finalizer depends on that: a VolumeAttachment is served by the attacher that it names, so that
// volumes are detached after migration is switched off, too.
func isRolledBack(driver string, pv *corev1.PersistentVolume) bool {
	return migration.Of(driver).Owns(pv) && pv.Annotations[AnnotationMigratedTo] != driver
}

// translate returns pv, which may be nil, with the CSI source of the volume beside its own if it is one of the in-tree plugin that driver replaces.
func translate(driver string, pv *corev1.PersistentVolume) (*corev1.PersistentVolume, error) {
	translated, err := migration.Of(driver).WithCSI(pv)
	if err != nil {
		return pv, fmt.Errorf("PersistentVolume %q %w: %w", pv.Name, errSourceUnusable, err)
	}
	return translated, nil
}

// isMigrated reports whether the volume of a VolumeAttachment of driver is one of an in-tree plugin. pv, which translate has returned, is
// nil for a volume that the VolumeAttachment describes itself: the attach/detach controller does so only for
// in-tree volumes in the spec of a pod.
func isMigrated(driver string, pv *corev1.PersistentVolume) bool {
	plugin := migration.Of(driver)
	return plugin.Owns(pv) || pv == nil && plugin.Name() != ""
}

// listedHandle returns the handle under which ListVolumes shows a volume on a node. The handle of a migrated volume may lack
// parts that the ID of the node has, such as the project.
func listedHandle(driver string, s source, handle, nodeID string) (string, error) {
	if !s.migrated {
		return handle, nil
	}
	listed, err := csitranslation.New().RepairVolumeHandle(driver, handle, nodeID)
	if err != nil {
		return "", fmt.Errorf("complete volume handle %q by node ID %q: %w", handle, nodeID, err)
	}
	return listed, nil
}
