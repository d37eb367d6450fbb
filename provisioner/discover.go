package provisioner

import (
	"context"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"

	"github.com/longshore-csi/longshore/csikit/csiclient"
	"github.com/longshore-csi/longshore/csikit/logging"
	"github.com/longshore-csi/longshore/csikit/poll"
	"github.com/longshore-csi/longshore/csikit/snapshotapi"
	"github.com/longshore-csi/longshore/provisioner/internal/capabilities"
)

// This file finds out what the API server knows about itself, the driver and the node.

// pollInterval is the pause between two reads of the CSIDriver object while the API server cannot answer, and two calls of NodeGetInfo while the driver is not ready.
const pollInterval = time.Second

// findAttributes finds out whether the API server serves VolumeAttributesClasses, which Kubernetes does from 1.34 on. Without
// them the feature is off, unless the user has set its gate.
func (p *provisioner) findAttributes(ctx context.Context) {
	if p.options.Features.Explicit(GateVolumeAttributesClass) {
		return
	}
	getCtx, cancel := context.WithTimeout(ctx, p.options.KubeTimeout)
	defer cancel()
	_, err := p.kube.VolumeAttributesClasses().Get(getCtx, "any", metav1.GetOptions{})
	p.mu.Lock()
	defer p.mu.Unlock()
	known := p.noAttributes
	p.noAttributes = snapshotapi.IsAbsent(err)
	if p.noAttributes && !known {
		klog.FromContext(ctx).Info("VolumeAttributesClasses of claims are ignored, the API server does not serve storage.k8s.io/v1 VolumeAttributesClasses")
	}
}

// findAttach finds out whether the CSIDriver object says that volumes of the driver are never attached (attachRequired
// false), which decides whether VolumeAttachments are watched. It waits until the API server answers, or ctx ends. Without
// an object, or the right to read it, volumes are attached, as for a driver of which nothing is known.
func (p *provisioner) findAttach(ctx context.Context, info *csiclient.Info) {
	if !capabilities.ShapeOf(info, capabilities.Features{}).Attachments {
		return
	}
	_ = poll.Until(ctx, pollInterval, "CSIDriver object cannot be read, trying again", func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, p.options.KubeTimeout)
		defer cancel()
		object, err := p.kube.CSIDrivers().Get(ctx, info.Name, metav1.GetOptions{})
		switch {
		case apierrors.IsForbidden(err):
			p.attachDenied.Do(func() {
				klog.FromContext(ctx).Info("CSIDriver object cannot be read, the deletion of volumes waits for their VolumeAttachments", logging.KeyReason, err.Error())
			})
		case err != nil && !apierrors.IsNotFound(err):
			return err
		}
		p.mu.Lock()
		defer p.mu.Unlock()
		p.skipAttach = err == nil && object.Spec.AttachRequired != nil && !*object.Spec.AttachRequired
		return nil
	}) // its error says no more than that ctx has ended
}

// nodeOwner returns the reference that has the garbage collector delete the records of a node that is gone: with it go its volumes. nil: the Node cannot be read.
func (p *provisioner) nodeOwner(ctx context.Context) *metav1.OwnerReference {
	getCtx, cancel := context.WithTimeout(ctx, p.options.KubeTimeout)
	defer cancel()
	node, err := p.kube.Nodes().Get(getCtx, p.options.Node.Name, metav1.GetOptions{})
	if err != nil {
		klog.FromContext(ctx).Info("Lease of volumes in progress gets no owner, and stays when the node is gone", logging.KeyReason, err.Error())
		return nil
	}
	return &metav1.OwnerReference{APIVersion: "v1", Kind: "Node", Name: node.Name, UID: node.UID}
}
