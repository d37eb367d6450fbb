package agent

import (
	"context"
	"math"
	"time"

	"google.golang.org/grpc/codes"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"

	"github.com/longshore-csi/longshore/csikit/logging"
	"github.com/longshore-csi/longshore/kubeletplugin/layout"
	"github.com/longshore-csi/longshore/kubeletplugin/volume"
	"github.com/longshore-csi/longshore/nodeagent/internal/nodeinfo"
)

func (a *Agent) makeLimits() (err error) {
	a.limits, err = nodeinfo.NewRefresher(nodeinfo.RefresherConfig{
		Drivers: func() []string { return a.plugin.State().Drivers }, Changed: a.plugin.DriversChanged,
		Period: a.limitPeriod, Refresh: a.plugin.Refresh,
	})
	return err
}

// limitPeriod is how often the volume limit of a driver is refreshed; 0: never.
func (a *Agent) limitPeriod(driver string) time.Duration {
	d := a.csiDriver(driver)
	if d == nil || d.Spec.NodeAllocatableUpdatePeriodSeconds == nil {
		return 0
	}
	return time.Duration(min(*d.Spec.NodeAllocatableUpdatePeriodSeconds, math.MaxInt32)) * time.Second // the API has no maximum
}

// exhausted refreshes the volume limit of a driver that has refused a volume because of it.
func (a *Agent) exhausted(driver string) { a.limits.Ask(driver) }

// limitExceeded reports whether the attachment of a volume was refused because of the volume limit. It then refreshes the limit, so that
// the scheduler knows it before the pod is replaced. As in a kubelet, the driver must have asked for that by a period in its CSIDriver object.
func (a *Agent) limitExceeded(ctx context.Context, v *volume.Volume) bool {
	if a.limitPeriod(v.Driver) == 0 {
		return false
	}
	logger := klog.FromContext(ctx).WithValues(logging.KeyDriver, v.Driver)
	name := a.attachmentName(layout.Attachment(v.Handle, v.Driver, a.node()))
	va, err := a.cfg.Client.VolumeAttachments().Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		logger.Error(err, "Reading the attachment of a volume that is not attached", logging.KeyAttachment, name)
		return false
	}
	if !limitReached(va) {
		return false
	}
	if err := a.plugin.Refresh(ctx, v.Driver); err != nil {
		logger.Error(err, "Refreshing the volume limit of a CSI driver")
	}
	return true
}

// limitReached reports whether a driver has refused to attach the volume because the node has as many volumes as it can have.
func limitReached(va *storagev1.VolumeAttachment) bool {
	e := va.Status.AttachError
	return e != nil && e.ErrorCode != nil && *e.ErrorCode == int32(codes.ResourceExhausted)
}
