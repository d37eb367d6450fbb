package backend

import (
	"context"
	"fmt"
	"slices"

	"k8s.io/klog/v2"

	"github.com/longshore-csi/longshore/csikit/logging"
	"github.com/longshore-csi/longshore/driverkit"
	"github.com/longshore-csi/longshore/hostpathdriver/internal/volume"
)

// Attach implements driverkit.Attacher. Contents of this machine need no attachment; the record of it protects the volume.
func (c *Controller) Attach(ctx context.Context, req *driverkit.AttachRequest) (*driverkit.Attached, error) {
	found, err := c.volumes.get(req.ID)
	if err != nil {
		return nil, err
	}
	if err := found.CheckUse(req.Capability); err != nil {
		return nil, err
	}
	if err := c.checkNode(req.Node); err != nil {
		return nil, err
	}
	if err := found.CheckReachable(req.Node); err != nil {
		return nil, err
	}
	if attached, err := found.CheckAttach(req); attached || err != nil {
		return &driverkit.Attached{}, err
	}
	if !c.takeSlot(req.Node) {
		return nil, fmt.Errorf("publish volume %q: node %q has its limit of %d volumes: %w", req.ID, req.Node, c.cfg.AttachLimit, driverkit.ErrExhausted)
	}
	changed := found.Clone()
	changed.Published = append(changed.Published, volume.Publication{Node: req.Node, ReadOnly: req.ReadOnly, Capability: volume.CapabilityOf(req.Capability)})
	c.cfg.Step.at("publish:record")
	if err := c.volumes.save(changed); err != nil {
		c.detached(req.Node)
		return nil, err
	}
	klog.FromContext(ctx).V(2).Info("Published volume", logging.KeyVolumeID, req.ID, logging.KeyNode, req.Node)
	return &driverkit.Attached{}, nil
}

// Detach implements driverkit.Attacher.
func (c *Controller) Detach(ctx context.Context, req *driverkit.DetachRequest) error {
	found, err := c.volumes.get(req.ID)
	if err != nil {
		return err
	}
	nodes := found.PublishedNodes()
	if req.Node != "" {
		nodes = slices.DeleteFunc(nodes, func(node string) bool { return node != req.Node })
	}
	if len(nodes) == 0 {
		return nil
	}
	changed := found.Clone()
	changed.Published = slices.DeleteFunc(changed.Published, func(p volume.Publication) bool { return slices.Contains(nodes, p.Node) })
	c.cfg.Step.at("unpublish:record")
	if err := c.volumes.save(changed); err != nil {
		return err
	}
	c.detached(nodes...)
	klog.FromContext(ctx).V(2).Info("Unpublished volume", logging.KeyVolumeID, req.ID, logging.KeyNode, req.Node)
	return nil
}

// checkNode refuses a node that does not exist. Where no node has the state directory, the nodes keep their state elsewhere, and every name may be a node.
func (c *Controller) checkNode(node string) error {
	if err := volume.CheckNodeID(node); err != nil {
		return err
	}
	nodes, err := c.cfg.nodes()
	if err == nil && len(nodes) > 0 && !slices.Contains(nodes, node) {
		err = driverkit.NotFound("node", node)
	}
	return err
}

// takeSlot counts one more attachment of a node, up to the limit.
func (c *Controller) takeSlot(node string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.cfg.AttachLimit > 0 && c.attached[node] >= c.cfg.AttachLimit {
		return false
	}
	c.attached[node]++
	return true
}

// detached counts one attachment less for each node.
func (c *Controller) detached(nodes ...string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, node := range nodes {
		if c.attached[node]--; c.attached[node] <= 0 {
			delete(c.attached, node)
		}
	}
}
