package registration

import (
	"errors"
	"time"
)

const (
	retryStart = 500 * time.Millisecond
	retryMax   = 2*time.Minute + 2*time.Second
	// A socket exists a moment before its registrar listens, so refused
	// connections are tried again soon while the socket is young.
	refusedStart = 50 * time.Millisecond
	refusedMax   = 500 * time.Millisecond
	youth        = time.Minute
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
	if errors.Is(err, errUnreachable) && r.young(now) {
		return double(&r.refused, refusedMax)
	}
	return double(&r.delay, retryMax)
}

// young reports whether the registrar may still be on its way to listen.
func (r *retry) young(now time.Time) bool { return now.Sub(r.since) < youth }

// double returns the delay and doubles it for the next time, up to limit.
func double(delay *time.Duration, limit time.Duration) time.Duration {
	d := *delay
	*delay = min(2*d, limit)
	return d
}
