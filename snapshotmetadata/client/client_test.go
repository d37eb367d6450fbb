package client_test

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"

	"github.com/longshore-csi/longshore/snapshotmetadata/api"
	"github.com/longshore-csi/longshore/snapshotmetadata/client"
	"github.com/longshore-csi/longshore/snapshotmetadata/internal/certtest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const capacity = 100

// answer is what one stream has: ranges as pairs of offset and size, one message each, and how it ends.
type answer struct {
	ranges [][2]int64
	err    error
}

// service answers one stream after the other.
type service struct {
	api.UnimplementedSnapshotMetadataServer

	mu      sync.Mutex
	answers []answer
	asked   []string
}

func (s *service) next(asked string) answer {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.asked = append(s.asked, asked)
	if len(s.answers) == 0 {
		return answer{err: status.Error(codes.Internal, "no more answers")}
	}
	a := s.answers[0]
	s.answers = s.answers[1:]
	return a
}

// GetMetadataAllocated implements api.SnapshotMetadataServer.
func (s *service) GetMetadataAllocated(req *api.GetMetadataAllocatedRequest, stream grpc.ServerStreamingServer[api.GetMetadataAllocatedResponse]) error {
	a := s.next(fmt.Sprintf("%s %s/%s from %d most %d", req.GetSecurityToken(), req.GetNamespace(), req.GetSnapshotName(), req.GetStartingOffset(), req.GetMaxResults()))
	for _, r := range a.ranges {
		if err := stream.Send(&api.GetMetadataAllocatedResponse{VolumeCapacityBytes: capacity, BlockMetadata: []*api.BlockMetadata{{ByteOffset: r[0], SizeBytes: r[1]}}}); err != nil {
			return err
		}
	}
	return a.err
}

// GetMetadataDelta implements api.SnapshotMetadataServer.
func (s *service) GetMetadataDelta(req *api.GetMetadataDeltaRequest, stream grpc.ServerStreamingServer[api.GetMetadataDeltaResponse]) error {
	a := s.next(fmt.Sprintf("%s %s/%s since %s from %d", req.GetSecurityToken(), req.GetNamespace(), req.GetTargetSnapshotName(), req.GetBaseSnapshotId(), req.GetStartingOffset()))
	for _, r := range a.ranges {
		if err := stream.Send(&api.GetMetadataDeltaResponse{VolumeCapacityBytes: capacity, BlockMetadata: []*api.BlockMetadata{{ByteOffset: r[0], SizeBytes: r[1]}}}); err != nil {
			return err
		}
	}
	return a.err
}

// start serves and returns a client; each stream has a token of its own.
func start(t *testing.T, s *service, cfg client.Config) *client.Client {
	t.Helper()
	pair := certtest.New(t)
	cert, err := tls.LoadX509KeyPair(pair.Cert, pair.Key)
	if err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer(grpc.Creds(credentials.NewServerTLSFromCert(&cert)))
	api.RegisterSnapshotMetadataServer(server, s)
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	cfg.Address, cfg.CACert, cfg.RetryStart = listener.Addr().String(), pair.CA(), time.Millisecond
	tokens := 0
	if cfg.Token == nil {
		cfg.Token = func(context.Context) (string, error) {
			tokens++
			return fmt.Sprintf("token-%d", tokens), nil
		}
	}
	c, err := client.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		server.Stop()
		if err := errors.Join(c.Close(), <-served); err != nil {
			t.Error(err)
		}
	})
	return c
}

// TestIterate joins streams.
func TestIterate(t *testing.T) {
	lost, late := status.Error(codes.Unavailable, "lost"), status.Error(codes.DeadlineExceeded, "late")
	all := [][2]int64{{0, 10}, {20, 10}, {50, 5}}
	tests := map[string]struct {
		reason  string
		answers []answer
		want    [][2]int64
		offsets []int64 // of each stream
		code    codes.Code
		words   string
	}{
		"One":          {reason: "nothing happens", answers: []answer{{ranges: all}}, want: all, offsets: []int64{0}},
		"None":         {reason: "a snapshot without data", answers: []answer{{}}, offsets: []int64{0}},
		"Interrupted":  {reason: "continued behind the last range", answers: []answer{{all[:1], lost}, {all[1:2], late}, {ranges: all[2:]}}, want: all, offsets: []int64{0, 10, 30}},
		"Refused":      {reason: "the service has too many streams", answers: []answer{{err: status.Error(codes.ResourceExhausted, "busy")}, {ranges: all}}, want: all, offsets: []int64{0, 0}},
		"Overlap":      {reason: "a service may answer with the range that the offset is in", answers: []answer{{all[:2], lost}, {ranges: [][2]int64{{20, 40}}}}, want: [][2]int64{{0, 10}, {20, 10}, {30, 30}}, offsets: []int64{0, 30}},
		"Repeated":     {reason: "what has come is left out", answers: []answer{{all[:2], lost}, {ranges: all}}, want: all, offsets: []int64{0, 30}},
		"Complete":     {reason: "the last range has come", answers: []answer{{[][2]int64{{0, capacity}}, lost}}, want: [][2]int64{{0, capacity}}, offsets: []int64{0}},
		"NoProgress":   {reason: "a service that never answers", answers: []answer{{err: lost}, {err: lost}, {err: lost}}, offsets: []int64{0, 0, 0}, code: codes.Unavailable, words: "read the blocks from offset 0: "},
		"SomeProgress": {reason: "only failures without progress count", answers: []answer{{err: lost}, {err: lost}, {all[:1], lost}, {err: lost}, {ranges: all[1:]}}, want: all, offsets: []int64{0, 0, 0, 10, 10}},
		"Denied":       {reason: "another try would end alike", answers: []answer{{all[:1], status.Error(codes.PermissionDenied, "no")}}, want: all[:1], offsets: []int64{0}, code: codes.PermissionDenied, words: "offset 10"},
		"Disorder":     {reason: "ranges would be missing", answers: []answer{{ranges: [][2]int64{{20, 10}, {0, 10}}}}, want: [][2]int64{{20, 10}}, offsets: []int64{0}, code: codes.Internal, words: "ranges must be in order"},
		"Empty":        {reason: "not a range", answers: []answer{{ranges: [][2]int64{{20, 0}}}}, offsets: []int64{0}, code: codes.Internal, words: "offset 20 with size 0"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			s := &service{answers: tt.answers}
			c := start(t, s, client.Config{Attempts: 3, MaxResults: 7})
			var got [][2]int64
			var last error
			for blocks, err := range c.Allocated(t.Context(), client.Snapshot{Namespace: "shop", Name: "monday"}) {
				if last = err; err == nil && blocks.Capacity != capacity {
					t.Errorf("capacity %d", blocks.Capacity)
				}
				for _, r := range blocks.Ranges {
					got = append(got, [2]int64{r.Offset, r.Size})
				}
			}
			if status.Code(last) != tt.code || !strings.Contains(fmt.Sprint(last), tt.words) || !slices.Equal(got, tt.want) {
				t.Errorf("%s: got %v, error %v, want %v, %s with %q", tt.reason, got, last, tt.want, tt.code, tt.words)
			}
			var asked []string
			for i, offset := range tt.offsets {
				asked = append(asked, fmt.Sprintf("token-%d shop/monday from %d most 7", i+1, offset))
			}
			if !slices.Equal(s.asked, asked) {
				t.Errorf("%s: asked %q, want %q", tt.reason, s.asked, asked)
			}
		})
	}
}

// TestTokenFails asks again for a token, as an API server may be restarting.
func TestTokenFails(t *testing.T) {
	for name, failures := range map[string]int{"Once": 1, "Always": 3} {
		t.Run(name, func(t *testing.T) {
			asked := 0
			c := start(t, &service{answers: []answer{{ranges: [][2]int64{{0, capacity}}}}}, client.Config{Attempts: 3, Token: func(context.Context) (string, error) {
				if asked++; asked <= failures {
					return "", errors.New("connection refused")
				}
				return "token", nil
			}})
			var last error
			for _, err := range c.Allocated(t.Context(), client.Snapshot{Namespace: "shop", Name: "monday"}) {
				last = err
			}
			if failed := last != nil; failed != (failures == 3) || failed && !strings.Contains(last.Error(), "get a token: connection refused") {
				t.Errorf("after %d failures: %v", failures, last)
			}
		})
	}
}

// TestChanged continues a delta.
func TestChanged(t *testing.T) {
	s := &service{answers: []answer{{[][2]int64{{0, 10}}, status.Error(codes.Aborted, "again")}, {ranges: [][2]int64{{90, 10}}}}}
	c := start(t, s, client.Config{})
	var sum int64
	for blocks, err := range c.Changed(t.Context(), "handle", client.Snapshot{Namespace: "shop", Name: "tuesday"}) {
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range blocks.Ranges {
			sum += r.Size
		}
	}
	want := []string{"token-1 shop/tuesday since handle from 0", "token-2 shop/tuesday since handle from 10"}
	if sum != 20 || !slices.Equal(s.asked, want) {
		t.Errorf("%d bytes, asked %q", sum, s.asked)
	}
}

// TestEnds ends iterations early: by the consumer, by the context, and for want of a token.
func TestEnds(t *testing.T) {
	endless := func() *service {
		return &service{answers: []answer{{[][2]int64{{0, 10}}, status.Error(codes.Unavailable, "lost")}, {err: status.Error(codes.Unavailable, "lost")}}}
	}
	monday := client.Snapshot{Namespace: "shop", Name: "monday"}
	t.Run("Consumer", func(t *testing.T) {
		s := endless()
		for range start(t, s, client.Config{}).Allocated(t.Context(), monday) {
			break
		}
		if len(s.asked) != 1 {
			t.Errorf("asked %q", s.asked)
		}
	})
	t.Run("Context", func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		var last error
		for _, err := range start(t, endless(), client.Config{}).Allocated(ctx, monday) {
			cancel()
			last = err
		}
		if last == nil {
			t.Error("an iteration that was cancelled looks complete")
		}
	})
	t.Run("NoToken", func(t *testing.T) {
		expired := errors.New("expired")
		c := start(t, endless(), client.Config{Token: func(context.Context) (string, error) { return "", expired }})
		for _, err := range c.Allocated(t.Context(), monday) {
			if !errors.Is(err, expired) {
				t.Errorf("got %v", err)
			}
		}
	})
}

// TestConfig reports everything that is wrong at once.
func TestConfig(t *testing.T) {
	_, err := client.New(client.Config{Address: "host", CACert: []byte("x"), MaxResults: -1, Attempts: -1, RetryStart: time.Second, RetryMax: time.Millisecond})
	for _, words := range []string{`address "host": must be host:port`, "token: must be set", "maximum number of results -1", "number of attempts -1", "retry intervals 1s and 1ms", "CA certificate: must be PEM"} {
		if err == nil || !strings.Contains(err.Error(), words) {
			t.Errorf("got %v, want %q", err, words)
		}
	}
}
