// Package kubeapitest adds the kinds of package kubeapi to a kubetest.Cluster, which does not know them: a Secret whose type
// is the kind stands for each object, with the fields of the object, as YAML, in its stringData. A kind without namespaces
// is in the namespace "cluster". Everything that the cluster does to Secrets (versions, finalizers, watches, faults) it so does to these.
//
//	apiVersion: v1
//	kind: Secret
//	metadata: {namespace: team, name: monday}
//	type: VolumeSnapshot
//	stringData:
//	  spec: '{source: {persistentVolumeClaimName: data}}'
package kubeapitest

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"sync"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/yaml"

	"github.com/longshore-csi/longshore/csikit/kube"
	"github.com/longshore-csi/longshore/csikit/snapshotapi"
	"github.com/longshore-csi/longshore/provisioner/internal/kubeapi"
)

// clusterScope is the namespace of kinds that have none.
const clusterScope = "cluster"

// Client is a client of all kinds.
type Client struct {
	kube.Client
	// NoSnapshots says that the cluster has no snapshots.
	NoSnapshots bool
	// NoGrants reports whether the cluster has no ReferenceGrants at present; nil: it has them.
	NoGrants func() bool
}

var _ kubeapi.Client = Client{}

// New returns a client of a cluster.
func New(client kube.Client) Client {
	return Client{Client: client}
}

// VolumeSnapshots implements kubeapi.Client.
func (c Client) VolumeSnapshots(namespace string) snapshotapi.VolumeSnapshots {
	return carry[snapshotv1.VolumeSnapshot, snapshotv1.VolumeSnapshotList](c.Secrets(namespace), schema.GroupKind{Group: snapshotv1.GroupName, Kind: "VolumeSnapshot"}, true, c.noSnapshots)
}

// VolumeSnapshotContents implements kubeapi.Client.
func (c Client) VolumeSnapshotContents() snapshotapi.VolumeSnapshotContents {
	return carry[snapshotv1.VolumeSnapshotContent, snapshotv1.VolumeSnapshotContentList](c.Secrets(clusterScope), schema.GroupKind{Group: snapshotv1.GroupName, Kind: "VolumeSnapshotContent"}, false, c.noSnapshots)
}

// noSnapshots reports whether the cluster has no snapshots.
func (c Client) noSnapshots() bool { return c.NoSnapshots }

// ReferenceGrants implements kubeapi.Client.
func (c Client) ReferenceGrants() kubeapi.ReferenceGrants {
	kind := schema.GroupKind{Group: kubeapi.GatewayGroup, Kind: "ReferenceGrant"}
	return carry[kubeapi.ReferenceGrant, kubeapi.ReferenceGrantList](c.Secrets(metav1.NamespaceAll), kind, true, c.NoGrants)
}

// CSIStorageCapacities implements kubeapi.Client.
func (c Client) CSIStorageCapacities(namespace string) kubeapi.CSIStorageCapacities {
	return carry[storagev1.CSIStorageCapacity, storagev1.CSIStorageCapacityList](c.Secrets(namespace), schema.GroupKind{Group: storagev1.GroupName, Kind: "CSIStorageCapacity"}, true, nil)
}

// Owner implements kubeapi.Client.
func (c Client) Owner(ctx context.Context, namespace string, ref metav1.OwnerReference) (*metav1.PartialObjectMetadata, error) {
	return carry[metav1.PartialObjectMetadata, metav1.PartialObjectMetadataList](c.Secrets(namespace), schema.GroupKind{Kind: ref.Kind}, true, nil).Get(ctx, ref.Name, metav1.GetOptions{})
}

// carried implements kube.Resource for a kind.
type carried[T kube.Object, L runtime.Object] struct {
	secrets    kube.Secrets
	group      string
	kind       string
	namespaced bool
	absent     func() bool
	newObject  func() T
	newList    func() L
}

// carry returns the resource of a kind, whose objects are V and whose lists are W.
func carry[V, W any, T interface {
	*V
	kube.Object
}, L interface {
	*W
	runtime.Object
}](secrets kube.Secrets, kind schema.GroupKind, namespaced bool, absent func() bool) kube.Resource[T, L] {
	return &carried[T, L]{
		secrets: secrets, group: kind.Group, kind: kind.Kind, namespaced: namespaced, absent: absent,
		newObject: func() T { return new(V) }, newList: func() L { return new(W) },
	}
}

// there returns the error of a kind that the cluster has not.
func (c *carried[T, L]) there() error {
	if c.absent == nil || !c.absent() {
		return nil
	}
	return apierrors.NewGenericServerResponse(http.StatusNotFound, "get", schema.GroupResource{Group: c.group, Resource: c.kind}, "", "404 page not found", 0, true)
}

// pack returns the Secret that stands for an object.
func (c *carried[T, L]) pack(obj T) (*corev1.Secret, error) {
	data, err := json.Marshal(obj)
	if err != nil {
		return nil, err
	}
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(data, &fields); err != nil {
		return nil, err
	}
	secret := &corev1.Secret{Type: corev1.SecretType(c.kind), StringData: map[string]string{}}
	if err := json.Unmarshal(fields["metadata"], &secret.ObjectMeta); err != nil {
		return nil, err
	}
	if !c.namespaced {
		secret.Namespace = clusterScope
	}
	for name, value := range fields {
		if name != "metadata" && name != "kind" && name != "apiVersion" {
			secret.StringData[name] = string(value)
		}
	}
	return secret, nil
}

// unpack returns the object that a Secret stands for; false if it stands for none of the kind.
func (c *carried[T, L]) unpack(secret *corev1.Secret) (T, bool) {
	obj := c.newObject()
	if secret == nil || string(secret.Type) != c.kind {
		return obj, false
	}
	meta := *secret.ObjectMeta.DeepCopy()
	if !c.namespaced {
		meta.Namespace = ""
	}
	fields := map[string]any{"metadata": meta}
	for name, value := range secret.StringData {
		var field any
		if err := yaml.Unmarshal([]byte(value), &field); err != nil {
			panic(fmt.Sprintf("field %s of %s %s: %v", name, c.kind, secret.Name, err)) // a mistake of the test
		}
		fields[name] = field
	}
	data, err := json.Marshal(fields)
	if err == nil {
		err = yaml.UnmarshalStrict(data, obj)
	}
	if err != nil {
		panic(fmt.Sprintf("read %s %s: %v", c.kind, secret.Name, err)) // a mistake of the test
	}
	return obj, true
}

// answer unpacks what the cluster has answered.
func (c *carried[T, L]) answer(secret *corev1.Secret, err error) (T, error) {
	if err != nil {
		return c.newObject(), err
	}
	obj, ok := c.unpack(secret)
	if !ok {
		return obj, apierrors.NewNotFound(snapshotv1.Resource(c.kind), secret.Name)
	}
	return obj, nil
}

// send packs an object and sends it.
func (c *carried[T, L]) send(obj T, write func(secret *corev1.Secret) (*corev1.Secret, error)) (T, error) {
	if err := c.there(); err != nil {
		return c.newObject(), err
	}
	secret, err := c.pack(obj)
	if err != nil {
		return c.newObject(), err
	}
	return c.answer(write(secret))
}

// Create implements kube.Resource.
func (c *carried[T, L]) Create(ctx context.Context, obj T, opts metav1.CreateOptions) (T, error) {
	return c.send(obj, func(secret *corev1.Secret) (*corev1.Secret, error) { return c.secrets.Create(ctx, secret, opts) })
}

// Update implements kube.Resource. It replaces the status, too.
func (c *carried[T, L]) Update(ctx context.Context, obj T, opts metav1.UpdateOptions) (T, error) {
	return c.send(obj, func(secret *corev1.Secret) (*corev1.Secret, error) { return c.secrets.Update(ctx, secret, opts) })
}

// UpdateStatus implements kube.Resource.
func (c *carried[T, L]) UpdateStatus(ctx context.Context, obj T, opts metav1.UpdateOptions) (T, error) {
	return c.Update(ctx, obj, opts)
}

// Delete implements kube.Resource.
func (c *carried[T, L]) Delete(ctx context.Context, name string, opts metav1.DeleteOptions) error {
	if err := c.there(); err != nil {
		return err
	}
	return c.secrets.Delete(ctx, name, opts)
}

// Get implements kube.Resource.
func (c *carried[T, L]) Get(ctx context.Context, name string, opts metav1.GetOptions) (T, error) {
	if err := c.there(); err != nil {
		return c.newObject(), err
	}
	return c.answer(c.secrets.Get(ctx, name, opts))
}

// List implements kube.Resource.
func (c *carried[T, L]) List(ctx context.Context, opts metav1.ListOptions) (L, error) {
	list := c.newList()
	if err := c.there(); err != nil {
		return list, err
	}
	secrets, err := c.secrets.List(ctx, opts)
	if err != nil {
		return list, err
	}
	var items []runtime.Object
	for i := range secrets.Items {
		if obj, ok := c.unpack(&secrets.Items[i]); ok {
			items = append(items, obj)
		}
	}
	accessor, err := meta.ListAccessor(list)
	if err != nil {
		return list, err
	}
	accessor.SetResourceVersion(secrets.ResourceVersion)
	return list, meta.SetList(list, items)
}

// Watch implements kube.Resource.
func (c *carried[T, L]) Watch(ctx context.Context, opts metav1.ListOptions) (watch.Interface, error) {
	if err := c.there(); err != nil {
		return nil, err
	}
	inner, err := c.secrets.Watch(ctx, opts)
	if err != nil {
		return nil, err
	}
	return newStream(inner, func(event watch.Event) (watch.Event, bool) {
		secret, ok := event.Object.(*corev1.Secret)
		if !ok {
			return event, true // an error
		}
		if event.Type == watch.Bookmark {
			secret = secret.DeepCopy()
			secret.Type = corev1.SecretType(c.kind)
		}
		obj, ok := c.unpack(secret)
		event.Object = obj
		return event, ok
	}), nil
}

// stream converts the events of another watch. (watch.Filter waits forever when it is stopped while it delivers.)
type stream struct {
	events chan watch.Event
	stop   func()
}

// newStream returns a stream of those events that convert wants.
func newStream(inner watch.Interface, convert func(watch.Event) (watch.Event, bool)) *stream {
	stopped := make(chan struct{})
	s := &stream{events: make(chan watch.Event), stop: sync.OnceFunc(func() { close(stopped); inner.Stop() })}
	go func() {
		defer close(s.events)
		for event := range inner.ResultChan() {
			event, wanted := convert(event)
			if !wanted {
				continue
			}
			select {
			case s.events <- event:
			case <-stopped:
				return
			}
		}
	}()
	return s
}

// Stop implements watch.Interface.
func (s *stream) Stop() { s.stop() }

// ResultChan implements watch.Interface.
func (s *stream) ResultChan() <-chan watch.Event { return s.events }

// Patch implements kube.Resource. The patch may change metadata only.
func (c *carried[T, L]) Patch(ctx context.Context, name string, pt types.PatchType, data []byte, opts metav1.PatchOptions, subresources ...string) (T, error) {
	if err := c.there(); err != nil {
		return c.newObject(), err
	}
	return c.answer(c.secrets.Patch(ctx, name, pt, data, opts, subresources...))
}
