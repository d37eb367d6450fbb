package e2e

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/longshore-csi/longshore/csikit/snapshotapi"
	"github.com/longshore-csi/longshore/e2e/rights"
	"github.com/longshore-csi/longshore/e2e/testbed"
)

const (
	// secretSnapshotClass and secretGroupClass name a secret of the scene, for the calls of the driver.
	secretSnapshotClass = `
parameters: {csi.storage.k8s.io/snapshotter-secret-name: keys, csi.storage.k8s.io/snapshotter-secret-namespace: %s}
`
	// lonely are snapshots whose contents do not exist, with the finalizers of those that had contents, as a restored backup has them.
	lonely = `
apiVersion: snapshot.storage.k8s.io/v1
kind: VolumeSnapshot
metadata: {name: lonely, namespace: %[1]s, finalizers: [%[2]s]}
spec: {source: {volumeSnapshotContentName: %[1]s-none}}
---
apiVersion: groupsnapshot.storage.k8s.io/v1
kind: VolumeGroupSnapshot
metadata: {name: lonely, namespace: %[1]s, finalizers: [%[3]s]}
spec: {source: {volumeGroupSnapshotContentName: %[1]s-none}}
`
	// orphans are contents whose snapshots do not exist.
	orphans = `
apiVersion: snapshot.storage.k8s.io/v1
kind: VolumeSnapshotContent
metadata: {name: %[1]s-orphan}
spec: {driver: %[2]s, deletionPolicy: Retain, source: {snapshotHandle: none}, volumeSnapshotRef: {namespace: %[1]s, name: gone, uid: gone}}
---
apiVersion: groupsnapshot.storage.k8s.io/v1
kind: VolumeGroupSnapshotContent
metadata: {name: %[1]s-orphan}
spec:
  driver: %[2]s
  deletionPolicy: Retain
  source: {groupSnapshotHandles: {volumeGroupSnapshotHandle: none, volumeSnapshotHandles: [none]}}
  volumeGroupSnapshotRef: {namespace: %[1]s, name: gone, uid: gone}
`
)

// snapshots is a claim for a volume from a snapshot, which is taken once its secret is there, and a snapshot of a group.
func (s *story) snapshots() {
	s.createClaim()
	s.PatchClaim("data", fmt.Sprintf(`{"metadata": {"labels": {"app": %q}}}`, s.Namespace))
	s.bound()
	s.AddSnapshotClass(fmt.Sprintf(secretSnapshotClass, s.Namespace))
	s.AddObject(fmt.Sprintf(groupClass, s.Namespace, s.Driver))
	taken, group := s.TakeSnapshot("monday", "data"), s.takeGroup("tuesday")
	s.waitCalled("csi-snapshotter", "create events") // that there is no secret
	s.createSecret("keys")
	s.WaitSnapshotReady(taken)
	s.WaitSnapshotReady(group)
	s.RestoreSnapshot("copy", "monday")
	s.WaitBound("copy")
	s.Wait("the snapshot to be free", func(context.Context) (bool, error) {
		calls, err := rights.Asked(s.Dev)
		return calls["csi-provisioner"]["update volumesnapshots.snapshot.storage.k8s.io"] && !slices.Contains(s.Read(taken).GetFinalizers(), restoring), err
	})
	s.Delete(taken)
	s.Delete(group)
	s.WaitNoSnapshots()
	s.DeleteClaim("copy")
	s.deleteClaim()
	s.WaitNothingLeft()
}

// restoring is the finalizer of a snapshot that csi-provisioner makes a volume of.
const restoring = "provisioner.storage.kubernetes.io/volumesnapshot-as-source-protection"

// strayContents are snapshots without contents, and contents without snapshots, which are deleted: the snapshot-controller looks in the API
// server itself for what its caches do not have.
func (s *story) strayContents() {
	for _, manifest := range []string{fmt.Sprintf(lonely, s.Namespace, snapshotapi.FinalizerBound, snapshotapi.FinalizerGroupBound), fmt.Sprintf(orphans, s.Namespace, s.Driver)} {
		objects := testbed.Decode(s.T, manifest)
		s.Write(objects...)
		for _, o := range objects {
			s.Wait(o.GetName()+" to have a finalizer", func(context.Context) (bool, error) { return len(s.Read(o).GetFinalizers()) > 0, nil })
			s.Delete(o)
		}
	}
	s.WaitNoSnapshots()
}

// createSecret makes a secret of the scene.
func (s *story) createSecret(name string) {
	s.T.Helper()
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: name}, StringData: map[string]string{"key": "value"}}
	s.Retry("create the secret", func(ctx context.Context) error {
		_, err := s.Client.CoreV1().Secrets(s.Namespace).Create(ctx, secret, metav1.CreateOptions{})
		return testbed.IgnoreExists(err)
	})
}

// waitCalled waits until a component has made a call.
func (s *story) waitCalled(component, call string) {
	s.T.Helper()
	s.Wait(component+" to "+call, func(context.Context) (bool, error) {
		calls, err := rights.Asked(s.Dev)
		return calls[component][call], err
	})
}
