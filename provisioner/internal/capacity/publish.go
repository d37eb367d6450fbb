package capacity

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"github.com/container-storage-interface/spec/lib/go/csi"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"

	"github.com/longshore-csi/longshore/csikit/logging"
	"github.com/longshore-csi/longshore/csikit/reconcile"
)

// reconcile updates the object of one item. When GetCapacity fails, the last published capacity stays.
func (c *Controller) reconcile(ctx context.Context, i item) (reconcile.Result, error) {
	objects := c.objects.ByIndex(byItem, i.String())
	slices.SortFunc(objects, func(a, b *storagev1.CSIStorageCapacity) int { return cmp.Compare(a.Name, b.Name) })
	class, exists := c.cfg.Source.Class(i.class)
	if !exists || c.versionOf(i) == "" {
		c.answered(i, nil)
		return reconcile.Result{}, c.remove(ctx, objects)
	}
	answer, err := c.getCapacity(ctx, class, i)
	if err != nil {
		return reconcile.Result{}, err
	}
	c.answered(i, answer)
	if len(objects) == 0 {
		return reconcile.Result{}, c.create(ctx, c.object(i, answer))
	}
	if err := c.renew(ctx, objects[0], c.object(i, answer)); err != nil {
		return reconcile.Result{}, err
	}
	return reconcile.Result{}, c.remove(ctx, objects[1:])
}

// getCapacity calls GetCapacity.
func (c *Controller) getCapacity(ctx context.Context, class *storagev1.StorageClass, i item) (*csi.GetCapacityResponse, error) {
	question, err := request(class, i.segment)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, c.cfg.Settings.Timeout)
	defer cancel()
	answer, err := c.cfg.Client.GetCapacity(ctx, question)
	if err != nil {
		return nil, fmt.Errorf("get capacity of class %q at %q: %w", i.class, i.segment, err)
	}
	return answer, nil
}

// create stores a new object. An existing object of its name was published by this instance before its labels were changed.
func (c *Controller) create(ctx context.Context, want *storagev1.CSIStorageCapacity) error {
	ctx, cancel := context.WithTimeout(ctx, apiTimeout)
	defer cancel()
	client := c.cfg.Kube.CSIStorageCapacities(c.cfg.Settings.Namespace)
	created, err := client.Create(ctx, want, metav1.CreateOptions{})
	switch {
	case err == nil:
		c.objects.Remember(created)
		klog.FromContext(ctx).V(2).Info("Capacity is published", logging.KeyObject, klog.KObj(created), logging.KeyCapacity, created.Capacity)
		return nil
	case !apierrors.IsAlreadyExists(err):
		return fmt.Errorf("create CSIStorageCapacity %s: %w", klog.KObj(want), err)
	}
	live, err := client.Get(ctx, want.Name, metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("get CSIStorageCapacity %s, which exists already: %w", klog.KObj(want), err)
	}
	return c.renew(ctx, live, want)
}

// renew updates an object that differs from the wanted one.
func (c *Controller) renew(ctx context.Context, is, want *storagev1.CSIStorageCapacity) error {
	next := renew(is, want)
	if next == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, apiTimeout)
	defer cancel()
	updated, err := c.cfg.Kube.CSIStorageCapacities(next.Namespace).Update(ctx, next, metav1.UpdateOptions{})
	if err != nil {
		return fmt.Errorf("update CSIStorageCapacity %s: %w", klog.KObj(next), err)
	}
	c.objects.Remember(updated)
	klog.FromContext(ctx).V(2).Info("Capacity is published", logging.KeyObject, klog.KObj(updated), logging.KeyCapacity, updated.Capacity)
	return nil
}

// remove deletes objects whose item is not published any more.
func (c *Controller) remove(ctx context.Context, objects []*storagev1.CSIStorageCapacity) error {
	ctx, cancel := context.WithTimeout(ctx, apiTimeout)
	defer cancel()
	for _, object := range objects {
		err := c.cfg.Kube.CSIStorageCapacities(object.Namespace).Delete(ctx, object.Name, metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(object.UID))})
		if err != nil && !apierrors.IsNotFound(err) {
			return fmt.Errorf("delete CSIStorageCapacity %s: %w", klog.KObj(object), err)
		}
		klog.FromContext(ctx).V(2).Info("Capacity is not published any more", logging.KeyObject, klog.KObj(object))
	}
	return nil
}
