package bootstrap_test

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/longshore-csi/longshore/devcluster/internal/bootstrap"
)

const driver = "d.example.com"

func node(name string, ready corev1.ConditionStatus) corev1.Node {
	return corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Status:     corev1.NodeStatus{Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: ready}}},
	}
}

func csiNode(name string, drivers ...string) storagev1.CSINode {
	n := storagev1.CSINode{ObjectMeta: metav1.ObjectMeta{Name: name}}
	for _, d := range drivers {
		n.Spec.Drivers = append(n.Spec.Drivers, storagev1.CSINodeDriver{Name: d, NodeID: name})
	}
	return n
}

func TestMissing(t *testing.T) {
	tests := map[string]struct {
		reason string
		nodes  []corev1.Node
		csi    []storagev1.CSINode
		want   string
	}{
		"Complete": {
			reason: "every node is ready and has the driver",
			nodes:  []corev1.Node{node("a", corev1.ConditionTrue), node("b", corev1.ConditionTrue)},
			csi:    []storagev1.CSINode{csiNode("a", driver), csiNode("b", "other", driver)},
		},
		"Absent": {
			reason: "a node that has not come yet is named with its log",
			nodes:  []corev1.Node{node("a", corev1.ConditionTrue)},
			csi:    []storagev1.CSINode{csiNode("a", driver)},
			want:   "node b is not Ready",
		},
		"NotReady": {
			reason: "a node that is there and not ready",
			nodes:  []corev1.Node{node("a", corev1.ConditionFalse), node("b", corev1.ConditionTrue)},
			csi:    []storagev1.CSINode{csiNode("a", driver), csiNode("b", driver)},
			want:   "node a is not Ready",
		},
		"NotRegistered": {
			reason: "a node without the driver",
			nodes:  []corev1.Node{node("a", corev1.ConditionTrue), node("b", corev1.ConditionTrue)},
			csi:    []storagev1.CSINode{csiNode("a", driver), csiNode("b", "other")},
			want:   "not registered on node b",
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			got := bootstrap.Missing([]string{"a", "b"}, driver, tc.nodes, tc.csi)
			if tc.want == "" && got != "" || !strings.Contains(got, tc.want) {
				t.Errorf("%s: got %q, want %q", tc.reason, got, tc.want)
			}
		})
	}
}
