package csiclient

import (
	"context"
	"net"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/connectivity"
)

// A driver may be lost and connected again between the moment at which Run reads the state and the moment at which it begins to wait
// for a change of it, or while it waits: the state is the same, and the driver another one.
func TestReconnectionIsNoticedWithoutAChangeOfState(t *testing.T) {
	tests := map[string]struct {
		reason string
		dials  func(ctx context.Context, c *Client, wait func())
	}{
		"Before": {reason: "the connection was made before the wait", dials: func(_ context.Context, c *Client, wait func()) {
			c.dialed(nil)
			wait()
		}},
		"During": {reason: "the connection is made during the wait", dials: func(ctx context.Context, c *Client, wait func()) {
			done := make(chan struct{})
			go func() {
				defer close(done)
				wait()
			}()
			for c.wake.Load() == nil && ctx.Err() == nil {
				time.Sleep(time.Millisecond)
			}
			c.dialed(nil)
			<-done
		}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
			defer cancel()
			c := ready(ctx, t)
			test.dials(ctx, c, func() { c.waitForStateChange(ctx, connectivity.Ready) })
			if ctx.Err() != nil || c.conn.GetState() != connectivity.Ready || !c.stale() {
				t.Errorf("%s: the wait ended with %v, state %v, stale %t, want its end by the connection", test.reason, ctx.Err(), c.conn.GetState(), c.stale())
			}
		})
	}
}

// Run may see the state "connecting" just after Wait has read the Info over that connection: it ended, for a loss that there was not.
func TestOnlyALossEndsRun(t *testing.T) {
	for state, want := range map[connectivity.State]bool{
		connectivity.Connecting: false, connectivity.Ready: false, connectivity.Idle: true, connectivity.TransientFailure: true,
	} {
		c := ready(t.Context(), t)
		c.info.Store(&Info{})
		if c.mustExit(state) {
			t.Errorf("state %v: a loss ends Run although Config.ExitOnLoss is not set", state)
		}
		c.cfg.ExitOnLoss = true
		if got := c.mustExit(state); got != want {
			t.Errorf("state %v: loss %t, want %t", state, got, want)
		}
		if c.dialed(nil); !c.mustExit(state) {
			t.Errorf("state %v: another connection is no loss", state)
		}
	}
}

// ready returns a client whose connection is made, and known to Run.
func ready(ctx context.Context, t *testing.T) *Client {
	t.Helper()
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(server.Stop)
	c, err := New(Config{Address: "tcp://" + listener.Addr().String()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	c.conn.Connect()
	for state := c.conn.GetState(); state != connectivity.Ready; state = c.conn.GetState() {
		if !c.conn.WaitForStateChange(ctx, state) {
			t.Fatalf("the connection is %v: %v", state, ctx.Err())
		}
	}
	c.readAt.Store(c.dials.Load())
	return c
}
