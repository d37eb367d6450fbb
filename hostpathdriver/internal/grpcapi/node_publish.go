package grpcapi

import (
	"context"
	"strconv"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

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
// A real driver does the same: a bind mount, read-only where asked for.
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
	capability, err := nodeCapabilityFrom(req.GetVolumeCapability())
	if err != nil {
		return nil, err
	}
	inline, err := isInline(req.GetVolumeContext())
	if err != nil {
		return nil, err
	}
	converted := &volume.TargetRequest{ID: id, Target: volume.Target{
		Path: req.GetTargetPath(), Source: req.GetStagingTargetPath(), ReadOnly: req.GetReadonly(), Capability: capability,
	}}
	switch {
	case inline:
		converted.Target.Source = ""
		converted.Inline = &volume.InlineRequest{Attributes: volume.OwnAttributes(req.GetVolumeContext()), Pod: podOf(req.GetVolumeContext())}
	case converted.Target.Source == "":
		return nil, status.Error(codes.FailedPrecondition, "staging_target_path: is required, volumes are staged before they are published")
	}
	return converted, nil
}

// isInline reports whether the kubelet asks for an inline volume. A value that is no boolean is an error: a guess would lose data.
func isInline(volumeContext map[string]string) (bool, error) {
	const key = "ephemeral"
	text := kubeletValue(volumeContext, key)
	if text == "" {
		return false, nil
	}
	inline, err := strconv.ParseBool(text)
	if err != nil {
		return false, status.Errorf(codes.InvalidArgument, "volume_context: key %s%s: %q must be true or false", kubeletPrefix, key, text)
	}
	return inline, nil
}

// podOf names the pod that a volume is published for, where the CSIDriver object has podInfoOnMount.
func podOf(volumeContext map[string]string) string {
	if name := kubeletValue(volumeContext, "pod.name"); name != "" {
		return kubeletValue(volumeContext, "pod.namespace") + "/" + name
	}
	return ""
}

// Prefixes of what the kubelet adds to a volume context: today's, and that of the design document (seed 002).
const (
	kubeletPrefix = "csi.storage.k8s.io/"
	seedPrefix    = "csi.kubernetes.io/"
)

func kubeletValue(volumeContext map[string]string, key string) string {
	if value, found := volumeContext[kubeletPrefix+key]; found {
		return value
	}
	return volumeContext[seedPrefix+key]
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
