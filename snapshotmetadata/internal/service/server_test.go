package service

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
	authenticationv1 "k8s.io/api/authentication/v1"
	"k8s.io/klog/v2"

	"github.com/longshore-csi/longshore/snapshotmetadata/api"
	"github.com/longshore-csi/longshore/snapshotmetadata/internal/certificate"
	"github.com/longshore-csi/longshore/snapshotmetadata/internal/certtest"
	"github.com/longshore-csi/longshore/snapshotmetadata/internal/snapshot"
)

// patience bounds what must happen at once, but may be slow.
const patience = 2 * time.Minute

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// everybody may do everything.
type everybody struct{}

// User implements Access.
func (everybody) User(context.Context, string) (*authenticationv1.UserInfo, error) {
	return &authenticationv1.UserInfo{Username: "somebody"}, nil
}

// Check implements Access.
func (everybody) Check(context.Context, *authenticationv1.UserInfo, string, string) error { return nil }

// find is a Finder.
type find func(ctx context.Context) (*snapshot.Snapshot, error)

// Find implements Finder.
func (f find) Find(ctx context.Context, _, _ string) (*snapshot.Snapshot, error) { return f(ctx) }

// endless is a driver whose snapshots have blocks without end.
type endless struct{ csi.SnapshotMetadataClient }

type endlessStream struct {
	grpc.ClientStream
	next int64
	ctx  context.Context
}

// GetMetadataAllocated implements csi.SnapshotMetadataClient.
func (endless) GetMetadataAllocated(ctx context.Context, _ *csi.GetMetadataAllocatedRequest, _ ...grpc.CallOption) (csi.SnapshotMetadata_GetMetadataAllocatedClient, error) {
	return &endlessStream{ctx: ctx}, nil
}

// Recv implements csi.SnapshotMetadata_GetMetadataAllocatedClient.
func (s *endlessStream) Recv() (*csi.GetMetadataAllocatedResponse, error) {
	if err := s.ctx.Err(); err != nil {
		return nil, status.FromContextError(err).Err()
	}
	m := &csi.GetMetadataAllocatedResponse{VolumeCapacityBytes: 1 << 60}
	for range 1000 {
		m.BlockMetadata = append(m.BlockMetadata, &csi.BlockMetadata{ByteOffset: s.next, SizeBytes: 1})
		s.next++
	}
	return m, nil
}

// serve runs a server until the test ends, and returns a client.
func serve(t *testing.T, cfg Config) api.SnapshotMetadataClient {
	t.Helper()
	return api.NewSnapshotMetadataClient(connect(t, cfg))
}

// connect runs a server until the test ends, and returns a connection.
func connect(t *testing.T, cfg Config) *grpc.ClientConn {
	t.Helper()
	if cfg.Access == nil {
		cfg.Access = everybody{}
	}
	cfg.Driver, cfg.KubeTimeout, cfg.Metrics = "d", patience, NewMetrics(prometheus.NewRegistry(), "d")
	cfg.Ready = func(context.Context) error { return nil }
	cfg.MaxStreams, cfg.MaxStreamsPerUser = max(cfg.MaxStreams, 1), 10
	pair := certtest.New(t)
	store, err := certificate.Load(certificate.Files{Cert: pair.Cert, Key: pair.Key}, klog.Background())
	if err != nil {
		t.Fatal(err)
	}
	config, err := certificate.Policy{}.Config(store)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	server, err := Listen(ctx, "127.0.0.1:0", config, New(cfg))
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- server.Run(ctx) }()
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(pair.CA())
	conn, err := grpc.NewClient(server.Addr(), grpc.WithTransportCredentials(credentials.NewTLS(&tls.Config{RootCAs: roots})))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cancel()
		if err := errors.Join(<-served, conn.Close()); err != nil {
			t.Error(err)
		}
	})
	return conn
}

func request() *api.GetMetadataAllocatedRequest {
	return &api.GetMetadataAllocatedRequest{SecurityToken: "t", Namespace: "shop", SnapshotName: "monday"}
}

// last reads a stream to its end.
func last(ctx context.Context, c api.SnapshotMetadataClient) error { return lastOf(ctx, c, "t") }

// lastOf does so with a token.
func lastOf(ctx context.Context, c api.SnapshotMetadataClient, token string) error {
	r := request()
	r.SecurityToken = token
	stream, err := c.GetMetadataAllocated(ctx, r)
	for err == nil {
		_, err = stream.Recv()
	}
	return err
}

// TestPanic answers a call that panics, and the next.
func TestPanic(t *testing.T) {
	c := serve(t, Config{MaxStreaming: patience, Finder: find(func(context.Context) (*snapshot.Snapshot, error) {
		var none *snapshot.Snapshot
		return &snapshot.Snapshot{Handle: none.Handle}, nil
	})})
	for range 2 {
		if err := last(t.Context(), c); status.Code(err) != codes.Internal || !strings.Contains(err.Error(), "csi-snapshot-metadata panicked") {
			t.Errorf("got %v", err)
		}
	}
}

// TestNoRight answers a call for which the service lacks a right with a code that clients do not retry.
func TestNoRight(t *testing.T) {
	c := serve(t, Config{MaxStreaming: patience, Finder: find(func(context.Context) (*snapshot.Snapshot, error) {
		return nil, fmt.Errorf("%w: get classes", snapshot.ErrNoRight)
	})})
	if err := last(t.Context(), c); status.Code(err) != codes.Internal || !strings.Contains(err.Error(), "csi-snapshot-metadata lacks a right: get classes") {
		t.Errorf("got %v", err)
	}
}

// TestDuration ends a stream that lasts too long: one whose client reads, one whose client does not read, and one that has not begun.
func TestDuration(t *testing.T) {
	found := find(func(context.Context) (*snapshot.Snapshot, error) { return &snapshot.Snapshot{Handle: "s"}, nil })
	const words = "lasts longer than --max-streaming-duration-min allows"
	check := func(t *testing.T, err error) {
		t.Helper()
		if status.Code(err) != codes.DeadlineExceeded || !strings.Contains(err.Error(), words) {
			t.Errorf("got %v", err)
		}
	}
	t.Run("Reading", func(t *testing.T) {
		check(t, last(t.Context(), serve(t, Config{MaxStreaming: 100 * time.Millisecond, CSI: endless{}, Finder: found})))
	})
	t.Run("NotReading", func(t *testing.T) {
		c := serve(t, Config{MaxStreaming: 100 * time.Millisecond, CSI: endless{}, Finder: found})
		deadline := time.Now().Add(patience)
		stream, err := c.GetMetadataAllocated(t.Context(), request())
		for {
			if err != nil {
				t.Fatal(err)
			}
			if _, err = stream.Recv(); err == nil {
				break
			}
			if time.Now().After(deadline) { // a stream that was too slow to begin has ended as it must
				t.Fatal(err)
			}
			stream, err = c.GetMetadataAllocated(t.Context(), request())
		}
		for { // the only place is free when the stream has ended
			if err := last(t.Context(), c); status.Code(err) != codes.ResourceExhausted {
				check(t, err)
				break
			}
			if time.Now().After(deadline) {
				t.Fatal("the stream has not ended")
			}
			time.Sleep(10 * time.Millisecond)
		}
		for err == nil {
			_, err = stream.Recv()
		}
		check(t, err)
	})
	t.Run("Searching", func(t *testing.T) {
		check(t, last(t.Context(), serve(t, Config{MaxStreaming: 100 * time.Millisecond, Finder: find(func(ctx context.Context) (*snapshot.Snapshot, error) {
			<-ctx.Done()
			return nil, ctx.Err()
		})})))
	})
}

// TestNoRequest opens streams and sends nothing: they end, those of the health service too.
func TestNoRequest(t *testing.T) {
	conn := connect(t, Config{MaxStreaming: patience, RequestTimeout: 20 * time.Millisecond})
	for _, method := range []string{api.SnapshotMetadata_GetMetadataAllocated_FullMethodName, healthv1.Health_Watch_FullMethodName} {
		stream, err := conn.NewStream(t.Context(), &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, method)
		if err != nil {
			t.Fatal(err)
		}
		if err := stream.RecvMsg(&healthv1.HealthCheckResponse{}); err == nil {
			t.Errorf("%s: got an answer to nothing", method)
		}
	}
}

// TestUnknownUsers has as many calls of unknown users as there may be streams, all of which the API server is slow to answer: others have streams.
func TestUnknownUsers(t *testing.T) {
	asked := make(chan struct{}, 1)
	c := serve(t, Config{MaxStreaming: patience, Access: slowFor{"stranger", asked}, Finder: find(func(context.Context) (*snapshot.Snapshot, error) { return nil, snapshot.ErrNotFound })})
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- lastOf(ctx, c, "stranger") }()
	<-asked
	if err := lastOf(t.Context(), c, "agent"); status.Code(err) != codes.NotFound {
		t.Errorf("got %v, want that there is no such snapshot", err)
	}
	cancel()
	<-ended
}

// slowFor never answers who has that token.
type slowFor struct {
	token string
	asked chan struct{}
}

// User implements Access.
func (s slowFor) User(ctx context.Context, token string) (*authenticationv1.UserInfo, error) {
	if token != s.token {
		return everybody{}.User(ctx, token)
	}
	s.asked <- struct{}{}
	<-ctx.Done()
	return nil, ctx.Err()
}

// Check implements Access.
func (s slowFor) Check(context.Context, *authenticationv1.UserInfo, string, string) error { return nil }

// TestTotalLimit refuses streams of users who may have them.
func TestTotalLimit(t *testing.T) {
	begun := make(chan struct{})
	c := serve(t, Config{MaxStreaming: patience, Finder: find(func(ctx context.Context) (*snapshot.Snapshot, error) {
		close(begun)
		<-ctx.Done()
		return nil, ctx.Err()
	})})
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- last(ctx, c) }()
	<-begun
	if err := last(t.Context(), c); status.Code(err) != codes.ResourceExhausted || !strings.Contains(err.Error(), "the service has 1, as --max-streams allows") {
		t.Errorf("got %v", err)
	}
	cancel()
	if err := <-ended; status.Code(err) != codes.Canceled {
		t.Errorf("got %v", err)
	}
}
