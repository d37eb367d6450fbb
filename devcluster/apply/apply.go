// Package apply writes Kubernetes objects of any kind to an API server, from YAML, and removes them again, as
// `kubectl apply --server-side --force-conflicts` and `kubectl delete --ignore-not-found` do.
//
// It is for the objects of a test, of an example, or of a development cluster: a few, in the order in which they are written.
// It is not for controllers, which share objects with others and use typed clients, and not for installing software: it takes
// over fields that others have set, forgets what it has written, does not wait for a kind that was just defined, and stops
// at the first error. For that there are kubectl and helm.
//
//	client, err := apply.New(apply.Config{REST: config, Manager: "example"})
//	objects, err := apply.Decode(yaml)
//	err = client.Apply(ctx, objects...)
package apply

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
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

// Config says where objects are written, and how.
type Config struct {
	// REST reaches the API server. Required; it is not changed.
	REST *rest.Config
	// Manager is the owner of the applied fields, as managedFields of the objects names it. Required.
	Manager string
	// Namespace is where objects of a namespaced kind go that name no namespace. Empty: default.
	Namespace string
	// Strict makes an error, in Apply and DryRun, of what the API server only warns of, and asks it to validate fields strictly, as
	// kubectl does. An object whose only fault is a warning has been written nevertheless. Otherwise warnings are logged. Fields that
	// the API server does not know are refused in any case.
	Strict bool
}

// Client applies and deletes objects. It may be used by several goroutines.
type Client struct {
	dynamic dynamic.Interface
	mapper  meta.RESTMapper
	config  Config
}

// New makes a client. It does not talk to the API server yet. The error has everything that is wrong with the configuration.
func New(config Config) (*Client, error) {
	if err := config.validate(); err != nil {
		return nil, err
	}
	restConfig := rest.CopyConfig(config.REST)
	if config.Strict {
		restConfig.WarningHandlerWithContext = collector{}
	}
	d, err := dynamic.NewForConfig(restConfig)
	if err != nil {
		return nil, fmt.Errorf("make a client for %s: %w", config.REST.Host, err)
	}
	disco, err := discovery.NewDiscoveryClientForConfig(restConfig)
	if err != nil {
		return nil, fmt.Errorf("make a discovery client for %s: %w", config.REST.Host, err)
	}
	mapper := restmapper.NewDeferredDiscoveryRESTMapper(memory.NewMemCacheClient(disco))
	return &Client{dynamic: d, mapper: mapper, config: config}, nil
}

func (c Config) validate() error {
	var errs []error
	if c.REST == nil {
		errs = append(errs, errors.New("apply: REST is required"))
	}
	if c.Manager == "" {
		errs = append(errs, errors.New("apply: Manager is required"))
	}
	return errors.Join(errs...)
}

// Decode reads all objects of a YAML stream; documents of comments alone are left out. The error says which document is malformed.
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

// Apply writes the objects in their order, whether they are there or not, and ends at the first error, which names the object. Fields that
// others have set are taken over.
func (c *Client) Apply(ctx context.Context, objects ...*unstructured.Unstructured) error {
	for _, o := range objects {
		if err := c.apply(ctx, o); err != nil {
			return fmt.Errorf("apply %s: %w", Name(o), err)
		}
	}
	return nil
}

// DryRun does with each object what Apply does, schema, validation and admission included, and keeps none: an object that needs an
// earlier one to be there is refused. It ends at the first error.
func (c *Client) DryRun(ctx context.Context, objects ...*unstructured.Unstructured) error {
	for _, o := range objects {
		if err := c.apply(ctx, o, metav1.DryRunAll); err != nil {
			return fmt.Errorf("apply %s in a dry run: %w", Name(o), err)
		}
	}
	return nil
}

func (c *Client) apply(ctx context.Context, o *unstructured.Unstructured, dryRun ...string) error {
	resource, err := c.Resource(o)
	if err != nil {
		return err
	}
	data, err := json.Marshal(o)
	if err != nil {
		return err
	}
	force := true
	options := metav1.PatchOptions{FieldManager: c.config.Manager, Force: &force, DryRun: dryRun}
	if !c.config.Strict {
		_, err = resource.Patch(ctx, o.GetName(), types.ApplyPatchType, data, options)
		return err
	}
	options.FieldValidation = metav1.FieldValidationStrict
	var warned warnings
	_, err = resource.Patch(warned.collect(ctx), o.GetName(), types.ApplyPatchType, data, options)
	return errors.Join(append([]error{err}, warned...)...)
}

// Delete removes the objects, the last first, with what they own, and ends at the first error, which names the object. Objects that are
// not there are fine. It does not wait until they are gone.
func (c *Client) Delete(ctx context.Context, objects ...*unstructured.Unstructured) error {
	for _, o := range slices.Backward(objects) {
		resource, err := c.Resource(o)
		if err != nil {
			return fmt.Errorf("delete %s: %w", Name(o), err)
		}
		policy := metav1.DeletePropagationBackground
		if err := resource.Delete(ctx, o.GetName(), metav1.DeleteOptions{PropagationPolicy: &policy}); err != nil && !apierrors.IsNotFound(err) {
			return fmt.Errorf("delete %s: %w", Name(o), err)
		}
	}
	return nil
}

// Resource is where an object is, or would be: of its kind, in its namespace. The error is for a kind that the API server does not have.
func (c *Client) Resource(o *unstructured.Unstructured) (dynamic.ResourceInterface, error) {
	gvk := o.GroupVersionKind()
	mapping, err := c.mapper.RESTMapping(gvk.GroupKind(), gvk.Version)
	if err != nil {
		return nil, fmt.Errorf("look up the resource of %s: %w", gvk, err)
	}
	if mapping.Scope.Name() == meta.RESTScopeNameRoot {
		return c.dynamic.Resource(mapping.Resource), nil
	}
	return c.dynamic.Resource(mapping.Resource).Namespace(cmp.Or(o.GetNamespace(), c.config.Namespace, metav1.NamespaceDefault)), nil
}

// Name is how a user would call the object: kind/name.
func Name(o *unstructured.Unstructured) string { return o.GetKind() + "/" + o.GetName() }
