package grpcapi

import (
	"context"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/longshore-csi/longshore/hostpathdriver/internal/podinfo"
	"github.com/longshore-csi/longshore/hostpathdriver/internal/volume"
)

// nodePublish is the part that brings volumes into pods.
type nodePublish struct {
	service volume.NodeService
	// inline serves inline volumes.
	inline bool
}

func (nodePublish) announceNode() []nodeRPC {
	return []nodeRPC{csi.NodeServiceCapability_RPC_SINGLE_NODE_MULTI_WRITER}
}

// NodePublishVolume brings a volume into a pod: a staged one, or, when the
// kubelet says "ephemeral", a new inline volume that lives as long as the pod.
// A repeated call renews the pod information in it. A real driver does the
// same: a bind mount, read-only where asked for.
func (n *nodePublish) NodePublishVolume(ctx context.Context, req *csi.NodePublishVolumeRequest) (*csi.NodePublishVolumeResponse, error) {
	converted, err := targetFrom(req)
	if err != nil {
		return nil, err
	}
	if converted.Inline != nil && !n.inline {
		return nil, status.Error(codes.FailedPrecondition, "volume_context: asks for an inline volume, and these are switched off, see --enable-inline-volumes")
	}
	if err := n.service.Publish(ctx, converted); err != nil {
		return nil, statusOf(err)
	}
	return &csi.NodePublishVolumeResponse{}, nil
}

func targetFrom(req *csi.NodePublishVolumeRequest) (*volume.TargetRequest, error) {
	id, err := parseID(req.GetVolumeId())
	if err != nil {
		return nil, err
	}
	if err := required("target_path", req.GetTargetPath()); err != nil {
		return nil, err
	}
	capability, err := capabilityFrom(req.GetVolumeCapability())
	if err != nil {
		return nil, err
	}
	pod, err := podinfo.Parse(req.GetVolumeContext(), req.GetSecrets())
	if err != nil {
		return nil, status.Error(codes.InvalidArgument, err.Error())
	}
	converted := &volume.TargetRequest{ID: id, Target: volume.Target{
		Path: req.GetTargetPath(), Source: req.GetStagingTargetPath(), ReadOnly: req.GetReadonly(), Capability: capability,
	}}
	switch {
	case pod.Ephemeral:
		converted.Target.Source = ""
		converted.Inline = &volume.InlineRequest{Attributes: volume.OwnAttributes(req.GetVolumeContext()), Pod: pod}
	case converted.Target.Source == "":
		return nil, status.Error(codes.FailedPrecondition, "staging_target_path: is required, volumes are staged before they are published")
	}
	return converted, nil
}

// NodeUnpublishVolume takes a volume out of a pod and removes the target; one
// that is not there is unpublished. It deletes an inline volume. A real driver
// does the same, and never removes what may still be mounted.
func (n *nodePublish) NodeUnpublishVolume(ctx context.Context, req *csi.NodeUnpublishVolumeRequest) (*csi.NodeUnpublishVolumeResponse, error) {
	id, err := parseID(req.GetVolumeId())
	if err != nil {
		return nil, err
	}
	if err := required("target_path", req.GetTargetPath()); err != nil {
		return nil, err
	}
	if err := n.service.Unpublish(ctx, id, req.GetTargetPath()); err != nil {
		return nil, statusOf(err)
	}
	return &csi.NodeUnpublishVolumeResponse{}, nil
}
