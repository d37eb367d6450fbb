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

// translate returns pv with the CSI source of the volume if it is one of the in-tree plugin that driver replaces, else pv
// itself. The in-tree source stays beside the CSI source, which the API server accepts of no object: the two together
// mark a migrated volume.
func translate(driver string, pv *corev1.PersistentVolume) (*corev1.PersistentVolume, error) {
	if !inTree(driver, pv) || pv.Spec.CSI != nil {
		return pv, nil
	}
	translated, err := csitranslation.New().TranslateInTreePVToCSI(klog.Logger{}, pv)
	if err != nil {
		return pv, fmt.Errorf("translate PersistentVolume %q for driver %q: %w", pv.Name, driver, err)
	}
	source := pv.Spec.PersistentVolumeSource
	source.CSI = translated.Spec.CSI
	translated.Spec.PersistentVolumeSource = source
	return translated, nil
}
