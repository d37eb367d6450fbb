package driverobject

import (
	"context"
	"fmt"
	"maps"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"

	"github.com/longshore-csi/longshore/csikit/kube"
	"github.com/longshore-csi/longshore/csikit/logging"
)

// Remove deletes the object of a driver if the registrar has written it and no other field manager has a field of its spec. Otherwise the object stays, which the
// log says.
func Remove(ctx context.Context, drivers kube.CSIDrivers, driver string) error {
	logger := klog.FromContext(ctx).WithValues(logging.KeyDriver, driver)
	live, err := drivers.Get(ctx, driver, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return nil
	case err != nil:
		return fmt.Errorf("get CSIDriver %q: %w", driver, err)
	}
	ours, all := false, ownersOf(live)
	for _, name := range slices.Sorted(maps.Keys(all)) {
		ours = ours || all.ours(name)
		if others := all.others(name); len(others) > 0 {
			logger.Info("The CSIDriver object is not deleted: another field manager has a field of its spec", "field", name, "managers", join(others))
			return nil
		}
	}
	if !ours {
		logger.Info("The CSIDriver object is not deleted: it was written by others")
		return nil
	}
	err = drivers.Delete(ctx, driver, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &live.UID, ResourceVersion: &live.ResourceVersion}})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("delete CSIDriver %q: %w", driver, err)
	}
	logger.Info("Deleted the CSIDriver object")
	return nil
}
