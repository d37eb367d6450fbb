package hostpathdriver

import (
	"cmp"
	"context"
	"time"

	"k8s.io/klog/v2"

	"github.com/longshore-csi/longshore/csikit/logging"
	"github.com/longshore-csi/longshore/hostpathdriver/internal/volume"
)

const (
	// defaultReconcilePeriod is the pause between two looks of a node at the
	// controllers' records of its staged disks: a read of a small file for each.
	defaultReconcilePeriod = time.Second
	// retryRounds is the number of looks until a failed change is applied again.
	retryRounds = 60
)

// reconciled is the controller side of a process that is a node, too: a change is
// applied on that node before the call is answered.
type reconciled struct {
	volume.Service

	node volume.NodeService
}

// Expand implements volume.Service.
func (r reconciled) Expand(ctx context.Context, req *volume.ExpandRequest) (*volume.Volume, error) {
	expanded, err := r.Service.Expand(ctx, req)
	if err != nil {
		return nil, err
	}
	return expanded, r.node.Reconcile(ctx, req.ID)
}

// Modify implements volume.Service.
func (r reconciled) Modify(ctx context.Context, id volume.ID, parameters map[string]string) error {
	if err := r.Service.Modify(ctx, id, parameters); err != nil {
		return err
	}
	return r.node.Reconcile(ctx, id)
}

func (d *driver) controllerService() volume.Service {
	if d.node == nil {
		return d.volumes
	}
	return reconciled{Service: d.volumes, node: d.nodeService}
}

// reconcile applies to staged volumes what controllers in other processes change,
// until ctx ends.
func (d *driver) reconcile(ctx context.Context) error {
	ticker := time.NewTicker(cmp.Or(d.options.reconcilePeriod, defaultReconcilePeriod))
	defer ticker.Stop()
	retry := map[volume.ID]int{}
	for round := 0; ; round++ {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
		for _, id := range d.node.Pending() {
			if round < retry[id] {
				continue
			}
			delete(retry, id)
			if err := d.reconcileVolume(ctx, id); err != nil && ctx.Err() == nil {
				klog.FromContext(ctx).Error(err, "Could not apply changes to a staged volume; the driver tries again", logging.KeyVolumeID, id)
				retry[id] = round + retryRounds
			}
		}
	}
}

func (d *driver) reconcileVolume(ctx context.Context, id volume.ID) error {
	ctx, cancel := context.WithTimeout(ctx, d.options.CallTimeout)
	defer cancel()
	return d.nodeService.Reconcile(ctx, id)
}
