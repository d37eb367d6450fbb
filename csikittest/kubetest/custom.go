package kubetest

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"reflect"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/longshore-csi/longshore/csikit/kube"
)

// CustomKind is a kind as a CustomResourceDefinition describes it.
type CustomKind struct {
	// Resource and Kind are its names: "volumesnapshots", "VolumeSnapshot".
	Resource, Kind string
	// GroupVersion is that of its only version.
	GroupVersion schema.GroupVersion
	// Namespaced kinds have namespaces.
	Namespaced bool
	// Status says that the field Status of the objects is a subresource.
	Status bool
	// New returns an object without contents.
	New func() kube.Object
	// Validate returns what is wrong with an object, beside its metadata; before is nil for a new one. Both are decoded JSON.
	Validate func(obj, before map[string]any) field.ErrorList
}

// Define adds kinds, whose types addToScheme adds to a scheme. It must come before all else that is done with them; who makes clients of
// such kinds uses ResourceOf.
func (c *Cluster) Define(addToScheme func(*runtime.Scheme) error, kinds ...CustomKind) error {
	if err := addToScheme(c.scheme); err != nil {
		return fmt.Errorf("define kinds: %w", err)
	}
	for _, custom := range kinds {
		k := &kind{
			resource: custom.Resource, name: custom.Kind, groupVersion: custom.GroupVersion, namespaced: custom.Namespaced,
			newObject: custom.New, validate: custom.Validate, custom: true, statusResetsMeta: true,
		}
		if custom.Status {
			k.copyStatus = func(to, from kube.Object) { statusField(to).Set(statusField(clone(from))) }
			k.initStatus = func(obj kube.Object) { statusField(obj).SetZero() }
		}
		c.addKind(k)
	}
	return nil
}

func statusField(obj kube.Object) reflect.Value {
	return reflect.ValueOf(obj).Elem().FieldByName("Status")
}

// SetServed sets whether the server has the kinds of a group, as it does at first. Requests for kinds that it has not lead
// nowhere: 404, without a Status. Their objects stay; watches go on until BreakWatches.
func (c *Cluster) SetServed(group string, served bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.absent[group] = !served
}

// Connection is what clients reach a cluster by: the Cluster itself, or a Session.
type Connection interface{ connection() client }

func (c *Cluster) connection() client { return client{cluster: c} }

func (s *Session) connection() client { return client{cluster: s.cluster, session: s} }

// ResourceOf returns the resource of a kind of the cluster, whose lists are W.
func ResourceOf[T kube.Object, W any, L interface {
	*W
	runtime.Object
}](from Connection, name, namespace string) kube.Resource[T, L] {
	c := from.connection()
	return &resource[T, L]{
		cluster: c.cluster, session: c.session, kind: c.cluster.kinds[name], namespace: namespace,
		newList: func() L { return new(W) },
	}
}

// IsServed asks, as a client would by discovery, whether the server has the kinds of a group. For faults it is the verb "get" of the
// resource with the name of the group.
func IsServed(ctx context.Context, from Connection, group string) (bool, error) {
	c := from.connection()
	return serve(ctx, c.cluster, request{session: c.session, verb: "get", resource: group}, func() (bool, error) {
		c.cluster.mu.Lock()
		defer c.cluster.mu.Unlock()
		return !c.cluster.absent[group], nil
	})
}

// checkServed returns the answer to requests for a kind that the server has not.
func (c *Cluster) checkServed(r request) error {
	k, ok := c.kinds[r.resource]
	if !ok {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.absent[k.groupVersion.Group] {
		return nil
	}
	return apierrors.NewGenericServerResponse(http.StatusNotFound, r.verb, k.groupResource(), r.name, "404 page not found", 0, true)
}

// rules applies the rules of a custom kind.
func (k *kind) rules(obj, before kube.Object) field.ErrorList {
	if k.validate == nil {
		return nil
	}
	return k.validate(decoded(obj), decoded(before))
}

// decoded is an object as JSON has it, nil for nil.
func decoded(obj kube.Object) (document map[string]any) {
	if obj == nil {
		return nil
	}
	data, err := json.Marshal(obj)
	if err == nil {
		err = json.Unmarshal(data, &document)
	}
	if err != nil {
		panic(err) // what has come through normalize can be encoded
	}
	return document
}
