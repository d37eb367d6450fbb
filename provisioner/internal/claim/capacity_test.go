package claim

import (
	"slices"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/longshore-csi/longshore/csikittest/csitest"
	"github.com/longshore-csi/longshore/provisioner/internal/kubeapitest/fixtures"
	"github.com/longshore-csi/longshore/provisioner/internal/view"
	"github.com/longshore-csi/longshore/topology"
)

// notifications records the notifications of Capacity.
type notifications struct{ lines []string }

var _ Capacity = (*notifications)(nil)

// VolumeChanged implements Capacity.
func (l *notifications) VolumeChanged(class string, affinity *corev1.VolumeNodeAffinity) {
	segments, _ := topology.AffinitySegments(affinity)
	line := "volume of " + class
	for _, segment := range segments {
		line += " at " + segment.String()
	}
	l.lines = append(l.lines, line)
}

// Exhausted implements Capacity.
func (l *notifications) Exhausted(class string, where *csi.TopologyRequirement) {
	line := "exhausted " + class
	if preferred := where.GetPreferred(); len(preferred) > 0 {
		line += " at " + preferred[0].GetSegments()["zone"]
	}
	l.lines = append(l.lines, line)
}

// TestCapacityIsNotified has a case for each operation that changes the capacity.
func TestCapacityIsNotified(t *testing.T) {
	nodes := []runtime.Object{
		&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1", Labels: map[string]string{"zone": "a"}}},
		&storagev1.CSINode{ObjectMeta: metav1.ObjectMeta{Name: "n1"}, Spec: storagev1.CSINodeSpec{Drivers: []storagev1.CSINodeDriver{{Name: driver, NodeID: "n1", TopologyKeys: []string{"zone"}}}}},
	}
	claim := fixtures.Claim()
	claim.Annotations[view.AnnSelectedNode] = "n1"
	released := fixtures.ReleasedPV(func(pv *corev1.PersistentVolume) {
		affinity, err := topology.NodeAffinity([]*csi.Topology{{Segments: map[string]string{"zone": "b"}}})
		if err != nil {
			t.Fatal(err)
		}
		pv.Spec.NodeAffinity = affinity
	})
	cases := map[string]struct {
		reason string
		objs   []runtime.Object
		act    func(r *rig)
		want   []string
	}{
		"Created": {reason: "A volume uses capacity of its segment.", objs: []runtime.Object{claim, fixtures.Class()}, act: func(r *rig) { _, _ = r.step() }, want: []string{"volume of fast at zone=a"}},
		"Failed": {reason: "A volume that was not created uses none.", objs: []runtime.Object{claim, fixtures.Class()}, act: func(r *rig) {
			r.Driver.Inject(csitest.Fault{Method: "CreateVolume", Code: codes.Internal})
			_, _ = r.step()
		}},
		"Exhausted": {reason: "The requested segment has less capacity than published.", objs: []runtime.Object{claim, fixtures.Class()}, act: func(r *rig) {
			r.Driver.Inject(csitest.Fault{Method: "CreateVolume", Code: codes.ResourceExhausted})
			_, _ = r.step()
		}, want: []string{"exhausted fast at a"}},
		"Deleted": {reason: "A deleted volume frees capacity of its segment.", objs: []runtime.Object{released}, act: func(r *rig) { r.releaseVolumes() }, want: []string{"volume of fast at zone=b"}},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			onRigWith(t, csitest.Options{NodeID: "n1", Topology: map[string]string{"zone": "a"}}, rigSettings(), func(t *testing.T, r *rig) {
				l := &notifications{}
				r.capacity = l
				tc.act(r)
				if diff := cmp.Diff(tc.want, l.lines); diff != "" {
					t.Errorf("%s\nnotified (-want +got):\n%s", tc.reason, diff)
				}
			}, slices.Concat(nodes, tc.objs)...)
		})
	}
}
