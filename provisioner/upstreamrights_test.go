package provisioner

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/longshore-csi/longshore/csikit/kube"
	"github.com/longshore-csi/longshore/csikittest/csitest"
	"github.com/longshore-csi/longshore/csikittest/sidecartest"
	"github.com/longshore-csi/longshore/provisioner/internal/kubeapitest"
	"github.com/longshore-csi/longshore/provisioner/internal/view"
)

// upstreamRights are those of the newest manifests of external-provisioner and of external-snapshotter, which differ in the verbs for volumesnapshots. Secrets are
// a comment there.
func upstreamRights(snapshots string) []sidecartest.Right {
	return []sidecartest.Right{
		{Resource: "persistentvolumes", Verbs: "get, list, watch, create, patch, delete"},
		{Resource: "persistentvolumeclaims", Verbs: "get, list, watch, update"},
		{Resource: "storageclasses", Verbs: "get, list, watch"},
		{Resource: "events", Verbs: "list, watch, create, update, patch"},
		{Resource: "volumesnapshots", Verbs: snapshots},
		{Resource: "volumesnapshotcontents", Verbs: "get, list"},
		{Resource: "csinodes", Verbs: "get, list, watch"},
		{Resource: "nodes", Verbs: "get, list, watch"},
		{Resource: "volumeattachments", Verbs: "get, list, watch"},
		{Resource: "leases", Verbs: "get, watch, list, delete, update, create"},
		{Resource: "csistoragecapacities", Verbs: "get, list, watch, create, update, patch, delete"},
		{Resource: "pods", Verbs: "get"},
		{Resource: "replicasets", Verbs: "get"},
	}
}

// newSnapshot returns a snapshot of the driver that can be restored, and its content.
func newSnapshot() []kube.Object {
	size := resource.MustParse("1Gi")
	return []kube.Object{
		&snapshotv1.VolumeSnapshot{
			ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "monday", UID: "uid-monday"},
			Spec:       snapshotv1.VolumeSnapshotSpec{Source: snapshotv1.VolumeSnapshotSource{VolumeSnapshotContentName: new("content")}},
			Status:     &snapshotv1.VolumeSnapshotStatus{BoundVolumeSnapshotContentName: new("content"), ReadyToUse: new(true), RestoreSize: &size},
		},
		&snapshotv1.VolumeSnapshotContent{
			ObjectMeta: metav1.ObjectMeta{Name: "content"},
			Spec: snapshotv1.VolumeSnapshotContentSpec{
				Driver: csitest.DefaultName, DeletionPolicy: snapshotv1.VolumeSnapshotContentRetain,
				Source:            snapshotv1.VolumeSnapshotContentSource{SnapshotHandle: new("snap-1")},
				VolumeSnapshotRef: corev1.ObjectReference{Namespace: "team", Name: "monday", UID: "uid-monday"},
			},
			Status: &snapshotv1.VolumeSnapshotContentStatus{SnapshotHandle: new("snap-1"), ReadyToUse: new(true)},
		},
	}
}

// TestUpstreamRights works for ten minutes with the rights of the component that is replaced: claims are provisioned, one of them from a snapshot wherever that may
// be read, no error is logged, and no kind is listed or watched again and again.
func TestUpstreamRights(t *testing.T) {
	cases := map[string]struct {
		reason, verbs string
		// absent says that the server does not have the kind, and restored that there is a claim from the snapshot.
		absent, restored bool
	}{
		"None":    {reason: "There is no rule for snapshots."},
		"Get":     {reason: "The snapshot of a claim is read.", verbs: "get", restored: true},
		"List":    {reason: "Manifests of external-snapshotter: no watch.", verbs: "get, list", restored: true},
		"Watch":   {reason: "Snapshots are watched, and not protected.", verbs: "get, list, watch", restored: true},
		"Newest":  {reason: "Manifests of external-provisioner.", verbs: "get, list, watch, update", restored: true},
		"Protect": {reason: "Protection needs no watch.", verbs: "get, update", restored: true},
		"Absent":  {reason: "Snapshots are not installed.", verbs: "get, list, watch, update", absent: true},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				cluster := kubeapitest.NewCluster(newClass())
				driver := csitest.New(csitest.Options{Controller: append(csitest.AllController(), csitest.AllSnapshots()...), Topology: map[string]string{"zone": "a"}})
				driver.AddSnapshot(csitest.Snapshot{ID: "snap-1", Size: 1 << 30})
				apply(t, cluster, newSnapshot()...)
				apply(t, cluster, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node", Labels: map[string]string{"zone": "a"}}},
					&storagev1.CSINode{ObjectMeta: metav1.ObjectMeta{Name: "node"}, Spec: storagev1.CSINodeSpec{
						Drivers: []storagev1.CSINodeDriver{{Name: csitest.DefaultName, NodeID: "node", TopologyKeys: []string{"zone"}}},
					}})
				cluster.SetServed(snapshotv1.GroupName, !tc.absent)
				granted := sidecartest.Grant(t, cluster, upstreamRights(tc.verbs))
				p := launchIn(granted.Context(t.Context()), t, "only", cluster, driver, withElection())
				pass(time.Second)
				restore, group := newClaim("restore"), snapshotv1.GroupName
				restore.Spec.DataSource = &corev1.TypedLocalObjectReference{APIGroup: &group, Kind: view.KindSnapshot, Name: "monday"}
				apply(t, cluster, newClaim("empty"))
				if tc.restored {
					apply(t, cluster, restore)
				}
				pass(5 * time.Minute)
				if tc.restored { // as the controller manager does
					must(t, cluster.Merge("persistentvolumeclaims", "team", "restore", []byte(`{"spec": {"volumeName": "pvc-uid-restore"}, "status": {"phase": "Bound"}}`)))
				}
				apply(t, cluster, newClaim("later"))
				pass(5 * time.Minute)
				made := makers(cluster)
				if made["empty"] == "" || made["later"] == "" || (made["restore"] != "") != tc.restored {
					t.Errorf("%s\nvolumes %v, want those of empty and later, and of restore: %v", tc.reason, made, tc.restored)
				}
				for _, snapshot := range cluster.Objects("volumesnapshots") {
					if left := snapshot.GetFinalizers(); len(left) > 0 {
						t.Errorf("%s\nthe snapshot has the finalizers %q", tc.reason, left)
					}
				}
				if protected := granted.Requests()["update volumesnapshots"]; tc.restored && strings.Contains(tc.verbs, "update") && protected != 2 {
					t.Errorf("%s\n%d updates of the snapshot, want one to protect it and one to free it", tc.reason, protected)
				}
				granted.Check(t)
				p.stop(t)
			})
		})
	}
}
