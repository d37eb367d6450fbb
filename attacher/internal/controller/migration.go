package controller

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	csitranslation "k8s.io/csi-translation-lib"
	"k8s.io/klog/v2"
)

// ReplacesPlugin reports whether the driver replaces an in-tree volume plugin of Kubernetes ("CSI migration").
func ReplacesPlugin(driver string) bool {
	return csitranslation.New().IsMigratedCSIDriverByName(driver)
}

// inTree reports whether pv is a volume of the in-tree plugin that driver replaces.
func inTree(driver string, pv *corev1.PersistentVolume) bool {
	translator := csitranslation.New()
	if !translator.IsPVMigratable(pv) {
		return false
	}
	replaced, err := translator.GetInTreeNameFromCSIName(driver)
	if err != nil {
		return false // the driver replaces none
	}
	plugin, err := translator.GetInTreePluginNameFromSpec(pv, nil)
	return err == nil && plugin == replaced
}

// isRolledBack reports whether pv is a volume of the in-tree plugin that driver replaces, and kube-controller-manager leaves it to
// the plugin. Only the finalizer depends on that: a VolumeAttachment is served by the attacher that it names, so that
// volumes are detached after migration is switched off, too.
func isRolledBack(driver string, pv *corev1.PersistentVolume) bool {
	return inTree(driver, pv) && pv.Annotations[AnnotationMigratedTo] != driver
}

// translate returns pv with the CSI source of the volume if it is one of the in-tree plugin that driver replaces, else pv
// itself, which may be nil. The in-tree source stays beside the CSI source, which the API server accepts of no object: the two together
// mark a migrated volume.
func translate(driver string, pv *corev1.PersistentVolume) (*corev1.PersistentVolume, error) {
	if !inTree(driver, pv) || pv.Spec.CSI != nil {
		return pv, nil
	}
	translated, err := csitranslation.New().TranslateInTreePVToCSI(klog.Logger{}, pv)
	if err != nil {
		return pv, fmt.Errorf("PersistentVolume %q %w: translate it for driver %q: %w", pv.Name, errSourceUnusable, driver, err)
	}
	source := pv.Spec.PersistentVolumeSource
	source.CSI = translated.Spec.CSI
	translated.Spec.PersistentVolumeSource = source
	return translated, nil
}

// isMigrated reports whether the volume of a VolumeAttachment of driver is one of an in-tree plugin. pv, which translate has returned, is
// nil for a volume that the VolumeAttachment describes itself: the attach/detach controller does so only for
// in-tree volumes in the spec of a pod.
func isMigrated(driver string, pv *corev1.PersistentVolume) bool {
	if pv == nil {
		return ReplacesPlugin(driver)
	}
	return inTree(driver, pv)
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
