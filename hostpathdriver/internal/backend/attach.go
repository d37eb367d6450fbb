package backend

import (
	"context"
	"fmt"
	"slices"

	"k8s.io/klog/v2"

	"github.com/longshore-csi/longshore/csikit/logging"
	"github.com/longshore-csi/longshore/hostpathdriver/internal/volume"
)

// Publish implements volume.Service. A directory needs no attachment; the
// record of it is what protects the volume.
func (v *Volumes) Publish(ctx context.Context, req *volume.PublishRequest) (*volume.Volume, error) {
	published, err := v.volumes.catalog.get(req.ID)
	if err != nil {
		return nil, err
	}
	if err := published.CheckAccess(req.Capability); err != nil {
		return nil, err
	}
	if err := v.Support().CheckCapability(published.Form(), req.Capability); err != nil {
		return nil, err
	}
	if err := published.CheckFilled(); err != nil {
		return nil, err
	}
	if err := v.checkNode(req.Node); err != nil {
		return nil, err
	}
	if err := published.CheckReachable(req.Node); err != nil {
		return nil, err
	}
	if !v.slots.take(req.Node, v.cfg.AttachLimit) {
		return nil, fmt.Errorf("publish volume %q: node %q has its limit of %d volumes: %w", req.ID, req.Node, v.cfg.AttachLimit, volume.ErrExhausted)
	}
	published.Published = append(published.Published, volume.Publication{Node: req.Node, ReadOnly: req.ReadOnly, Capability: req.Capability})
	v.cfg.Step.at("publish:record")
	if err := v.volumes.records.Put(string(published.ID), *published); err != nil {
		v.slots.release(req.Node)
		return nil, err
	}
	v.volumes.catalog.put(published)
	klog.FromContext(ctx).V(2).Info("Published volume", logging.KeyVolumeID, req.ID, logging.KeyNode, req.Node)
	return published.Clone(), nil
}

// Unpublish implements volume.Service.
func (v *Volumes) Unpublish(ctx context.Context, id volume.ID, node string) error {
	unpublished, err := v.volumes.catalog.get(id)
	if err != nil {
		return err
	}
	before := unpublished.PublishedNodes()
	unpublished.Published = slices.DeleteFunc(unpublished.Published, func(p volume.Publication) bool {
		return node == "" || p.Node == node
	})
	v.cfg.Step.at("unpublish:record")
	if err := v.volumes.records.Put(string(id), *unpublished); err != nil {
		return err
	}
	v.volumes.catalog.put(unpublished)
	for _, released := range before {
		if node == "" || released == node {
			v.slots.release(released)
		}
	}
	klog.FromContext(ctx).V(2).Info("Unpublished volume", logging.KeyVolumeID, id, logging.KeyNode, node)
	return nil
}

// checkNode knows the nodes whose drivers share the state directory. When
// there are none, the drivers of the nodes keep their state elsewhere, and
// every name may be a node.
func (v *Volumes) checkNode(node string) error {
	if err := volume.CheckNodeID(node); err != nil {
		return err
	}
	nodes, err := nodeNames(v.cfg.StateDir)
	if err != nil {
		return err
	}
	if len(nodes) > 0 && !slices.Contains(nodes, node) {
		return fmt.Errorf("node %q: %w", node, volume.ErrNotFound)
	}
	return nil
}
