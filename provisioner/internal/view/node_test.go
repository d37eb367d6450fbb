package view

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// affinity returns the node affinity of a volume on a node.
func affinity(operator corev1.NodeSelectorOperator, node string) *corev1.VolumeNodeAffinity {
	return &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
		MatchExpressions: []corev1.NodeSelectorRequirement{{Key: "node", Operator: operator, Values: []string{node}}},
	}}}}
}

func TestReaches(t *testing.T) {
	in := corev1.NodeSelectorOpIn
	own := Node{Name: "n1", Segments: map[string]string{"node": "n1"}}
	cases := map[string]struct {
		reason   string
		node     Node
		affinity *corev1.VolumeNodeAffinity
		want     bool
	}{
		"Cluster":   {reason: "An instance for the whole cluster has all volumes.", affinity: affinity(in, "n2"), want: true},
		"Own":       {reason: "A volume of the node.", node: own, affinity: affinity(in, "n1"), want: true},
		"Other":     {reason: "A volume of another one.", node: own, affinity: affinity(in, "n2")},
		"Nothing":   {reason: "A volume that can be used everywhere.", node: own, want: true},
		"Malformed": {reason: "A volume with an affinity of another form must not be deleted.", node: own, affinity: affinity("Like", "n1")},
		"OtherForm": {reason: "Affinities that people write count as well.", node: own, affinity: affinity(corev1.NodeSelectorOpNotIn, "n2"), want: true},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			pv := newPV()
			pv.Spec.NodeAffinity = tc.affinity
			if got := tc.node.Reaches(pv); got != tc.want {
				t.Errorf("%s\ngot %v, want %v", tc.reason, got, tc.want)
			}
		})
	}
}
