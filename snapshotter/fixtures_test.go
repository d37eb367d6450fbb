package snapshotter

import (
	"github.com/container-storage-interface/spec/lib/go/csi"
	groupv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumegroupsnapshot/v1"
	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/longshore-csi/longshore/csikit/kube"
	"github.com/longshore-csi/longshore/csikit/sidecar"
	"github.com/longshore-csi/longshore/csikit/snapshotapi"
	"github.com/longshore-csi/longshore/csikittest/csitest"
)

const driverName = csitest.DefaultName

// inMemory configures a snapshotter for an API server in memory.
func inMemory(o Options, client kube.Client, snapshots snapshotapi.Client, host string) sidecar.Config {
	config := o.sidecar(snapshots)
	config.Client, config.Host = client, host
	return config
}

// allCapabilities are those of a driver with snapshots, the newest last.
func allCapabilities() []csi.ControllerServiceCapability_RPC_Type { return csitest.AllSnapshots() }

// newDriver returns a driver with snapshots and group snapshots.
func newDriver(o csitest.Options) *csitest.Driver {
	if o.Controller == nil {
		o.Controller = allCapabilities()
	}
	if o.GroupController == nil {
		o.GroupController = csitest.AllGroupController()
	}
	return csitest.New(o)
}

func testClass() *snapshotv1.VolumeSnapshotClass {
	return &snapshotv1.VolumeSnapshotClass{
		ObjectMeta: metav1.ObjectMeta{Name: "fast"}, Driver: driverName, DeletionPolicy: snapshotv1.VolumeSnapshotContentDelete,
		Parameters: map[string]string{"type": "cow"},
	}
}

func testGroupClass() *groupv1.VolumeGroupSnapshotClass {
	return &groupv1.VolumeGroupSnapshotClass{
		ObjectMeta: metav1.ObjectMeta{Name: "fast"}, Driver: driverName, DeletionPolicy: snapshotv1.VolumeSnapshotContentDelete,
	}
}

func testSecret() *corev1.Secret {
	return &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "keys"}}
}

// testContent returns the content of the VolumeSnapshot with that UID, of a volume.
func testContent(uid, volume string) *snapshotv1.VolumeSnapshotContent {
	return &snapshotv1.VolumeSnapshotContent{
		ObjectMeta: metav1.ObjectMeta{
			Name: snapshotapi.ContentName(types.UID(uid)), UID: types.UID("uid-" + uid), Finalizers: []string{snapshotapi.FinalizerContent},
		},
		Spec: snapshotv1.VolumeSnapshotContentSpec{
			Driver: driverName, DeletionPolicy: snapshotv1.VolumeSnapshotContentDelete, VolumeSnapshotClassName: new("fast"),
			Source:            snapshotv1.VolumeSnapshotContentSource{VolumeHandle: &volume},
			VolumeSnapshotRef: corev1.ObjectReference{Namespace: "default", Name: "backup-" + uid, UID: types.UID(uid)},
		},
	}
}

// testGroupContent returns the content of the VolumeGroupSnapshot with that UID, of volumes.
func testGroupContent(uid string, volumes ...string) *groupv1.VolumeGroupSnapshotContent {
	return &groupv1.VolumeGroupSnapshotContent{
		ObjectMeta: metav1.ObjectMeta{
			Name: snapshotapi.GroupContentName(types.UID(uid)), UID: types.UID("uid-" + uid), Finalizers: []string{snapshotapi.FinalizerGroupContent},
		},
		Spec: groupv1.VolumeGroupSnapshotContentSpec{
			Driver: driverName, DeletionPolicy: snapshotv1.VolumeSnapshotContentDelete, VolumeGroupSnapshotClassName: new("fast"),
			Source:                 groupv1.VolumeGroupSnapshotContentSource{VolumeHandles: volumes},
			VolumeGroupSnapshotRef: corev1.ObjectReference{Namespace: "default", Name: "backup-" + uid, UID: types.UID(uid)},
		},
	}
}
