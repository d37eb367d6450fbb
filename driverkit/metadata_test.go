package driverkit_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"

	"github.com/longshore-csi/longshore/driverkit"
	"github.com/longshore-csi/longshore/driverkit/internal/testarray"
)

// tracked is a driver that knows the blocks of its snapshots.
type tracked struct {
	*testarray.Array

	size   int64
	ranges []driverkit.BlockRange
	// block is the size of the blocks to cut ranges in; 0 leaves them as they are.
	block int64
	// fails ends the ranges with an error.
	fails error
}

func (b tracked) Blocks(_ context.Context, req *driverkit.BlocksRequest) (*driverkit.Blocks, error) {
	if req.Snapshot != "snap-2" || req.Base != "" && req.Base != "snap-1" {
		return nil, fmt.Errorf("snapshots %q and %q: %w", req.Base, req.Snapshot, driverkit.ErrNotFound)
	}
	return &driverkit.Blocks{VolumeSize: b.size, BlockSize: b.block, Ranges: func(yield func(driverkit.BlockRange, error) bool) {
		for _, r := range b.ranges {
			if !yield(r, nil) {
				return
			}
		}
		if b.fails != nil {
			yield(driverkit.BlockRange{}, b.fails)
		}
	}}, nil
}

// read reads a stream, and returns its messages as text.
func read[M interface {
	GetVolumeCapacityBytes() int64
	GetBlockMetadata() []*csi.BlockMetadata
}](receive func() (M, error)) (string, error) {
	var text strings.Builder
	for {
		message, err := receive()
		if errors.Is(err, io.EOF) {
			return text.String(), nil
		}
		if err != nil {
			return text.String(), err
		}
		fmt.Fprintf(&text, "%d:", message.GetVolumeCapacityBytes())
		for _, b := range message.GetBlockMetadata() {
			fmt.Fprintf(&text, " %d+%d", b.GetByteOffset(), b.GetSizeBytes())
		}
		text.WriteString("\n")
	}
}

// TestBlockMetadata streams allocated and changed blocks.
func TestBlockMetadata(t *testing.T) {
	const size = 8 << 30
	some := []driverkit.BlockRange{{Offset: 0, Size: 4096}, {Offset: 8192, Size: 4096}, {Offset: 2 << 30, Size: 1 << 30}, {Offset: 4 << 30, Size: 1}}
	for name, tc := range map[string]struct {
		ranges []driverkit.BlockRange
		block  int64
		fails  error
		req    *csi.GetMetadataAllocatedRequest
		want   string
		code   codes.Code
	}{
		"All":          {ranges: some, req: &csi.GetMetadataAllocatedRequest{SnapshotId: "snap-2"}, want: "8589934592: 0+4096 8192+4096 2147483648+1073741824\n8589934592: 4294967296+1\n"},
		"Two":          {ranges: some[:3], req: &csi.GetMetadataAllocatedRequest{SnapshotId: "snap-2", MaxResults: 2}, want: "8589934592: 0+4096 8192+4096\n8589934592: 2147483648+1073741824\n"},
		"Offset":       {ranges: some[:2], req: &csi.GetMetadataAllocatedRequest{SnapshotId: "snap-2", StartingOffset: 9000}, want: "8589934592: 9000+3288\n"},
		"Blocks":       {ranges: some[1:2], block: 1024, req: &csi.GetMetadataAllocatedRequest{SnapshotId: "snap-2", MaxResults: 3}, want: "8589934592: 8192+1024 9216+1024 10240+1024\n8589934592: 11264+1024\n"},
		"BlockOffset":  {ranges: some[:2], block: 2048, req: &csi.GetMetadataAllocatedRequest{SnapshotId: "snap-2", StartingOffset: 11000}, want: "8589934592: 10240+2048\n"},
		"Nothing":      {req: &csi.GetMetadataAllocatedRequest{SnapshotId: "snap-2"}, want: "8589934592:\n"},
		"Fails":        {ranges: some[:1], fails: driverkit.ErrUnavailable, req: &csi.GetMetadataAllocatedRequest{SnapshotId: "snap-2"}, code: codes.Unavailable},
		"NoSnapshot":   {req: &csi.GetMetadataAllocatedRequest{}, code: codes.InvalidArgument},
		"NotFound":     {req: &csi.GetMetadataAllocatedRequest{SnapshotId: "snap-9"}, code: codes.NotFound},
		"Beyond":       {req: &csi.GetMetadataAllocatedRequest{SnapshotId: "snap-2", StartingOffset: size + 1}, code: codes.OutOfRange},
		"Negative":     {req: &csi.GetMetadataAllocatedRequest{SnapshotId: "snap-2", StartingOffset: -1}, code: codes.InvalidArgument},
		"NegativeMost": {req: &csi.GetMetadataAllocatedRequest{SnapshotId: "snap-2", MaxResults: -1}, code: codes.InvalidArgument},
	} {
		t.Run(name, func(t *testing.T) {
			b := prepareBench(t, nil)
			b.start(tracked{b.array, size, tc.ranges, tc.block, tc.fails})
			stream, err := b.GetMetadataAllocated(ctxOf(t), tc.req)
			if err != nil {
				t.Fatal(err)
			}
			got, err := read(stream.Recv)
			wantCode(t, "allocated", err, tc.code)
			if err == nil && got != tc.want {
				t.Errorf("allocated:\n%swant\n%s", got, tc.want)
			}
		})
	}
	for block, want := range map[int64]csi.BlockMetadataType{0: csi.BlockMetadataType_VARIABLE_LENGTH, 4096: csi.BlockMetadataType_FIXED_LENGTH} {
		b := prepareBench(t, nil)
		b.start(tracked{b.array, size, some[:1], block, nil})
		stream, err := b.GetMetadataAllocated(ctxOf(t), &csi.GetMetadataAllocatedRequest{SnapshotId: "snap-2"})
		if err != nil {
			t.Fatal(err)
		}
		if message, err := stream.Recv(); err != nil || message.GetBlockMetadataType() != want {
			t.Errorf("blocks of %d bytes: %v, %v, want type %v", block, message, err, want)
		}
	}
	b := prepareBench(t, nil)
	b.start(tracked{b.array, size, some[:1], 0, nil})
	for base, want := range map[string]codes.Code{"snap-1": codes.OK, "": codes.InvalidArgument, "snap-9": codes.NotFound} {
		stream, err := b.GetMetadataDelta(ctxOf(t), &csi.GetMetadataDeltaRequest{BaseSnapshotId: base, TargetSnapshotId: "snap-2"})
		if err != nil {
			t.Fatal(err)
		}
		message, err := stream.Recv()
		wantCode(t, "changed since "+base, err, want)
		if err == nil && (len(message.GetBlockMetadata()) != 1 || message.GetBlockMetadataType() != csi.BlockMetadataType_VARIABLE_LENGTH) {
			t.Errorf("changed: %v", message)
		}
	}
}
