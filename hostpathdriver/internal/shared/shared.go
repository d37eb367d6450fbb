// Package shared lets several processes serve one state directory at the same
// time, as several controllers serve one real storage system. Its decorator
// lets calls through while this process has its turn, and reads the
// directory again when another process has changed it meanwhile.
//
// A turn begins with the first call and ends with the last one that is under
// way, so a process without calls is in nobody's way. When others wait, a turn
// takes Config.Turn, and as long as the calls that it has begun.
//
// A driver for real storage does not need this package: its storage system
// takes turns by itself.
package shared

import (
	"context"
	"errors"
	"time"

	"k8s.io/klog/v2"

	"github.com/longshore-csi/longshore/csikit/logging"
	"github.com/longshore-csi/longshore/hostpathdriver/internal/baton"
	"github.com/longshore-csi/longshore/hostpathdriver/internal/volume"
)

// DefaultTurn is how long a process goes on when others wait. Much less, and
// processes would read the records more than they work; much more, and those
// that wait would notice.
const DefaultTurn = 100 * time.Millisecond

// Store is the memory of this process of what is on disk. Its methods are
// called in turns of this process before any call.
type Store interface {
	// Refresh reads what other processes have changed.
	Refresh(ctx context.Context) error
	// Recover does the same after a process that was killed, and finishes or
	// undoes what that one was doing.
	Recover(ctx context.Context) error
}

// Config configures the sharing of a directory.
type Config struct {
	// LockPath is the lock file of all processes that share.
	LockPath string
	// Turn is how long this process goes on when others wait; zero lets them
	// in as soon as the calls have ended that are under way.
	Turn time.Duration
	// Open reads the directory, in a turn of this process, and recovers it: a
	// Store is as good as recovered when it is opened.
	Open func(ctx context.Context) (volume.Services, Store, error)
}

// Directory is a state directory that several processes serve: the decorated
// services. Every call needs a turn, those that only read as well: what they
// read is what the last process wrote. Copies alone are made without.
type Directory struct {
	*Volumes
	*Snapshots
	*Groups
	*Copies

	gate *gate
}

var _ volume.Services = (*Directory)(nil)

// Open waits for a turn of this process and opens the directory in it.
func Open(ctx context.Context, cfg Config) (*Directory, error) {
	turns, err := baton.Open(cfg.LockPath)
	if err != nil {
		return nil, err
	}
	g := &gate{baton: turns, turn: cfg.Turn, changed: make(chan struct{})}
	klog.FromContext(ctx).Info("Opening the volumes when it is the turn of this process", logging.KeyPath, cfg.LockPath)
	if _, err := turns.Take(ctx); err != nil {
		return nil, errors.Join(err, turns.Close())
	}
	var next volume.Services
	err = g.change()
	if err == nil {
		next, g.store, err = cfg.Open(ctx)
	}
	if err == nil {
		err = g.complete()
	}
	if err == nil {
		err = turns.Give()
	}
	if err != nil {
		return nil, errors.Join(err, turns.Close())
	}
	return &Directory{
		Volumes:   &Volumes{next: next, gate: g},
		Snapshots: &Snapshots{next: next, gate: g},
		Groups:    &Groups{next: next, gate: g},
		Copies:    &Copies{next: next, gate: g},
		gate:      g,
	}, nil
}

// Close ends the sharing, when the last call that is under way has ended.
func (d *Directory) Close() error { return d.gate.close() }

// purpose says what a call may do to the directory.
type purpose bool

const (
	reads   purpose = false
	changes purpose = true
)

// in makes one call in a turn of this process.
func in[T any](ctx context.Context, g *gate, p purpose, call func() (T, error)) (answer T, err error) {
	if err := g.enter(ctx, p); err != nil {
		return answer, err
	}
	defer g.leave(ctx)
	return call()
}

// change is in for calls that answer nothing, and change something.
func change(ctx context.Context, g *gate, call func() error) error {
	_, err := in(ctx, g, changes, func() (struct{}, error) { return struct{}{}, call() })
	return err
}
