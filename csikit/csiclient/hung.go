package csiclient

import (
	"context"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/longshore-csi/longshore/csikit/outcome"
)

// hungPoll is how often a driver that does not answer is asked again.
const hungPoll = 10 * time.Second

// WatchHung follows whether the driver answers until ctx ends. After a call that has ended by its deadline it calls Probe; a driver that does not answer
// this either is hung: onHung is called once, with the error, and onBack when Probe is answered again, whatever the answer. As long as no call
// ends by its deadline, nothing is sent. It may be called once at a time.
func (c *Client) WatchHung(ctx context.Context, onHung func(error), onBack func()) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-c.late:
		}
		err := c.unanswered(ctx)
		if err == nil || ctx.Err() != nil {
			continue
		}
		onHung(err)
		for ; err != nil && ctx.Err() == nil; err = c.unanswered(ctx) {
			select {
			case <-ctx.Done():
			case <-time.After(hungPoll):
			}
		}
		if ctx.Err() == nil {
			onBack()
		}
	}
}

// unanswered calls Probe, and returns the error of a driver that does not answer. One that does not accept connections is away, which Run reports.
func (c *Client) unanswered(ctx context.Context) error {
	if _, err := c.Probe(ctx); outcome.FromDriver(err) && outcome.Code(err) == codes.DeadlineExceeded {
		return err
	}
	return nil
}

// noteLate notes calls that end by their deadlines, and has their errors say so as users understand it.
func (c *Client) noteLate(ctx context.Context, method string, req, reply any, conn *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	began := time.Now()
	err := invoke(ctx, method, req, reply, conn, opts...)
	if err == nil || outcome.Code(err) != codes.DeadlineExceeded {
		return err
	}
	if method != csi.Identity_Probe_FullMethodName {
		select {
		case c.late <- struct{}{}:
		default: // it is known
		}
	}
	if deadline, ok := ctx.Deadline(); ok && ctx.Err() != nil {
		return status.Errorf(codes.DeadlineExceeded, "no answer within %v", deadline.Sub(began).Round(time.Second))
	}
	return err
}
