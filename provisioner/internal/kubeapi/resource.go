package kubeapi

import (
	"context"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"

	"github.com/longshore-csi/longshore/csikit/kube"
)

// resource implements kube.Resource with REST requests.
type resource[T kube.Object, L runtime.Object] struct {
	rest      rest.Interface
	params    runtime.ParameterCodec
	name      string
	namespace string
	newObject func() T
	newList   func() L
}

// typed returns the resource of a kind, whose objects are V and whose lists are W.
func typed[V, W any, T interface {
	*V
	kube.Object
}, L interface {
	*W
	runtime.Object
}](r rest.Interface, params runtime.ParameterCodec, name, namespace string) kube.Resource[T, L] {
	return &resource[T, L]{
		rest: r, params: params, name: name, namespace: namespace,
		newObject: func() T { return new(V) }, newList: func() L { return new(W) },
	}
}

// on aims a request at the resource.
func (r *resource[T, L]) on(request *rest.Request) *rest.Request {
	return request.NamespaceIfScoped(r.namespace, r.namespace != "").Resource(r.name)
}

// into sends a request and reads one object.
func (r *resource[T, L]) into(ctx context.Context, request *rest.Request) (T, error) {
	result := r.newObject()
	err := request.Do(ctx).Into(result)
	return result, err
}

// Create implements kube.Resource.
func (r *resource[T, L]) Create(ctx context.Context, obj T, opts metav1.CreateOptions) (T, error) {
	return r.into(ctx, r.on(r.rest.Post()).VersionedParams(&opts, r.params).Body(obj))
}

// Update implements kube.Resource.
func (r *resource[T, L]) Update(ctx context.Context, obj T, opts metav1.UpdateOptions) (T, error) {
	return r.into(ctx, r.on(r.rest.Put()).Name(obj.GetName()).VersionedParams(&opts, r.params).Body(obj))
}

// UpdateStatus implements kube.Resource.
func (r *resource[T, L]) UpdateStatus(ctx context.Context, obj T, opts metav1.UpdateOptions) (T, error) {
	return r.into(ctx, r.on(r.rest.Put()).Name(obj.GetName()).SubResource("status").VersionedParams(&opts, r.params).Body(obj))
}

// Delete implements kube.Resource.
func (r *resource[T, L]) Delete(ctx context.Context, name string, opts metav1.DeleteOptions) error {
	return r.on(r.rest.Delete()).Name(name).Body(&opts).Do(ctx).Error()
}

// Get implements kube.Resource.
func (r *resource[T, L]) Get(ctx context.Context, name string, opts metav1.GetOptions) (T, error) {
	return r.into(ctx, r.on(r.rest.Get()).Name(name).VersionedParams(&opts, r.params))
}

// List implements kube.Resource.
func (r *resource[T, L]) List(ctx context.Context, opts metav1.ListOptions) (L, error) {
	result := r.newList()
	err := r.on(r.rest.Get()).VersionedParams(&opts, r.params).Timeout(serverTimeout(opts)).Do(ctx).Into(result)
	return result, err
}

// Watch implements kube.Resource.
func (r *resource[T, L]) Watch(ctx context.Context, opts metav1.ListOptions) (watch.Interface, error) {
	opts.Watch = true
	return r.on(r.rest.Get()).VersionedParams(&opts, r.params).Timeout(serverTimeout(opts)).Watch(ctx)
}

// Patch implements kube.Resource.
func (r *resource[T, L]) Patch(ctx context.Context, name string, pt types.PatchType, data []byte, opts metav1.PatchOptions, subresources ...string) (T, error) {
	return r.into(ctx, r.on(r.rest.Patch(pt)).Name(name).SubResource(subresources...).VersionedParams(&opts, r.params).Body(data))
}

// serverTimeout is what opts grants the server, also applied to the connection.
func serverTimeout(opts metav1.ListOptions) time.Duration {
	if opts.TimeoutSeconds == nil {
		return 0
	}
	return time.Duration(*opts.TimeoutSeconds) * time.Second
}
