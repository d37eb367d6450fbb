package kubeletplugin

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/longshore-csi/longshore/csikit/drivername"
	"github.com/longshore-csi/longshore/csikit/logging"
	"github.com/longshore-csi/longshore/kubeletplugin/internal/driver"
	"github.com/longshore-csi/longshore/kubeletplugin/internal/registration"
	"github.com/longshore-csi/longshore/kubeletplugin/volume"
)

// Register takes a driver into use that no registrar announces, such as one in the same process, until Deregister. The plugin must be open. It fails if the
// driver's NodeGetInfo fails, or its name is none (CSI v1.13, "GetPluginInfo"). Registering it again ends the backoff of its volumes.
func (p *Plugin) Register(ctx context.Context, name, endpoint string) error {
	if err := errors.Join(p.working(), drivername.Validate(name)); err != nil {
		return fmt.Errorf("register CSI driver %q: %w", name, err)
	}
	return p.handler.Register(ctx, registration.Plugin{Name: name, Endpoint: endpoint})
}

// Deregister ends what Register began. What the driver has mounted can still be unmounted.
func (p *Plugin) Deregister(ctx context.Context, name string) {
	p.handler.Deregister(ctx, registration.Plugin{Name: name})
}

// Refresh calls NodeGetInfo of a registered driver again, and gives the answer to Config.NodeInfo.Update. The error is ErrNotRegistered where there is none of
// the name.
func (p *Plugin) Refresh(ctx context.Context, driver string) error {
	return p.handler.refresh(ctx, driver)
}

// StorageHealth calls NodeGetStorageHealth of a registered driver, within Config.Timeout (CSI v1.13, "NodeGetStorageHealth"). The error is errors.ErrUnsupported if
// the driver does not have GET_STORAGE_HEALTH, and ErrNotRegistered where there is none of the name.
func (p *Plugin) StorageHealth(ctx context.Context, driver string) (*csi.NodeGetStorageHealthResponse, error) {
	d, err := p.registry.Get(driver)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, p.cfg.Timeout)
	defer cancel()
	can, err := d.NodeCapabilities(ctx)
	if err != nil {
		return nil, err
	}
	if !can[csi.NodeServiceCapability_RPC_GET_STORAGE_HEALTH] {
		return nil, fmt.Errorf("CSI driver %q has no GET_STORAGE_HEALTH: %w", driver, errors.ErrUnsupported)
	}
	reply, err := d.Node().NodeGetStorageHealth(ctx, &csi.NodeGetStorageHealthRequest{})
	if err != nil {
		return nil, fmt.Errorf("ask CSI driver %q about its storage: %w", driver, err)
	}
	return reply, nil
}

// exhausted calls Config.Exhausted for an answer that says that the node can take no more volumes of the driver.
func (c *Config) exhausted(driver, method string, err error) {
	if c.Exhausted == nil || status.Code(err) != codes.ResourceExhausted {
		return
	}
	switch method {
	case csi.Node_NodeStageVolume_FullMethodName, csi.Node_NodePublishVolume_FullMethodName:
		c.Exhausted(driver)
	}
}

// handler takes drivers into use: it asks them about the node, passes the answer on, and lets volumes use them.
type handler struct {
	registry *driver.Registry
	info     NodeInfo
	timeout  time.Duration
}

var _ registration.Handler = (*handler)(nil)

// Register implements registration.Handler. A driver whose NodeGetInfo fails is not registered (seed 001, "NodeGetInfo"). From the moment it is connected it
// can unmount.
func (h *handler) Register(ctx context.Context, p registration.Plugin) error {
	d, err := h.registry.Connect(driver.Spec{Name: p.Name, Endpoint: p.Endpoint, RequiresPublishPod: p.RequiresPublishPod})
	if err != nil {
		return err
	}
	h.registry.Offer(d)
	if err := h.install(ctx, d); err != nil {
		d.Close()
		return errors.Join(err, h.remove(ctx, p.Name))
	}
	h.registry.Add(d)
	return nil
}

// Deregister implements registration.Handler.
func (h *handler) Deregister(ctx context.Context, p registration.Plugin) {
	if err := h.remove(ctx, p.Name); err != nil {
		klog.FromContext(ctx).Error(err, "Deregistering a CSI driver", logging.KeyDriver, p.Name)
	}
}

func (h *handler) install(ctx context.Context, d *driver.Driver) error {
	ctx, cancel := context.WithTimeout(ctx, h.timeout)
	defer cancel()
	reply, err := nodeGetInfo(ctx, d)
	if err != nil || h.info == nil {
		return err
	}
	return h.info.Install(ctx, d.Name(), reply)
}

// refresh asks a registered driver again about the node.
func (h *handler) refresh(ctx context.Context, name string) error {
	d, err := h.registry.Get(name)
	if err != nil || h.info == nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, h.timeout)
	defer cancel()
	reply, err := nodeGetInfo(ctx, d)
	if err != nil {
		return err
	}
	return h.info.Update(ctx, name, reply)
}

func nodeGetInfo(ctx context.Context, d *driver.Driver) (*csi.NodeGetInfoResponse, error) {
	reply, err := d.Node().NodeGetInfo(ctx, &csi.NodeGetInfoRequest{})
	if err != nil {
		return nil, fmt.Errorf("ask CSI driver %q about the node: %w", d.Name(), err)
	}
	return reply, nil
}

func (h *handler) remove(ctx context.Context, name string) error {
	h.registry.Remove(name)
	if h.info == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, h.timeout)
	defer cancel()
	return h.info.Uninstall(ctx, name)
}

// Inotify is an inotify instance of the kernel that the plugins of many nodes in one process share: a user may have 128 (fs.inotify.max_user_instances).
type Inotify struct{ instance *registration.Inotify }

// NewInotify makes an instance, which exists until Close.
func NewInotify() (*Inotify, error) {
	i, err := registration.NewInotify()
	return &Inotify{instance: i}, err
}

// Close ends the instance.
func (i *Inotify) Close() error { return i.instance.Close() }

// get returns the instance, nil if there is none to share.
func (i *Inotify) get() *registration.Inotify {
	if i == nil {
		return nil
	}
	return i.instance
}

// ErrNotRegistered is the error for a driver that is not registered.
var ErrNotRegistered = driver.ErrNotRegistered

// drivers lets package volume see the registry.
type drivers struct{ registry *driver.Registry }

var _ volume.Drivers = drivers{}

// Driver implements volume.Drivers.
func (d drivers) Driver(name string) (volume.Driver, error) { return adapt(d.registry.Get(name)) }

// Last implements volume.Drivers.
func (d drivers) Last(name string) (volume.Driver, error) { return adapt(d.registry.Last(name)) }

// adapt marks the error for a driver that is not there as one that is not worth an event at once: after a restart of this process or of the driver it is
// there soon.
func adapt(d *driver.Driver, err error) (volume.Driver, error) {
	if err != nil {
		return nil, fmt.Errorf("%w: %w", volume.ErrTransient, err)
	}
	return d, nil
}

// alone stands in for what a Plugin without an API server does not have.
type alone struct{}

var (
	_ volume.InUse       = alone{}
	_ volume.Attachments = alone{}
	_ volume.Secrets     = alone{}
	_ volume.Tokens      = alone{}
	_ volume.Claims      = alone{}
	_ volume.Events      = alone{}
)

// Raise implements volume.InUse.
func (alone) Raise(context.Context, string) error { return nil }

// Drop implements volume.InUse.
func (alone) Drop(string) {}

// Attached implements volume.Attachments.
func (alone) Attached(string) bool { return false }

// Attachment implements volume.Attachments.
func (alone) Attachment(_ context.Context, name string) (*volume.Attachment, error) {
	return nil, fmt.Errorf("volume attachment %q: nothing attaches volumes here", name)
}

// Secret implements volume.Secrets.
func (alone) Secret(_ context.Context, ref *corev1.SecretReference) (map[string]string, error) {
	if ref == nil {
		return nil, nil //nolint:nilnil // no reference means no secret, which is not an error
	}
	return nil, fmt.Errorf("secret %s/%s: the plugin is configured without secrets", ref.Namespace, ref.Name)
}

// Encoded implements volume.Tokens.
func (alone) Encoded(_ context.Context, _ volume.Pod, requests []storagev1.TokenRequest) (string, error) {
	if len(requests) == 0 {
		return "", nil
	}
	return "", errors.New("the driver wants service account tokens: the plugin is configured without")
}

// Forget implements volume.Tokens.
func (alone) Forget(types.UID) {}

// Claim implements volume.Claims: there is no claim that could ask for an expansion.
func (alone) Claim(context.Context, string, string, types.UID, bool) (*corev1.PersistentVolumeClaim, error) {
	return nil, nil //nolint:nilnil // a claim that is gone is an answer, not an error
}

// Volume implements volume.Claims.
func (alone) Volume(context.Context, *corev1.PersistentVolumeClaim) (*corev1.PersistentVolume, error) {
	return nil, nil //nolint:nilnil // as for claims
}

// Write implements volume.Claims.
func (alone) Write(_ context.Context, claim *corev1.PersistentVolumeClaim, _ []byte) (*corev1.PersistentVolumeClaim, error) {
	return claim, nil
}

// Failed implements volume.Events.
func (alone) Failed(volume.Pod, string, string) {}

// Mapped implements volume.Events.
func (alone) Mapped(volume.Pod, string) {}

// Expansion implements volume.Events.
func (alone) Expansion(volume.Pod, volume.Claim, string, string) {}

// Condition implements volume.Events.
func (alone) Condition(volume.Pod, string, string) {}
