package controller

import (
	"encoding/json"
	"errors"
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

// detachNodeIDs returns the node IDs to unpublish from. First the recorded one that the volume was published to: another machine
// may have the node's name now. Then the registered one: the driver may have changed the format of its IDs.
func detachNodeIDs(recorded, registered string) []string {
	var ids []string
	for _, id := range []string{recorded, registered} {
		if id != "" && !slices.Contains(ids, id) {
			ids = append(ids, id)
		}
	}
	return ids
}

// errForeignNode is a VolumeAttachment whose recorded node ID is that of a node where another one has the volume attached.
var errForeignNode = errors.New("is the node ID of a node for which another VolumeAttachment has the volume attached")

// recordedNodeID returns the node ID that va records. Many may patch VolumeAttachments: one that the driver has registered on another node is refused where the volume
// is in use. Elsewhere it counts, as a machine may have got another name.
func (c *Controller) recordedNodeID(va *storagev1.VolumeAttachment) (string, error) {
	id := va.Annotations[AnnotationNodeID]
	if id == "" {
		return "", nil
	}
	for _, node := range c.csiNodes.ByIndex(indexNodeID, id) {
		if node.Name == va.Spec.NodeName {
			return id, nil
		}
		if c.otherOn(node.Name, va) {
			return "", fmt.Errorf("annotation %s of VolumeAttachment %q: %q %w, %q", AnnotationNodeID, va.Name, id, errForeignNode, node.Name)
		}
	}
	return id, nil
}

// otherOn reports whether another VolumeAttachment has the volume of va attached to a node.
func (c *Controller) otherOn(node string, va *storagev1.VolumeAttachment) bool {
	return slices.ContainsFunc(c.vas.ByIndex(indexNode, node), func(other *storagev1.VolumeAttachment) bool {
		return other.Name != va.Name && pvName(other) == pvName(va)
	})
}
