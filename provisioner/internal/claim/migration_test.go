package claim

import (
	"context"
	"slices"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/longshore-csi/longshore/csikittest/csitest"
	"github.com/longshore-csi/longshore/provisioner/internal/journal"
	"github.com/longshore-csi/longshore/provisioner/internal/kubeapitest/fixtures"
	"github.com/longshore-csi/longshore/provisioner/internal/view"
	"github.com/longshore-csi/longshore/provisioner/internal/volume"
)

const (
	inTree  = "kubernetes.io/gce-pd"
	gcePD   = "pd.csi.storage.gke.io"
	gceZone = "topology.gke.io/zone"
)

// newMigrated returns a class of an in-tree plugin, a claim of it, and a volume of that claim in in-tree form, which has only the
// last part of the volume ID.
func newMigrated() (*storagev1.StorageClass, *corev1.PersistentVolumeClaim, *corev1.PersistentVolume) {
	class, claim, pv := fixtures.Class(), fixtures.Claim(), fixtures.PV()
	class.Provisioner = inTree
	claim.Annotations = map[string]string{view.AnnProvisioner: gcePD}
	pv.Labels = map[string]string{corev1.LabelTopologyZone: "us-central1-a"}
	pv.Annotations = map[string]string{volume.AnnProvisionedBy: inTree, volume.AnnMigratedTo: gcePD}
	pv.Spec.PersistentVolumeSource = corev1.PersistentVolumeSource{GCEPersistentDisk: &corev1.GCEPersistentDiskVolumeSource{PDName: "pvc-uid-1"}}
	pv.Spec.NodeAffinity = &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
		MatchExpressions: []corev1.NodeSelectorRequirement{
			{Key: corev1.LabelTopologyZone, Operator: corev1.NodeSelectorOpIn, Values: []string{"us-central1-a"}},
			{Key: corev1.LabelTopologyRegion, Operator: corev1.NodeSelectorOpIn, Values: []string{"us-central1"}},
		},
	}}}}
	return class, claim, pv
}

// TestMigratedHolder covers volumes whose volume ID does not follow from the in-tree form of their PersistentVolume.
func TestMigratedHolder(t *testing.T) {
	_, _, pv := newMigrated()
	other := pv.DeepCopy()
	other.Spec.ClaimRef.UID = "uid-of-another-claim"
	cases := map[string]struct {
		reason string
		pv     *corev1.PersistentVolume
		// zone is the zone of the node that the instance provisions for, empty for the whole cluster.
		zone string
		want []string
	}{
		"Saved":     {reason: "The PersistentVolume is for the claim: its volume is the one that has its name.", pv: pv},
		"Foreign":   {reason: "A PersistentVolume for another claim has another volume.", pv: other, want: []string{"DeleteVolume"}},
		"OwnZone":   {reason: "So it is with an instance on each node, where the node reaches the volume.", pv: pv, zone: "us-central1-a"},
		"OtherZone": {reason: "A volume elsewhere was made by another instance, and is not the one that was made here.", pv: pv, zone: "us-central1-b", want: []string{"DeleteVolume"}},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			settings := rigSettings()
			if tc.zone != "" {
				settings.Node = view.Node{Name: "n1", Segments: map[string]string{gceZone: tc.zone}}
			}
			onRigWith(t, csitest.Options{Name: gcePD}, settings, func(t *testing.T, r *rig) {
				intent := newIntent(journal.Undoing)
				intent.VolumeID, intent.Reason = "projects/acme/zones/us-central1-a/disks/pvc-uid-1", "claim was deleted"
				if err := r.cfg.Journal.Open(fixtures.Quiet(t), *intent); err != nil {
					t.Fatal(err)
				}
				if _, err := r.undo(fixtures.Quiet(t), *intent); err != nil {
					t.Fatal(err)
				}
				if diff := cmp.Diff(tc.want, r.Calls()); diff != "" {
					t.Errorf("%s\ncalls (-want +got):\n%s", tc.reason, diff)
				}
			}, tc.pv)
		})
	}
}

// TestMigratedCapacity verifies that the capacity is refreshed in the segment of the driver, which has no region.
func TestMigratedCapacity(t *testing.T) {
	class, claim, pv := newMigrated()
	claim.Annotations[view.AnnSelectedNode] = "n1"
	released := pv.DeepCopy()
	released.Status.Phase = corev1.VolumeReleased
	nodes := []runtime.Object{
		&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1", Labels: map[string]string{gceZone: "us-central1-a"}}},
		&storagev1.CSINode{ObjectMeta: metav1.ObjectMeta{Name: "n1"}, Spec: storagev1.CSINodeSpec{Drivers: []storagev1.CSINodeDriver{{Name: gcePD, NodeID: "n1", TopologyKeys: []string{gceZone}}}}},
	}
	cases := map[string]struct {
		reason string
		objs   []runtime.Object
		act    func(r *rig)
	}{
		"Created": {
			reason: "What is written has other keys than the topology of the driver.", objs: []runtime.Object{class, claim},
			act: func(r *rig) {
				intent := newIntent(journal.Creating)
				intent.Spec.InTree, intent.Request = inTree, &csi.CreateVolumeRequest{}
				if err := r.cfg.Journal.Open(fixtures.Quiet(r.T), *intent); err != nil {
					r.T.Fatal(err)
				}
				if _, err := r.save(fixtures.Quiet(r.T), *intent, &csi.Volume{
					VolumeId: "projects/acme/zones/us-central1-a/disks/pvc-uid-1", AccessibleTopology: []*csi.Topology{{Segments: map[string]string{gceZone: "us-central1-a"}}},
				}); err != nil {
					r.T.Fatal(err)
				}
			},
		},
		"Deleted": {reason: "So has what is deleted.", objs: []runtime.Object{released}, act: (*rig).releaseVolumes},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			onRigWith(t, csitest.Options{Name: gcePD, NodeID: "n1", Topology: map[string]string{gceZone: "us-central1-a"}}, rigSettings(), func(t *testing.T, r *rig) {
				l := &notifications{}
				r.capacity = l
				tc.act(r)
				if diff := cmp.Diff([]string{"volume of fast at " + gceZone + "=us-central1-a"}, l.lines); diff != "" {
					t.Errorf("%s\nnotified (-want +got):\n%s", tc.reason, diff)
				}
			}, slices.Concat(nodes, tc.objs)...)
		})
	}
}

// releaseVolumes deletes the volumes that are to be.
func (r *rig) releaseVolumes() {
	r.T.Helper()
	ctx, stop := context.WithCancel(fixtures.Quiet(r.T))
	ended := make(chan error, 1)
	go func() { ended <- r.release.Run(ctx) }()
	r.WatchesCatchUp()
	stop()
	if err := <-ended; err != nil {
		r.T.Error(err)
	}
}
