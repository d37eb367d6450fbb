package controller

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

	"github.com/longshore-csi/longshore/csikit/csitest"
	"github.com/longshore-csi/longshore/topology"
)

// notifications records the notifications of Capacity.
type notifications struct{ lines []string }

var _ Capacity = (*notifications)(nil)

// TopologyChanged implements Capacity.
func (l *notifications) TopologyChanged() { l.lines = append(l.lines, "topology") }

// ClassChanged implements Capacity.
func (l *notifications) ClassChanged(name string) { l.lines = append(l.lines, "class "+name) }

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

// TestCapacityIsNotified has a case for each event that changes the capacity.
func TestCapacityIsNotified(t *testing.T) {
	nodes := []runtime.Object{
		&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1", Labels: map[string]string{"zone": "a"}}},
		&storagev1.CSINode{ObjectMeta: metav1.ObjectMeta{Name: "n1"}, Spec: storagev1.CSINodeSpec{Drivers: []storagev1.CSINodeDriver{{Name: driver, NodeID: "n1", TopologyKeys: []string{"zone"}}}}},
	}
	claim := newClaim()
	claim.Annotations[AnnSelectedNode] = "n1"
	released := releasedPV(func(pv *corev1.PersistentVolume) {
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
		"Created": {reason: "A volume uses capacity of its segment.", objs: []runtime.Object{claim, newClass()}, act: func(r *rig) { _, _ = r.step() }, want: []string{"volume of fast at zone=a"}},
		"Failed": {reason: "A volume that was not created uses none.", objs: []runtime.Object{claim, newClass()}, act: func(r *rig) {
			r.driver.Inject(csitest.Fault{Method: "CreateVolume", Code: codes.Internal})
			_, _ = r.step()
		}},
		"Exhausted": {reason: "The requested segment has less capacity than published.", objs: []runtime.Object{claim, newClass()}, act: func(r *rig) {
			r.driver.Inject(csitest.Fault{Method: "CreateVolume", Code: codes.ResourceExhausted})
			_, _ = r.step()
		}, want: []string{"exhausted fast at a"}},
		"Deleted":   {reason: "A deleted volume frees capacity of its segment.", objs: []runtime.Object{released}, act: func(r *rig) { r.reconcile(released.Name) }, want: []string{"volume of fast at zone=b"}},
		"NewClass":  {reason: "A new class has a capacity to publish.", act: func(r *rig) { r.classChanged(nil, newClass()) }, want: []string{"class fast"}},
		"ClassGone": {reason: "A deleted class has none.", act: func(r *rig) { r.classChanged(newClass(), nil) }, want: []string{"class fast"}},
		"Nodes":     {reason: "Nodes add segments.", act: func(r *rig) { r.topologyChanged() }, want: []string{"topology"}},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			settings := rigSettings()
			settings.KeepAffinity = true
			onRigWith(t, csitest.Options{NodeID: "n1", Topology: map[string]string{"zone": "a"}}, settings, func(t *testing.T, r *rig) {
				l := &notifications{}
				r.SetCapacityObserver(l)
				tc.act(r)
				if diff := cmp.Diff(tc.want, l.lines); diff != "" {
					t.Errorf("%s\nnotified (-want +got):\n%s", tc.reason, diff)
				}
			}, slices.Concat(nodes, tc.objs)...)
		})
	}
}

// TestSource checks the methods of the controller that package capacity calls.
func TestSource(t *testing.T) {
	onRig(t, func(t *testing.T, r *rig) {
		if err := r.WaitSynced(quiet(t)); err != nil {
			t.Fatal(err)
		}
		if class, ok := r.Class("fast"); !ok || class.Name != "fast" || len(r.Classes()) != 1 {
			t.Errorf("class %v, %v of %d", class, ok, len(r.Classes()))
		}
		if got := r.Segments(); len(got) != 1 || !got[0].IsEmpty() {
			t.Errorf("segments %v of a driver without topology, want the one that has all nodes", got)
		}
		if !r.ReportsCapacity() {
			t.Error("the driver reports its capacity")
		}
		r.SetCapacityObserver(noCapacity{})
	}, newClass())
}

// TestAffinitiesAreShared keeps one affinity for many volumes, and none for volumes of other drivers or without segments.
func TestAffinitiesAreShared(t *testing.T) {
	slim := withAffinity(slimVolume(driver, Node{}))
	volumeAt := func(zone string) *corev1.PersistentVolume {
		pv := newPV()
		pv.Spec.NodeAffinity = affinity(corev1.NodeSelectorOpIn, zone)
		return slim(pv)
	}
	one, two, other := volumeAt("a"), volumeAt("a"), volumeAt("b")
	if one.Spec.NodeAffinity == nil || one.Spec.NodeAffinity != two.Spec.NodeAffinity {
		t.Error("two volumes of one segment have two affinities")
	}
	if other.Spec.NodeAffinity == one.Spec.NodeAffinity {
		t.Error("volumes of two places have one affinity")
	}
	if again := slim(one); again.Spec.NodeAffinity != two.Spec.NodeAffinity {
		t.Error("the affinity of a volume that was seen before is lost")
	}
	odd := newPV()
	odd.Spec.NodeAffinity = affinity(corev1.NodeSelectorOpNotIn, "a")
	foreign := newPV()
	foreign.Annotations, foreign.Spec.NodeAffinity = map[string]string{"pv.kubernetes.io/provisioned-by": "other"}, affinity(corev1.NodeSelectorOpIn, "a")
	foreign.Spec.CSI.Driver = "other"
	for name, pv := range map[string]*corev1.PersistentVolume{"other form": odd, "other driver": foreign, "none": newPV()} {
		if got := slim(pv).Spec.NodeAffinity; got != nil {
			t.Errorf("%s: %v", name, got)
		}
	}
}
