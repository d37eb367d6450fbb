package controller

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/longshore-csi/longshore/csikit/kube"
)

// look is one reconciliation of a claim. Several of its decisions depend on a VolumeAttributesClass, which is read once where it may not be watched.
type look struct {
	*Controller
	read map[string]readClass // by name
}

// readClass is the answer of the API server about a class.
type readClass struct {
	class *storagev1.VolumeAttributesClass
	err   error
}

// findClasses returns a function that finds the VolumeAttributesClasses of a claim: in the cache, once it is complete, or read from the API server where they
// may not be watched.
func (c *look) findClasses(ctx context.Context, claim *corev1.PersistentVolumeClaim) (func(name string) *storagev1.VolumeAttributesClass, error) {
	ctx, cancel := c.kubeDeadline(ctx)
	defer cancel()
	classes, err := c.classes.get(ctx)
	switch {
	case kube.IsUnwatchable(err):
		return c.readClasses(ctx, claim)
	case err != nil:
		return nil, err
	}
	return func(name string) *storagev1.VolumeAttributesClass {
		class, _ := classes.Get("", name)
		return class
	}, nil
}

// readClasses reads the classes of a claim. Without a watch the creation of the wanted one is not noticed, so that it is an error if that does not exist: then it is
// read again after a pause.
func (c *look) readClasses(ctx context.Context, claim *corev1.PersistentVolumeClaim) (func(name string) *storagev1.VolumeAttributesClass, error) {
	wanted := wantedClass(claim)
	target, _ := targetClass(claim)
	for _, name := range []string{wanted, target} {
		if name == "" {
			continue
		}
		if err := c.readClass(ctx, name); err != nil && (name == wanted || !apierrors.IsNotFound(err)) {
			return nil, fmt.Errorf("get VolumeAttributesClass %q: %w", name, err)
		}
	}
	return func(name string) *storagev1.VolumeAttributesClass { return c.read[name].class }, nil
}

// readClass reads a class unless it was read before.
func (c *look) readClass(ctx context.Context, name string) error {
	known, ok := c.read[name]
	if !ok {
		if known.class, known.err = c.cfg.Kube.VolumeAttributesClasses().Get(ctx, name, metav1.GetOptions{}); known.err != nil {
			known.class = nil
		}
		c.read[name] = known
	}
	return known.err
}
