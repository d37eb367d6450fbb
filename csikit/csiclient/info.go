package csiclient

import (
	"context"
	"fmt"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	"github.com/longshore-csi/longshore/csikit/drivername"
	"github.com/longshore-csi/longshore/csikit/outcome"
)

// Info is the identity and the capabilities of a driver. Capabilities that are absent from a
// map read as false; no map is nil.
type Info struct {
	// Name is the driver's name, valid by drivername.Validate.
	Name string
	// Version is the vendor's version of the driver.
	Version string
	// Plugin holds the services of the plugin and its accessibility constraints.
	Plugin map[csi.PluginCapability_Service_Type]bool
	// Expansion holds whether volumes expand online or offline.
	Expansion map[csi.PluginCapability_VolumeExpansion_Type]bool
	// Controller holds the capabilities of the controller service.
	Controller map[csi.ControllerServiceCapability_RPC_Type]bool
	// GroupController holds the capabilities of the group controller service.
	GroupController map[csi.GroupControllerServiceCapability_RPC_Type]bool
	// Node holds the capabilities of the node service.
	Node map[csi.NodeServiceCapability_RPC_Type]bool
}

// DriverName asks the driver for its name, once, within Config.Timeout.
func (c *Client) DriverName(ctx context.Context) (string, error) {
	reply, err := pluginInfo(ctx, c)
	if err != nil {
		return "", err
	}
	return reply.GetName(), nil
}

func pluginInfo(ctx context.Context, c *Client) (*csi.GetPluginInfoResponse, error) {
	reply, err := ask(ctx, c, c.Identity().GetPluginInfo, &csi.GetPluginInfoRequest{})
	if err != nil {
		return nil, fmt.Errorf("get the name of the CSI driver at %q: %w", c.cfg.Address, err)
	}
	if err := drivername.Validate(reply.GetName()); err != nil {
		return nil, err
	}
	return reply, nil
}

// read fills an Info by asking the driver for everything in Config.Services.
func (c *Client) read(ctx context.Context) (*Info, error) {
	id, err := pluginInfo(ctx, c)
	if err != nil {
		return nil, err
	}
	if c.cfg.Metrics != nil {
		c.cfg.Metrics.SetDriverName(id.GetName())
	}
	info := newInfo(id.GetName(), id.GetVendorVersion())
	for _, read := range []func(context.Context, *Info) error{c.readPlugin, c.readController, c.readGroupController, c.readNode} {
		if err := read(ctx, info); err != nil {
			return nil, fmt.Errorf("read capabilities of CSI driver %q: %w", info.Name, err)
		}
	}
	return info, nil
}

func newInfo(name, version string) *Info {
	return &Info{
		Name:            name,
		Version:         version,
		Plugin:          map[csi.PluginCapability_Service_Type]bool{},
		Expansion:       map[csi.PluginCapability_VolumeExpansion_Type]bool{},
		Controller:      map[csi.ControllerServiceCapability_RPC_Type]bool{},
		GroupController: map[csi.GroupControllerServiceCapability_RPC_Type]bool{},
		Node:            map[csi.NodeServiceCapability_RPC_Type]bool{},
	}
}

func (c *Client) readPlugin(ctx context.Context, info *Info) error {
	reply, err := ask(ctx, c, c.Identity().GetPluginCapabilities, &csi.GetPluginCapabilitiesRequest{})
	for _, capability := range reply.GetCapabilities() {
		if s := capability.GetService(); s != nil {
			info.Plugin[s.GetType()] = true
		}
		if e := capability.GetVolumeExpansion(); e != nil {
			info.Expansion[e.GetType()] = true
		}
	}
	return err
}

func (c *Client) readController(ctx context.Context, info *Info) error {
	if c.cfg.Services&ControllerService == 0 || !info.Plugin[csi.PluginCapability_Service_CONTROLLER_SERVICE] {
		return nil
	}
	reply, err := ask(ctx, c, c.Controller().ControllerGetCapabilities, &csi.ControllerGetCapabilitiesRequest{})
	for _, capability := range reply.GetCapabilities() {
		if rpc := capability.GetRpc(); rpc != nil {
			info.Controller[rpc.GetType()] = true
		}
	}
	return ignoreUnimplemented(err)
}

func (c *Client) readGroupController(ctx context.Context, info *Info) error {
	if c.cfg.Services&GroupControllerService == 0 || !info.Plugin[csi.PluginCapability_Service_GROUP_CONTROLLER_SERVICE] {
		return nil
	}
	reply, err := ask(ctx, c, c.GroupController().GroupControllerGetCapabilities, &csi.GroupControllerGetCapabilitiesRequest{})
	for _, capability := range reply.GetCapabilities() {
		if rpc := capability.GetRpc(); rpc != nil {
			info.GroupController[rpc.GetType()] = true
		}
	}
	return ignoreUnimplemented(err)
}

func (c *Client) readNode(ctx context.Context, info *Info) error {
	if c.cfg.Services&NodeService == 0 {
		return nil
	}
	reply, err := ask(ctx, c, c.Node().NodeGetCapabilities, &csi.NodeGetCapabilitiesRequest{})
	for _, capability := range reply.GetCapabilities() {
		if rpc := capability.GetRpc(); rpc != nil {
			info.Node[rpc.GetType()] = true
		}
	}
	return ignoreUnimplemented(err)
}

// ignoreUnimplemented drops the error of a process that is only
// one half of a driver: a node plugin announces the controller service
// that runs elsewhere, and a controller plugin has no node service.
func ignoreUnimplemented(err error) error {
	if outcome.Code(err) == codes.Unimplemented {
		return nil
	}
	return err
}

// ask makes one call within Config.Timeout.
func ask[Q, R any](ctx context.Context, c *Client, call func(context.Context, Q, ...grpc.CallOption) (R, error), request Q) (R, error) {
	ctx, cancel := context.WithTimeout(ctx, c.cfg.Timeout)
	defer cancel()
	return call(ctx, request)
}
