package csiclient

import (
	"context"
	"errors"
	"time"

	"google.golang.org/grpc/connectivity"
	"k8s.io/klog/v2"

	"github.com/longshore-csi/longshore/csikit/logging"
)

// ErrConnectionLost is what Run returns when Config.ExitOnLoss is set and the
// driver has closed the connection.
var ErrConnectionLost = errors.New("connection to the CSI driver is lost")

// Run watches the connection until ctx ends, which is no error. When the
// driver has come back after a loss, it reads the driver's name and
// capabilities again and calls onChange (which may be nil) with them. If Wait
// was not called before, the first connection counts as such a change.
//
// onAway (which may be nil) is called when a driver that was ready before does
// not accept connections any more, once until onChange is called. A driver that
// has made the connection again at once was not away.
//
// It ends early with ErrConnectionLost (see Config.ExitOnLoss), or with the
// error of a driver that came back unusable. A driver in the same process
// cannot be lost.
func (c *Client) Run(ctx context.Context, onAway func(), onChange func(*Info)) error {
	if c.conn == nil {
		<-ctx.Done()
		return nil
	}
	absence := absence{log: WaitLog{Every: c.cfg.LogEvery}, report: onAway}
	for ctx.Err() == nil {
		state := c.conn.GetState()
		switch {
		case state == connectivity.Shutdown:
			return nil
		case c.mustExit(state):
			return ErrConnectionLost
		case state == connectivity.Ready && (c.stale() || absence.reported):
			if err := c.reread(ctx, onChange); err != nil {
				return err
			}
			absence.reported = false
			continue // the state may have changed meanwhile
		case state == connectivity.Idle:
			c.redial(ctx)
		case state == connectivity.TransientFailure:
			c.reportUnreachable(ctx, &absence)
		}
		c.waitForStateChange(ctx, state)
	}
	return nil
}

// absence is what Run reports of a driver that does not accept connections.
type absence struct {
	log WaitLog
	// report, which may be nil, is called once.
	report   func()
	reported bool
}

// waitForStateChange returns when the connection has left state, or another
// one is made, and at the latest when the next log line about it may be due.
func (c *Client) waitForStateChange(ctx context.Context, state connectivity.State) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	c.wake.Store(&cancel)
	if state == connectivity.TransientFailure {
		defer time.AfterFunc(min(c.cfg.LogEvery, minLogGap), cancel).Stop()
	}
	// A call may have lost one connection and made another since state was
	// read, which is ready again: that is no change of state.
	if state != connectivity.Ready || !c.stale() {
		c.conn.WaitForStateChange(ctx, state)
	}
}

// reportUnreachable logs why the driver cannot be reached, and reports that it is away.
func (c *Client) reportUnreachable(ctx context.Context, absence *absence) {
	if err := c.unreachable.Load(); err != nil && absence.log.Due((*err).Error()) {
		klog.FromContext(ctx).Info("Waiting for the CSI driver", logging.KeyAddress, c.cfg.Address, logging.KeyReason, (*err).Error())
	}
	if absence.reported || c.info.Load() == nil {
		return
	}
	absence.reported = true
	if absence.report != nil {
		absence.report()
	}
}

// mustExit reports whether the connection that the Info was read from is lost, and that is fatal. "Connecting" does not show a
// loss: gRPC lets calls use a new connection a moment before it reports that the connection is ready.
func (c *Client) mustExit(state connectivity.State) bool {
	lost := c.stale() || state == connectivity.Idle || state == connectivity.TransientFailure
	return lost && c.cfg.ExitOnLoss && c.info.Load() != nil
}

// redial connects, again if there was a connection.
func (c *Client) redial(ctx context.Context) {
	if c.info.Load() != nil {
		klog.FromContext(ctx).Info("Connection to the CSI driver is lost", logging.KeyAddress, c.cfg.Address)
	}
	c.conn.Connect()
}

// stale reports whether the connection is a newer one than the Info.
func (c *Client) stale() bool { return c.dials.Load() != c.readAt.Load() }

func (c *Client) reread(ctx context.Context, onChange func(*Info)) error {
	info, err := c.Wait(ctx)
	switch {
	case ctx.Err() != nil:
		return nil //nolint:nilerr // Wait has ended by the end of Run, which is no error
	case err != nil:
		return err
	case onChange != nil:
		onChange(info)
	}
	return nil
}
