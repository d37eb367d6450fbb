package resolve

import (
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"

	"github.com/longshore-csi/longshore/kubeletplugin/volume"
)

// UnsupportedFeature is something that the plugin does not do.
type UnsupportedFeature struct {
	// Name is the label value in csi_node_unsupported_total.
	Name string
	// Asks says what asks for it.
	Asks string
	// Effect says what happens instead.
	Effect string
	// Reason is the event reason.
	Reason string
	// Refused is true if the pod waits; otherwise it runs without the feature.
	Refused bool

	asked func(*request) bool
}

// request is one volume of a pod. Fields are nil where the volume has no such object.
type request struct {
	// Pod is the pod.
	Pod *corev1.Pod
	// Volume is the pod's volume.
	Volume *corev1.Volume
	// PV is the PersistentVolume.
	PV *corev1.PersistentVolume
	// Driver is the CSIDriver object.
	Driver *storagev1.CSIDriver
	// ReadOnly is true if the pod mounts the volume read-only.
	ReadOnly bool
	// SelfAttach is true if kube-controller-manager does not attach volumes.
	SelfAttach bool
}

// UnsupportedFeatures is the one list of what a volume of a pod may ask for and does not get. An event on the pod, the metric csi_node_unsupported_total and a row of the
// agent's docs/differences.md come from it: nothing is left out in silence. It lists all features, those that are refused first.
func UnsupportedFeatures() []UnsupportedFeature {
	return []UnsupportedFeature{
		{
			Name: "csi-migration", Asks: "an in-tree volume that Kubernetes migrates to a CSI driver", Effect: "the pod waits; use a volume of the CSI driver",
			Reason: volume.ReasonFailedMount, Refused: true, asked: migrated,
		},
		{
			Name: "caret-in-handle", Asks: "the attachment of a volume handle with the character ^",
			Effect: "the volume is attached and mounted, but kube-controller-manager cannot detach it: delete its VolumeAttachment after the pod",
			Reason: volume.ReasonUnsupported, asked: caret,
		},
	}
}

// Row is the row of a feature in the agent's docs/differences.md.
func (f UnsupportedFeature) Row() string {
	return fmt.Sprintf("| `%s` | %s | %s | `%s` |", f.Name, f.Asks, f.Effect, f.Reason)
}

// findUnsupported lists the features that a volume asks for.
func findUnsupported(r *request) []volume.Unsupported {
	var all []volume.Unsupported
	for _, f := range UnsupportedFeatures() {
		if f.asked(r) {
			all = append(all, volume.Unsupported{
				Feature: f.Name, Reason: f.Reason, Refused: f.Refused,
				Message: fmt.Sprintf("it asks for %s, which this node agent does not support: %s", f.Asks, f.Effect),
			})
		}
	}
	return all
}

// migrated reports whether the volume is of an in-tree plugin that Kubernetes 1.36 replaces by a CSI driver.
func migrated(r *request) bool {
	return r.PV != nil && migratedSpec(&r.PV.Spec.PersistentVolumeSource) || migratedInPod(&r.Volume.VolumeSource)
}

func migratedInPod(v *corev1.VolumeSource) bool {
	return v.GCEPersistentDisk != nil || v.AWSElasticBlockStore != nil || v.Cinder != nil ||
		v.AzureDisk != nil || v.AzureFile != nil || v.VsphereVolume != nil || v.PortworxVolume != nil
}

func migratedSpec(s *corev1.PersistentVolumeSource) bool {
	return s.GCEPersistentDisk != nil || s.AWSElasticBlockStore != nil || s.Cinder != nil ||
		s.AzureDisk != nil || s.AzureFile != nil || s.VsphereVolume != nil || s.PortworxVolume != nil
}

// caret reports whether kube-controller-manager attaches the volume but cannot detach it: it splits the unique name of
// the volume at this character.
func caret(r *request) bool {
	attached := !r.SelfAttach && (r.Driver == nil || r.Driver.Spec.AttachRequired == nil || *r.Driver.Spec.AttachRequired)
	return attached && r.PV != nil && r.PV.Spec.CSI != nil && strings.Contains(r.PV.Spec.CSI.VolumeHandle, "^")
}
