// Package migration translates objects of the in-tree volume plugins, such as kubernetes.io/aws-ebs, to those of the CSI drivers
// that replace them, and back (KEP-625, CSI migration). Everything here is pure: objects in, objects out.
//
// Components work with objects in CSI form only: in-tree objects are translated where they are read, and a PersistentVolume where it is
// written. Do not use this package to find out who serves a claim or a volume: annotations say that, too.
package migration

import (
	"errors"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	csitranslation "k8s.io/csi-translation-lib"
	"k8s.io/klog/v2"
)

// provisionedBy is the annotation that names the provisioner of a PersistentVolume.
const provisionedBy = "pv.kubernetes.io/provisioned-by"

// Plugin is the in-tree volume plugin that a CSI driver replaces. The zero value is for a driver that replaces none: it
// returns all objects as they are.
type Plugin struct {
	driver, name string
	library      csitranslation.CSITranslator
}

// Of returns the plugin that a CSI driver replaces.
func Of(driver string) Plugin {
	library := csitranslation.New()
	name, err := library.GetInTreeNameFromCSIName(driver)
	if err != nil {
		return Plugin{}
	}
	return Plugin{driver: driver, name: name, library: library}
}

// Replaces reports whether a CSI driver replaces a plugin.
func Replaces(driver string) bool { return Of(driver).name != "" }

// Name returns the name of the plugin, which is the provisioner of its StorageClasses; empty if there is none.
func (p Plugin) Name() string {
	return p.name
}

// Class returns a StorageClass in CSI form: a class of the plugin becomes one of the driver. With an error, which says that
// the class has no such form, the class has neither parameters nor topologies.
func (p Plugin) Class(logger klog.Logger, class *storagev1.StorageClass) (*storagev1.StorageClass, error) {
	if p.name == "" || class.Provisioner != p.name {
		return class, nil
	}
	translated, err := p.library.TranslateInTreeStorageClassToCSI(logger, p.name, class)
	if err != nil {
		err = fmt.Errorf("translate it from %s to CSI driver %q: %w", p.name, p.driver, err)
		translated = class.DeepCopy()
		translated.Parameters, translated.AllowedTopologies = nil, nil
	}
	translated.Provisioner = p.driver
	return translated, err
}

// Owns reports whether a PersistentVolume, which may be nil, is a volume of the plugin in its form.
func (p Plugin) Owns(pv *corev1.PersistentVolume) bool {
	if p.name == "" {
		return false
	}
	name, err := p.library.GetInTreePluginNameFromSpec(pv, nil) // its error says that no plugin has such volumes
	return err == nil && name == p.name
}

// WithCSI returns a PersistentVolume with the source of its CSI form beside its own, which the API server accepts of no object: the two together mark a migrated
// volume. With an error, and if the volume is not one of the plugin, it is returned as it is.
func (p Plugin) WithCSI(pv *corev1.PersistentVolume) (*corev1.PersistentVolume, error) {
	translated, err := p.ToCSI(pv)
	if err != nil || translated == pv {
		return pv, err
	}
	source := pv.Spec.PersistentVolumeSource
	source.CSI = translated.Spec.CSI
	translated.Spec.PersistentVolumeSource = source
	return translated, nil
}

// ToCSI returns a PersistentVolume in CSI form. With an error, which says that a volume of the plugin has no such form, and if the
// volume is not one of the plugin, it is returned as it is.
func (p Plugin) ToCSI(pv *corev1.PersistentVolume) (*corev1.PersistentVolume, error) {
	if pv == nil || pv.Spec.CSI != nil || !p.Owns(pv) {
		return pv, nil
	}
	translated, err := p.library.TranslateInTreePVToCSI(klog.Logger{}, pv)
	if err != nil {
		return pv, fmt.Errorf("translate it from %s to CSI driver %q: %w", p.name, p.driver, err)
	}
	if _, ok := pv.Annotations[provisionedBy]; !ok {
		// It must not be mistaken for a CSI volume that was made by hand.
		if translated.Annotations == nil {
			translated.Annotations = map[string]string{}
		}
		translated.Annotations[provisionedBy] = p.name
	}
	dropRegions(translated.Spec.NodeAffinity)
	return translated, nil
}

// Made reports whether a PersistentVolume in CSI form is a volume of the plugin.
func (p Plugin) Made(pv *corev1.PersistentVolume) bool {
	return p.name != "" && pv.Annotations[provisionedBy] == p.name
}

// ToInTree returns a PersistentVolume of the driver in the form that the plugin has written. Its volume can be deleted later, by
// the handle that its CSI form has then.
func (p Plugin) ToInTree(pv *corev1.PersistentVolume) (*corev1.PersistentVolume, error) {
	translated, err := p.library.TranslateCSIPVToInTree(pv)
	if err == nil {
		var again *corev1.PersistentVolume
		if again, err = p.ToCSI(translated); err == nil && (again.Spec.CSI == nil || again.Spec.CSI.VolumeHandle == "") {
			err = errors.New("the driver's answer lacks what identifies the volume in that form")
		}
	}
	if err != nil {
		return nil, fmt.Errorf("translate PersistentVolume %q from CSI driver %q to %s: %w", pv.Name, p.driver, p.name, err)
	}
	return translated, nil
}

// dropRegions removes what in-tree volumes say about the region beside the zone, from which it follows. The topology of CSI
// drivers has no such key, so that otherwise no segment of theirs would match.
func dropRegions(affinity *corev1.VolumeNodeAffinity) {
	if affinity == nil || affinity.Required == nil {
		return
	}
	isRegion := func(r corev1.NodeSelectorRequirement) bool {
		return r.Key == corev1.LabelTopologyRegion || r.Key == corev1.LabelFailureDomainBetaRegion
	}
	for i, term := range affinity.Required.NodeSelectorTerms {
		rest := slices.DeleteFunc(slices.Clone(term.MatchExpressions), isRegion)
		if len(rest) > 0 {
			affinity.Required.NodeSelectorTerms[i].MatchExpressions = rest
		}
	}
}
