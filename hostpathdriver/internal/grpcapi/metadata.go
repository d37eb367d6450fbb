package grpcapi

import (
	"context"
	"iter"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/longshore-csi/longshore/hostpathdriver/internal/volume"
)

// MetadataCapability announces the SnapshotMetadata service in
// GetPluginCapabilities.
const MetadataCapability = csi.PluginCapability_Service_SNAPSHOT_METADATA_SERVICE

const (
	// mostResults is how many entries a message has at most, some 100 KiB.
	mostResults = 4096
	// widestMessage is how many bytes of the disk a message covers at most:
	// what a CO has received it need not ask for again when it is interrupted.
	widestMessage = 1 << 30
)

// blockList are the entries of a message.
type blockList = []*csi.BlockMetadata

// MetadataConfig configures the SnapshotMetadata service.
type MetadataConfig struct {
	// Service does the work.
	Service volume.MetadataService
	// VariableLength sends ranges as they are; else they are sent in blocks of
	// volume.BlockSize.
	VariableLength bool
}

// Metadata serves csi.v1.SnapshotMetadata.
type Metadata struct {
	csi.UnimplementedSnapshotMetadataServer

	cfg MetadataConfig
}

var _ csi.SnapshotMetadataServer = (*Metadata)(nil)

// NewMetadata returns the service.
func NewMetadata(cfg MetadataConfig) *Metadata {
	return &Metadata{cfg: cfg}
}

// Register adds the service to a server.
func (m *Metadata) Register(r grpc.ServiceRegistrar) {
	csi.RegisterSnapshotMetadataServer(r, m)
}

// GetMetadataAllocated streams which blocks of a snapshot were ever written. A
// real driver asks its storage system; where that does not know, everything
// is allocated.
func (m *Metadata) GetMetadataAllocated(req *csi.GetMetadataAllocatedRequest, stream csi.SnapshotMetadata_GetMetadataAllocatedServer) error {
	asked := &volume.AllocatedRequest{Snapshot: volume.ID(req.GetSnapshotId()), Offset: req.GetStartingOffset()}
	if err := asked.Check(); err != nil {
		return statusOf(err)
	}
	found, err := m.cfg.Service.Allocated(stream.Context(), asked)
	if err != nil {
		return statusOf(err)
	}
	return m.stream(stream.Context(), found, req.GetMaxResults(), func(list blockList) error {
		return stream.Send(&csi.GetMetadataAllocatedResponse{
			BlockMetadataType: m.kind(), VolumeCapacityBytes: found.Capacity, BlockMetadata: list,
		})
	})
}

// GetMetadataDelta streams in which blocks two snapshots of a volume differ. A
// real driver asks its storage system, and answers FAILED_PRECONDITION where
// that has not tracked the changes: the CO makes a full backup instead.
func (m *Metadata) GetMetadataDelta(req *csi.GetMetadataDeltaRequest, stream csi.SnapshotMetadata_GetMetadataDeltaServer) error {
	asked := &volume.DeltaRequest{
		Base: volume.ID(req.GetBaseSnapshotId()), Target: volume.ID(req.GetTargetSnapshotId()), Offset: req.GetStartingOffset(),
	}
	if err := asked.Check(); err != nil {
		return statusOf(err)
	}
	found, err := m.cfg.Service.Delta(stream.Context(), asked)
	if err != nil {
		return statusOf(err)
	}
	return m.stream(stream.Context(), found, req.GetMaxResults(), func(list blockList) error {
		return stream.Send(&csi.GetMetadataDeltaResponse{
			BlockMetadataType: m.kind(), VolumeCapacityBytes: found.Capacity, BlockMetadata: list,
		})
	})
}

// stream sends all metadata. A stream that is not complete ends with an error,
// as its end tells the CO that it has received everything (CSI v1.13, "Special
// considerations for processing a snapshot metadata gRPC stream").
func (m *Metadata) stream(ctx context.Context, found *volume.Metadata, maxResults int32, send func(blockList) error) error {
	if maxResults < 0 {
		return status.Errorf(codes.InvalidArgument, "max_results: %d, must not be negative", maxResults)
	}
	most := mostResults
	if maxResults > 0 {
		most = min(most, int(maxResults))
	}
	for list, err := range m.messages(found.Extents, most) {
		if err != nil {
			return statusOf(err)
		}
		if err := send(list); err != nil {
			return err
		}
	}
	return statusOf(ctx.Err())
}

// messages yields the blocks of each message. Without blocks there is one message
// nevertheless: it carries the capacity.
func (m *Metadata) messages(extents iter.Seq2[volume.Extent, error], most int) iter.Seq2[blockList, error] {
	return func(yield func(blockList, error) bool) {
		var list blockList
		sent := false
		for extent, err := range extents {
			if err != nil {
				yield(nil, err)
				return
			}
			for piece := range extent.Cut(m.unit(extent)) {
				list = append(list, &csi.BlockMetadata{ByteOffset: piece.Offset, SizeBytes: piece.Length})
				if len(list) < most && piece.End()-list[0].GetByteOffset() < widestMessage {
					continue
				}
				if !yield(list, nil) {
					return
				}
				list, sent = nil, true
			}
		}
		if !sent || len(list) > 0 {
			yield(list, nil)
		}
	}
}

// unit is the size of the pieces in which an extent is sent.
func (m *Metadata) unit(extent volume.Extent) int64 {
	if m.cfg.VariableLength {
		return extent.Length
	}
	return volume.BlockSize
}

func (m *Metadata) kind() csi.BlockMetadataType {
	if m.cfg.VariableLength {
		return csi.BlockMetadataType_VARIABLE_LENGTH
	}
	return csi.BlockMetadataType_FIXED_LENGTH
}
