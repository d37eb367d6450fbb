package testbed

import (
	"context"
	"os"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/longshore-csi/longshore/devcluster/apply"
)

// NewWriter returns a client for objects of manifests, whatever their kind. A warning of the API server is an error.
func (b *Bed) NewWriter(t testing.TB) *apply.Client {
	t.Helper()
	w, err := apply.New(apply.Config{REST: b.Config, Manager: "e2e", Strict: true})
	if err != nil {
		t.Fatal(err)
	}
	return w
}

// ReadManifest returns the objects of a file in YAML, at least one.
func ReadManifest(t testing.TB, path string) []*unstructured.Unstructured {
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

// Decode returns the objects of a manifest in YAML.
func Decode(t testing.TB, manifest string) []*unstructured.Unstructured {
	t.Helper()
	objects, err := apply.Decode([]byte(manifest))
	if err != nil {
		t.Fatal(err)
	}
	return objects
}

// AddObject creates the object of a manifest, one outside of namespaces, which is removed with the scene.
func (s *Scene) AddObject(manifest string) {
	s.T.Helper()
	object := Decode(s.T, manifest)[0]
	s.Write(object)
	s.T.Cleanup(func() {
		err := Poll(context.Background(), func(ctx context.Context) (bool, error) {
			err := s.NewWriter(s.T).Delete(ctx, object)
			return err == nil, err
		})
		if err != nil {
			s.T.Error(err)
		}
	})
}

// Write applies objects, as soon as their kind is served: a client that has looked for it too early does not look again.
func (s *Scene) Write(objects ...*unstructured.Unstructured) {
	s.T.Helper()
	s.Retry("write "+apply.Name(objects[0]), func(ctx context.Context) error { return s.NewWriter(s.T).Apply(ctx, objects...) })
}

// Read returns an object as it is now.
func (s *Scene) Read(object *unstructured.Unstructured) (got *unstructured.Unstructured) {
	s.T.Helper()
	s.Retry("read "+apply.Name(object), func(ctx context.Context) error {
		resource, err := s.NewWriter(s.T).Resource(object)
		if err != nil {
			return err
		}
		got, err = resource.Get(ctx, object.GetName(), metav1.GetOptions{})
		return err
	})
	return got
}

// Delete deletes an object, and does not wait until it is gone.
func (s *Scene) Delete(object *unstructured.Unstructured) {
	s.T.Helper()
	s.Retry("delete "+apply.Name(object), func(ctx context.Context) error { return s.NewWriter(s.T).Delete(ctx, object) })
}
