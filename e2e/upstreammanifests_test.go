package e2e

import (
	"context"
	"path/filepath"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/longshore-csi/longshore/devcluster/apply"
)

// TestUpstreamSnapshotManifests applies, unchanged, the examples of kubernetes-csi's external-snapshotter: a snapshot, a claim that is restored
// from it, and a group snapshot in v1beta1.
func TestUpstreamSnapshotManifests(t *testing.T) {
	dev(t)
	dir := filepath.Join(upstreamSource(t, "github.com/kubernetes-csi/external-snapshotter/v8"), "examples", "kubernetes")
	s := &story{Scene: bed.NewScene(t), t: t}
	// Not strict: v1beta1 is deprecated, and the API server says so.
	writer, err := apply.New(apply.Config{REST: s.config, Manager: "e2e", Namespace: s.Namespace})
	if err != nil {
		t.Fatal(err)
	}
	write := func(name string) *unstructured.Unstructured {
		objects := readManifest(t, filepath.Join(dir, name+".yaml"))
		s.retry("apply "+name, func(ctx context.Context) error { return writer.Apply(ctx, objects...) })
		s.t.Cleanup(func() { _ = writer.Delete(context.Background(), objects...) }) // those outside of namespaces; the others are gone by then
		objects[0].SetNamespace(s.Namespace)
		return objects[0]
	}
	for _, name := range []string{"storageclass", "snapshotclass-v1", "groupsnapshotclass-v1beta1", "pvc"} {
		write(name)
	}
	s.CreatePod("user", FromClaim("hpvc"))
	s.WaitRunning("user")
	snapshot := write("snapshot-v1")
	write("restore")
	s.snapshotReady(snapshot)
	s.WaitBound("hpvc-restore")

	// A group has no volume that is used, as in TestGroupSnapshotAndRestore.
	s.DeletePod("user")
	s.WaitNoPod("user")
	s.patchClaim("hpvc", `{"metadata": {"labels": {"app.kubernetes.io/name": "postgresql"}}}`)
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
	s.retry("delete the snapshots", func(ctx context.Context) error { return writer.Delete(ctx, snapshot, group) })
	s.waitNoSnapshots()
	s.DeleteClaim("hpvc")
	s.DeleteClaim("hpvc-restore")
	s.WaitNothingLeft()
}
