package e2e

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/longshore-csi/longshore/csikit/snapshotapi"
	"github.com/longshore-csi/longshore/devcluster/apply"
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
	s.patchClaim("data", fmt.Sprintf(`{"metadata": {"labels": {"app": %q}}}`, s.Namespace))
	s.bound()
	s.addSnapshotClass(fmt.Sprintf(secretSnapshotClass, s.Namespace))
	s.addObject(fmt.Sprintf(groupClass, s.Namespace, s.Driver))
	taken, group := s.take("monday", "data"), s.takeGroup("tuesday")
	s.waitCalled("csi-snapshotter", "create events") // that there is no secret
	s.createSecret("keys")
	s.snapshotReady(taken)
	s.snapshotReady(group)
	s.restore("copy", "monday")
	s.WaitBound("copy")
	s.Wait("the snapshot to be free", func(context.Context) (bool, error) {
		calls, err := s.Dev.Asked()
		return calls["csi-provisioner"]["update volumesnapshots.snapshot.storage.k8s.io"] && !slices.Contains(s.read(taken).GetFinalizers(), restoring), err
	})
	s.delete(taken)
	s.delete(group)
	s.waitNoSnapshots()
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
		objects := s.decode(manifest)
		s.write(objects...)
		for _, o := range objects {
			s.Wait(o.GetName()+" to have a finalizer", func(context.Context) (bool, error) { return len(s.read(o).GetFinalizers()) > 0, nil })
			s.delete(o)
		}
	}
	s.waitNoSnapshots()
}

// createSecret makes a secret of the scene.
func (s *story) createSecret(name string) {
	s.t.Helper()
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: name}, StringData: map[string]string{"key": "value"}}
	s.retry("create the secret", func(ctx context.Context) error {
		_, err := s.Client.CoreV1().Secrets(s.Namespace).Create(ctx, secret, metav1.CreateOptions{})
		return ignoreExists(err)
	})
}

// waitCalled waits until a component has made a call.
func (s *story) waitCalled(component, call string) {
	s.t.Helper()
	s.Wait(component+" to "+call, func(context.Context) (bool, error) {
		calls, err := s.Dev.Asked()
		return calls[component][call], err
	})
}

// decode reads objects.
func (s *story) decode(manifest string) []*unstructured.Unstructured {
	s.t.Helper()
	objects, err := apply.Decode([]byte(manifest))
	if err != nil {
		s.t.Fatal(err)
	}
	return objects
}

// write applies objects, as soon as their kind is served: a client that has looked for it too early does not look again.
func (s *story) write(objects ...*unstructured.Unstructured) {
	s.t.Helper()
	s.retry("write "+apply.Name(objects[0]), func(ctx context.Context) error { return s.NewWriter(s.t).Apply(ctx, objects...) })
}

// read returns an object as it is now.
func (s *story) read(object *unstructured.Unstructured) (got *unstructured.Unstructured) {
	s.t.Helper()
	s.retry("read "+apply.Name(object), func(ctx context.Context) error {
		resource, err := s.NewWriter(s.t).Resource(object)
		if err != nil {
			return err
		}
		got, err = resource.Get(ctx, object.GetName(), metav1.GetOptions{})
		return err
	})
	return got
}
