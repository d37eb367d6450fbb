package e2e

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"testing"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/restmapper"
)

// Writer sends objects of manifests, whatever their kind, to the API server, and keeps the warnings that come back.
type Writer struct {
	dynamic  dynamic.Interface
	mapper   meta.RESTMapper
	warnings warnings
}

// warnings are those of the last request.
type warnings []string

// HandleWarningHeader implements rest.WarningHandler.
func (w *warnings) HandleWarningHeader(code int, _ string, text string) {
	*w = append(*w, fmt.Sprintf("warning %d: %s", code, text))
}

// NewWriter makes a writer, which is for one goroutine.
func (b *Bed) NewWriter(t *testing.T) *Writer {
	t.Helper()
	w := &Writer{}
	config := rest.CopyConfig(b.config)
	config.WarningHandler = &w.warnings
	disco, err := discovery.NewDiscoveryClientForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	w.mapper = restmapper.NewDeferredDiscoveryRESTMapper(memory.NewMemCacheClient(disco))
	if w.dynamic, err = dynamic.NewForConfig(config); err != nil {
		t.Fatal(err)
	}
	return w
}

// Apply sends an object as kubectl apply --server-side --validate=strict does. A warning is an error, too.
func (w *Writer) Apply(ctx context.Context, o *unstructured.Unstructured, dryRun ...string) error {
	resource, err := w.resource(o)
	if err != nil {
		return err
	}
	data, err := json.Marshal(o)
	if err != nil {
		return err
	}
	w.warnings = nil
	force := true
	options := metav1.PatchOptions{FieldManager: "e2e", Force: &force, FieldValidation: metav1.FieldValidationStrict, DryRun: dryRun}
	_, err = resource.Patch(ctx, o.GetName(), types.ApplyPatchType, data, options)
	for _, warning := range w.warnings {
		err = errors.Join(err, errors.New(warning))
	}
	if err != nil {
		return fmt.Errorf("apply %s %s: %w", o.GetKind(), o.GetName(), err)
	}
	return nil
}

// Delete removes an object. One that is not there is fine.
func (w *Writer) Delete(ctx context.Context, o *unstructured.Unstructured) error {
	resource, err := w.resource(o)
	if err != nil {
		return err
	}
	return ignoreNotFound(resource.Delete(ctx, o.GetName(), metav1.DeleteOptions{}))
}

func (w *Writer) resource(o *unstructured.Unstructured) (dynamic.ResourceInterface, error) {
	gvk := o.GroupVersionKind()
	mapping, err := w.mapper.RESTMapping(gvk.GroupKind(), gvk.Version)
	if err != nil {
		return nil, fmt.Errorf("look up the resource of %s %s: %w", o.GetKind(), o.GetName(), err)
	}
	if mapping.Scope.Name() == meta.RESTScopeNameRoot {
		return w.dynamic.Resource(mapping.Resource), nil
	}
	return w.dynamic.Resource(mapping.Resource).Namespace(cmp.Or(o.GetNamespace(), metav1.NamespaceDefault)), nil
}

// readManifest reads the objects of a file.
func readManifest(t *testing.T, path string) []*unstructured.Unstructured {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	objects, err := decodeManifest(data)
	if err != nil || len(objects) == 0 {
		t.Fatalf("%s: %d objects, %v", path, len(objects), err)
	}
	return objects
}

// decodeManifest reads the objects of a YAML stream; documents of comments alone are left out.
func decodeManifest(data []byte) ([]*unstructured.Unstructured, error) {
	decoder := yaml.NewYAMLOrJSONDecoder(bytes.NewReader(data), 4096)
	var objects []*unstructured.Unstructured
	for {
		var content map[string]any
		err := decoder.Decode(&content)
		if errors.Is(err, io.EOF) {
			return objects, nil
		}
		if err != nil {
			return nil, fmt.Errorf("decode document %d: %w", len(objects)+1, err)
		}
		if len(content) > 0 {
			objects = append(objects, &unstructured.Unstructured{Object: content})
		}
	}
}
