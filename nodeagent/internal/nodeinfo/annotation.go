package nodeinfo

import (
	"encoding/json"
	"maps"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
)

// NodeIDAnnotation maps, as JSON on the Node, driver names to node IDs. Its
// readers have moved to CSINode; it is still written for those that have not.
const NodeIDAnnotation = "csi.volume.kubernetes.io/nodeid"

// planAnnotation returns the new value of NodeIDAnnotation: nil for none. Where
// the old value cannot be parsed it is rebuilt from known, the entries of
// the CSINode. change reports whether it differs.
func planAnnotation(node *corev1.Node, known []storagev1.CSINodeDriver, set map[string]string, remove string) (value *string, change bool) {
	old, exists := node.Annotations[NodeIDAnnotation]
	ids := map[string]string{}
	broken := exists && (json.Unmarshal([]byte(old), &ids) != nil || ids == nil)
	if broken {
		ids = map[string]string{}
		for _, e := range known {
			ids[e.Name] = e.NodeID
		}
	}
	before := maps.Clone(ids)
	maps.Copy(ids, set)
	delete(ids, remove)
	if !broken && maps.Equal(before, ids) && exists == (len(ids) > 0) {
		return nil, false
	}
	if len(ids) == 0 {
		return nil, exists
	}
	text := formatMap(ids)
	return &text, true
}
