package csiclient

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"k8s.io/klog/v2"

	"github.com/longshore-csi/longshore/csikit/logging"
	"github.com/longshore-csi/longshore/csikit/outcome"
)

// errNotReady is what a driver means that answers Probe with ready=false.
var errNotReady = errors.New("driver answers that it is not ready yet")

// Probe asks the driver once, within Config.Timeout, whether it is ready. A
// reply that leaves "ready" open means yes. CSI spec v1.13, "Probe".
func (c *Client) Probe(ctx context.Context) (bool, error) {
	reply, err := ask(ctx, c, c.Identity().Probe, &csi.ProbeRequest{})
	if err != nil {
		return false, fmt.Errorf("probe the CSI driver at %q: %w", c.cfg.Address, err)
	}
	return reply.GetReady() == nil || reply.GetReady().GetValue(), nil
}

// Ready asks like Probe, and says what keeps the driver from being ready; nil
// when it is.
func (c *Client) Ready(ctx context.Context) error {
	ready, err := c.Probe(ctx)
	if err == nil && !ready {
		return errNotReady
	}
	return err
}

// Wait returns when the driver is ready and its name and capabilities have
// been read. It probes again after each Config.Poll as long as the driver is
// absent, slow, unhealthy or not ready, and logs what it waits for. It ends
// with an error when ctx does, or when the driver answers what waiting cannot
// cure, such as an invalid name.
func (c *Client) Wait(ctx context.Context) (*Info, error) {
	logger := klog.FromContext(ctx).WithValues(logging.KeyAddress, c.cfg.Address)
	start := time.Now()
	logged := start
	for attempt := 1; ; attempt++ {
		info, err := c.tryRead(ctx)
		if err == nil {
			logger.Info("CSI driver is ready", logging.KeyDriver, info.Name, logging.KeyVersion, info.Version)
			return info, nil
		}
		if ctx.Err() == nil && !worthWaiting(err) {
			return nil, err
		}
		if now := time.Now(); attempt == 1 || now.Sub(logged) >= c.cfg.LogEvery {
			logged = now
			logger.Info("Waiting for the CSI driver", logging.KeyDuration, now.Sub(start), logging.KeyReason, outcome.Message(err))
		}
		if !pause(ctx, c.cfg.Poll) {
			return nil, fmt.Errorf("wait for the CSI driver at %q: %w (last answer: %s)", c.cfg.Address, context.Cause(ctx), outcome.Message(err))
		}
	}
}

// tryRead probes once and reads the driver's Info if it is ready.
func (c *Client) tryRead(ctx context.Context) (*Info, error) {
	if err := c.Ready(ctx); err != nil {
		return nil, err
	}
	// Counted before reading, so that a driver that restarts meanwhile makes
	// Run read again what may be half old and half new.
	dials := c.dials.Load()
	info, err := c.read(ctx)
	if err != nil {
		return nil, err
	}
	c.readAt.Store(dials)
	c.info.Store(info)
	return info, nil
}

// worthWaiting reports whether the driver may become ready by itself.
// FAILED_PRECONDITION is how a driver says that it is not healthy (CSI spec
// v1.13, "Probe Errors").
func worthWaiting(err error) bool {
	if errors.Is(err, errNotReady) {
		return true
	}
	switch outcome.Code(err) {
	case codes.Unavailable, codes.DeadlineExceeded, codes.FailedPrecondition:
		return true
	default:
		return false
	}
}

// pause waits for d and reports whether ctx is still going on.
func pause(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return ctx.Err() == nil
	}
}
