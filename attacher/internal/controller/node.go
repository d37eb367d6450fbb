package controller

import (
	"encoding/json"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
)

// csiNodeID returns the ID that the driver registered for the node, or nothing.
func csiNodeID(node *storagev1.CSINode, driver string) string {
	if node == nil {
		return ""
	}
	for _, d := range node.Spec.Drivers {
		if d.Name == driver {
			return d.NodeID
		}
	}
	return ""
}

// annotatedNodeID returns the driver's entry in the Node annotation, the older
// way to publish a node ID (seed 001, "Attaching and Detaching"), or nothing.
func annotatedNodeID(node *corev1.Node, driver string) (string, error) {
	text, ok := node.Annotations[AnnotationNodeIDs]
	if !ok {
		return "", nil
	}
	ids := map[string]string{}
	if err := json.Unmarshal([]byte(text), &ids); err != nil {
		return "", fmt.Errorf("read annotation %s of node %q as a JSON object of strings: %w", AnnotationNodeIDs, node.Name, err)
	}
	return ids[driver], nil
}

// attachNodeID chooses the node ID to publish to: what the driver registered
// last, else what an earlier attempt used.
func attachNodeID(csiNode *storagev1.CSINode, va *storagev1.VolumeAttachment) string {
	if id := csiNodeID(csiNode, va.Spec.Attacher); id != "" {
		return id
	}
	return va.Annotations[AnnotationNodeID]
}

// detachNodeIDs returns the node IDs to unpublish from. First the one that the volume was published to: another machine
// may have the node's name now. Then the registered one: the driver may have changed the format of its IDs.
func detachNodeIDs(csiNode *storagev1.CSINode, va *storagev1.VolumeAttachment) []string {
	var ids []string
	for _, id := range []string{va.Annotations[AnnotationNodeID], csiNodeID(csiNode, va.Spec.Attacher)} {
		if id != "" && !slices.Contains(ids, id) {
			ids = append(ids, id)
		}
	}
	return ids
}
