package leader

import (
	"context"
	"net"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
)

// dial connects to the socket of the leader.
func (c *Candidate) dial(ctx context.Context, _ string) (net.Conn, error) {
	path, done, err := c.socket()
	if err != nil {
		return nil, err
	}
	defer done()
	return (&net.Dialer{}).DialContext(ctx, "unix", path)
}

// connectParams has a broken connection be dialed again at once: the calls wait between their attempts.
func connectParams() grpc.ConnectParams {
	const longest = time.Second
	return grpc.ConnectParams{Backoff: backoff.Config{BaseDelay: tryPeriod, Multiplier: 1, MaxDelay: tryPeriod}, MinConnectTimeout: longest}
}
