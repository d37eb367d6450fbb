package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/longshore-csi/longshore/snapshotmetadata/api"
)

// reply is what both methods stream.
type reply interface {
	GetVolumeCapacityBytes() int64
	GetBlockMetadata() []*api.BlockMetadata
}

// receiver returns the next message; io.EOF: there is none.
type receiver func() (reply, error)

// opener begins a stream at an offset.
type opener func(ctx context.Context, token string, offset int64) (receiver, error)

// errStopped ends an iteration whose consumer wants no more.
var errStopped = errors.New("stopped")

// iterate joins streams to one iteration. A stream continues where the last one was interrupted.
func (c *Client) iterate(ctx context.Context, open opener) iter.Seq2[Blocks, error] {
	return func(yield func(Blocks, error) bool) {
		var at position
		for failures := 0; ; {
			before := at
			err := c.stream(ctx, open, &at, yield)
			if err == nil || errors.Is(err, errStopped) || at.complete() {
				return
			}
			if failures++; at != before {
				failures = 1
			}
			if !retryable(err) || failures >= c.cfg.Attempts || !pause(ctx, c.backoff(failures)) {
				yield(Blocks{}, fmt.Errorf("read the blocks from offset %d: %w", at.end, err))
				return
			}
		}
	}
}

// stream yields what one stream has beyond at.
func (c *Client) stream(ctx context.Context, open opener, at *position, yield func(Blocks, error) bool) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	token, err := c.cfg.Token(ctx)
	if err != nil {
		return tokenError{err}
	}
	next, err := open(ctx, token, at.end)
	if err != nil {
		return err
	}
	var streamed int64 // where the last range of this stream has ended
	for {
		message, err := next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if streamed, err = checkOrder(message, streamed); err != nil {
			return err
		}
		blocks := at.advance(message)
		if !yield(blocks, nil) {
			return errStopped
		}
	}
}

// position is how far an iteration has come.
type position struct {
	// end is where the last range has ended.
	end int64
	// capacity is the size of the volume; 0: not known yet.
	capacity int64
}

// complete reports whether no range can follow: there is nothing to ask for, though a stream may have failed after its last range.
func (p *position) complete() bool { return p.capacity > 0 && p.end >= p.capacity }

// advance returns what a message has beyond the position, and moves it. A range that begins before the position is cut: that is how a service
// may answer a call that continues an interrupted one.
func (p *position) advance(m reply) Blocks {
	p.capacity = m.GetVolumeCapacityBytes()
	blocks := Blocks{Capacity: p.capacity}
	for _, b := range m.GetBlockMetadata() {
		end := b.GetByteOffset() + b.GetSizeBytes()
		if offset := max(b.GetByteOffset(), p.end); offset < end {
			blocks.Ranges = append(blocks.Ranges, Range{Offset: offset, Size: end - offset})
			p.end = end
		}
	}
	return blocks
}

// checkOrder returns an error for ranges that are not in order, after one of the same stream that ends at last: what comes too late would be
// missing in a backup. It returns where the last range ends.
func checkOrder(m reply, last int64) (int64, error) {
	for _, b := range m.GetBlockMetadata() {
		offset, end := b.GetByteOffset(), b.GetByteOffset()+b.GetSizeBytes()
		if offset < last || end <= offset {
			return 0, status.Errorf(codes.Internal, "the service sent offset %d with size %d after a range that ends at %d: ranges must be in order, and not empty", offset, b.GetSizeBytes(), last)
		}
		last = end
	}
	return last, nil
}

// retryable reports whether another stream may succeed.
func retryable(err error) bool {
	if _, ok := errors.AsType[tokenError](err); ok {
		return true
	}
	switch status.Code(err) {
	case codes.Unavailable, codes.DeadlineExceeded, codes.ResourceExhausted, codes.Aborted:
		return true
	default:
		return false
	}
}

// tokenError is that no token could be got. Its cause says nothing about the service: the API server may be restarting.
type tokenError struct{ error }

// Error implements error.
func (e tokenError) Error() string { return "get a token: " + e.error.Error() }

// Unwrap returns the cause.
func (e tokenError) Unwrap() error { return e.error }

// backoff is the pause after so many failures in a row.
func (c *Client) backoff(failures int) time.Duration {
	d := c.cfg.RetryStart
	for range failures - 1 {
		d = min(2*d, c.cfg.RetryMax)
	}
	return d
}

// pause waits, and reports whether ctx is still going on.
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
