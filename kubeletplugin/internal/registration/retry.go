package registration

import (
	"errors"
	"time"
)

const (
	retryStart = 500 * time.Millisecond
	retryMax   = 2*time.Minute + 2*time.Second
	// A socket exists a moment before its registrar listens, so refused
	// connections are retried fast until startupGrace has passed.
	refusedStart = 50 * time.Millisecond
	refusedMax   = 500 * time.Millisecond
	startupGrace = time.Minute
)

// retry chooses the delays between attempts on one socket.
type retry struct {
	since   time.Time
	delay   time.Duration
	refused time.Duration
}

func newRetry(now time.Time) *retry {
	return &retry{since: now, delay: retryStart, refused: refusedStart}
}

// next returns how long to wait after err.
func (r *retry) next(now time.Time, err error) time.Duration {
	if errors.Is(err, errUnreachable) && r.inStartupGrace(now) {
		return double(&r.refused, refusedMax)
	}
	return double(&r.delay, retryMax)
}

// inStartupGrace reports whether the registrar may be starting and not listen yet.
func (r *retry) inStartupGrace(now time.Time) bool { return now.Sub(r.since) < startupGrace }

// double returns the delay and doubles it for the next time, up to limit.
func double(delay *time.Duration, limit time.Duration) time.Duration {
	d := *delay
	*delay = min(2*d, limit)
	return d
}
