package agent

import (
	"context"
	"errors"
	"fmt"
	"os"
	"regexp"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/longshore-csi/longshore/csikit/logging"
	"github.com/longshore-csi/longshore/kubeletplugin/layout"
	"github.com/longshore-csi/longshore/kubeletplugin/volume"
)

const (
	// reasonUnknown is the reason of the event about a path whose volume is not known.
	reasonUnknown = "UnknownVolumeMount"
	// lostRetry is how often the agent tries again to identify the volume of a lost record.
	lostRetry = 10 * time.Second
	// lostTimeout is the deadline of one round of tries.
	lostTimeout = 10 * time.Second
)

// provisioned are the names that provisioners give to PersistentVolumes, and nobody to the inline volumes of pods: a prefix and the UID of the claim. The mount of such
// a volume is never taken for that of an inline volume, whose driver would be called for it.
var provisioned = regexp.MustCompile(`^.+-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$`)

// seedInUse keeps in volumesInUse what an earlier process had there, if anything below the root may belong to a volume
// that is not known: it may be any of them. Otherwise a volume without a record is not in use.
func (a *Agent) seedInUse() {
	node := a.view.Node()
	if node == nil || len(a.recovered.Foreign)+len(a.recovered.Lost) == 0 {
		return
	}
	a.seeded = volumeNames(node.Status.VolumesInUse)
	a.inUse.Hold(a.seeded...)
}

// reportForeign reports each path whose volume is not known.
func (a *Agent) reportForeign(ctx context.Context) {
	for _, f := range a.recovered.Foreign {
		a.reportUnknown(ctx, f.Path, f.Problem)
	}
}

// reportUnknown reports a path once for each problem with it.
func (a *Agent) reportUnknown(ctx context.Context, path, problem string) {
	if a.unknown[path] == problem {
		return
	}
	a.unknown[path] = problem
	klog.FromContext(ctx).Info("Path of an unknown volume", logging.KeyPath, path, logging.KeyReason, problem)
	a.events.Warning(a.nodeObject(), reasonUnknown, fmt.Sprintf(
		"cannot take over %q: %s; the agent leaves it unchanged and keeps all earlier volumesInUse; unmount and remove it, then restart the agent",
		path, problem))
}

// nodeObject is the Node, for events. It is not what the view has: the Node may have been deleted since it was registered.
func (a *Agent) nodeObject() *corev1.Node {
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: a.node(), UID: a.nodeUID()}}
}

// identifyLost adopts the volumes of lost records that can be identified now. It is called by one goroutine at a time.
func (a *Agent) identifyLost(ctx context.Context) {
	lost, _ := a.plugin.Unexplained()
	if len(lost) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, lostTimeout)
	defer cancel()
	none := false
	for _, l := range lost {
		v, err := a.identify(ctx, l.Key)
		if err != nil {
			a.reportUnknown(ctx, l.Path, fmt.Sprintf("%v, and its volume cannot be identified: %v", l.Err, err))
			continue
		}
		klog.FromContext(ctx).Info("Volume of a lost record identified", logging.KeyPath, l.Path, logging.KeyVolumeName, v.Volume.Name)
		none = a.plugin.Explain(*v)
		a.inUse.Seed(a.plugin.Volumes().InUse()...)
		a.pods.Adopt([]types.UID{l.Key.Pod})
	}
	if none {
		a.releaseSeeded()
	}
}

// releaseSeeded ends what was done for the sake of unknown volumes: the names that were kept leave volumesInUse, through the actor of each volume, for a pod may
// ask for it at this moment.
func (a *Agent) releaseSeeded() {
	release := make([]volume.Recovered, 0, len(a.seeded))
	for _, name := range a.seeded {
		release = append(release, volume.Recovered{Volume: volume.Volume{Name: name, Attachable: true}})
	}
	a.seeded = nil
	a.inUse.Unhold()
	a.plugin.Volumes().Adopt(release)
}

// followLost tries again until the volumes of all lost records are identified.
func (a *Agent) followLost(ctx context.Context) error {
	for {
		if lost, _ := a.plugin.Unexplained(); len(lost) == 0 {
			return nil
		}
		changed := a.plugin.DriversChanged()
		a.identifyLost(ctx)
		timer := time.NewTimer(lostRetry)
		select {
		case <-ctx.Done():
			timer.Stop()
			return nil
		case <-changed:
		case <-timer.C:
		}
		timer.Stop()
	}
}

// identify finds the volume of a target path. In this order: an inline volume of the pod, the PersistentVolume of the
// name in the path, and, if the pod is gone and the name may be that of an inline volume, the only driver for those.
func (a *Agent) identify(ctx context.Context, k volume.Key) (*volume.Recovered, error) {
	pod := a.podOf(k.Pod)
	if driver := inlineDriver(pod, k.SpecName); driver != "" {
		return inlineVolume(k, driver), nil
	}
	pv, err := a.cfg.Client.PersistentVolumes().Get(ctx, k.SpecName, metav1.GetOptions{})
	switch {
	case err == nil && pv.Spec.CSI != nil:
		return a.persistentVolume(k, pv.Spec.CSI), nil
	case err == nil:
		return nil, fmt.Errorf("persistent volume %q is not a CSI volume", k.SpecName)
	case apierrors.IsNotFound(err), apierrors.IsForbidden(err) && pod == nil: // the rights to read it end with the pod
	default:
		return nil, fmt.Errorf("get persistent volume %q: %w", k.SpecName, err)
	}
	if pod != nil {
		return nil, fmt.Errorf("neither pod %q nor a persistent volume has a volume %q", klog.KObj(pod), k.SpecName)
	}
	if provisioned.MatchString(k.SpecName) {
		return nil, fmt.Errorf("its pod is gone, and PersistentVolume %q cannot be read: %w", k.SpecName, err)
	}
	driver, err := a.onlyInlineDriver()
	if err != nil {
		return nil, err
	}
	return inlineVolume(k, driver), nil
}

func (a *Agent) podOf(uid types.UID) *corev1.Pod {
	for p := range a.watches.pods.All() {
		if p.UID == uid {
			return p
		}
	}
	return nil
}

// inlineDriver returns the driver of a pod's inline volume, empty if there is no such volume.
func inlineDriver(pod *corev1.Pod, name string) string {
	if pod == nil {
		return ""
	}
	for i := range pod.Spec.Volumes {
		if v := &pod.Spec.Volumes[i]; v.Name == name && v.CSI != nil {
			return v.CSI.Driver
		}
	}
	return ""
}

// onlyInlineDriver returns the driver that an inline volume of a pod that is gone must be of. It is an error if another
// driver, or a persistent volume, could own the path as well.
func (a *Agent) onlyInlineDriver() (string, error) {
	for i := range a.recovered.Volumes {
		if v := &a.recovered.Volumes[i]; v.Orphan() {
			return "", fmt.Errorf("it may be the target of the staged volume %q", v.Volume.Name)
		}
	}
	var found []string
	for _, d := range a.watches.csiDrivers.List() {
		if slices.Contains(d.Spec.VolumeLifecycleModes, storagev1.VolumeLifecycleEphemeral) {
			found = append(found, d.Name)
		}
	}
	slices.Sort(found)
	if len(found) != 1 {
		return "", fmt.Errorf("its pod is gone, and CSI drivers for inline volumes are %q, not exactly one", found)
	}
	return found[0], nil
}

func inlineVolume(k volume.Key, driver string) *volume.Recovered {
	return &volume.Recovered{Targets: []volume.Key{k}, Volume: volume.Volume{
		Name: layout.UniqueInline(k.Pod, k.SpecName), Driver: driver,
		Handle: layout.InlineHandle(k.Pod, k.SpecName), Ephemeral: true,
	}}
}

func (a *Agent) persistentVolume(k volume.Key, src *corev1.CSIPersistentVolumeSource) *volume.Recovered {
	_, err := os.Lstat(a.cfg.Root.StagingDir(src.Driver, src.VolumeHandle))
	return &volume.Recovered{
		Targets: []volume.Key{k}, Staged: !errors.Is(err, os.ErrNotExist),
		Volume: volume.Volume{
			Name: layout.Unique(src.Driver, src.VolumeHandle), Driver: src.Driver, Handle: src.VolumeHandle, Attachable: true,
		},
	}
}
