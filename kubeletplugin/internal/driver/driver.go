package driver

import (
	"context"
	"fmt"

	"github.com/container-storage-interface/spec/lib/go/csi"
)

// Driver is one driver on this node. It is safe for concurrent use.
type Driver struct {
	spec Spec
	link *link
}

func newDriver(spec Spec, l *link) *Driver { return &Driver{spec: spec, link: l} }

// Name returns the driver's name.
func (d *Driver) Name() string { return d.spec.Name }

// RequiresPublishPod reports whether the registrar asked for pod information
// in NodePublishVolume.
func (d *Driver) RequiresPublishPod() bool { return d.spec.RequiresPublishPod }

// Node returns the node service. Each call is measured, and logged at V(5)
// without secrets; the deadline is the caller's.
func (d *Driver) Node() csi.NodeClient { return d.link.client.Node() }

// Capabilities is what the node service of a driver can do. What is absent
// reads as false.
type Capabilities = map[csi.NodeServiceCapability_RPC_Type]bool

// NodeCapabilities returns the driver's node capabilities. They are read once
// per connection, so a driver that was updated and restarted is asked again.
// An error is not remembered.
func (d *Driver) NodeCapabilities(ctx context.Context) (Capabilities, error) {
	caps, err := d.link.capabilities(ctx)
	if err != nil {
		return nil, fmt.Errorf("read node capabilities of CSI driver %q: %w", d.spec.Name, err)
	}
	return caps, nil
}

// Close releases a driver that Connect returned and that was not added. The
// registry releases those that were.
func (d *Driver) Close() { d.link.release() }
