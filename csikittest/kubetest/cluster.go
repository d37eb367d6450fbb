package kubetest

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"github.com/longshore-csi/longshore/csikit/kube"
)

// Cluster is a Kubernetes API in memory. It may be used by many goroutines.
type Cluster struct {
	scheme *runtime.Scheme
	kinds  map[string]*kind

	mu        sync.Mutex
	stores    map[string]*store
	version   uint64
	writes    []Write
	observers []func(Write)
	faults    []*Fault
	latencies map[string]time.Duration
	absent    map[string]bool // groups
	watchers  map[*watcher]struct{}
	tokens    int // of service accounts, so far
}

// New returns a cluster with these objects. An object that cannot be stored is a mistake
// of the test, and panics.
func New(objs ...runtime.Object) *Cluster {
	c := &Cluster{
		scheme:   kube.Scheme(),
		kinds:    map[string]*kind{},
		stores:   map[string]*store{},
		watchers: map[*watcher]struct{}{},
		absent:   map[string]bool{},
	}
	for _, k := range kinds() {
		c.addKind(k)
	}
	if err := c.Apply(objs...); err != nil {
		panic(err)
	}
	// An API server is never at version 0: to watch from "0" means from anywhere, and would lose deletions.
	c.version = max(c.version, 1)
	return c
}

// addKind adds a kind, of which there are no objects yet.
func (c *Cluster) addKind(k *kind) {
	k.number = len(c.kinds)
	c.kinds[k.resource] = k
	c.stores[k.resource] = &store{kind: k, objects: map[string]kube.Object{}}
}

// Scheme returns the types of all kinds of the cluster, not to be changed.
func (c *Cluster) Scheme() *runtime.Scheme { return c.scheme }

// Apply creates or replaces objects by the test's hand: with status, finalizers and
// deletionTimestamp, past all faults, and without a trace in Writes. A UID and
// creationTimestamp that an object has stay; others are made up.
func (c *Cluster) Apply(objs ...runtime.Object) error {
	for _, obj := range objs {
		typed, k, err := c.identify(obj)
		if err != nil {
			return err
		}
		c.mu.Lock()
		err = c.applyLocked(k, typed)
		c.mu.Unlock()
		if err != nil {
			return fmt.Errorf("apply %s %s: %w", k.resource, key(typed), err)
		}
	}
	return nil
}

// Remove deletes an object by the test's hand, past all faults and without a trace in
// Writes. Finalizers are honoured. Namespace is "" for kinds without namespaces.
func (c *Cluster) Remove(resource, namespace, name string) error {
	k, err := c.kindOf(resource)
	if err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	_, _, err = c.deleteLocked(k, namespace, name, deleteOptions{})
	return err
}

// Drop is Remove in spite of finalizers: an API server does so that has read the object before they were put on it.
func (c *Cluster) Drop(resource, namespace, name string) error {
	k, err := c.kindOf(resource)
	if err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	before, err := c.getLocked(k, namespace, name)
	if err == nil {
		c.dropLocked(k, clone(before))
	}
	return err
}

// Merge applies a JSON merge patch to an object by the test's hand, status included, past all faults and
// without a trace in Writes.
func (c *Cluster) Merge(resource, namespace, name string, patch []byte) error {
	k, err := c.kindOf(resource)
	if err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	before, err := c.getLocked(k, namespace, name)
	if err != nil {
		return err
	}
	data, err := json.Marshal(before)
	if err != nil {
		return fmt.Errorf("encode %s %s: %w", resource, key(before), err)
	}
	if data, err = applyPatch(k, types.MergePatchType, data, patch); err != nil {
		return err
	}
	obj, err := decode(k, data)
	if err != nil {
		return err
	}
	if obj, err = k.track(before, obj, fieldOwner{manager: HandManager}); err != nil {
		return err
	}
	c.replaceLocked(k, before, obj)
	return nil
}

// Objects returns copies of all objects of a resource such as "persistentvolumes", sorted by
// namespace and name. An unknown resource has none.
func (c *Cluster) Objects(resource string) []kube.Object {
	c.mu.Lock()
	defer c.mu.Unlock()
	s, ok := c.stores[resource]
	if !ok {
		return nil
	}
	return s.list(func(kube.Object) bool { return true })
}

// Resources returns the resources that the cluster knows, sorted.
func (c *Cluster) Resources() []string {
	names := make([]string, 0, len(c.kinds))
	for name := range c.kinds {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// ResourceOf returns the resource of an object or of a kind's or resource's name in any case,
// singular or plural: "PersistentVolume", "persistentvolumes".
func (c *Cluster) ResourceOf(name string) (resource string, err error) {
	name = strings.ToLower(name)
	for _, k := range c.kinds {
		if name == k.resource || name == strings.ToLower(k.name) {
			return k.resource, nil
		}
	}
	return "", fmt.Errorf("unknown kind %q, known are: %s", name, strings.Join(c.Resources(), ", "))
}

func (c *Cluster) kindOf(resource string) (*kind, error) {
	if k, ok := c.kinds[resource]; ok {
		return k, nil
	}
	return nil, fmt.Errorf("unknown resource %q, known are: %s", resource, strings.Join(c.Resources(), ", "))
}

func (c *Cluster) identify(obj runtime.Object) (kube.Object, *kind, error) {
	typed, ok := obj.(kube.Object)
	if !ok {
		return nil, nil, fmt.Errorf("%T is not an API object", obj)
	}
	gvks, _, err := c.scheme.ObjectKinds(obj)
	if err != nil {
		return nil, nil, fmt.Errorf("find the kind of %T: %w", obj, err)
	}
	for _, k := range c.kinds {
		if gvks[0] == k.groupVersion.WithKind(k.name) {
			return typed, k, nil
		}
	}
	return nil, nil, fmt.Errorf("objects of kind %s are not supported", gvks[0].Kind)
}
