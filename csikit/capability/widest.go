package capability

import (
	"errors"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
)

// ErrAccessModes is a combination of access modes that CSI has no counterpart for.
var ErrAccessModes = errors.New("access modes cannot be expressed in CSI")

// Widest returns the one mode that allows everything the list allows, for calls that take a single capability of a volume:
// ControllerPublishVolume and ControllerExpandVolume. It returns ErrAccessModes for lists that no single mode covers.
func Widest(modes []corev1.PersistentVolumeAccessMode) (corev1.PersistentVolumeAccessMode, error) {
	has := func(mode corev1.PersistentVolumeAccessMode) bool { return slices.Contains(modes, mode) }
	switch {
	case has(corev1.ReadWriteOncePod) && slices.ContainsFunc(modes, isNot(corev1.ReadWriteOncePod)):
		return "", fmt.Errorf("%w: %v: ReadWriteOncePod must stand alone", ErrAccessModes, modes)
	case has(corev1.ReadOnlyMany) && has(corev1.ReadWriteOnce) && !has(corev1.ReadWriteMany):
		return "", fmt.Errorf("%w: %v: ReadOnlyMany and ReadWriteOnce exclude each other", ErrAccessModes, modes)
	}
	widest := []corev1.PersistentVolumeAccessMode{corev1.ReadWriteMany, corev1.ReadOnlyMany, corev1.ReadWriteOnce, corev1.ReadWriteOncePod}
	if i := slices.IndexFunc(widest, has); i >= 0 {
		return widest[i], nil
	}
	return "", fmt.Errorf("%w: %v: none is known", ErrAccessModes, modes)
}

func isNot(mode corev1.PersistentVolumeAccessMode) func(corev1.PersistentVolumeAccessMode) bool {
	return func(other corev1.PersistentVolumeAccessMode) bool { return other != mode }
}
