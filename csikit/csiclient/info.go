package csiclient

import (
	"context"
	"errors"
	"fmt"
	"slices"

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
	return announced(err, "CONTROLLER_SERVICE", "ControllerGetCapabilities")
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
	return announced(err, "GROUP_CONTROLLER_SERVICE", "GroupControllerGetCapabilities")
}

func (c *Client) readNode(ctx context.Context, info *Info) error {
	if c.cfg.Services&NodeService == 0 || c.cfg.SkipNode != nil && c.cfg.SkipNode(info) {
		return nil
	}
	reply, err := ask(ctx, c, c.Node().NodeGetCapabilities, &csi.NodeGetCapabilitiesRequest{})
	for _, capability := range reply.GetCapabilities() {
		if rpc := capability.GetRpc(); rpc != nil {
			info.Node[rpc.GetType()] = true
		}
	}
	if outcome.Code(err) == codes.Unimplemented {
		return nil // no plugin capability announces the node service, so that this answer alone says that there is none
	}
	return err
}

// errHalfStarted is a driver that announces a service, and answers that it does not have it.
var errHalfStarted = errors.New("a driver that is starting may answer so; otherwise it is the node's half of a driver, beside which no component of the controller can work")

// announced says of the error of a service that GetPluginCapabilities announces what it means: a missing answer is no empty list.
func announced(err error, service, method string) error {
	if outcome.Code(err) == codes.Unimplemented {
		return fmt.Errorf("%s is announced, and %s not implemented (%s): %w", service, method, outcome.Message(err), errHalfStarted)
	}
	return err
}

// errFewer is a driver that announces less than the same version of it did before.
var errFewer = errors.New("it announced more before, and may be starting")

// confirmations is how many answers in a row must lack a capability that the same version of the driver had before, until they are believed.
const confirmations = 10

// lost returns the capabilities that a driver of the same version had before and lacks now.
func (i *Info) lost(before *Info) []string {
	if before == nil || before.Name != i.Name || before.Version != i.Version {
		return nil
	}
	return slices.Concat(missing(before.Plugin, i.Plugin), missing(before.Expansion, i.Expansion), missing(before.Controller, i.Controller),
		missing(before.GroupController, i.GroupController), missing(before.Node, i.Node))
}

func missing[K interface {
	comparable
	fmt.Stringer
}](before, now map[K]bool) (names []string) {
	for capability := range before {
		if !now[capability] {
			names = append(names, capability.String())
		}
	}
	slices.Sort(names)
	return names
}

// ask makes one call within Config.Timeout.
func ask[Q, R any](ctx context.Context, c *Client, call func(context.Context, Q, ...grpc.CallOption) (R, error), request Q) (R, error) {
	ctx, cancel := context.WithTimeout(ctx, c.cfg.Timeout)
	defer cancel()
	return call(ctx, request)
}
