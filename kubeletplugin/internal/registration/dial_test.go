package registration

import (
	"context"
	"net"

	"google.golang.org/grpc/test/bufconn"
)

// dialer connects to listener, whatever the path.
func dialer(listener *bufconn.Listener) func(context.Context, string) (net.Conn, error) {
	return func(ctx context.Context, _ string) (net.Conn, error) { return listener.DialContext(ctx) }
}

// counting connects to the listener that choose returns.
func counting(choose func(context.Context) (*bufconn.Listener, error)) func(context.Context, string) (net.Conn, error) {
	return func(ctx context.Context, _ string) (net.Conn, error) {
		listener, err := choose(ctx)
		if err != nil {
			return nil, err
		}
		return listener.DialContext(ctx)
	}
}
