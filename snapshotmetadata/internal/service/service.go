package service

import (
	"context"
	"fmt"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	authenticationv1 "k8s.io/api/authentication/v1"

	"github.com/longshore-csi/longshore/snapshotmetadata/api"
	"github.com/longshore-csi/longshore/snapshotmetadata/internal/snapshot"
)

// Access decides who may read the metadata of a snapshot.
type Access interface {
	// User returns the user whose token it is.
	User(ctx context.Context, token string) (*authenticationv1.UserInfo, error)
	// Check returns nil if the user may get the VolumeSnapshot.
	Check(ctx context.Context, user *authenticationv1.UserInfo, namespace, name string) error
}

// Finder finds the driver's snapshot behind a VolumeSnapshot.
type Finder interface {
	Find(ctx context.Context, namespace, name string) (*snapshot.Snapshot, error)
}

// Config of a service. All fields are required.
type Config struct {
	// Driver is the name of the driver.
	Driver string
	// CSI calls the driver.
	CSI csi.SnapshotMetadataClient
	// Ready returns why the driver cannot be called, or nil.
	Ready func(context.Context) error
	// Access and Finder answer before the driver is called, within KubeTimeout each.
	Access Access
	Finder Finder
	// KubeTimeout is the deadline of the reviews of a call, and again of finding its snapshot, with the question to the driver whether it is ready.
	KubeTimeout time.Duration
	// RequestTimeout is how long the request of a stream may take to arrive; 0: 30 s.
	RequestTimeout time.Duration
	// MaxStreaming is the longest duration of a stream.
	MaxStreaming time.Duration
	// Drain is how long streams may go on when the service ends.
	Drain time.Duration
	// MaxStreams and MaxStreamsPerUser are how many streams there may be at a time.
	MaxStreams, MaxStreamsPerUser int
	// Metrics measures calls.
	Metrics *Metrics
}

// Service implements api.SnapshotMetadataServer.
type Service struct {
	api.UnimplementedSnapshotMetadataServer

	cfg   Config
	limit limit
	// reviews has an element for each call whose user is being asked for.
	reviews chan struct{}
}

// maxReviews is how many calls may ask the API server about their users at a time.
const maxReviews = 50

var _ api.SnapshotMetadataServer = (*Service)(nil)

// New returns a service.
func New(cfg Config) *Service {
	return &Service{cfg: cfg, limit: limit{total: cfg.MaxStreams, perUser: cfg.MaxStreamsPerUser, byUser: map[string]int{}}, reviews: make(chan struct{}, maxReviews)}
}

// Streams returns how many streams each user has now.
func (s *Service) Streams() map[string]int { return s.limit.users() }

// call is a request in the terms of Kubernetes.
type call struct {
	operation                  string
	token, namespace, snapshot string
	offset                     int64
	maxResults                 int32
	// open calls the driver.
	open func(ctx context.Context, found *snapshot.Snapshot) (source, error)
	// send answers.
	send func(batch) error
}

// GetMetadataAllocated implements api.SnapshotMetadataServer.
func (s *Service) GetMetadataAllocated(req *api.GetMetadataAllocatedRequest, stream grpc.ServerStreamingServer[api.GetMetadataAllocatedResponse]) error {
	return s.serve(stream.Context(), call{
		operation: OperationAllocated, token: req.GetSecurityToken(), namespace: req.GetNamespace(), snapshot: req.GetSnapshotName(),
		offset: req.GetStartingOffset(), maxResults: req.GetMaxResults(),
		open: func(ctx context.Context, found *snapshot.Snapshot) (source, error) {
			from, err := s.cfg.CSI.GetMetadataAllocated(ctx, &csi.GetMetadataAllocatedRequest{
				SnapshotId: found.Handle, StartingOffset: req.GetStartingOffset(), MaxResults: req.GetMaxResults(), Secrets: found.Secrets,
			}, grpc.MaxCallRecvMsgSize(maxDriverMessage))
			return func() (message, error) { return from.Recv() }, err
		},
		send: func(b batch) error {
			return stream.Send(&api.GetMetadataAllocatedResponse{BlockMetadataType: b.kind, VolumeCapacityBytes: b.capacity, BlockMetadata: b.blocks})
		},
	})
}

// GetMetadataDelta implements api.SnapshotMetadataServer.
func (s *Service) GetMetadataDelta(req *api.GetMetadataDeltaRequest, stream grpc.ServerStreamingServer[api.GetMetadataDeltaResponse]) error {
	if req.GetBaseSnapshotId() == "" {
		return invalid("base_snapshot_id", "", "must be the CSI handle of a snapshot")
	}
	return s.serve(stream.Context(), call{
		operation: OperationDelta, token: req.GetSecurityToken(), namespace: req.GetNamespace(), snapshot: req.GetTargetSnapshotName(),
		offset: req.GetStartingOffset(), maxResults: req.GetMaxResults(),
		open: func(ctx context.Context, found *snapshot.Snapshot) (source, error) {
			from, err := s.cfg.CSI.GetMetadataDelta(ctx, &csi.GetMetadataDeltaRequest{
				BaseSnapshotId: req.GetBaseSnapshotId(), TargetSnapshotId: found.Handle,
				StartingOffset: req.GetStartingOffset(), MaxResults: req.GetMaxResults(), Secrets: found.Secrets,
			}, grpc.MaxCallRecvMsgSize(maxDriverMessage))
			return func() (message, error) { return from.Recv() }, err
		},
		send: func(b batch) error {
			return stream.Send(&api.GetMetadataDeltaResponse{BlockMetadataType: b.kind, VolumeCapacityBytes: b.capacity, BlockMetadata: b.blocks})
		},
	})
}

// serve answers a call: the error has the code for the client.
func (s *Service) serve(ctx context.Context, c call) error {
	if err := c.validate(); err != nil {
		return err
	}
	user, err := s.authorize(ctx, c)
	if err != nil {
		return statusOf(err)
	}
	leave, err := s.limit.enter(user)
	if err != nil {
		return statusOf(err)
	}
	defer leave()
	found, err := s.find(ctx, c)
	if err != nil {
		return statusOf(err)
	}
	return s.stream(ctx, c, found)
}

// authorize returns the name of the user, who may get the VolumeSnapshot. Calls of unknown users wait for each other: they ask no more of the API
// server at a time, and keep out no one else for long.
func (s *Service) authorize(ctx context.Context, c call) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, s.cfg.KubeTimeout)
	defer cancel()
	select {
	case s.reviews <- struct{}{}:
		defer func() { <-s.reviews }()
	case <-ctx.Done():
		return "", fmt.Errorf("wait for the token and access reviews of other calls: %w", ctx.Err())
	}
	user, err := s.cfg.Access.User(ctx, c.token)
	if err != nil {
		return "", err
	}
	return user.Username, s.cfg.Access.Check(ctx, user, c.namespace, c.snapshot)
}

// find returns the snapshot of a driver that is ready.
func (s *Service) find(ctx context.Context, c call) (*snapshot.Snapshot, error) {
	ctx, cancel := context.WithTimeout(ctx, s.cfg.KubeTimeout)
	defer cancel()
	if err := s.cfg.Ready(ctx); err != nil {
		return nil, fmt.Errorf("CSI driver %q is not ready: %w", s.cfg.Driver, err)
	}
	return s.cfg.Finder.Find(ctx, c.namespace, c.snapshot)
}

// stream passes on what the driver streams, until it has sent all or the context ends.
func (s *Service) stream(ctx context.Context, c call, found *snapshot.Snapshot) error {
	ctx, cancel := context.WithCancel(ctx) // of the driver's stream, whatever ends ours
	defer cancel()
	done := s.cfg.Metrics.began(c.operation)
	r := relay{driver: s.cfg.Driver, maxResults: int(c.maxResults), end: c.offset}
	err := r.run(func() (source, error) { return c.open(ctx, found) }, func(b batch) error {
		if err := c.send(b); err != nil {
			return err
		}
		s.cfg.Metrics.sent(c.operation, b)
		return nil
	})
	done(r.driverErr)
	return err
}
