package grpcapi

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/longshore-csi/longshore/csikit/csiserver"
	"github.com/longshore-csi/longshore/hostpathdriver/internal/extent"
	"github.com/longshore-csi/longshore/hostpathdriver/internal/volume"
)

const block = volume.BlockSize

// metadataEntry is a BlockMetadata that can be compared.
type metadataEntry struct{ Offset, Size int64 }

// metadataMessage is a response to either request.
type metadataMessage struct {
	kind     csi.BlockMetadataType
	capacity int64
	entries  []metadataEntry
}

// metadataResponse is what both responses have.
type metadataResponse interface {
	GetBlockMetadataType() csi.BlockMetadataType
	GetVolumeCapacityBytes() int64
	GetBlockMetadata() []*csi.BlockMetadata
}

// receiveMetadata reads a stream to its end; the end that is not clean is an error.
func receiveMetadata[R metadataResponse](next func() (R, error)) ([]metadataMessage, error) {
	var list []metadataMessage
	for {
		r, err := next()
		if errors.Is(err, io.EOF) {
			return list, nil
		}
		if err != nil {
			return list, err
		}
		m := metadataMessage{kind: r.GetBlockMetadataType(), capacity: r.GetVolumeCapacityBytes()}
		for _, b := range r.GetBlockMetadata() {
			m.entries = append(m.entries, metadataEntry{b.GetByteOffset(), b.GetSizeBytes()})
		}
		list = append(list, m)
	}
}

// metadataServer is a process with the service, and a client of it.
type metadataServer struct {
	t      *testing.T
	client csi.SnapshotMetadataClient
	// ended has how each call ended, as the server sees it.
	ended chan error
}

// limitedStream has the deadline of a test.
type limitedStream struct {
	grpc.ServerStream
	ctx context.Context
}

func (l limitedStream) Context() context.Context { return l.ctx }

func serveMetadata(t *testing.T, cfg MetadataConfig, timeout time.Duration) *metadataServer {
	t.Helper()
	s := &metadataServer{t: t, ended: make(chan error, 100)}
	server, err := csiserver.Listen(csiserver.Config{
		Endpoint: filepath.Join(t.TempDir(), "csi.sock"),
		StreamInterceptors: []grpc.StreamServerInterceptor{
			func(srv any, stream grpc.ServerStream, _ *grpc.StreamServerInfo, handle grpc.StreamHandler) error {
				if timeout > 0 {
					ctx, cancel := context.WithTimeout(stream.Context(), timeout)
					defer cancel()
					stream = limitedStream{ServerStream: stream, ctx: ctx}
				}
				err := handle(srv, stream)
				s.ended <- err
				return err
			},
		},
	}, NewMetadata(cfg).Register)
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.WithoutCancel(t.Context()))
	served := make(chan error, 1)
	go func() { served <- server.Run(ctx) }()
	conn, err := grpc.NewClient("unix:"+server.Addr(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		conn.Close()
		stop()
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
	s.client = csi.NewSnapshotMetadataClient(conn)
	return s
}

func (s *metadataServer) allocated(req *csi.GetMetadataAllocatedRequest) ([]metadataMessage, error) {
	s.t.Helper()
	stream, err := s.client.GetMetadataAllocated(s.t.Context(), req)
	if err != nil {
		s.t.Fatal(err)
	}
	return receiveMetadata(stream.Recv)
}

func (s *metadataServer) delta(req *csi.GetMetadataDeltaRequest) ([]metadataMessage, error) {
	s.t.Helper()
	stream, err := s.client.GetMetadataDelta(s.t.Context(), req)
	if err != nil {
		s.t.Fatal(err)
	}
	return receiveMetadata(stream.Recv)
}

const diskSize = 64 * block

// metadataDisks are files with the snapshots of the tests: "base" and "target", which
// has blocks 1, 2, 3 and 63 and shares the first of them, "empty", and those
// that have no metadata.
func metadataDisks(t *testing.T) volume.MetadataService {
	t.Helper()
	dir := t.TempDir()
	all := map[volume.ID]*volume.SnapshotDisk{}
	for id, blocks := range map[volume.ID][]int64{"base": {1}, "target": {1, 2, 3, 63}, "empty": nil, "other": nil, "tree": nil, "filling": nil} {
		file, err := os.Create(filepath.Join(dir, string(id)))
		if err != nil {
			t.Fatal(err)
		}
		err = file.Truncate(diskSize)
		for _, b := range blocks {
			_, failed := file.WriteAt(bytes.Repeat([]byte{1}, int(block)), b*block)
			err = errors.Join(err, failed)
		}
		if err = errors.Join(err, file.Close()); err != nil {
			t.Fatal(err)
		}
		all[id] = &volume.SnapshotDisk{ID: id, Volume: "v", Path: file.Name(), Size: diskSize}
	}
	all["other"].Volume, all["tree"].Path, all["filling"].Filling = "w", "", true
	return extent.Source{Disk: func(_ context.Context, id volume.ID) (*volume.SnapshotDisk, error) {
		if d := all[id]; d != nil {
			return d, nil
		}
		return nil, volume.ErrNotFound
	}}
}

func TestMetadataStreams(t *testing.T) {
	service := metadataDisks(t)
	fixed, variable := csi.BlockMetadataType_FIXED_LENGTH, csi.BlockMetadataType_VARIABLE_LENGTH
	cases := map[string]struct {
		reason       string
		variable     bool
		base, target string // without base: what is allocated
		offset       int64
		most         int32
		want         []metadataMessage
	}{
		"Fixed":         {reason: "one entry for each block", target: "target", want: []metadataMessage{{fixed, diskSize, []metadataEntry{{block, block}, {2 * block, block}, {3 * block, block}, {63 * block, block}}}}},
		"Variable":      {reason: "ranges as they are", variable: true, target: "target", want: []metadataMessage{{variable, diskSize, []metadataEntry{{block, 3 * block}, {63 * block, block}}}}},
		"Empty":         {reason: "the capacity is told nevertheless", target: "empty", want: []metadataMessage{{fixed, diskSize, nil}}},
		"EmptyVariable": {reason: "and the style", variable: true, target: "empty", want: []metadataMessage{{variable, diskSize, nil}}},
		"End":           {reason: "who goes on after the last block has received everything", target: "target", offset: diskSize, want: []metadataMessage{{fixed, diskSize, nil}}},
		"Unaligned":     {reason: "from the block of the offset on", target: "target", offset: 4*block - 1, want: []metadataMessage{{fixed, diskSize, []metadataEntry{{3 * block, block}, {63 * block, block}}}}},
		"UnalignedCut":  {reason: "no earlier part of the range", variable: true, target: "target", offset: 2*block + 1, want: []metadataMessage{{variable, diskSize, []metadataEntry{{2 * block, 2 * block}, {63 * block, block}}}}},
		"One":           {reason: "one entry in each message", target: "target", most: 1, want: []metadataMessage{{fixed, diskSize, []metadataEntry{{block, block}}}, {fixed, diskSize, []metadataEntry{{2 * block, block}}}, {fixed, diskSize, []metadataEntry{{3 * block, block}}}, {fixed, diskSize, []metadataEntry{{63 * block, block}}}}},
		"Three":         {reason: "the last one has the rest", target: "target", most: 3, want: []metadataMessage{{fixed, diskSize, []metadataEntry{{block, block}, {2 * block, block}, {3 * block, block}}}, {fixed, diskSize, []metadataEntry{{63 * block, block}}}}},
		"Exact":         {reason: "no empty message follows", variable: true, target: "target", most: 2, want: []metadataMessage{{variable, diskSize, []metadataEntry{{block, 3 * block}, {63 * block, block}}}}},
		"Delta":         {reason: "what is not in the base", base: "base", target: "target", want: []metadataMessage{{fixed, diskSize, []metadataEntry{{2 * block, block}, {3 * block, block}, {63 * block, block}}}}},
		"DeltaVariable": {reason: "ranges as they are", variable: true, base: "base", target: "target", most: 1, want: []metadataMessage{{variable, diskSize, []metadataEntry{{2 * block, 2 * block}}}, {variable, diskSize, []metadataEntry{{63 * block, block}}}}},
		"DeltaNothing":  {reason: "the capacity is told nevertheless", base: "target", target: "target", want: []metadataMessage{{fixed, diskSize, nil}}},
		"DeltaOffset":   {reason: "from the block of the offset on", base: "base", target: "target", offset: 3*block + 5, want: []metadataMessage{{fixed, diskSize, []metadataEntry{{3 * block, block}, {63 * block, block}}}}},
	}
	servers := map[bool]*metadataServer{}
	for _, v := range []bool{false, true} {
		servers[v] = serveMetadata(t, MetadataConfig{Service: service, VariableLength: v}, 0)
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			var got []metadataMessage
			var err error
			if c.base == "" {
				got, err = servers[c.variable].allocated(&csi.GetMetadataAllocatedRequest{
					SnapshotId: c.target, StartingOffset: c.offset, MaxResults: c.most, Secrets: map[string]string{"token": "x"},
				})
			} else {
				got, err = servers[c.variable].delta(&csi.GetMetadataDeltaRequest{
					BaseSnapshotId: c.base, TargetSnapshotId: c.target, StartingOffset: c.offset, MaxResults: c.most, Secrets: map[string]string{"token": "x"},
				})
			}
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(c.want, got, cmp.AllowUnexported(metadataMessage{})); diff != "" {
				t.Errorf("%s (-want +got):\n%s", c.reason, diff)
			}
		})
	}
}

func TestMetadataErrors(t *testing.T) {
	s := serveMetadata(t, MetadataConfig{Service: metadataDisks(t)}, 0)
	cases := map[string]struct {
		reason       string
		base, target string
		offset       int64
		most         int32
		want         codes.Code
	}{
		"Missing":  {reason: "snapshot_id is required", base: "base", target: "", want: codes.InvalidArgument},
		"Path":     {reason: "an id that is no name of a file", base: "base", target: "../target", want: codes.InvalidArgument},
		"Unknown":  {reason: "no such snapshot", base: "base", target: "none", want: codes.NotFound},
		"Tree":     {reason: "no blocks in a directory", base: "base", target: "tree", want: codes.InvalidArgument},
		"Filling":  {reason: "not complete", base: "base", target: "filling", want: codes.FailedPrecondition},
		"Negative": {reason: "the specification names this code", base: "base", target: "target", offset: -1, want: codes.OutOfRange},
		"Beyond":   {reason: "the specification names this code", base: "base", target: "target", offset: diskSize + 1, want: codes.OutOfRange},
		"Results":  {reason: "no list is shorter than empty", base: "base", target: "target", most: -1, want: codes.InvalidArgument},
	}
	deltaOnly := map[string]struct {
		reason, base string
		want         codes.Code
	}{
		"Missing": {reason: "base_snapshot_id is required", base: "", want: codes.InvalidArgument},
		"Path":    {reason: "an id that is no name of a file", base: "/", want: codes.InvalidArgument},
		"Unknown": {reason: "no such snapshot", base: "none", want: codes.NotFound},
		"Other":   {reason: "another volume", base: "other", want: codes.InvalidArgument},
		"Tree":    {reason: "no blocks in a directory", base: "tree", want: codes.InvalidArgument},
		"Filling": {reason: "not complete", base: "filling", want: codes.FailedPrecondition},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			got, err := s.allocated(&csi.GetMetadataAllocatedRequest{SnapshotId: c.target, StartingOffset: c.offset, MaxResults: c.most})
			wantCode(t, c.reason+", allocated", err, c.want)
			more, err := s.delta(&csi.GetMetadataDeltaRequest{BaseSnapshotId: c.base, TargetSnapshotId: c.target, StartingOffset: c.offset, MaxResults: c.most})
			wantCode(t, c.reason+", delta", err, c.want)
			if len(got)+len(more) > 0 {
				t.Errorf("%s: messages before the error: %v %v", c.reason, got, more)
			}
		})
	}
	for name, c := range deltaOnly {
		t.Run("Base"+name, func(t *testing.T) {
			_, err := s.delta(&csi.GetMetadataDeltaRequest{BaseSnapshotId: c.base, TargetSnapshotId: "target"})
			wantCode(t, c.reason, err, c.want)
		})
	}
}

// scripted is a backend whose extents are those of a function.
type scripted func(ctx context.Context, offset int64, yield func(volume.Extent, error) bool)

func (s scripted) metadata(ctx context.Context, offset int64) (*volume.Metadata, error) {
	return &volume.Metadata{
		Capacity: 1 << 40,
		Extents:  func(yield func(volume.Extent, error) bool) { s(ctx, offset, yield) },
	}, nil
}

func (s scripted) Allocated(ctx context.Context, req *volume.AllocatedRequest) (*volume.Metadata, error) {
	return s.metadata(ctx, req.Offset)
}

func (s scripted) Delta(ctx context.Context, req *volume.DeltaRequest) (*volume.Metadata, error) {
	return s.metadata(ctx, req.Offset)
}

// TestInterruptedMetadataEndWithAnError: upstream ends the stream as if it was
// complete when the context ends.
func TestInterruptedMetadataEndWithAnError(t *testing.T) {
	first := volume.Extent{Length: block}
	waits := func(ctx context.Context, _ int64, yield func(volume.Extent, error) bool) {
		if yield(first, nil) {
			<-ctx.Done()
			yield(volume.Extent{}, ctx.Err())
		}
	}
	forgets := func(ctx context.Context, _ int64, yield func(volume.Extent, error) bool) {
		if yield(first, nil) {
			<-ctx.Done() // and the backend takes that for the end
		}
	}
	breaks := func(_ context.Context, _ int64, yield func(volume.Extent, error) bool) {
		if yield(first, nil) {
			yield(volume.Extent{}, errors.New("read: input/output error"))
		}
	}
	panics := func(_ context.Context, _ int64, yield func(volume.Extent, error) bool) {
		yield(first, nil)
		panic("bug")
	}
	cases := map[string]struct {
		reason  string
		script  scripted
		timeout time.Duration // of the server; without one the client cancels
		want    codes.Code
	}{
		"Cancelled":         {reason: "the CO gives up", script: waits, want: codes.Canceled},
		"CancelledSilently": {reason: "a careless backend", script: forgets, want: codes.Canceled},
		"Deadline":          {reason: "the time is over", script: waits, timeout: time.Millisecond, want: codes.DeadlineExceeded},
		"DeadlineSilently":  {reason: "a careless backend", script: forgets, timeout: time.Millisecond, want: codes.DeadlineExceeded},
		"Failed":            {reason: "the disk is broken", script: breaks, timeout: time.Hour, want: codes.Internal},
		"Panicked":          {reason: "a bug", script: panics, timeout: time.Hour, want: codes.Internal},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			s := serveMetadata(t, MetadataConfig{Service: c.script}, c.timeout)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			allocated, err := s.client.GetMetadataAllocated(ctx, &csi.GetMetadataAllocatedRequest{SnapshotId: "s", MaxResults: 1})
			if err != nil {
				t.Fatal(err)
			}
			delta, err := s.client.GetMetadataDelta(ctx, &csi.GetMetadataDeltaRequest{BaseSnapshotId: "b", TargetSnapshotId: "s", MaxResults: 1})
			if err != nil {
				t.Fatal(err)
			}
			for _, recv := range []func() (metadataResponse, error){
				func() (metadataResponse, error) { return allocated.Recv() },
				func() (metadataResponse, error) { return delta.Recv() },
			} {
				if got, err := recv(); err != nil || len(got.GetBlockMetadata()) != 1 {
					t.Fatalf("%s: first message: %v, %v", c.reason, got, err)
				}
			}
			if c.timeout == 0 {
				cancel()
			}
			_, err = receiveMetadata(allocated.Recv)
			wantCode(t, c.reason+", allocated", err, c.want)
			_, err = receiveMetadata(delta.Recv)
			wantCode(t, c.reason+", delta", err, c.want)
			if name == "Panicked" {
				return // the recovery is outside of the interceptor of this test
			}
			for range 2 {
				if err := <-s.ended; status.Code(err) != c.want {
					t.Errorf("%s: the server ended the call with %v", c.reason, err)
				}
			}
		})
	}
}

// TestMetadataGoOn: calls that break after each message, each beginning after
// the last block that was received, tell the same as one that does not break.
func TestMetadataGoOn(t *testing.T) {
	whole := metadataDisks(t)
	s := serveMetadata(t, MetadataConfig{Service: whole}, 0)
	uninterrupted, err := s.delta(&csi.GetMetadataDeltaRequest{BaseSnapshotId: "base", TargetSnapshotId: "target"})
	if err != nil {
		t.Fatal(err)
	}
	broken := errors.New("broken")
	breaking := serveMetadata(t, MetadataConfig{Service: scripted(func(ctx context.Context, offset int64, yield func(volume.Extent, error) bool) {
		m, err := whole.Delta(ctx, &volume.DeltaRequest{Base: "base", Target: "target", Offset: offset})
		if err != nil {
			yield(volume.Extent{}, err)
			return
		}
		for e, err := range m.Extents {
			e.Length = block
			if yield(e, err) {
				yield(volume.Extent{}, broken)
			}
			return
		}
	})}, 0)
	var got []metadataEntry
	offset := int64(0)
	for range len(uninterrupted[0].entries) {
		list, err := breaking.delta(&csi.GetMetadataDeltaRequest{BaseSnapshotId: "base", TargetSnapshotId: "target", StartingOffset: offset, MaxResults: 1})
		wantCode(t, "broken", err, codes.Internal)
		for _, m := range list {
			got = append(got, m.entries...)
		}
		offset = got[len(got)-1].Offset + got[len(got)-1].Size
	}
	if diff := cmp.Diff(uninterrupted[0].entries, got); diff != "" {
		t.Errorf("entries (-want +got):\n%s", diff)
	}
}

// TestMetadataMessagesAreBounded in entries, whatever the CO allows, and in how
// much of the disk they cover.
func TestMetadataMessagesAreBounded(t *testing.T) {
	const apart = 300 << 20
	dense := scripted(func(_ context.Context, _ int64, yield func(volume.Extent, error) bool) {
		yield(volume.Extent{Length: 2*mostResults*block + block}, nil)
	})
	thin := scripted(func(_ context.Context, _ int64, yield func(volume.Extent, error) bool) {
		for i := range int64(10) {
			if !yield(volume.Extent{Offset: i * apart, Length: block}, nil) {
				return
			}
		}
	})
	cases := map[string]struct {
		reason string
		script scripted
		most   int32
		want   []int // entries of each message
	}{
		"Default":  {reason: "the choice of the driver", script: dense, want: []int{mostResults, mostResults, 1}},
		"Greedy":   {reason: "less than allowed", script: dense, most: 1 << 30, want: []int{mostResults, mostResults, 1}},
		"Thin":     {reason: "1 GiB is covered by five", script: thin, want: []int{5, 5}},
		"ThinOnes": {reason: "what the CO wants", script: thin, most: 4, want: []int{4, 4, 2}},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			s := serveMetadata(t, MetadataConfig{Service: c.script}, 0)
			list, err := s.allocated(&csi.GetMetadataAllocatedRequest{SnapshotId: "s", MaxResults: c.most})
			if err != nil {
				t.Fatal(err)
			}
			var got []int
			var all []metadataEntry
			for _, m := range list {
				got = append(got, len(m.entries))
				all = append(all, m.entries...)
			}
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Errorf("%s (-want +got):\n%s", c.reason, diff)
			}
			for i := 1; i < len(all); i++ {
				if all[i-1].Offset+all[i-1].Size > all[i].Offset {
					t.Fatalf("%s: %v comes after %v", c.reason, all[i], all[i-1])
				}
			}
		})
	}
}
