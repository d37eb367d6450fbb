package service

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/longshore-csi/longshore/snapshotmetadata/api"
)

// ranges makes a message of the driver from pairs of offset and size.
func ranges(pairs ...int64) *csi.GetMetadataDeltaResponse {
	m := &csi.GetMetadataDeltaResponse{BlockMetadataType: csi.BlockMetadataType_VARIABLE_LENGTH, VolumeCapacityBytes: 100}
	for i := 0; i < len(pairs); i += 2 {
		m.BlockMetadata = append(m.BlockMetadata, &csi.BlockMetadata{ByteOffset: pairs[i], SizeBytes: pairs[i+1]})
	}
	return m
}

// play returns the source of some messages, and of an error after them.
func play(end error, messages ...*csi.GetMetadataDeltaResponse) source {
	return func() (message, error) {
		if len(messages) == 0 {
			return nil, end
		}
		m := messages[0]
		messages = messages[1:]
		return m, nil
	}
}

func TestRelay(t *testing.T) {
	lost := status.Error(codes.Unavailable, "lost")
	tests := map[string]struct {
		reason     string
		offset     int64
		maxResults int
		source     source
		openErr    error
		want       string // offset+size of the blocks, answers in brackets
		code       codes.Code
		words      string
	}{
		"All":            {reason: "messages are passed on one by one", source: play(io.EOF, ranges(0, 10, 20, 5), ranges(30, 10)), want: "[0+10 20+5] [30+10]"},
		"Nothing":        {reason: "a snapshot without blocks", source: play(io.EOF), want: ""},
		"CapacityAlone":  {reason: "a message without blocks has the capacity", source: play(io.EOF, ranges()), want: "[]"},
		"MaxResults":     {reason: "the driver ignores max_results", maxResults: 2, source: play(io.EOF, ranges(0, 1, 1, 1, 2, 1, 3, 1, 4, 1)), want: "[0+1 1+1] [2+1 3+1] [4+1]"},
		"StartingOffset": {reason: "what the client has is left out, and what it has a part of is not", offset: 15, source: play(io.EOF, ranges(0, 10, 10, 5), ranges(12, 8, 20, 5)), want: "[] [12+8 20+5]"},
		"Disorder":       {reason: "across messages, too", source: play(io.EOF, ranges(10, 10), ranges(5, 5)), want: "[10+10]", code: codes.Internal, words: "offset 5, after a block that ends at 20: blocks must be in order and not overlap"},
		"Overlap":        {reason: "within a message", source: play(io.EOF, ranges(10, 10, 19, 5)), code: codes.Internal, words: "offset 19"},
		"Empty":          {reason: "size_bytes MUST be greater than zero", source: play(io.EOF, ranges(10, 0)), code: codes.Internal, words: "offset 10 with size 0"},
		"Negative":       {reason: "no such position", source: play(io.EOF, ranges(-1, 5)), code: codes.Internal, words: "offset -1"},
		"Overflow":       {reason: "the end would be negative", source: play(io.EOF, ranges(1<<62, 1<<62)), code: codes.Internal, words: "the offset must not be negative, and the size be positive"},
		"Lost":           {reason: "what came before is not lost", source: play(lost, ranges(0, 10)), want: "[0+10]", code: codes.Unavailable, words: `CSI driver "d": lost`},
		"NotOpened":      {reason: "the driver is not there", openErr: lost, code: codes.Unavailable, words: `CSI driver "d": lost`},
		"NotGRPC":        {reason: "the error of a context", source: play(errors.New("odd")), code: codes.Internal, words: "odd"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			var answers []string
			r := relay{driver: "d", end: tt.offset, maxResults: tt.maxResults}
			err := r.run(func() (source, error) { return tt.source, tt.openErr }, func(b batch) error {
				if b.capacity != 100 || b.kind != api.BlockMetadataType_VARIABLE_LENGTH {
					t.Errorf("capacity %d, kind %s", b.capacity, b.kind)
				}
				var blocks []string
				for _, block := range b.blocks {
					blocks = append(blocks, fmt.Sprintf("%d+%d", block.GetByteOffset(), block.GetSizeBytes()))
				}
				answers = append(answers, "["+strings.Join(blocks, " ")+"]")
				return nil
			})
			if got := strings.Join(answers, " "); got != tt.want {
				t.Errorf("%s: sent %s, want %s", tt.reason, got, tt.want)
			}
			if status.Code(err) != tt.code || !strings.Contains(status.Convert(err).Message(), tt.words) {
				t.Errorf("%s: got %v, want %s with %q", tt.reason, err, tt.code, tt.words)
			}
		})
	}
}

// TestRelayLarge cuts the largest messages of a driver into answers that every client can read.
func TestRelayLarge(t *testing.T) {
	const blocks, size = 3*maxBlocks/2 + 1, 1 << 40
	m := ranges()
	for n := range int64(blocks) {
		m.BlockMetadata = append(m.BlockMetadata, &csi.BlockMetadata{ByteOffset: n * size, SizeBytes: size})
	}
	var got []int
	r := relay{driver: "d"}
	err := r.run(func() (source, error) { return play(io.EOF, m), nil }, func(b batch) error {
		got = append(got, len(b.blocks))
		const readable = 4 << 20 // by a gRPC client without options
		if encoded := proto.Size(&api.GetMetadataDeltaResponse{BlockMetadataType: b.kind, VolumeCapacityBytes: b.capacity, BlockMetadata: b.blocks}); encoded > readable {
			t.Errorf("an answer has %d bytes", encoded)
		}
		return nil
	})
	if want := []int{maxBlocks, blocks - maxBlocks}; err != nil || !slices.Equal(got, want) {
		t.Errorf("answers of %v blocks, want %v, error %v", got, want, err)
	}
}

// TestRelayStops ends with the client.
func TestRelayStops(t *testing.T) {
	gone := errors.New("gone")
	r := relay{driver: "d"}
	err := r.run(func() (source, error) { return play(io.EOF, ranges(0, 1), ranges(1, 1)), nil }, func(batch) error { return gone })
	if !errors.Is(err, gone) || r.driverErr != nil {
		t.Errorf("got %v, and the driver's error %v", err, r.driverErr)
	}
}
