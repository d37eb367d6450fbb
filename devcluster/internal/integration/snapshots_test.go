package integration

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/longshore-csi/longshore/csikit/kubetest/conformance"
	"github.com/longshore-csi/longshore/csikit/snapshotapi"
	"github.com/longshore-csi/longshore/devcluster/apply"
)

// snapshotKinds has the CustomResourceDefinitions of snapshots.
const snapshotKinds = "../../../deploy/crds/snapshot"

// TestSnapshotKindsAreLikeTheServers runs against kube-apiserver with the CustomResourceDefinitions what csikit/snapshotapitest passes.
func TestSnapshotKindsAreLikeTheServers(t *testing.T) {
	files, err := filepath.Glob(filepath.Join(snapshotKinds, "*.storage.k8s.io_*.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	if len(files) == 0 {
		t.Skipf("%s has no CustomResourceDefinitions", snapshotKinds)
	}
	config := admin(t)
	writer, err := apply.New(apply.Config{REST: config, Manager: "test"})
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		kinds, err := apply.Decode(data)
		if err == nil {
			err = writer.Apply(t.Context(), kinds...)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	client, err := snapshotapi.New(config)
	if err != nil {
		t.Fatal(err)
	}
	space := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "snapshot-conformance"}}
	if _, err := clientOf(t, config).CoreV1().Namespaces().Create(t.Context(), space, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the kinds are served", func(ctx context.Context) string {
		if _, ok, err := client.Served(ctx); err != nil || !ok {
			return "group snapshots are not"
		}
		if _, err := client.VolumeSnapshots("").List(ctx, metav1.ListOptions{}); err != nil {
			return err.Error()
		}
		return ""
	})
	conformance.RunSnapshots(t, client, space.Name)
}
