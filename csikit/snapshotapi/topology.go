package snapshotapi

import (
	"encoding/json"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"
)

// The API of snapshots has no fields for the topology of snapshots yet (KEP-5943, alpha); these annotations stand in for them.
const (
	// AnnAllowedTopologies of a VolumeSnapshotClass says from where its snapshots must be accessible, as field allowedTopologies of a
	// StorageClass does, in YAML or JSON; the admin sets it.
	AnnAllowedTopologies = "csi.longshore.dev/allowed-topologies"
	// AnnAccessibleTopology of a VolumeSnapshotContent says from where volumes can be made of the snapshot: a JSON list of segments, each an
	// object of topology keys and values (CSI v1.13, field accessible_topology of message Snapshot). csi-snapshotter sets it before
	// the snapshot becomes ready, the admin for a snapshot that existed before.
	AnnAccessibleTopology = "csi.longshore.dev/accessible-topology"
)

// AllowedTopologies returns what the annotations of a VolumeSnapshotClass allow, nil for every place.
func AllowedTopologies(annotations map[string]string) ([]corev1.TopologySelectorTerm, error) {
	text, ok := annotations[AnnAllowedTopologies]
	if !ok {
		return nil, nil
	}
	var terms []corev1.TopologySelectorTerm
	if err := yaml.UnmarshalStrict([]byte(text), &terms); err != nil {
		return nil, fmt.Errorf("annotation %s must be a list like allowedTopologies of a StorageClass: %w", AnnAllowedTopologies, err)
	}
	return terms, nil
}

// AccessibleTopology returns from where the annotations of a VolumeSnapshotContent say that its snapshot is accessible, as the segments of each
// csi.Topology; nil for everywhere, or if that is not known.
func AccessibleTopology(annotations map[string]string) ([]map[string]string, error) {
	text, ok := annotations[AnnAccessibleTopology]
	if !ok {
		return nil, nil
	}
	var segments []map[string]string
	if err := json.Unmarshal([]byte(text), &segments); err != nil {
		return nil, fmt.Errorf(`annotation %s must be a JSON list like [{"zone":"a"}]: %w`, AnnAccessibleTopology, err)
	}
	return segments, nil
}

// FormatAccessibleTopology returns the value of AnnAccessibleTopology, "" for a snapshot of which the driver does not say from where
// it is accessible.
func FormatAccessibleTopology(segments []map[string]string) string {
	text, err := json.Marshal(segments)
	if len(segments) == 0 || err != nil { // maps of strings have no error
		return ""
	}
	return string(text)
}
