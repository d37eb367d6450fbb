package agent

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"k8s.io/klog/v2"

	"github.com/longshore-csi/longshore/csikit/logging"
	"github.com/longshore-csi/longshore/kubeletplugin/driver"
	"github.com/longshore-csi/longshore/kubeletplugin/internal/nodeinfo"
	"github.com/longshore-csi/longshore/kubeletplugin/registration"
)

// handler takes drivers into use: it asks them about the node, writes the answer to the API, and
// lets volumes use them.
type handler struct {
	registry *driver.Registry
	info     *nodeinfo.Writer
	timeout  time.Duration
}

var _ registration.Handler = (*handler)(nil)

// Register implements registration.Handler. A driver whose NodeGetInfo fails is not registered, and its entries are
// removed from CSINode and Node (seed 001, "NodeGetInfo"). From the moment it is connected it can unmount.
func (h *handler) Register(ctx context.Context, p registration.Plugin) error {
	d, err := h.registry.Connect(driver.Spec{
		Name: p.Name, Endpoint: p.Endpoint, RequiresPublishPod: p.RequiresPublishPod,
	})
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
	reply, err := d.Node().NodeGetInfo(ctx, &csi.NodeGetInfoRequest{})
	if err != nil {
		return fmt.Errorf("ask CSI driver %q about the node: %w", d.Name(), err)
	}
	info, err := nodeinfo.FromNodeInfo(d.Name(), reply)
	if err != nil {
		return err
	}
	return h.info.Install(ctx, info)
}

func (h *handler) remove(ctx context.Context, name string) error {
	h.registry.Remove(name)
	ctx, cancel := context.WithTimeout(ctx, h.timeout)
	defer cancel()
	return h.info.Uninstall(ctx, name)
}
