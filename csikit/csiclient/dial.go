package csiclient

import (
	"context"
	"fmt"
	"math"
	"net"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/insecure"
)

// Dial prepares a connection to the driver at address, which has one of the
// forms of Config.Address. As that of a Client, it is made by the first call,
// made again within about a second once a lost driver is back, and kept when
// idle. connected, if not nil, is called each time that it was made, before
// anything is sent over it.
//
// It is for callers that watch the connection itself; they give it to New as
// Config.Conn, and close it. Other callers need New alone.
func Dial(address string, connected func()) (*grpc.ClientConn, error) {
	return dial(address, func(err error) {
		if err == nil && connected != nil {
			connected()
		}
	})
}

// dial is Dial; dialed is called with the result of each attempt to connect.
func dial(address string, dialed func(error)) (*grpc.ClientConn, error) {
	to, err := parseAddress(address)
	if err != nil {
		return nil, err
	}
	dialer := func(ctx context.Context, _ string) (net.Conn, error) {
		var d net.Dialer
		nc, err := d.DialContext(ctx, to.network, to.address)
		if err != nil && to.network == "unix" {
			err = explainDenied(err, to.address)
		}
		dialed(err)
		return nc, err
	}
	opts := []grpc.DialOption{
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(dialer),
		grpc.WithAuthority("localhost"),
		// An idle connection would be closed and made again, and what was
		// read from the driver be read again for nothing.
		grpc.WithIdleTimeout(0),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: 100 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: time.Second},
			MinConnectTimeout: 5 * time.Second,
		}),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxReply), grpc.MaxCallSendMsgSize(math.MaxInt32)),
		grpc.WithDisableServiceConfig(),
	}
	// The target is opaque to gRPC, so that no character of the path is read
	// as part of a URL; the dialer knows the real address.
	conn, err := grpc.NewClient("passthrough:///driver", opts...)
	if err != nil {
		return nil, fmt.Errorf("prepare connection to CSI driver at %q: %w", address, err)
	}
	return conn, nil
}
