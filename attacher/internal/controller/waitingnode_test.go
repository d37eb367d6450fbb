package controller

import (
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/longshore-csi/longshore/csikittest/kubetest"
)

// TestWaitingForNodesCostsFewRequests lets up to 1,000 VolumeAttachments wait for a driver that is not on their nodes, and counts the
// requests for Nodes in ten minutes.
func TestWaitingForNodesCostsFewRequests(t *testing.T) {
	tests := map[string]struct {
		reason string
		// attachments wait, on this number of nodes.
		attachments, nodes int
		fault              error
		limit              int64
	}{
		"OneNode":   {reason: "one request for all that wait for a node, less and less often", attachments: 1000, nodes: 1, limit: 40},
		"ManyNodes": {reason: "each node less and less often", attachments: 500, nodes: 100, limit: 2000},
		"Forbidden": {
			reason: "the right is missing for all nodes", attachments: 500, nodes: 100, limit: 40,
			fault: apierrors.NewForbidden(corev1.Resource("nodes"), "", errors.New("no right")),
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newBench(t, freshPV())
				defer b.stop()
				var requests atomic.Int64
				b.cluster.Inject(kubetest.Fault{Verb: "get", Resource: "nodes", Err: tt.fault, Do: func() { requests.Add(1) }})
				onNode := func(i int) func(*storagev1.VolumeAttachment) {
					return func(va *storagev1.VolumeAttachment) { va.Spec.NodeName = fmt.Sprintf("node-%d", i%tt.nodes) }
				}
				for i := range tt.attachments {
					b.apply(fresh(named(fmt.Sprintf("va-%d", i)), onNode(i)))
				}
				pass(10 * time.Minute)
				if got := requests.Load(); got > tt.limit {
					t.Errorf("%s: %d requests in ten minutes, want at most %d", tt.reason, got, tt.limit)
				}
			})
		})
	}
}

// TestNodeAnnotatedLate finds a node ID that is published by annotation only after the driver was looked for several times.
func TestNodeAnnotatedLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-1"}}
		b := newBench(t, freshPV(), node, fresh())
		defer b.stop()
		pass(10 * time.Minute)
		node.Annotations = map[string]string{AnnotationNodeIDs: `{"hostpath.csi.example":"id-1"}`}
		b.apply(node)
		pass(time.Minute) // --retry-interval-max
		if va := b.get("va-1"); !va.Status.Attached {
			t.Errorf("not attached: %+v", va.Status)
		}
	})
}
