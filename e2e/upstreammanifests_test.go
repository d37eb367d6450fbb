package e2e

import (
	"context"
	"path/filepath"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/longshore-csi/longshore/devcluster/apply"
	"github.com/longshore-csi/longshore/e2e/testbed"
)

// TestUpstreamSnapshotManifests applies, unchanged, the examples of kubernetes-csi's external-snapshotter: a snapshot, a claim that is restored
// from it, and a group snapshot in v1beta1.
func TestUpstreamSnapshotManifests(t *testing.T) {
	dev(t)
	dir := filepath.Join(testbed.UpstreamSource(t, "github.com/kubernetes-csi/external-snapshotter/v8"), "examples", "kubernetes")
	s := newStory(t)
	// Not strict: v1beta1 is deprecated, and the API server says so.
	writer, err := apply.New(apply.Config{REST: s.Config, Manager: "e2e", Namespace: s.Namespace})
	if err != nil {
		t.Fatal(err)
	}
	write := func(name string) *unstructured.Unstructured {
		objects := testbed.ReadManifest(t, filepath.Join(dir, name+".yaml"))
		s.Retry("apply "+name, func(ctx context.Context) error { return writer.Apply(ctx, objects...) })
		s.T.Cleanup(func() { _ = writer.Delete(context.Background(), objects...) }) // those outside of namespaces; the others are gone by then
		objects[0].SetNamespace(s.Namespace)
		return objects[0]
	}
	for _, name := range []string{"storageclass", "snapshotclass-v1", "groupsnapshotclass-v1beta1", "pvc"} {
		write(name)
	}
	s.CreatePod("user", testbed.FromClaim("hpvc"))
	s.WaitRunning("user")
	snapshot := write("snapshot-v1")
	write("restore")
	s.WaitSnapshotReady(snapshot)
	s.WaitBound("hpvc-restore")

	// A group has no volume that is used, as in TestGroupSnapshotAndRestore.
	s.DeletePod("user")
	s.WaitNoPod("user")
	s.PatchClaim("hpvc", `{"metadata": {"labels": {"app.kubernetes.io/name": "postgresql"}}}`)
	group := write("groupsnapshot-v1beta1")
	s.Wait("the group snapshot to be ready", func(ctx context.Context) (bool, error) {
		resource, err := writer.Resource(group)
		if err != nil {
			return false, err
		}
		now, err := resource.Get(ctx, group.GetName(), metav1.GetOptions{})
		if err != nil {
			return false, err
		}
		ready, _, err := unstructured.NestedBool(now.Object, "status", "readyToUse")
		return ready, err
	})
	s.Retry("delete the snapshots", func(ctx context.Context) error { return writer.Delete(ctx, snapshot, group) })
	s.WaitNoSnapshots()
	s.DeleteClaim("hpvc")
	s.DeleteClaim("hpvc-restore")
	s.WaitNothingLeft()
}
