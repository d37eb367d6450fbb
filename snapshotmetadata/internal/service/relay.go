package service

import (
	"errors"
	"fmt"
	"io"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/longshore-csi/longshore/snapshotmetadata/api"
)

const (
	// maxDriverMessage is the largest message of the driver that is read, in bytes: some 700,000 blocks.
	maxDriverMessage = 16 << 20
	// maxBlocks is the largest number of blocks in one answer. Encoded, they stay below the 4 MiB that gRPC clients read by default.
	maxBlocks = 1 << 16
)

// message is what both methods of the driver stream.
type message interface {
	GetBlockMetadataType() csi.BlockMetadataType
	GetVolumeCapacityBytes() int64
	GetBlockMetadata() []*csi.BlockMetadata
}

// source returns the next message of the driver; io.EOF: there is none.
type source func() (message, error)

// batch is one answer.
type batch struct {
	kind     api.BlockMetadataType
	capacity int64
	blocks   []*api.BlockMetadata
}

// errOrder is the error for blocks that break the rules of CSI: a client that continues an interrupted stream relies on them.
var errOrder = errors.New("invalid block")

// relay passes on one stream. It holds one message of the driver at a time: the next is read when the client's flow control has taken the last.
type relay struct {
	driver     string
	maxResults int
	// end is where the last block ended, at first the starting offset.
	end int64
	// driverErr is what the driver's stream has ended with, if not with all blocks.
	driverErr error

	started bool // a block has come
}

// run opens the driver's stream and passes it on. The error has the code for the client.
func (r *relay) run(open func() (source, error), send func(batch) error) error {
	next, err := open()
	for err == nil {
		var m message
		if m, err = next(); err == nil {
			if sendErr := r.pass(m, send); sendErr != nil {
				return sendErr
			}
		}
	}
	if errors.Is(err, io.EOF) {
		return nil
	}
	r.driverErr = err
	return driverStatus(r.driver, err)
}

// pass sends a message, in several answers if it is larger than the client wants. A message without blocks has the capacity.
func (r *relay) pass(m message, send func(batch) error) error {
	blocks, err := r.convert(m.GetBlockMetadata())
	if err != nil {
		return status.Errorf(codes.Internal, "CSI driver %q: %v", r.driver, err)
	}
	most := maxBlocks
	if r.maxResults > 0 {
		most = min(most, r.maxResults)
	}
	for {
		n := min(most, len(blocks))
		// The numbers of the kinds are the same in both APIs.
		b := batch{kind: api.BlockMetadataType(m.GetBlockMetadataType()), capacity: m.GetVolumeCapacityBytes(), blocks: blocks[:n:n]}
		if err := send(b); err != nil {
			return err
		}
		if blocks = blocks[n:]; len(blocks) == 0 {
			return nil
		}
	}
}

// convert checks the blocks. Those that end before the starting offset are left out: the client has them.
func (r *relay) convert(list []*csi.BlockMetadata) ([]*api.BlockMetadata, error) {
	blocks := make([]*api.BlockMetadata, 0, len(list))
	for _, b := range list {
		offset, size := b.GetByteOffset(), b.GetSizeBytes()
		switch {
		case offset < 0 || size <= 0 || offset+size < 0:
			return nil, fmt.Errorf("%w: offset %d with size %d: the offset must not be negative, and the size be positive", errOrder, offset, size)
		case !r.started && offset+size <= r.end:
			continue
		case r.started && offset < r.end:
			return nil, fmt.Errorf("%w: offset %d, after a block that ends at %d: blocks must be in order and not overlap", errOrder, offset, r.end)
		}
		r.started, r.end = true, offset+size
		blocks = append(blocks, &api.BlockMetadata{ByteOffset: offset, SizeBytes: size})
	}
	return blocks, nil
}
