// Package unsupported is the one list of what a volume of a pod may ask for and this agent does not do. An event on the
// pod, the metric csi_node_unsupported_total and a row of docs/differences.md come from it: nothing is left out in
// silence.
//
// Everything here is pure; package resolve applies it to the volumes of a pod, and package pods reports. What no pod can
// ask for, such as volume statistics, is not here.
package unsupported

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
)

// Event reasons.
const (
	// ReasonIgnored is the reason for a feature without which the pod runs.
	ReasonIgnored = "UnsupportedVolumeFeature"
	// ReasonFailedMount is the kubelet's reason for a volume that cannot be had.
	ReasonFailedMount = "FailedMount"
)

// Feature is something that this agent does not do.
type Feature struct {
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

	asked func(*Request) bool
}

// Request is one volume of a pod. Fields are nil where the volume has no such object.
type Request struct {
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

// Finding is a feature that a volume asks for.
type Finding struct {
	// Feature is its name.
	Feature string
	// Reason is the event reason.
	Reason string
	// Message says what is asked for and what happens instead.
	Message string
	// Refused is that of the feature.
	Refused bool
}

// Features lists all features, those that are refused first.
func Features() []Feature {
	return []Feature{
		{
			Name: "csi-migration", Asks: "an in-tree volume that Kubernetes migrates to a CSI driver", Effect: "the pod waits; use a volume of the CSI driver",
			Reason: ReasonFailedMount, Refused: true, asked: migrated,
		},
		{
			Name: "caret-in-handle", Asks: "the attachment of a volume handle with the character ^",
			Effect: "the volume is attached and mounted, but kube-controller-manager cannot detach it: delete its VolumeAttachment after the pod",
			Reason: ReasonIgnored, asked: caret,
		},
	}
}

// Row is the row of a feature in docs/differences.md.
func (f Feature) Row() string {
	return fmt.Sprintf("| `%s` | %s | %s | `%s` |", f.Name, f.Asks, f.Effect, f.Reason)
}

// Find lists the features that a volume asks for.
func Find(r *Request) []Finding {
	var all []Finding
	for _, f := range Features() {
		if f.asked(r) {
			all = append(all, Finding{
				Feature: f.Name, Reason: f.Reason, Refused: f.Refused,
				Message: fmt.Sprintf("it asks for %s, which this node agent does not support: %s", f.Asks, f.Effect),
			})
		}
	}
	return all
}
