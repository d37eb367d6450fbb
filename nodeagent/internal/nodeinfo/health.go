package nodeinfo

import (
	"context"
	"fmt"
	"slices"

	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

// WriteHealth writes the conditions of a driver's storage to the status of the CSINode (Kubernetes 1.37), unless the status has the same: messages do not count. A
// driver without conditions has no entry. The entries of other drivers stay. Only conflicts are retried; the caller repeats a call that fails otherwise. Without a
// CSINode it does nothing.
func (w *Writer) WriteHealth(ctx context.Context, driver string, conditions []storagev1.StorageHealthCondition) error {
	what := fmt.Sprintf("write the storage health of CSI driver %q to CSINode %q", driver, w.cfg.NodeName)
	return w.retry(ctx, what, apierrors.IsConflict, func(ctx context.Context) error {
		obj, err := w.getCSINode(ctx)
		if err != nil || obj == nil {
			return err
		}
		health, changed := withHealth(obj.Status.StorageHealth, driver, conditions)
		if !changed {
			return nil
		}
		obj.Status.StorageHealth = health
		_, err = call(ctx, w, func(ctx context.Context) (*storagev1.CSINode, error) {
			return w.cfg.Client.CSINodes().UpdateStatus(ctx, obj, metav1.UpdateOptions{})
		})
		return err
	})
}

// withHealth returns the list with the conditions of a driver, and whether it differs.
func withHealth(all []storagev1.StorageHealth, driver string, conditions []storagev1.StorageHealthCondition) (changed []storagev1.StorageHealth, differs bool) {
	at := slices.IndexFunc(all, func(h storagev1.StorageHealth) bool { return h.Name == driver })
	switch {
	case at < 0 && len(conditions) == 0:
		return all, false
	case at < 0:
		return append(slices.Clone(all), storagev1.StorageHealth{Name: driver, HealthConditions: conditions}), true
	case len(conditions) == 0:
		return slices.Delete(slices.Clone(all), at, at+1), true
	case sameConditions(all[at].HealthConditions, conditions):
		return all, false
	}
	changed = slices.Clone(all)
	changed[at].HealthConditions = conditions
	return changed, true
}

// sameConditions reports whether two lists have the same conditions in any order. Messages and times do not count.
func sameConditions(a, b []storagev1.StorageHealthCondition) bool {
	subset := func(a, b []storagev1.StorageHealthCondition) bool {
		return !slices.ContainsFunc(a, func(x storagev1.StorageHealthCondition) bool {
			return !slices.ContainsFunc(b, func(y storagev1.StorageHealthCondition) bool {
				return x.Status == y.Status && x.Reason == y.Reason && ptr.Equal(x.AccessMode, y.AccessMode) && ptr.Equal(x.VolumeMode, y.VolumeMode)
			})
		})
	}
	return subset(a, b) && subset(b, a)
}
