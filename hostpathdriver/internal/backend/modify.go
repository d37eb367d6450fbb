package backend

import (
	"context"
	"maps"

	"k8s.io/klog/v2"

	"github.com/longshore-csi/longshore/csikit/logging"
	"github.com/longshore-csi/longshore/hostpathdriver/internal/volume"
)

// Modify implements volume.Service. It changes the record; nodes apply it, see
// Node.Reconcile.
func (v *Volumes) Modify(ctx context.Context, id volume.ID, parameters map[string]string) error {
	modified, err := v.volumes.catalog.get(id)
	if err != nil {
		return err
	}
	if err := v.cfg.Mutable.Check(parameters, modified.Form()); err != nil || modified.Modified(parameters) {
		return err
	}
	if modified.MutableParameters == nil {
		modified.MutableParameters = map[string]string{}
	}
	maps.Copy(modified.MutableParameters, parameters)
	v.cfg.Step.at("modify:record")
	if err := v.volumes.records.Put(string(id), *modified); err != nil {
		return err
	}
	v.volumes.catalog.put(modified)
	klog.FromContext(ctx).V(2).Info("Modified volume", logging.KeyVolumeID, id)
	return nil
}
