package resolve

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
)

// AllowedDrivers says which drivers inline volumes may name (seed 003, "AllowedCSIDrivers"). The
// zero value allows any; once set, only the listed ones are allowed, so an empty list allows none.
// It is a flag.Value.
type AllowedDrivers struct {
	// Restricted is true once a list was given.
	Restricted bool
	// Names are the allowed drivers.
	Names []string
}

// String returns the list as a flag value.
func (a *AllowedDrivers) String() string { return strings.Join(a.Names, ",") }

// Set takes a comma-separated list; an empty one allows no driver.
func (a *AllowedDrivers) Set(list string) error {
	a.Restricted, a.Names = true, nil
	for name := range strings.SplitSeq(list, ",") {
		if name = strings.TrimSpace(name); name != "" {
			a.Names = append(a.Names, name)
		}
	}
	return nil
}

// Check returns an error if inline volumes may not name the driver.
func (a *AllowedDrivers) Check(driver string) error {
	if !a.Restricted || slices.Contains(a.Names, driver) {
		return nil
	}
	if len(a.Names) == 0 {
		return fmt.Errorf("CSI driver %q is not allowed in inline volumes: this node allows none", driver)
	}
	return fmt.Errorf("CSI driver %q is not allowed in inline volumes: this node allows only %s", driver, a)
}

// lifecycle returns an error if the driver does not allow the lifecycle mode. A driver without a
// CSIDriver object (nil) allows persistent volumes only. Modes are compared without case, because
// seed 003 writes them in lower case.
func lifecycle(d *storagev1.CSIDriver, driver string, mode storagev1.VolumeLifecycleMode) error {
	modes := []storagev1.VolumeLifecycleMode{storagev1.VolumeLifecyclePersistent}
	if d != nil && len(d.Spec.VolumeLifecycleModes) > 0 {
		modes = d.Spec.VolumeLifecycleModes
	}
	for _, m := range modes {
		if strings.EqualFold(string(m), string(mode)) {
			return nil
		}
	}
	if d == nil {
		return fmt.Errorf("volume mode %q not supported by driver %s (no CSIDriver object)", mode, driver)
	}
	return fmt.Errorf("volume mode %q not supported by driver %s (only supports %q)", mode, driver, modes)
}

// affinity returns an error if the volume cannot be reached from the node.
func affinity(pv *corev1.PersistentVolume, node *corev1.Node) error {
	if pv.Spec.NodeAffinity == nil || pv.Spec.NodeAffinity.Required == nil {
		return nil
	}
	selector, err := nodeaffinity.NewNodeSelector(pv.Spec.NodeAffinity.Required)
	if err != nil {
		return fmt.Errorf("read node affinity of volume %q: %w", pv.Name, err)
	}
	if node == nil {
		return fmt.Errorf("volume %q cannot be used here: it has a node affinity, and the labels of this node are not known", pv.Name)
	}
	if !selector.Match(node) {
		return fmt.Errorf("volume %q cannot be used here: its node affinity does not match the labels of this node", pv.Name)
	}
	return nil
}
