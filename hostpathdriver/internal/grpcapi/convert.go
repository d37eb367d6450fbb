package grpcapi

import (
	"maps"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/longshore-csi/longshore/hostpathdriver/internal/volume"
)

// nodeCapabilityFrom converts the capability of a call to a node, which must not ask for a group, as VOLUME_MOUNT_GROUP is not announced.
func nodeCapabilityFrom(c *csi.VolumeCapability) (volume.Capability, error) {
	if group := c.GetMount().GetVolumeMountGroup(); group != "" {
		return volume.Capability{}, status.Errorf(codes.InvalidArgument,
			"volume_capability.mount.volume_mount_group: %q, but VOLUME_MOUNT_GROUP is not advertised", group)
	}
	return capabilityFrom(c)
}

// capabilityFrom converts one capability. Its parts must be there; the
// backend checks whether it serves them.
func capabilityFrom(c *csi.VolumeCapability) (volume.Capability, error) {
	if c == nil {
		return volume.Capability{}, status.Error(codes.InvalidArgument, "volume_capability: is required")
	}
	if c.GetAccessMode().GetMode() == csi.VolumeCapability_AccessMode_UNKNOWN {
		return volume.Capability{}, status.Error(codes.InvalidArgument, "volume_capability.access_mode: is required")
	}
	converted := volume.Capability{Mode: volume.AccessMode(c.GetAccessMode().GetMode().String())}
	switch access := c.GetAccessType().(type) {
	case *csi.VolumeCapability_Block:
		converted.Access = volume.AccessBlock
	case *csi.VolumeCapability_Mount:
		converted.Access = volume.AccessMount
		converted.FSType = access.Mount.GetFsType()
		converted.MountFlags = access.Mount.GetMountFlags()
	default:
		return volume.Capability{}, status.Error(codes.InvalidArgument, "volume_capability.access_type: is required, mount or block")
	}
	return converted, nil
}

// optionalCapabilityFrom converts a capability that a CO may leave out.
func optionalCapabilityFrom(c *csi.VolumeCapability) (*volume.Capability, error) {
	if c == nil {
		return nil, nil
	}
	converted, err := capabilityFrom(c)
	return &converted, err
}

func capabilitiesFrom(list []*csi.VolumeCapability) ([]volume.Capability, error) {
	if len(list) == 0 {
		return nil, status.Error(codes.InvalidArgument, "volume_capabilities: at least one is required")
	}
	converted := make([]volume.Capability, 0, len(list))
	for _, c := range list {
		one, err := capabilityFrom(c)
		if err != nil {
			return nil, err
		}
		converted = append(converted, one)
	}
	return converted, nil
}

func requirementsFrom(r *csi.TopologyRequirement) volume.Requirements {
	return volume.Requirements{
		Requisite: segmentsFrom(r.GetRequisite()),
		Preferred: segmentsFrom(r.GetPreferred()),
	}
}

func segmentsFrom(list []*csi.Topology) []volume.Segment {
	segments := make([]volume.Segment, 0, len(list))
	for _, t := range list {
		segments = append(segments, t.GetSegments())
	}
	return segments
}

func rangeFrom(r *csi.CapacityRange) volume.Range {
	return volume.Range{Required: r.GetRequiredBytes(), Limit: r.GetLimitBytes()}
}

// topologyOf is the answer's form of a node; nil means everywhere.
func topologyOf(node string) *csi.Topology {
	if node == "" {
		return nil
	}
	return &csi.Topology{Segments: map[string]string{volume.TopologyKey: node}}
}

func volumeOf(v *volume.Volume) *csi.Volume {
	return &csi.Volume{
		VolumeId: string(v.ID), CapacityBytes: v.Capacity, AccessibleTopology: accessibleFrom(v.Node), ContentSource: contentSourceOf(v.Source),
	}
}

// accessibleFrom is the list that answers have; none means everywhere.
func accessibleFrom(node string) []*csi.Topology {
	if t := topologyOf(node); t != nil {
		return []*csi.Topology{t}
	}
	return nil
}

func contentSourceOf(s *volume.Source) *csi.VolumeContentSource {
	switch {
	case s == nil:
		return nil
	case s.Snapshot != "":
		return &csi.VolumeContentSource{Type: &csi.VolumeContentSource_Snapshot{
			Snapshot: &csi.VolumeContentSource_SnapshotSource{SnapshotId: string(s.Snapshot)},
		}}
	}
	return &csi.VolumeContentSource{Type: &csi.VolumeContentSource_Volume{
		Volume: &csi.VolumeContentSource_VolumeSource{VolumeId: string(s.Volume)},
	}}
}

func snapshotOf(s *volume.Snapshot) *csi.Snapshot {
	return &csi.Snapshot{
		SnapshotId:         string(s.ID),
		SourceVolumeId:     string(s.Source),
		SizeBytes:          s.Size,
		CreationTime:       timestamppb.New(s.Created),
		ReadyToUse:         !s.Filling,
		GroupSnapshotId:    string(s.Group),
		AccessibleTopology: accessibleFrom(s.Node),
	}
}

// sameContext compares what a CO sends back as volume context, which the
// driver leaves empty, ignoring what Kubernetes adds to it.
func sameContext(sent map[string]string) bool {
	return len(volume.OwnAttributes(sent)) == 0
}

func sameParameters(v *volume.Volume, sent map[string]string) bool {
	return len(sent) == 0 || maps.Equal(v.Parameters, sent)
}

func healthOf(health volume.Health) *csi.VolumeHealth {
	answer := &csi.VolumeHealth{VolumeId: string(health.ID)}
	for _, c := range health.Conditions {
		answer.HealthStatuses = append(answer.HealthStatuses, &csi.VolumeHealth_VolumeHealthEntry{
			Status: severityOf(c.Severity), Reason: c.Reason, Message: c.Message,
		})
	}
	return answer
}

func severityOf(s volume.Severity) csi.VolumeHealthErrorType {
	switch s {
	case volume.Degraded:
		return csi.VolumeHealthErrorType_DEGRADED
	case volume.Inaccessible:
		return csi.VolumeHealthErrorType_INACCESSIBLE
	case volume.DataLoss:
		return csi.VolumeHealthErrorType_DATA_LOSS
	}
	return csi.VolumeHealthErrorType_UNKNOWN_VOLUME_HEALTH_TYPE
}
