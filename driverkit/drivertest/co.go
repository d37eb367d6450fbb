package drivertest

import (
	"context"
	"maps"
	"slices"

	"github.com/container-storage-interface/spec/lib/go/csi"
)

// co is a container orchestrator with one volume.
type co struct {
	s *settings
	// readOnly is the target path of read-only publications.
	staging, target, readOnly string

	controller csi.ControllerClient
	node       csi.NodeClient
	// attaches and stages say what the driver announces.
	attaches, stages bool
	// topology is that of the node.
	topology *csi.Topology

	volume                        string
	volumeContext, publishContext map[string]string
}

// connect reads what a CO reads of a driver first.
func (c *co) connect(ctx context.Context, conn connection) error {
	c.controller, c.node = csi.NewControllerClient(conn), csi.NewNodeClient(conn)
	controller, err := c.controller.ControllerGetCapabilities(ctx, &csi.ControllerGetCapabilitiesRequest{})
	if err != nil {
		return err
	}
	c.attaches = slices.ContainsFunc(controller.GetCapabilities(), func(one *csi.ControllerServiceCapability) bool {
		return one.GetRpc().GetType() == csi.ControllerServiceCapability_RPC_PUBLISH_UNPUBLISH_VOLUME
	})
	node, err := c.node.NodeGetCapabilities(ctx, &csi.NodeGetCapabilitiesRequest{})
	if err != nil {
		return err
	}
	c.stages = slices.ContainsFunc(node.GetCapabilities(), func(one *csi.NodeServiceCapability) bool {
		return one.GetRpc().GetType() == csi.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME
	})
	info, err := c.node.NodeGetInfo(ctx, &csi.NodeGetInfoRequest{})
	c.topology = info.GetAccessibleTopology()
	return err
}

// calls are those that a CO makes in the life of a volume, by name. A call that the driver does not announce does nothing.
func (c *co) calls() map[string]func(context.Context) error {
	return map[string]func(context.Context) error{
		"create":            c.create,
		"attach":            c.attach,
		"stage":             c.stage,
		"publish":           func(ctx context.Context) error { return c.publish(ctx, c.target, false) },
		"publishReadOnly":   func(ctx context.Context) error { return c.publish(ctx, c.readOnly, true) },
		"publishInline":     c.publishInline,
		"stats":             c.stats,
		"unpublish":         func(ctx context.Context) error { return c.unpublish(ctx, c.target) },
		"unpublishReadOnly": func(ctx context.Context) error { return c.unpublish(ctx, c.readOnly) },
		"unstage":           c.unstage,
		"detach":            c.detach,
		"delete":            c.delete,
	}
}

func (c *co) capability() *csi.VolumeCapability {
	capability := &csi.VolumeCapability{
		AccessMode: &csi.VolumeCapability_AccessMode{Mode: csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER},
		AccessType: &csi.VolumeCapability_Mount{Mount: &csi.VolumeCapability_MountVolume{}},
	}
	if c.s.block {
		capability.AccessType = &csi.VolumeCapability_Block{Block: &csi.VolumeCapability_BlockVolume{}}
	}
	return capability
}

func (c *co) create(ctx context.Context) error {
	req := &csi.CreateVolumeRequest{
		Name: "walk", CapacityRange: &csi.CapacityRange{RequiredBytes: 4 << 20}, VolumeCapabilities: []*csi.VolumeCapability{c.capability()},
		Parameters: c.s.parameters, Secrets: c.s.secrets,
	}
	if c.topology != nil {
		req.AccessibilityRequirements = &csi.TopologyRequirement{Requisite: []*csi.Topology{c.topology}, Preferred: []*csi.Topology{c.topology}}
	}
	created, err := c.controller.CreateVolume(ctx, req)
	if err == nil {
		c.volume, c.volumeContext = created.GetVolume().GetVolumeId(), created.GetVolume().GetVolumeContext()
	}
	return err
}

func (c *co) attach(ctx context.Context) error {
	if !c.attaches {
		return nil
	}
	attached, err := c.controller.ControllerPublishVolume(ctx, &csi.ControllerPublishVolumeRequest{
		VolumeId: c.volume, NodeId: NodeID, VolumeCapability: c.capability(), VolumeContext: c.volumeContext, Secrets: c.s.secrets,
	})
	if err == nil {
		c.publishContext = attached.GetPublishContext()
	}
	return err
}

func (c *co) stage(ctx context.Context) error {
	if !c.stages {
		return nil
	}
	_, err := c.node.NodeStageVolume(ctx, &csi.NodeStageVolumeRequest{
		VolumeId: c.volume, StagingTargetPath: c.staging, VolumeCapability: c.capability(),
		VolumeContext: c.volumeContext, PublishContext: c.publishContext, Secrets: c.s.secrets,
	})
	return err
}

func (c *co) publish(ctx context.Context, target string, readOnly bool) error {
	_, err := c.node.NodePublishVolume(ctx, &csi.NodePublishVolumeRequest{
		VolumeId: c.volume, StagingTargetPath: c.staging, TargetPath: target, Readonly: readOnly, VolumeCapability: c.capability(),
		VolumeContext: c.volumeContext, PublishContext: c.publishContext, Secrets: c.s.secrets,
	})
	return err
}

func (c *co) publishInline(ctx context.Context) error {
	c.volume = "csi-inline"
	attributes := maps.Clone(c.s.inline)
	attributes["csi.storage.k8s.io/ephemeral"] = "true"
	_, err := c.node.NodePublishVolume(ctx, &csi.NodePublishVolumeRequest{
		VolumeId: c.volume, TargetPath: c.target, VolumeCapability: c.capability(), VolumeContext: attributes, Secrets: c.s.secrets,
	})
	return err
}

func (c *co) stats(ctx context.Context) error {
	_, err := c.node.NodeGetVolumeStats(ctx, &csi.NodeGetVolumeStatsRequest{VolumeId: c.volume, VolumePath: c.target})
	return err
}

func (c *co) unpublish(ctx context.Context, target string) error {
	_, err := c.node.NodeUnpublishVolume(ctx, &csi.NodeUnpublishVolumeRequest{VolumeId: c.volume, TargetPath: target})
	return err
}

func (c *co) unstage(ctx context.Context) error {
	if !c.stages {
		return nil
	}
	_, err := c.node.NodeUnstageVolume(ctx, &csi.NodeUnstageVolumeRequest{VolumeId: c.volume, StagingTargetPath: c.staging})
	return err
}

func (c *co) detach(ctx context.Context) error {
	if !c.attaches {
		return nil
	}
	_, err := c.controller.ControllerUnpublishVolume(ctx, &csi.ControllerUnpublishVolumeRequest{VolumeId: c.volume, NodeId: NodeID, Secrets: c.s.secrets})
	return err
}

func (c *co) delete(ctx context.Context) error {
	_, err := c.controller.DeleteVolume(ctx, &csi.DeleteVolumeRequest{VolumeId: c.volume, Secrets: c.s.secrets})
	return err
}
