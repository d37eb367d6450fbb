package provisioner

import (
	"context"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"

	"github.com/longshore-csi/longshore/csikit/csiclient"
	"github.com/longshore-csi/longshore/csikit/logging"
	"github.com/longshore-csi/longshore/provisioner/internal/controller"
)

const (
	// attachTimeout is the deadline of one read of the CSIDriver object.
	attachTimeout = 10 * time.Second
	// attachPoll is the pause between two reads while the API server cannot answer.
	attachPoll = time.Second
)

// findAttach finds out whether the CSIDriver object says that volumes of the driver are never attached (attachRequired
// false), which decides whether VolumeAttachments are watched. It waits until the API server answers, or ctx ends. Without
// an object, or the right to read it, volumes are attached, as for a driver of which nothing is known.
func (p *instance) findAttach(ctx context.Context, info *csiclient.Info) {
	if !controller.ShapeOf(info, controller.Features{}).Attachments {
		return
	}
	logger := klog.FromContext(ctx)
	for said := ""; ; {
		skip, err := p.readAttach(ctx, info.Name)
		switch {
		case apierrors.IsForbidden(err):
			p.attachDenied.Do(func() {
				logger.Info("CSIDriver object cannot be read, the deletion of volumes waits for their VolumeAttachments", logging.KeyReason, err.Error())
			})
			fallthrough
		case err == nil:
			p.setSkipAttach(skip)
			return
		case err.Error() != said && ctx.Err() == nil:
			said = err.Error()
			logger.Info("CSIDriver object cannot be read, trying again", logging.KeyReason, said)
		}
		if !pause(ctx, attachPoll) {
			return
		}
	}
}

// readAttach reads the CSIDriver object once.
func (p *instance) readAttach(ctx context.Context, driver string) (skip bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, attachTimeout)
	defer cancel()
	object, err := p.kube.CSIDrivers().Get(ctx, driver, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return false, nil
	case err != nil:
		return false, err
	}
	return object.Spec.AttachRequired != nil && !*object.Spec.AttachRequired, nil
}

// setSkipAttach notes what the CSIDriver object says.
func (p *instance) setSkipAttach(skip bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.skipAttach = skip
}
