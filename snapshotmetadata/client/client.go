package client

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"iter"
	"net"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/keepalive"

	"github.com/longshore-csi/longshore/snapshotmetadata/api"
)

const (
	// DefaultAttempts, DefaultRetryStart and DefaultRetryMax replace the zero values of Config.
	DefaultAttempts   = 8
	DefaultRetryStart = 500 * time.Millisecond
	DefaultRetryMax   = 30 * time.Second

	// maxReply is the largest message that is read, in bytes.
	maxReply = 16 << 20
	// pingAfter and pingTimeout find out that the service is gone without a word.
	pingAfter, pingTimeout = 30 * time.Second, 20 * time.Second
)

// Config says how to reach a service. Address, CACert and Token are required.
type Config struct {
	// Address is host:port: spec.address of the SnapshotMetadataService.
	Address string
	// CACert has the certificates that sign that of the service, PEM: spec.caCert.
	CACert []byte
	// Token returns a token of a service account for the audience of the service. It is called for each stream, as tokens expire;
	// an error of it is retried as one of the service.
	Token func(context.Context) (string, error)
	// MaxResults is the maximum number of ranges in one Blocks. 0: the service decides.
	MaxResults int32
	// Attempts is how many streams in a row may end without progress. Default 8.
	Attempts int
	// RetryStart is the pause after the first of them; it doubles up to RetryMax. Default 500 ms and 30 s.
	RetryStart, RetryMax time.Duration
}

func (cfg Config) withDefaults() Config {
	if cfg.Attempts == 0 {
		cfg.Attempts = DefaultAttempts
	}
	if cfg.RetryStart == 0 {
		cfg.RetryStart = DefaultRetryStart
	}
	if cfg.RetryMax == 0 {
		cfg.RetryMax = DefaultRetryMax
	}
	return cfg
}

func (cfg Config) validate() error {
	var errs []error
	if _, _, err := net.SplitHostPort(cfg.Address); err != nil {
		errs = append(errs, fmt.Errorf("address %q: must be host:port: %w", cfg.Address, err))
	}
	if cfg.Token == nil {
		errs = append(errs, errors.New("token: must be set"))
	}
	if cfg.MaxResults < 0 {
		errs = append(errs, fmt.Errorf("maximum number of results %d: must not be negative", cfg.MaxResults))
	}
	if cfg.Attempts < 0 {
		errs = append(errs, fmt.Errorf("number of attempts %d: must not be negative", cfg.Attempts))
	}
	if cfg.RetryStart < 0 || cfg.RetryMax < cfg.RetryStart {
		errs = append(errs, fmt.Errorf("retry intervals %v and %v: must not be negative, the second not less than the first", cfg.RetryStart, cfg.RetryMax))
	}
	return errors.Join(errs...)
}

// Snapshot names a VolumeSnapshot.
type Snapshot struct {
	Namespace, Name string
}

// Range is a part of a volume, in bytes.
type Range struct {
	Offset, Size int64
}

// Blocks are some of the ranges of a snapshot.
type Blocks struct {
	// Capacity is the size of the volume in bytes.
	Capacity int64
	// Ranges are in ascending order, also from one Blocks to the next, and do not overlap. There may be none.
	Ranges []Range
}

// Client is a connection to one service. It is safe for concurrent use.
type Client struct {
	cfg  Config
	conn *grpc.ClientConn
	api  api.SnapshotMetadataClient
}

// New checks cfg and returns a client. The connection is made by the first call.
func New(cfg Config) (*Client, error) {
	cfg = cfg.withDefaults()
	err := cfg.validate()
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(cfg.CACert) {
		err = errors.Join(err, errors.New("CA certificate: must be PEM with at least one certificate"))
	}
	if err != nil {
		return nil, err
	}
	conn, err := grpc.NewClient(cfg.Address,
		grpc.WithTransportCredentials(credentials.NewTLS(&tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12})),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: pingAfter, Timeout: pingTimeout}),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxReply)),
	)
	if err != nil {
		return nil, fmt.Errorf("prepare the connection to %q: %w", cfg.Address, err)
	}
	return &Client{cfg: cfg, conn: conn, api: api.NewSnapshotMetadataClient(conn)}, nil
}

// Close ends the connection. Iterations that are going on fail.
func (c *Client) Close() error { return c.conn.Close() }

// Allocated iterates over the ranges of a snapshot that hold data. The last element has an error if not all ranges have come; its gRPC code
// says why.
func (c *Client) Allocated(ctx context.Context, snapshot Snapshot) iter.Seq2[Blocks, error] {
	return c.iterate(ctx, func(ctx context.Context, token string, offset int64) (receiver, error) {
		stream, err := c.api.GetMetadataAllocated(ctx, &api.GetMetadataAllocatedRequest{
			SecurityToken: token, Namespace: snapshot.Namespace, SnapshotName: snapshot.Name, StartingOffset: offset, MaxResults: c.cfg.MaxResults,
		})
		return func() (reply, error) { return stream.Recv() }, err
	})
}

// Changed iterates over the ranges in which a snapshot differs from an earlier one of the same volume, whose CSI handle base is
// (status.snapshotHandle of its VolumeSnapshotContent). The last element has an error if not all ranges have come. With the code
// FAILED_PRECONDITION the driver has not tracked the changes: use Allocated.
func (c *Client) Changed(ctx context.Context, base string, target Snapshot) iter.Seq2[Blocks, error] {
	return c.iterate(ctx, func(ctx context.Context, token string, offset int64) (receiver, error) {
		stream, err := c.api.GetMetadataDelta(ctx, &api.GetMetadataDeltaRequest{
			SecurityToken: token, Namespace: target.Namespace, BaseSnapshotId: base, TargetSnapshotName: target.Name, StartingOffset: offset, MaxResults: c.cfg.MaxResults,
		})
		return func() (reply, error) { return stream.Recv() }, err
	})
}
