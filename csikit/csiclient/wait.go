package csiclient

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"k8s.io/klog/v2"

	"github.com/longshore-csi/longshore/csikit/logging"
	"github.com/longshore-csi/longshore/csikit/outcome"
)

// errNotReady is the error for a driver that answers Probe with ready=false.
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

// Ready calls Probe and returns why the driver is not ready, or nil if it is.
func (c *Client) Ready(ctx context.Context) error {
	ready, err := c.Probe(ctx)
	if err == nil && !ready {
		return errNotReady
	}
	return err
}

// Wait returns when the driver is ready and its name and capabilities have
// been read. It probes again after each Config.Poll as long as the driver is
// absent, slow, unhealthy or not ready, and logs why it waits. It ends
// with an error when ctx does, or when the driver's answer shows that waiting is
// useless, such as an invalid name. After a restart of a driver that was ready before, any
// error of a call counts as temporary. A driver that announces less than the same version of it
// before is asked ten times before that is believed.
func (c *Client) Wait(ctx context.Context) (*Info, error) {
	temporary := mayBecomeReady
	if c.info.Load() != nil {
		temporary = failedCall
	}
	logger := klog.FromContext(ctx).WithValues(logging.KeyAddress, c.cfg.Address)
	start, last := time.Now(), ""
	log := WaitLog{Every: c.cfg.LogEvery}
	for fewer := 0; ; {
		info, err := c.tryRead(ctx, fewer >= confirmations)
		if errors.Is(err, errFewer) {
			fewer++
		} else {
			fewer = 0
		}
		switch {
		case err == nil:
			logger.Info("CSI driver is ready", logging.KeyDriver, info.Name, logging.KeyVersion, info.Version)
			return info, nil
		case ctx.Err() != nil: // err may be the end of ctx, and no answer
			last = cmp.Or(last, outcome.Message(err))
		case !temporary(err):
			return nil, err
		default:
			last = outcome.Message(err)
			if log.Due(last) {
				logger.Info("Waiting for the CSI driver", logging.KeyDuration, time.Since(start), logging.KeyReason, last)
			}
		}
		if !pause(ctx, c.cfg.Poll) {
			return nil, fmt.Errorf("wait for the CSI driver at %q: %w (last answer: %s)", c.cfg.Address, context.Cause(ctx), last)
		}
	}
}

// minLogGap is the least time between two log lines of a WaitLog.
const minLogGap = 5 * time.Second

// WaitLog decides when a component that waits for a driver logs the reason: a
// new reason at once (though at most every 5 s), the same one every Every.
type WaitLog struct {
	// Every is the interval between two lines with the same reason.
	Every time.Duration

	reason string
	at     time.Time
}

// Due reports whether to log the reason now.
func (l *WaitLog) Due(reason string) bool {
	gap := l.Every
	if reason != l.reason {
		gap = min(gap, minLogGap)
	}
	now := time.Now()
	if !l.at.IsZero() && now.Sub(l.at) < gap {
		return false
	}
	l.reason, l.at = reason, now
	return true
}

// tryRead probes once and reads the driver's Info if it is ready. Unless it is to be believed, an Info that lacks what was there before is an error.
func (c *Client) tryRead(ctx context.Context, believe bool) (*Info, error) {
	if err := c.Ready(ctx); err != nil {
		return nil, err
	}
	// Counted before reading: if the driver restarts meanwhile, the Info may be half
	// old and half new, and Run reads it again.
	dials := c.dials.Load()
	info, err := c.read(ctx)
	if err != nil {
		return nil, err
	}
	if lost := info.lost(c.info.Load()); len(lost) > 0 && !believe {
		return nil, fmt.Errorf("CSI driver %q does not announce %s: %w", info.Name, strings.Join(lost, ", "), errFewer)
	}
	c.readAt.Store(dials)
	c.info.Store(info)
	return info, nil
}

// failedCall reports whether err is the driver's answer to a call, or its
// absence. A driver that was ready before and is starting again may answer
// anything for a while; it keeps the process that uses it.
func failedCall(err error) bool {
	var answer interface{ GRPCStatus() *status.Status }
	return mayBecomeReady(err) || errors.As(err, &answer)
}

// mayBecomeReady reports whether the driver may become ready without help.
// FAILED_PRECONDITION is the answer of a driver that is not healthy (CSI spec
// v1.13, "Probe Errors").
func mayBecomeReady(err error) bool {
	if errors.Is(err, errNotReady) || errors.Is(err, errHalfStarted) || errors.Is(err, errFewer) {
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
