package kube

import (
	"context"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
)

// restResource implements Resource with REST requests. (client-go's gentype does
// the same, but its package links client-go's fakes and 85 packages with them.)
type restResource[T Object, L runtime.Object] struct {
	rest      rest.Interface
	params    runtime.ParameterCodec
	name      string
	namespace string
	newObject func() T
	newList   func() L
}

// NewResource returns the resource of a kind whose objects are V and whose lists are W. The
// name is the plural in paths, such as "pods"; the namespace is empty for kinds without one, and for all
// namespaces. The client must be of the group and version of the kind, and know its types and those of
// the options that params encodes. For kinds that Client has not.
func NewResource[V, W any, T interface {
	*V
	Object
}, L interface {
	*W
	runtime.Object
}](r rest.Interface, params runtime.ParameterCodec, name, namespace string) Resource[T, L] {
	return &restResource[T, L]{
		rest: r, params: params, name: name, namespace: namespace,
		newObject: func() T { return new(V) }, newList: func() L { return new(W) },
	}
}

// on aims a request at the resource. Like client-go's clients it never retries by itself
// except where the server asks for it with Retry-After.
func (r *restResource[T, L]) on(request *rest.Request) *rest.Request {
	return request.NamespaceIfScoped(r.namespace, r.namespace != "").Resource(r.name)
}

// Create implements Resource.
func (r *restResource[T, L]) Create(ctx context.Context, obj T, opts metav1.CreateOptions) (T, error) {
	result := r.newObject()
	err := r.on(r.rest.Post()).VersionedParams(&opts, r.params).Body(obj).Do(ctx).Into(result)
	return result, err
}

// Update implements Resource.
func (r *restResource[T, L]) Update(ctx context.Context, obj T, opts metav1.UpdateOptions) (T, error) {
	return r.put(ctx, obj, opts)
}

// UpdateStatus implements Resource.
func (r *restResource[T, L]) UpdateStatus(ctx context.Context, obj T, opts metav1.UpdateOptions) (T, error) {
	return r.put(ctx, obj, opts, "status")
}

func (r *restResource[T, L]) put(ctx context.Context, obj T, opts metav1.UpdateOptions, subresources ...string) (T, error) {
	result := r.newObject()
	err := r.on(r.rest.Put()).Name(obj.GetName()).SubResource(subresources...).
		VersionedParams(&opts, r.params).Body(obj).Do(ctx).Into(result)
	return result, err
}

// Delete implements Resource.
func (r *restResource[T, L]) Delete(ctx context.Context, name string, opts metav1.DeleteOptions) error {
	return r.on(r.rest.Delete()).Name(name).Body(&opts).Do(ctx).Error()
}

// Get implements Resource.
func (r *restResource[T, L]) Get(ctx context.Context, name string, opts metav1.GetOptions) (T, error) {
	result := r.newObject()
	err := r.on(r.rest.Get()).Name(name).VersionedParams(&opts, r.params).Do(ctx).Into(result)
	return result, err
}

// List implements Resource.
func (r *restResource[T, L]) List(ctx context.Context, opts metav1.ListOptions) (L, error) {
	result := r.newList()
	err := r.on(r.rest.Get()).VersionedParams(&opts, r.params).Timeout(serverTimeout(opts)).Do(ctx).Into(result)
	return result, err
}

// Watch implements Resource.
func (r *restResource[T, L]) Watch(ctx context.Context, opts metav1.ListOptions) (watch.Interface, error) {
	opts.Watch = true
	return r.on(r.rest.Get()).VersionedParams(&opts, r.params).Timeout(serverTimeout(opts)).Watch(ctx)
}

// Patch implements Resource.
func (r *restResource[T, L]) Patch(ctx context.Context, name string, pt types.PatchType, data []byte, opts metav1.PatchOptions, subresources ...string) (T, error) {
	result := r.newObject()
	err := r.on(r.rest.Patch(pt)).Name(name).SubResource(subresources...).
		VersionedParams(&opts, r.params).Body(data).Do(ctx).Into(result)
	return result, err
}

// serverTimeout is what opts grants the server, also applied to the connection.
func serverTimeout(opts metav1.ListOptions) time.Duration {
	if opts.TimeoutSeconds == nil {
		return 0
	}
	return time.Duration(*opts.TimeoutSeconds) * time.Second
}
