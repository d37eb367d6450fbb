package csiclient

import (
	"context"
	"fmt"
	"strings"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	"github.com/longshore-csi/longshore/csikit/outcome"
)

// Info is what a driver says of itself. Capabilities that are absent from a
// map read as false; no map is nil.
type Info struct {
	// Name is the driver's name, valid by ValidateName.
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

// maxNameLength is the API's limit on the name of a driver.
const maxNameLength = 63

// ValidateName checks the name of a driver by the rule of the specification
// and of Kubernetes: a DNS-1123 subdomain of at most 63 bytes. Upper case is
// allowed, as both allow it. CSI spec v1.13, "GetPluginInfo".
func ValidateName(name string) error {
	switch {
	case name == "":
		return fmt.Errorf("CSI driver name %q: must not be empty", name)
	case len(name) > maxNameLength:
		return fmt.Errorf("CSI driver name %q: must not exceed %d characters, this one has %d", name, maxNameLength, len(name))
	case !validName(name):
		return fmt.Errorf("CSI driver name %q: must consist of alphanumeric characters, '-' and '.', and begin and end each part with an alphanumeric character", name)
	}
	return nil
}

// validName reports whether each part between dots is a DNS-1123 label, in any case.
func validName(name string) bool {
	for label := range strings.SplitSeq(name, ".") {
		if label == "" || label[0] == '-' || label[len(label)-1] == '-' {
			return false
		}
		if strings.ContainsFunc(label, func(r rune) bool { return !isLabelRune(r) }) {
			return false
		}
	}
	return true
}

func isLabelRune(r rune) bool {
	return r == '-' || '0' <= r && r <= '9' || 'a' <= r && r <= 'z' || 'A' <= r && r <= 'Z'
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
	if err := ValidateName(reply.GetName()); err != nil {
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
	return unlessUnimplemented(err)
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
	return unlessUnimplemented(err)
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
	return unlessUnimplemented(err)
}

// unlessUnimplemented drops the error by which a process says that it is only
// the other half of a driver: a node plugin announces the controller service
// that runs elsewhere, and a controller plugin has no node service.
func unlessUnimplemented(err error) error {
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
