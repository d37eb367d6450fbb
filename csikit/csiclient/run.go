package csiclient

import (
	"context"
	"errors"

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
// It ends early with ErrConnectionLost (see Config.ExitOnLoss), or with the
// error of a driver that came back unusable. A driver in the same process
// cannot be lost.
func (c *Client) Run(ctx context.Context, onChange func(*Info)) error {
	if c.conn == nil {
		<-ctx.Done()
		return nil
	}
	for ctx.Err() == nil {
		state := c.conn.GetState()
		known := c.info.Load() != nil
		switch {
		case state == connectivity.Shutdown:
			return nil
		case known && c.cfg.ExitOnLoss && (state != connectivity.Ready || c.stale()):
			return ErrConnectionLost
		case state == connectivity.Ready && c.stale():
			if err := c.reread(ctx, onChange); err != nil {
				return err
			}
			continue // the state may have changed meanwhile
		case state == connectivity.Idle:
			if known {
				klog.FromContext(ctx).Info("Connection to the CSI driver is lost", logging.KeyAddress, c.cfg.Address)
			}
			c.conn.Connect()
		}
		c.conn.WaitForStateChange(ctx, state)
	}
	return nil
}

// stale reports whether the connection is a newer one than the Info.
func (c *Client) stale() bool { return c.dials.Load() != c.readAt.Load() }

func (c *Client) reread(ctx context.Context, onChange func(*Info)) error {
	info, err := c.Wait(ctx)
	if ctx.Err() != nil {
		return nil
	}
	if err != nil {
		return err
	}
	if onChange != nil {
		onChange(info)
	}
	return nil
}
