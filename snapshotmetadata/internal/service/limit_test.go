package service

import (
	"context"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	"github.com/longshore-csi/longshore/snapshotmetadata/api"
	"github.com/longshore-csi/longshore/snapshotmetadata/internal/snapshot"
)

// absent is a Finder that finds nothing.
func absent() Finder {
	return find(func(context.Context) (*snapshot.Snapshot, error) { return nil, snapshot.ErrNotFound })
}

// shortly returns a context that ends after a time in which an event that must not happen would have happened.
func shortly(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	t.Cleanup(cancel)
	return ctx
}

// silent opens a stream that sends no request.
func silent(ctx context.Context, conn *grpc.ClientConn, method string) (grpc.ClientStream, error) {
	return conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, method)
}

// TestSilentCalls ends the calls of every method whose request does not arrive.
func TestSilentCalls(t *testing.T) {
	conn := connect(t, Config{MaxStreaming: patience, RequestTimeout: 20 * time.Millisecond})
	for _, method := range []string{
		api.SnapshotMetadata_GetMetadataAllocated_FullMethodName, api.SnapshotMetadata_GetMetadataDelta_FullMethodName,
		healthv1.Health_Check_FullMethodName, healthv1.Health_List_FullMethodName, healthv1.Health_Watch_FullMethodName,
	} {
		// The client has no deadline of its own: DEADLINE_EXCEEDED is the server's.
		ctx, cancel := context.WithCancel(t.Context())
		timer := time.AfterFunc(patience, cancel)
		stream, err := silent(ctx, conn, method)
		if err == nil {
			err = stream.RecvMsg(&healthv1.HealthCheckResponse{})
		}
		if status.Code(err) != codes.DeadlineExceeded {
			t.Errorf("%s: got %v", method, err)
		}
		timer.Stop()
		cancel()
	}
}

// TestConnectionLimit has one connection with as many streams as it may have, none of which sends a request: it gets no more.
func TestConnectionLimit(t *testing.T) {
	conn := connect(t, Config{MaxStreaming: patience, Finder: absent(), RequestTimeout: patience})
	for i := range streamsPerConnection(1) {
		if _, err := silent(t.Context(), conn, api.SnapshotMetadata_GetMetadataAllocated_FullMethodName); err != nil {
			t.Fatalf("stream %d: %v", i, err)
		}
	}
	if _, err := silent(shortly(t), conn, api.SnapshotMetadata_GetMetadataAllocated_FullMethodName); status.Code(err) != codes.DeadlineExceeded {
		t.Errorf("one stream more: got %v, want that it waits", err)
	}
}

// TestReviewLimit has as many calls as may ask for their users at a time: the next call waits until one of them has its answer.
func TestReviewLimit(t *testing.T) {
	asked := make(chan struct{}, 2*maxReviews)
	s := New(Config{Access: slowFor{"stranger", asked}, KubeTimeout: patience, MaxStreams: 1, MaxStreamsPerUser: 1})
	authorize := func(ctx context.Context, token string) error {
		_, err := s.authorize(ctx, call{token: token, namespace: "shop", snapshot: "monday"})
		return err
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, maxReviews)
	for range maxReviews {
		go func() { ended <- authorize(ctx, "stranger") }()
		<-asked
	}
	if err := authorize(shortly(t), "agent"); err == nil || !strings.Contains(err.Error(), "wait for the token and access reviews of other calls") {
		t.Errorf("a call beyond the limit: got %v", err)
	}
	cancel()
	for range maxReviews {
		<-ended
	}
	if err := authorize(t.Context(), "agent"); err != nil {
		t.Errorf("a call after the others: got %v", err)
	}
}
