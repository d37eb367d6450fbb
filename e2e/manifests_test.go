package e2e

import (
	"os"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/longshore-csi/longshore/devcluster/apply"
)

// NewWriter makes a client for objects of manifests, whatever their kind. A warning of the API server is an error.
func (b *Bed) NewWriter(t testing.TB) *apply.Client {
	t.Helper()
	w, err := apply.New(apply.Config{REST: b.config, Manager: "e2e", Strict: true})
	if err != nil {
		t.Fatal(err)
	}
	return w
}

// readManifest reads the objects of a file.
func readManifest(t testing.TB, path string) []*unstructured.Unstructured {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	objects, err := apply.Decode(data)
	if err != nil || len(objects) == 0 {
		t.Fatalf("%s: %d objects, %v", path, len(objects), err)
	}
	return objects
}
