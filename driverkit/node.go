package driverkit

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"

	"github.com/container-storage-interface/spec/lib/go/csi"
)

// maxNodeID is the greatest length of a node id in bytes (CSI v1.13, "NodeGetInfo").
const maxNodeID = 256

// node serves csi.v1.Node: requests and responses. stage.go and publish.go have the work, journal.go the records on disk.
type node struct {
	csi.UnimplementedNodeServer
	*kit

	journal *journal
}

// NodeGetCapabilities announces what follows from the Driver.
func (n *node) NodeGetCapabilities(context.Context, *csi.NodeGetCapabilitiesRequest) (*csi.NodeGetCapabilitiesResponse, error) {
	answer := &csi.NodeGetCapabilitiesResponse{}
	add := func(announced bool, rpcs ...csi.NodeServiceCapability_RPC_Type) {
		for _, rpc := range rpcs {
			if announced {
				answer.Capabilities = append(answer.Capabilities, &csi.NodeServiceCapability{
					Type: &csi.NodeServiceCapability_Rpc{Rpc: &csi.NodeServiceCapability_RPC{Type: rpc}},
				})
			}
		}
	}
	add(!n.Support.PublishOnly, csi.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME)
	add(true, csi.NodeServiceCapability_RPC_GET_VOLUME_STATS, csi.NodeServiceCapability_RPC_SINGLE_NODE_MULTI_WRITER)
	add(n.expands() && !n.Support.NoNodeExpansion, csi.NodeServiceCapability_RPC_EXPAND_VOLUME)
	add(true, csi.NodeServiceCapability_RPC_GET_VOLUME_HEALTH)
	add(n.reportsStorage(), csi.NodeServiceCapability_RPC_GET_STORAGE_HEALTH)
	add(n.Support.MountGroup, csi.NodeServiceCapability_RPC_VOLUME_MOUNT_GROUP)
	add(n.VolumeCondition, nodeCondition)
	return answer, nil
}

// NodeGetInfo reports the node's id, limit and topology (CSI v1.13, "NodeGetInfo").
func (n *node) NodeGetInfo(ctx context.Context, _ *csi.NodeGetInfoRequest) (*csi.NodeGetInfoResponse, error) {
	return perform(ctx, n.kit, operation{}, func(ctx context.Context) (*csi.NodeGetInfoResponse, error) {
		own := Node{ID: n.NodeID, MaxVolumes: n.MaxVolumes, Topology: Segments{}}
		maps.Copy(own.Topology, n.Topology) // The driver may change it.
		if n.driver.DescribeNode != nil {
			if err := n.driver.DescribeNode(ctx, &own); err != nil {
				return nil, err
			}
		}
		if own.ID == "" || len(own.ID) > maxNodeID {
			return nil, fmt.Errorf("node id %q: has %d bytes, must have 1 to %d", own.ID, len(own.ID), maxNodeID)
		}
		for _, key := range n.TopologyKeys {
			if own.Topology[key] == "" {
				return nil, fmt.Errorf("topology of node %q: has no value for %q; set --topology=%s=VALUE", own.ID, key, key)
			}
		}
		answer := &csi.NodeGetInfoResponse{NodeId: own.ID, MaxVolumesPerNode: own.MaxVolumes}
		if len(own.Topology) > 0 {
			answer.AccessibleTopology = &csi.Topology{Segments: own.Topology}
		}
		return answer, nil
	})
}

// NodeStageVolume makes a volume available on the node once, for all its pods (CSI v1.13, "NodeStageVolume").
func (n *node) NodeStageVolume(ctx context.Context, req *csi.NodeStageVolumeRequest) (*csi.NodeStageVolumeResponse, error) {
	if n.Support.PublishOnly {
		return nil, unimplemented("NodeStageVolume")
	}
	capability, err := n.capabilityOf(req.GetVolumeCapability())
	op := onVolume(req.GetVolumeId(), allSecrets(req.GetSecrets(), req.GetVolumeContext(), capability.MountFlags), n.checkPath("staging_target_path", req.GetStagingTargetPath()), err)
	return perform(ctx, n.kit, op, func(ctx context.Context) (*csi.NodeStageVolumeResponse, error) {
		return &csi.NodeStageVolumeResponse{}, n.stage(ctx, &StageRequest{
			ID: req.GetVolumeId(), Path: req.GetStagingTargetPath(), Capability: capability, ReadOnly: capability.ReadOnly(),
			Secrets: req.GetSecrets(), VolumeContext: req.GetVolumeContext(), PublishContext: req.GetPublishContext(),
		})
	})
}

// NodeUnstageVolume undoes NodeStageVolume; a volume that is not staged is no error (CSI v1.13, "NodeUnstageVolume").
func (n *node) NodeUnstageVolume(ctx context.Context, req *csi.NodeUnstageVolumeRequest) (*csi.NodeUnstageVolumeResponse, error) {
	if n.Support.PublishOnly {
		return nil, unimplemented("NodeUnstageVolume")
	}
	op := onVolume(req.GetVolumeId(), nil, n.checkPath("staging_target_path", req.GetStagingTargetPath()))
	return perform(ctx, n.kit, op, func(ctx context.Context) (*csi.NodeUnstageVolumeResponse, error) {
		return &csi.NodeUnstageVolumeResponse{}, n.unstage(ctx, req.GetVolumeId(), req.GetStagingTargetPath())
	})
}

// NodePublishVolume makes a volume visible to a workload (CSI v1.13, "NodePublishVolume").
func (n *node) NodePublishVolume(ctx context.Context, req *csi.NodePublishVolumeRequest) (*csi.NodePublishVolumeResponse, error) {
	capability, err := n.capabilityOf(req.GetVolumeCapability())
	tokens := tokensOf(req)
	inline, inlineErr := n.inlineOf(req, capability, tokens)
	op := onVolume(req.GetVolumeId(), allSecrets(req.GetSecrets(), req.GetVolumeContext(), capability.MountFlags), n.checkPath("target_path", req.GetTargetPath()),
		n.checkOptionalPath("staging_target_path", req.GetStagingTargetPath()), err, inlineErr)
	return perform(ctx, n.kit, op, func(ctx context.Context) (*csi.NodePublishVolumeResponse, error) {
		want := &target{
			Path: req.GetTargetPath(), Staging: req.GetStagingTargetPath(), ReadOnly: req.GetReadonly() || capability.ReadOnly(), Capability: capability,
		}
		stage := &StageRequest{
			ID: req.GetVolumeId(), Path: want.Path, Capability: capability, ReadOnly: want.ReadOnly, Tokens: tokens,
			Secrets: req.GetSecrets(), VolumeContext: req.GetVolumeContext(), PublishContext: req.GetPublishContext(),
		}
		switch {
		case inline != nil:
			return &csi.NodePublishVolumeResponse{}, n.publishInline(ctx, want, inline, stage)
		case n.Support.PublishOnly:
			return &csi.NodePublishVolumeResponse{}, n.publishUnstaged(ctx, want, stage, nil)
		}
		return &csi.NodePublishVolumeResponse{}, n.publish(ctx, want, stage)
	})
}

// NodeUnpublishVolume undoes NodePublishVolume; a volume that is not published is no error (CSI v1.13, "NodeUnpublishVolume").
func (n *node) NodeUnpublishVolume(ctx context.Context, req *csi.NodeUnpublishVolumeRequest) (*csi.NodeUnpublishVolumeResponse, error) {
	op := onVolume(req.GetVolumeId(), nil, n.checkPath("target_path", req.GetTargetPath()))
	return perform(ctx, n.kit, op, func(ctx context.Context) (*csi.NodeUnpublishVolumeResponse, error) {
		return &csi.NodeUnpublishVolumeResponse{}, n.unpublish(ctx, req.GetVolumeId(), req.GetTargetPath())
	})
}

// NodeGetVolumeStats reports the usage of a volume (CSI v1.13, "NodeGetVolumeStats").
func (n *node) NodeGetVolumeStats(ctx context.Context, req *csi.NodeGetVolumeStatsRequest) (*csi.NodeGetVolumeStatsResponse, error) {
	op := operation{invalid: errors.Join(required("volume_id", req.GetVolumeId()), required("volume_path", req.GetVolumePath()))}
	return perform(ctx, n.kit, op, func(ctx context.Context) (*csi.NodeGetVolumeStatsResponse, error) {
		answer, err := n.stats(ctx, req.GetVolumeId(), req.GetVolumePath())
		if !n.VolumeCondition || isNotFound(err) {
			return answer, err
		}
		return n.withCondition(ctx, req.GetVolumeId(), answer, err)
	})
}

// NodeExpandVolume lets a volume have its new size on this node (CSI v1.13, "NodeExpandVolume").
func (n *node) NodeExpandVolume(ctx context.Context, req *csi.NodeExpandVolumeRequest) (*csi.NodeExpandVolumeResponse, error) {
	if !n.expands() || n.Support.NoNodeExpansion {
		return nil, unimplemented("NodeExpandVolume")
	}
	size, sizeErr := rangeOf(req.GetCapacityRange())
	capability, capabilityErr := n.optionalCapabilityOf(req.GetVolumeCapability())
	op := onVolume(req.GetVolumeId(), req.GetSecrets(), required("volume_path", req.GetVolumePath()), sizeErr, capabilityErr)
	return perform(ctx, n.kit, op, func(ctx context.Context) (*csi.NodeExpandVolumeResponse, error) {
		expanded, err := n.expand(ctx, &NodeExpandRequest{ID: req.GetVolumeId(), Path: req.GetVolumePath(), Size: size, Capability: capability, Secrets: req.GetSecrets()})
		return &csi.NodeExpandVolumeResponse{CapacityBytes: cmp.Or(expanded, size.Required)}, err
	})
}
