package drivertest

import (
	"context"
	"maps"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/longshore-csi/longshore/driverkit/filesystem"
)

// co is a container orchestrator with one volume.
type co struct {
	s *settings
	// readOnly is the target path of read-only publications.
	staging, target, readOnly string

	controller csi.ControllerClient
	node       csi.NodeClient
	// announced and ofNode are the capabilities of the controller and of the node.
	announced map[csi.ControllerServiceCapability_RPC_Type]bool
	ofNode    map[csi.NodeServiceCapability_RPC_Type]bool
	// topology is that of the node.
	topology *csi.Topology

	volume, snapshot, restored    string
	volumeContext, publishContext map[string]string
}

// expanded is the size in bytes that a volume is expanded to; it is created with half of it.
const expanded = 8 << 20

// connect reads what a CO reads of a driver first.
func (c *co) connect(ctx context.Context, conn connection) error {
	c.controller, c.node = csi.NewControllerClient(conn), csi.NewNodeClient(conn)
	controller, err := c.controller.ControllerGetCapabilities(ctx, &csi.ControllerGetCapabilitiesRequest{})
	if err != nil {
		return err
	}
	c.announced, c.ofNode = map[csi.ControllerServiceCapability_RPC_Type]bool{}, map[csi.NodeServiceCapability_RPC_Type]bool{}
	for _, one := range controller.GetCapabilities() {
		c.announced[one.GetRpc().GetType()] = true
	}
	node, err := c.node.NodeGetCapabilities(ctx, &csi.NodeGetCapabilitiesRequest{})
	if err != nil {
		return err
	}
	for _, one := range node.GetCapabilities() {
		c.ofNode[one.GetRpc().GetType()] = true
	}
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
		"snapshot":          c.createSnapshot,
		"restore":           c.restore,
		"expand":            c.expand,
		"expandOnNode":      c.expandOnNode,
		"modify":            c.modify,
		"unpublish":         func(ctx context.Context) error { return c.unpublish(ctx, c.target) },
		"unpublishReadOnly": func(ctx context.Context) error { return c.unpublish(ctx, c.readOnly) },
		"unstage":           c.unstage,
		"detach":            c.detach,
		"deleteRestored":    func(ctx context.Context) error { return c.delete(ctx, c.restored) },
		"deleteSnapshot":    c.deleteSnapshot,
		"delete":            func(ctx context.Context) error { return c.delete(ctx, c.volume) },
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
	created, err := c.controller.CreateVolume(ctx, c.createRequest("walk", expanded/2))
	if err == nil {
		c.volume, c.volumeContext = created.GetVolume().GetVolumeId(), created.GetVolume().GetVolumeContext()
	}
	return err
}

func (c *co) createRequest(name string, size int64) *csi.CreateVolumeRequest {
	req := &csi.CreateVolumeRequest{
		Name: name, CapacityRange: &csi.CapacityRange{RequiredBytes: size}, VolumeCapabilities: []*csi.VolumeCapability{c.capability()},
		Parameters: c.s.parameters, Secrets: c.s.secrets,
	}
	if c.topology != nil {
		req.AccessibilityRequirements = &csi.TopologyRequirement{Requisite: []*csi.Topology{c.topology}, Preferred: []*csi.Topology{c.topology}}
	}
	return req
}

// createSnapshot makes a snapshot, and repeats the call until it is ready.
func (c *co) createSnapshot(ctx context.Context) error {
	if !c.announced[csi.ControllerServiceCapability_RPC_CREATE_DELETE_SNAPSHOT] {
		return nil
	}
	for {
		made, err := c.controller.CreateSnapshot(ctx, &csi.CreateSnapshotRequest{Name: "walk", SourceVolumeId: c.volume, Secrets: c.s.secrets})
		if err != nil {
			return err
		}
		if c.snapshot = made.GetSnapshot().GetSnapshotId(); made.GetSnapshot().GetReadyToUse() {
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// restore makes a volume of the snapshot.
func (c *co) restore(ctx context.Context) error {
	if c.snapshot == "" {
		return nil
	}
	req := c.createRequest("walk-restored", expanded)
	req.VolumeContentSource = &csi.VolumeContentSource{Type: &csi.VolumeContentSource_Snapshot{
		Snapshot: &csi.VolumeContentSource_SnapshotSource{SnapshotId: c.snapshot},
	}}
	created, err := c.controller.CreateVolume(ctx, req)
	if err == nil {
		c.restored = created.GetVolume().GetVolumeId()
	}
	return err
}

func (c *co) deleteSnapshot(ctx context.Context) error {
	if c.snapshot == "" {
		return nil
	}
	_, err := c.controller.DeleteSnapshot(ctx, &csi.DeleteSnapshotRequest{SnapshotId: c.snapshot, Secrets: c.s.secrets})
	return err
}

func (c *co) expand(ctx context.Context) error {
	if !c.announced[csi.ControllerServiceCapability_RPC_EXPAND_VOLUME] {
		return nil
	}
	_, err := c.controller.ControllerExpandVolume(ctx, &csi.ControllerExpandVolumeRequest{
		VolumeId: c.volume, CapacityRange: &csi.CapacityRange{RequiredBytes: expanded}, VolumeCapability: c.capability(), Secrets: c.s.secrets,
	})
	return err
}

func (c *co) expandOnNode(ctx context.Context) error {
	if !c.ofNode[csi.NodeServiceCapability_RPC_EXPAND_VOLUME] {
		return nil
	}
	device, err := filesystem.NewKernel().DeviceAt(ctx, c.staging)
	if err != nil || device != "" && !filesystem.GrowsMounted() { // ext4 cannot grow here while it is mounted; the next stage enlarges it.
		return err
	}
	_, err = c.node.NodeExpandVolume(ctx, &csi.NodeExpandVolumeRequest{
		VolumeId: c.volume, VolumePath: c.target, StagingTargetPath: c.staging, CapacityRange: &csi.CapacityRange{RequiredBytes: expanded}, VolumeCapability: c.capability(), Secrets: c.s.secrets,
	})
	return err
}

func (c *co) modify(ctx context.Context) error {
	if len(c.s.mutable) == 0 {
		return nil
	}
	_, err := c.controller.ControllerModifyVolume(ctx, &csi.ControllerModifyVolumeRequest{VolumeId: c.volume, MutableParameters: c.s.mutable, Secrets: c.s.secrets})
	return err
}

func (c *co) attach(ctx context.Context) error {
	if !c.announced[csi.ControllerServiceCapability_RPC_PUBLISH_UNPUBLISH_VOLUME] {
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
	if !c.ofNode[csi.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME] {
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
	if !c.ofNode[csi.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME] {
		return nil
	}
	_, err := c.node.NodeUnstageVolume(ctx, &csi.NodeUnstageVolumeRequest{VolumeId: c.volume, StagingTargetPath: c.staging})
	return err
}

func (c *co) detach(ctx context.Context) error {
	if !c.announced[csi.ControllerServiceCapability_RPC_PUBLISH_UNPUBLISH_VOLUME] {
		return nil
	}
	_, err := c.controller.ControllerUnpublishVolume(ctx, &csi.ControllerUnpublishVolumeRequest{VolumeId: c.volume, NodeId: NodeID, Secrets: c.s.secrets})
	return err
}

func (c *co) delete(ctx context.Context, volume string) error {
	if volume == "" {
		return nil
	}
	_, err := c.controller.DeleteVolume(ctx, &csi.DeleteVolumeRequest{VolumeId: volume, Secrets: c.s.secrets})
	return err
}
