package nodeinfo

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// call runs one request to the API server with the deadline of the writer.
func call[T any](ctx context.Context, w *Writer, request func(context.Context) (T, error)) (T, error) {
	ctx, cancel := context.WithTimeout(ctx, w.cfg.CallTimeout)
	defer cancel()
	return request(ctx)
}

func (w *Writer) getNode(ctx context.Context) (*corev1.Node, error) {
	node, err := call(ctx, w, func(ctx context.Context) (*corev1.Node, error) {
		return w.cfg.Client.Nodes().Get(ctx, w.cfg.NodeName, metav1.GetOptions{})
	})
	if err != nil {
		return nil, fmt.Errorf("get node %q: %w", w.cfg.NodeName, err)
	}
	return node, nil
}

// getCSINode returns nil if there is none.
func (w *Writer) getCSINode(ctx context.Context) (*storagev1.CSINode, error) {
	obj, err := call(ctx, w, func(ctx context.Context) (*storagev1.CSINode, error) {
		return w.cfg.Client.CSINodes().Get(ctx, w.cfg.NodeName, metav1.GetOptions{})
	})
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("get CSINode %q: %w", w.cfg.NodeName, err)
	}
	return obj, nil
}

// writeCSINode reads the CSINode and the Node in the same attempt, so that the
// owner is right, and writes what differs from want.
func (w *Writer) writeCSINode(ctx context.Context, want wish) error {
	err := w.tryCSINode(ctx, want)
	w.note(err)
	return err
}

func (w *Writer) tryCSINode(ctx context.Context, want wish) error {
	node, err := w.getNode(ctx)
	if err != nil {
		return err
	}
	obj, err := w.getCSINode(ctx)
	if err != nil {
		return err
	}
	if obj != nil && ownedByOther(obj, node.UID) {
		if err := w.deleteCSINode(ctx, obj); err != nil {
			return err
		}
		obj = nil
	}
	w.adopt(obj)
	if obj == nil {
		return w.createCSINode(ctx, newCSINode(node, want))
	}
	return w.updateCSINode(ctx, updates(obj, node, want))
}

func (w *Writer) createCSINode(ctx context.Context, obj *storagev1.CSINode) error {
	_, err := call(ctx, w, func(ctx context.Context) (*storagev1.CSINode, error) {
		return w.cfg.Client.CSINodes().Create(ctx, obj, metav1.CreateOptions{})
	})
	if err != nil {
		return fmt.Errorf("create CSINode %q: %w", obj.Name, err)
	}
	return nil
}

// deleteCSINode removes exactly the object that was read.
func (w *Writer) deleteCSINode(ctx context.Context, obj *storagev1.CSINode) error {
	_, err := call(ctx, w, func(ctx context.Context) (struct{}, error) {
		return struct{}{}, w.cfg.Client.CSINodes().Delete(ctx, obj.Name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &obj.UID}})
	})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("delete CSINode %q of a node that is gone: %w", obj.Name, err)
	}
	return nil
}

// updateCSINode writes the states one after the other.
func (w *Writer) updateCSINode(ctx context.Context, states []*storagev1.CSINode) error {
	version := ""
	for _, state := range states {
		if version != "" {
			state.ResourceVersion = version
		}
		written, err := call(ctx, w, func(ctx context.Context) (*storagev1.CSINode, error) {
			return w.cfg.Client.CSINodes().Update(ctx, state, metav1.UpdateOptions{})
		})
		if err != nil {
			return fmt.Errorf("update CSINode %q: %w", state.Name, err)
		}
		version = written.ResourceVersion
	}
	return nil
}

// writeNode writes labels and annotations of the driver.
func (w *Writer) writeNode(ctx context.Context, d Driver) error {
	node, err := w.getNode(ctx)
	if err != nil {
		return err
	}
	labels, err := planLabels(node.Labels, node.Annotations[LabelsAnnotation], d.Topology, w.cfg.Collision)
	if err != nil {
		return err
	}
	p := patch{labels: labels.set, annotations: map[string]*string{}}
	if labels.record != nil {
		p.annotations[LabelsAnnotation] = labels.record
	}
	if err := w.annotate(ctx, node, p, map[string]string{d.Name: d.NodeID}, ""); err != nil {
		return err
	}
	err = w.patchNode(ctx, node, p)
	if keys := restricted(labels.set); apierrors.IsForbidden(err) && len(keys) > 0 {
		return fmt.Errorf("%w (a node must not set labels in these domains on itself: %s; the driver should use a topology key of its own domain)", err, strings.Join(keys, ", "))
	}
	return err
}

// clearNode removes the driver's node ID.
func (w *Writer) clearNode(ctx context.Context, name string) error {
	node, err := w.getNode(ctx)
	if err != nil {
		return err
	}
	p := patch{annotations: map[string]*string{}}
	if err := w.annotate(ctx, node, p, nil, name); err != nil {
		return err
	}
	return w.patchNode(ctx, node, p)
}

// annotate adds the change of NodeIDAnnotation to p.
func (w *Writer) annotate(ctx context.Context, node *corev1.Node, p patch, set map[string]string, remove string) error {
	if w.cfg.NoAnnotation {
		return nil
	}
	var known []storagev1.CSINodeDriver
	if !json.Valid([]byte(node.Annotations[NodeIDAnnotation])) {
		obj, err := w.getCSINode(ctx)
		if err != nil {
			return err
		}
		if obj != nil {
			known = obj.Spec.Drivers
		}
	}
	if value, change := planAnnotation(node, known, set, remove); change {
		p.annotations[NodeIDAnnotation] = value
	}
	return nil
}

// patch is a change of a Node's labels and annotations; nil removes.
type patch struct {
	labels      map[string]string
	annotations map[string]*string
}

// patchNode writes p, if there is anything in it, to the Node as it was read:
// the annotation is one value for all drivers, so a write that came between
// must not be lost. The status subresource is what a node may always patch,
// and it takes labels and annotations as well.
func (w *Writer) patchNode(ctx context.Context, node *corev1.Node, p patch) error {
	if len(p.labels) == 0 && len(p.annotations) == 0 {
		return nil
	}
	data, err := p.json(node.ResourceVersion)
	if err != nil {
		return fmt.Errorf("encode patch of node %q: %w", node.Name, err)
	}
	_, err = call(ctx, w, func(ctx context.Context) (*corev1.Node, error) {
		return w.cfg.Client.Nodes().Patch(ctx, node.Name, types.StrategicMergePatchType, data, metav1.PatchOptions{}, "status")
	})
	if err != nil {
		return fmt.Errorf("patch labels and annotations of node %q: %w", node.Name, err)
	}
	return nil
}

func (p patch) json(resourceVersion string) ([]byte, error) {
	metadata := map[string]any{"resourceVersion": resourceVersion}
	if len(p.labels) > 0 {
		metadata["labels"] = p.labels
	}
	if len(p.annotations) > 0 {
		metadata["annotations"] = p.annotations
	}
	return json.Marshal(map[string]any{"metadata": metadata})
}
