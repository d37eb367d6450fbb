package driverkit

import (
	"context"
	"errors"
	"fmt"
	"iter"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

const (
	// mostRanges is how many ranges a message has at most, some 100 KiB.
	mostRanges = 4096
	// widestMessage is how many bytes of the volume a message covers at most: what a CO has received it need not ask for again.
	widestMessage = 1 << 30
)

// BlocksRequest asks for ranges of a snapshot.
type BlocksRequest struct {
	// Snapshot is Snapshot.ID of CreateSnapshot.
	Snapshot string
	// Base is the id of an earlier snapshot of the same volume; empty asks for the allocated ranges.
	Base string
	// Offset is the byte from which ranges are wanted: a driver may leave out those before it.
	Offset int64
	// Secrets are those of the VolumeSnapshotClass.
	Secrets Secrets
}

// Blocks are ranges of a snapshot.
type Blocks struct {
	// VolumeSize is the size in bytes of the volume that the snapshot was taken of.
	VolumeSize int64
	// BlockSize cuts the ranges in blocks of so many bytes, of which they must be multiples; 0 sends ranges as they are
	// (CSI v1.13, "BlockMetadataType").
	BlockSize int64
	// Ranges yields the ranges in ascending order without overlaps, until it yields an error. It runs as long as the CO reads.
	Ranges iter.Seq2[BlockRange, error]
}

// BlockRange is a part of a snapshot.
type BlockRange struct {
	// Offset is the first byte, Size the number of bytes.
	Offset, Size int64
}

// metadata serves csi.v1.SnapshotMetadata.
type metadata struct {
	csi.UnimplementedSnapshotMetadataServer

	blocks func(context.Context, *BlocksRequest) (*Blocks, error)
}

// GetMetadataAllocated streams which ranges of a snapshot are allocated (CSI v1.13, "GetMetadataAllocated").
func (m *metadata) GetMetadataAllocated(req *csi.GetMetadataAllocatedRequest, stream csi.SnapshotMetadata_GetMetadataAllocatedServer) error {
	asked := &BlocksRequest{Snapshot: req.GetSnapshotId(), Offset: req.GetStartingOffset(), Secrets: req.GetSecrets()}
	return m.stream(stream.Context(), asked, req.GetMaxResults(), required("snapshot_id", asked.Snapshot), func(b *Blocks, list []*csi.BlockMetadata) error {
		return stream.Send(&csi.GetMetadataAllocatedResponse{BlockMetadataType: b.kind(), VolumeCapacityBytes: b.VolumeSize, BlockMetadata: list})
	})
}

// GetMetadataDelta streams which ranges of a snapshot differ from those of an earlier one (CSI v1.13, "GetMetadataDelta").
func (m *metadata) GetMetadataDelta(req *csi.GetMetadataDeltaRequest, stream csi.SnapshotMetadata_GetMetadataDeltaServer) error {
	asked := &BlocksRequest{Snapshot: req.GetTargetSnapshotId(), Base: req.GetBaseSnapshotId(), Offset: req.GetStartingOffset(), Secrets: req.GetSecrets()}
	invalid := errors.Join(required("target_snapshot_id", asked.Snapshot), required("base_snapshot_id", asked.Base))
	return m.stream(stream.Context(), asked, req.GetMaxResults(), invalid, func(b *Blocks, list []*csi.BlockMetadata) error {
		return stream.Send(&csi.GetMetadataDeltaResponse{BlockMetadataType: b.kind(), VolumeCapacityBytes: b.VolumeSize, BlockMetadata: list})
	})
}

// stream sends all ranges. A stream that is not complete ends with an error, as its end tells the CO that it has received everything
// (CSI v1.13, "Special considerations for processing a snapshot metadata gRPC stream").
func (m *metadata) stream(ctx context.Context, asked *BlocksRequest, most int32, invalid error, send func(*Blocks, []*csi.BlockMetadata) error) error {
	if most < 0 {
		invalid = errors.Join(invalid, fmt.Errorf("max_results: %d, must not be negative: %w", most, ErrInvalid))
	}
	if asked.Offset < 0 {
		invalid = errors.Join(invalid, fmt.Errorf("starting_offset: %d, must not be negative: %w", asked.Offset, ErrInvalid))
	}
	if invalid != nil {
		return statusOf(invalid, asked.Secrets)
	}
	found, err := m.blocks(ctx, asked)
	if err != nil {
		return statusOf(err, asked.Secrets)
	}
	if asked.Offset > found.VolumeSize {
		return status.Errorf(codes.OutOfRange, "starting_offset: %d is beyond the %d bytes of the volume", asked.Offset, found.VolumeSize)
	}
	limit := mostRanges
	if most > 0 {
		limit = min(limit, int(most))
	}
	return statusOf(found.send(ctx, asked.Offset, limit, send), asked.Secrets)
}

// send sends the ranges that are not before an offset, in messages. Without ranges one message carries the size nevertheless.
func (b *Blocks) send(ctx context.Context, offset int64, limit int, send func(*Blocks, []*csi.BlockMetadata) error) error {
	var list []*csi.BlockMetadata
	sent := false
	for r, err := range b.Ranges {
		if err != nil {
			return err
		}
		for piece := range b.pieces(r, offset) {
			list = append(list, piece)
			if len(list) < limit && piece.GetByteOffset()+piece.GetSizeBytes()-list[0].GetByteOffset() < widestMessage {
				continue
			}
			if err := send(b, list); err != nil {
				return err
			}
			list, sent = nil, true
		}
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	if sent && len(list) == 0 {
		return nil
	}
	return send(b, list)
}

// kind is what the pieces of ranges are.
func (b *Blocks) kind() csi.BlockMetadataType {
	if b.BlockSize > 0 {
		return csi.BlockMetadataType_FIXED_LENGTH
	}
	return csi.BlockMetadataType_VARIABLE_LENGTH
}

// pieces yields the part of a range that is not before an offset, or its blocks that are not.
func (b *Blocks) pieces(r BlockRange, offset int64) iter.Seq[*csi.BlockMetadata] {
	start, end := r.Offset, r.Offset+r.Size
	step := end - max(start, offset)
	if b.BlockSize > 0 {
		step = b.BlockSize
		offset -= offset % step
	}
	return func(yield func(*csi.BlockMetadata) bool) {
		for at := max(start, offset); at < end; at += step {
			if !yield(&csi.BlockMetadata{ByteOffset: at, SizeBytes: step}) {
				return
			}
		}
	}
}
