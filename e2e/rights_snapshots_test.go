package e2e

import (
	"context"
	"fmt"

	"github.com/container-storage-interface/spec/lib/go/csi"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/longshore-csi/longshore/csikit/csitest"
	"github.com/longshore-csi/longshore/devcluster/apply"
)

// snapshotKinds are as much of the kinds of external-snapshotter as a provisioner looks at.
const snapshotKinds = `
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata:
  name: volumesnapshots.snapshot.storage.k8s.io
  annotations: {api-approved.kubernetes.io: "unapproved, a part of it for tests"}
spec:
  group: snapshot.storage.k8s.io
  names: {kind: VolumeSnapshot, plural: volumesnapshots}
  scope: Namespaced
  versions: [{name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}}]
---
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata:
  name: volumesnapshotcontents.snapshot.storage.k8s.io
  annotations: {api-approved.kubernetes.io: "unapproved, a part of it for tests"}
spec:
  group: snapshot.storage.k8s.io
  names: {kind: VolumeSnapshotContent, plural: volumesnapshotcontents}
  scope: Cluster
  versions: [{name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}}]
`

// snapshot is one that its driver has taken. The content needs the UID of the snapshot.
const (
	snapshot = `
apiVersion: snapshot.storage.k8s.io/v1
kind: VolumeSnapshot
metadata: {name: monday, namespace: %[1]s}
spec: {source: {volumeSnapshotContentName: %[1]s}}
status: {boundVolumeSnapshotContentName: %[1]s, readyToUse: true, restoreSize: 1Mi}
`
	snapshotContent = `
apiVersion: snapshot.storage.k8s.io/v1
kind: VolumeSnapshotContent
metadata: {name: %[1]s}
spec: {driver: %[2]s, deletionPolicy: Retain, source: {snapshotHandle: snap}, volumeSnapshotRef: {namespace: %[1]s, name: monday, uid: %[3]s}}
status: {snapshotHandle: snap}
`
)

// snapshots is a claim for a volume from a snapshot: first the cluster knows of none.
func (s *story) snapshots() {
	const name = "snapshots.example.com"
	driver := csitest.New(csitest.Options{Name: name, Controller: append(csitest.AllController(), csi.ControllerServiceCapability_RPC_CREATE_DELETE_SNAPSHOT)})
	driver.AddSnapshot(csitest.Snapshot{ID: "snap", Size: 1 << 20})
	address := driver.Serve(s.t)
	run := func() (end func()) {
		return s.run("csi-provisioner", "--csi-address="+address, "--kubeconfig="+s.Dev.kubeconfig("csi-provisioner"))
	}
	class := Class(s.Namespace+"-snapshots", name, storagev1.VolumeBindingImmediate)
	s.addClass(class)
	claim := Claim(s.Namespace, "data", class.Name)
	claim.Spec.DataSource = &corev1.TypedLocalObjectReference{APIGroup: new("snapshot.storage.k8s.io"), Kind: "VolumeSnapshot", Name: "monday"}
	s.create(claim)
	end := run()
	s.waitEvent("ProvisioningFailed", "CustomResourceDefinitions")
	end()

	kinds := s.decode(snapshotKinds)
	s.write(kinds...)
	s.t.Cleanup(func() {
		if err := s.NewWriter(s.t).Delete(context.Background(), kinds...); err != nil {
			s.t.Error(err)
		}
	})
	source := s.decode(fmt.Sprintf(snapshot, s.Namespace))[0]
	s.write(source)
	s.write(s.decode(fmt.Sprintf(snapshotContent, s.Namespace, name, s.read(source).GetUID()))...)
	run()
	s.WaitBound("data")
	s.Wait("the snapshot to be free", func(context.Context) (bool, error) {
		calls, err := s.Dev.Asked()
		return calls["csi-provisioner"]["update volumesnapshots.snapshot.storage.k8s.io"] && len(s.read(source).GetFinalizers()) == 0, err
	})
	s.deleteClaim()
	s.WaitNothingLeft()
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
