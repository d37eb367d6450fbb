package agent

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	"k8s.io/utils/ptr"

	"github.com/longshore-csi/longshore/csikit/logging"
	"github.com/longshore-csi/longshore/kubeletplugin/volume"
	"github.com/longshore-csi/longshore/nodeagent/internal/nodeinfo"
)

// The limits of the API server for the health of a volume or of storage: the number of conditions, and the bytes of a reason and of a message.
const (
	maxConditions = 16
	maxReason     = 256
	maxMessage    = 1024
)

// storageHealth asks drivers about their storage, and reports the answers as a kubelet of 1.37 does.
type storageHealth struct {
	*nodeinfo.Refresher
	metric *prometheus.GaugeVec
}

// makeHealth makes the parts that only the feature gate CSIVolumeHealth needs.
func (a *Agent) makeHealth() error {
	if !a.cfg.VolumeHealth {
		return nil
	}
	period := a.cfg.StatsPeriod
	if period == 0 {
		period = time.Minute
	}
	refresher, err := nodeinfo.NewRefresher(nodeinfo.RefresherConfig{
		Drivers: func() []string { return a.plugin.State().Drivers }, Changed: a.plugin.DriversChanged,
		Period:  func(string) time.Duration { return period },
		Refresh: a.readStorageHealth,
	})
	if err != nil {
		return err
	}
	a.storage = &storageHealth{Refresher: refresher, metric: prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "csi_node_storage_health_status", Help: "1 for each problem that a driver reports of its storage.",
	}, []string{"driver_name", "status", "reason"})}
	if a.cfg.Registerer == nil {
		return nil
	}
	if err := a.cfg.Registerer.Register(a.storage.metric); err != nil {
		return fmt.Errorf("register csi_node_storage_health_status: %w", err)
	}
	return nil
}

// readStorageHealth asks a driver about its storage, and reports the answer. A call or a write that fails is repeated after the period; the last report stays
// until then.
func (a *Agent) readStorageHealth(ctx context.Context, driver string) error {
	logger := klog.FromContext(ctx).WithValues(logging.KeyDriver, driver)
	answer, err := a.plugin.StorageHealth(ctx, driver)
	if err != nil {
		if !errors.Is(err, errors.ErrUnsupported) {
			logger.V(2).Info("Cannot read the storage health of a CSI driver", logging.KeyReason, err.Error())
		}
		return nil
	}
	conditions := storageConditions(answer.GetBackendHealth())
	a.storage.metric.DeletePartialMatch(prometheus.Labels{"driver_name": driver})
	for i := range conditions {
		a.storage.metric.WithLabelValues(driver, string(conditions[i].Status), conditions[i].Reason).Set(1)
	}
	if err := a.info.WriteHealth(ctx, driver, conditions); err != nil && ctx.Err() == nil {
		logger.Error(err, "Writing the storage health of a CSI driver; the API server needs the feature gate CSIVolumeHealth, too")
	}
	return nil
}

// storageConditions are the problems of storage as the API has them. Categories that it does not have are left out.
func storageConditions(reported []*csi.NodeGetStorageHealthResponse_StorageBackendHealth) []storagev1.StorageHealthCondition {
	all := make([]storagev1.StorageHealthCondition, 0, len(reported))
	for _, r := range reported {
		c := storagev1.StorageHealthCondition{Message: message(r.GetMessage())}
		switch r.GetStatus() {
		case csi.StorageHealthErrorType_STORAGE_UNREACHABLE:
			c.Status = storagev1.StorageUnreachable
		case csi.StorageHealthErrorType_STORAGE_DEGRADED:
			c.Status = storagev1.StorageDegraded
		default:
			continue
		}
		c.Reason = reason(r.GetReason(), string(c.Status))
		c.AccessMode, c.VolumeMode = modes(r.GetVolumeCapability())
		all = append(all, c)
	}
	return all[:min(len(all), maxConditions)]
}

// modes are those of Kubernetes for a capability; nil for a mode that it does not name.
func modes(c *csi.VolumeCapability) (*corev1.PersistentVolumeAccessMode, *corev1.PersistentVolumeMode) {
	var access *corev1.PersistentVolumeAccessMode
	switch c.GetAccessMode().GetMode() {
	case csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER, csi.VolumeCapability_AccessMode_SINGLE_NODE_READER_ONLY,
		csi.VolumeCapability_AccessMode_SINGLE_NODE_MULTI_WRITER:
		access = ptr.To(corev1.ReadWriteOnce)
	case csi.VolumeCapability_AccessMode_SINGLE_NODE_SINGLE_WRITER:
		access = ptr.To(corev1.ReadWriteOncePod)
	case csi.VolumeCapability_AccessMode_MULTI_NODE_READER_ONLY:
		access = ptr.To(corev1.ReadOnlyMany)
	case csi.VolumeCapability_AccessMode_MULTI_NODE_SINGLE_WRITER, csi.VolumeCapability_AccessMode_MULTI_NODE_MULTI_WRITER:
		access = ptr.To(corev1.ReadWriteMany)
	case csi.VolumeCapability_AccessMode_UNKNOWN:
	}
	switch {
	case c.GetBlock() != nil:
		return access, ptr.To(corev1.PersistentVolumeBlock)
	case c.GetMount() != nil:
		return access, ptr.To(corev1.PersistentVolumeFilesystem)
	}
	return access, nil
}

// podHealth has the problems of the volumes of a pod as the API has them, for all volumes whose drivers report any or none.
func (a *Agent) podHealth(uid types.UID) map[volume.Key][]corev1.VolumeHealthCondition {
	all := map[volume.Key][]corev1.VolumeHealthCondition{}
	for _, u := range a.plugin.UsageOf(uid) {
		if u.Health {
			all[u.Key] = volumeConditions(u.Conditions)
		}
	}
	return all
}

// volumeConditions are the problems of a volume as the API has them, each category with each reason once. Those without a category are left out.
func volumeConditions(reported []volume.Condition) []corev1.VolumeHealthCondition {
	var all []corev1.VolumeHealthCondition
	for _, r := range reported {
		c := corev1.VolumeHealthCondition{Status: r.Status, Reason: reason(r.Reason, string(r.Status)), Message: message(r.Message)}
		again := func(o corev1.VolumeHealthCondition) bool { return o.Status == c.Status && o.Reason == c.Reason }
		if c.Status != "" && !slices.ContainsFunc(all, again) {
			all = append(all, c)
		}
	}
	return all[:min(len(all), maxConditions)]
}

// reason is the reason of a driver, or the category where the API server does not accept it: that refuses the whole status.
func reason(text, category string) string {
	if text == "" || len(text) > maxReason || len(validation.IsValidConditionReason(text)) > 0 {
		return category
	}
	return text
}

// message cuts a message to the length that the API server accepts.
func message(text string) string {
	return strings.ToValidUTF8(text[:min(len(text), maxMessage)], "")
}
