package kubetest

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/longshore-csi/longshore/csikit/kube"
)

// resource implements kube.Resource for one kind on a Cluster.
type resource[T kube.Object, L runtime.Object] struct {
	cluster   *Cluster
	session   *Session
	kind      *kind
	namespace string
	newList   func() L
}

func (r *resource[T, L]) request(verb, name string, subresources ...string) request {
	return request{session: r.session, verb: verb, resource: r.kind.resource, subresource: strings.Join(subresources, "/"), namespace: r.namespace, name: name}
}

// Create implements kube.Resource.
func (r *resource[T, L]) Create(ctx context.Context, obj T, opts metav1.CreateOptions) (T, error) {
	name := obj.GetName()
	if name == "" {
		name = obj.GetGenerateName()
	}
	return r.write(ctx, r.request("create", name), opts.DryRun, Write{}, func() (kube.Object, bool, error) {
		stored, err := r.cluster.createLocked(r.kind, r.namespace, obj, fieldOwner{manager: opts.FieldManager})
		return stored, true, err
	})
}

// Update implements kube.Resource.
func (r *resource[T, L]) Update(ctx context.Context, obj T, opts metav1.UpdateOptions) (T, error) {
	return r.write(ctx, r.request("update", obj.GetName()), opts.DryRun, Write{}, func() (kube.Object, bool, error) {
		return r.cluster.updateLocked(r.kind, r.namespace, obj, "", fieldOwner{manager: opts.FieldManager})
	})
}

// UpdateStatus implements kube.Resource.
func (r *resource[T, L]) UpdateStatus(ctx context.Context, obj T, opts metav1.UpdateOptions) (T, error) {
	return r.write(ctx, r.request("update", obj.GetName(), "status"), opts.DryRun, Write{}, func() (kube.Object, bool, error) {
		return r.cluster.updateLocked(r.kind, r.namespace, obj, "status", fieldOwner{manager: opts.FieldManager})
	})
}

// Patch implements kube.Resource.
func (r *resource[T, L]) Patch(ctx context.Context, name string, pt types.PatchType, data []byte, opts metav1.PatchOptions, subresources ...string) (T, error) {
	req := r.request("patch", name, subresources...)
	if pt == types.ApplyPatchType && !r.exists(name) { // which takes the right to create, too
		f := r.cluster.faultFor(r.request("create", name))
		if err := f.before(ctx); err != nil {
			var none T
			r.cluster.logFailure(req, err)
			return none, err
		}
	}
	return r.write(ctx, req, opts.DryRun, Write{PatchType: pt, Patch: data}, func() (kube.Object, bool, error) {
		return r.cluster.patchLocked(r.kind, r.namespace, name, pt, data, req.subresource, fieldOwner{manager: opts.FieldManager, force: opts.Force != nil && *opts.Force})
	})
}

// exists reports whether there is an object of that name.
func (r *resource[T, L]) exists(name string) bool {
	r.cluster.mu.Lock()
	defer r.cluster.mu.Unlock()
	_, ok := r.cluster.stores[r.kind.resource].objects[keyOf(r.namespace, name)]
	return ok
}

// Delete implements kube.Resource.
func (r *resource[T, L]) Delete(ctx context.Context, name string, opts metav1.DeleteOptions) error {
	_, err := r.write(ctx, r.request("delete", name), opts.DryRun, Write{}, func() (kube.Object, bool, error) {
		return r.cluster.deleteLocked(r.kind, r.namespace, name, deleteOptions{grace: opts.GracePeriodSeconds, preconditions: opts.Preconditions})
	})
	return err
}

// write performs one writing request and records it.
func (r *resource[T, L]) write(ctx context.Context, req request, dryRun []string, record Write, perform func() (kube.Object, bool, error)) (T, error) {
	var none T
	if len(dryRun) > 0 {
		return none, apierrors.NewBadRequest("dry run is not supported here")
	}
	r.cluster.lag(req.resource)
	obj, err := serve(ctx, r.cluster, req, func() (kube.Object, error) {
		r.cluster.mu.Lock()
		defer r.cluster.mu.Unlock()
		record.Before = r.cluster.stores[req.resource].objects[keyOf(req.namespace, req.name)]
		obj, changed, err := perform()
		record.Object, record.Unchanged, record.Err = obj, err == nil && !changed, err
		if obj != nil {
			_, stored := r.cluster.stores[req.resource].objects[key(obj)]
			record.Gone = !stored
		}
		r.cluster.logLocked(req, record)
		return obj, err
	})
	if err != nil {
		return none, err
	}
	return r.typed(obj)
}

// typed returns the caller's own copy.
func (r *resource[T, L]) typed(obj kube.Object) (T, error) {
	result, ok := obj.DeepCopyObject().(T)
	if !ok {
		return result, apierrors.NewInternalError(fmt.Errorf("%s holds a %T", r.kind.resource, obj))
	}
	return result, nil
}

// Get implements kube.Resource.
func (r *resource[T, L]) Get(ctx context.Context, name string, _ metav1.GetOptions) (T, error) {
	return serve(ctx, r.cluster, r.request("get", name), func() (T, error) {
		r.cluster.mu.Lock()
		defer r.cluster.mu.Unlock()
		obj, err := r.cluster.getLocked(r.kind, r.namespace, name)
		if err != nil {
			var none T
			return none, err
		}
		return r.typed(obj)
	})
}

// List implements kube.Resource.
func (r *resource[T, L]) List(ctx context.Context, opts metav1.ListOptions) (L, error) {
	return serve(ctx, r.cluster, r.request("list", ""), func() (L, error) {
		list := r.newList()
		match, err := r.kind.selector(r.namespace, opts)
		if err != nil {
			return list, err
		}
		r.cluster.mu.Lock()
		defer r.cluster.mu.Unlock()
		objs := r.cluster.stores[r.kind.resource].list(match)
		items := make([]runtime.Object, 0, len(objs))
		for _, obj := range objs {
			items = append(items, obj)
		}
		if err := meta.SetList(list, items); err != nil {
			return list, apierrors.NewInternalError(err)
		}
		accessor, err := meta.ListAccessor(list)
		if err != nil {
			return list, apierrors.NewInternalError(err)
		}
		accessor.SetResourceVersion(strconv.FormatUint(r.cluster.version, 10))
		return list, nil
	})
}

// Watch implements kube.Resource.
func (r *resource[T, L]) Watch(ctx context.Context, opts metav1.ListOptions) (watch.Interface, error) {
	return serve(ctx, r.cluster, r.request("watch", ""), func() (watch.Interface, error) {
		r.cluster.mu.Lock()
		defer r.cluster.mu.Unlock()
		return r.cluster.watchLocked(ctx, r.kind, r.namespace, opts)
	})
}
