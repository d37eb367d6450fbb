// Package apply writes Kubernetes objects from YAML to an API server and removes them again.
//
// It applies server side, so applying the same file twice changes nothing. It is for the few objects of a development
// cluster and its examples; for anything larger there is kubectl.
package apply

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/restmapper"
)

// fieldManager owns the fields that are applied.
const fieldManager = "devcluster"

// Client applies and deletes objects.
type Client struct {
	dynamic   dynamic.Interface
	mapper    meta.RESTMapper
	namespace string
}

// New makes a client. Objects of a namespaced kind that name no namespace go to the given one.
func New(config *rest.Config, namespace string) (*Client, error) {
	d, err := dynamic.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("make a client for %s: %w", config.Host, err)
	}
	disco, err := discovery.NewDiscoveryClientForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("make a discovery client for %s: %w", config.Host, err)
	}
	mapper := restmapper.NewDeferredDiscoveryRESTMapper(memory.NewMemCacheClient(disco))
	return &Client{dynamic: d, mapper: mapper, namespace: namespace}, nil
}

// Decode reads all objects of a YAML stream.
func Decode(data []byte) ([]*unstructured.Unstructured, error) {
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

// Apply writes the objects in their order.
func (c *Client) Apply(ctx context.Context, objects []*unstructured.Unstructured) error {
	for _, o := range objects {
		resource, err := c.resource(o)
		if err != nil {
			return err
		}
		if _, err := resource.Apply(ctx, o.GetName(), o, metav1.ApplyOptions{FieldManager: fieldManager, Force: true}); err != nil {
			return fmt.Errorf("apply %s: %w", Name(o), err)
		}
	}
	return nil
}

// Delete removes the objects, the last first. Objects that are not there are fine.
func (c *Client) Delete(ctx context.Context, objects []*unstructured.Unstructured) error {
	for _, o := range slices.Backward(objects) {
		resource, err := c.resource(o)
		if err != nil {
			return err
		}
		policy := metav1.DeletePropagationBackground
		if err := resource.Delete(ctx, o.GetName(), metav1.DeleteOptions{PropagationPolicy: &policy}); err != nil && !apierrors.IsNotFound(err) {
			return fmt.Errorf("delete %s: %w", Name(o), err)
		}
	}
	return nil
}

// Name is how a user would call the object: kind/name.
func Name(o *unstructured.Unstructured) string { return o.GetKind() + "/" + o.GetName() }

func (c *Client) resource(o *unstructured.Unstructured) (dynamic.ResourceInterface, error) {
	gvk := o.GroupVersionKind()
	mapping, err := c.mapper.RESTMapping(gvk.GroupKind(), gvk.Version)
	if err != nil {
		return nil, fmt.Errorf("look up the resource of %s (%s): %w", Name(o), gvk, err)
	}
	if mapping.Scope.Name() == meta.RESTScopeNameRoot {
		return c.dynamic.Resource(mapping.Resource), nil
	}
	if o.GetNamespace() == "" {
		o.SetNamespace(c.namespace)
	}
	return c.dynamic.Resource(mapping.Resource).Namespace(o.GetNamespace()), nil
}
