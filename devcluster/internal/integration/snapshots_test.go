package integration

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/longshore-csi/longshore/csikit/snapshotapi"
	"github.com/longshore-csi/longshore/csikittest/kubetest/conformance"
)

// TestSnapshotKindsAreLikeTheServers runs against kube-apiserver, with the CustomResourceDefinitions of the bootstrap, what
// csikittest/snapshotapitest passes.
func TestSnapshotKindsAreLikeTheServers(t *testing.T) {
	config := admin(t)
	client, err := snapshotapi.New(config)
	if err != nil {
		t.Fatal(err)
	}
	space := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "snapshot-conformance"}}
	if _, err := clientOf(t, config).CoreV1().Namespaces().Create(t.Context(), space, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if version, ok, err := client.Served(t.Context()); err != nil || !ok || version != "v1" {
		t.Fatalf("group snapshots: version %q, served %v, %v", version, ok, err)
	}
	conformance.RunSnapshots(t, client, space.Name)
}
