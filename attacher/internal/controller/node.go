package controller

import (
	"encoding/json"
	"fmt"

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

// detachNodeID chooses the node ID to unpublish from: what the volume was
// published to, even if a machine with another ID goes by the node's name now.
func detachNodeID(csiNode *storagev1.CSINode, va *storagev1.VolumeAttachment) string {
	if id := va.Annotations[AnnotationNodeID]; id != "" {
		return id
	}
	return csiNodeID(csiNode, va.Spec.Attacher)
}
