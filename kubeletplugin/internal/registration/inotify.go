package registration

import (
	"errors"
	"fmt"
	"path/filepath"
	"sync"

	"github.com/fsnotify/fsnotify"
)

// errEventsLost has a Manager read its directories again.
var errEventsLost = errors.New("events were lost")

// waitingEvents is how many events wait for a Manager; more are lost, and it reads its directories.
const waitingEvents = 256

// notifier reports changes in directories.
type notifier interface {
	add(dir string) error
	events() <-chan fsnotify.Event
	errors() <-chan error
	close()
}

// single is an inotify instance of its own.
type single struct{ *fsnotify.Watcher }

func (s single) add(dir string) error          { return s.Add(dir) }
func (s single) events() <-chan fsnotify.Event { return s.Events }
func (s single) errors() <-chan error          { return s.Errors }
func (s single) close()                        { _ = s.Close() } // nothing depends on the watch any more

// Inotify is an inotify instance of the kernel that the Managers of many nodes share: a user may have 128 (fs.inotify.max_user_instances). The directories of
// two Managers must not overlap.
type Inotify struct {
	notify *fsnotify.Watcher
	ended  chan struct{}

	mu     sync.Mutex
	shares map[*share]bool
	// owners has the share that watches a directory.
	owners map[string]*share
}

// NewInotify makes an instance, which exists until Close.
func NewInotify() (*Inotify, error) {
	notify, err := fsnotify.NewWatcher()
	if err != nil {
		return nil, fmt.Errorf("make an inotify instance: %w", err)
	}
	i := &Inotify{notify: notify, ended: make(chan struct{}), shares: map[*share]bool{}, owners: map[string]*share{}}
	go i.dispatch()
	return i, nil
}

// Close ends the instance. Managers that use it read their directories at intervals only.
func (i *Inotify) Close() error {
	err := i.notify.Close()
	<-i.ended
	return err
}

// dispatch gives each event to the share that watches its directory.
func (i *Inotify) dispatch() {
	defer close(i.ended)
	for {
		select {
		case event, ok := <-i.notify.Events:
			if !ok {
				return
			}
			i.deliver(event)
		case err, ok := <-i.notify.Errors:
			if !ok {
				return
			}
			i.mu.Lock()
			for s := range i.shares {
				s.fail(err)
			}
			i.mu.Unlock()
		}
	}
}

func (i *Inotify) deliver(event fsnotify.Event) {
	i.mu.Lock()
	defer i.mu.Unlock()
	s := i.owners[filepath.Dir(event.Name)]
	if own := i.owners[event.Name]; own != nil { // a directory that is watched itself
		s = own
		if event.Has(fsnotify.Remove) || event.Has(fsnotify.Rename) {
			delete(i.owners, event.Name)
		}
	}
	if s == nil {
		return
	}
	select {
	case s.queue <- event:
	default:
		s.fail(errEventsLost)
	}
}

// join returns the part of a Manager.
func (i *Inotify) join() *share {
	s := &share{inotify: i, queue: make(chan fsnotify.Event, waitingEvents), failed: make(chan error, 1)}
	i.mu.Lock()
	defer i.mu.Unlock()
	i.shares[s] = true
	return s
}

// share is the part of one Manager.
type share struct {
	inotify *Inotify
	queue   chan fsnotify.Event
	failed  chan error
}

func (s *share) add(dir string) error {
	s.inotify.mu.Lock()
	s.inotify.owners[dir] = s // before the first event can come
	s.inotify.mu.Unlock()
	return s.inotify.notify.Add(dir)
}

func (s *share) events() <-chan fsnotify.Event { return s.queue }
func (s *share) errors() <-chan error          { return s.failed }

// fail tells that events may be missing.
func (s *share) fail(err error) {
	select {
	case s.failed <- err:
	default: // It knows already.
	}
}

func (s *share) close() {
	i := s.inotify
	i.mu.Lock()
	defer i.mu.Unlock()
	delete(i.shares, s)
	for dir, owner := range i.owners {
		if owner == s {
			delete(i.owners, dir)
			_ = i.notify.Remove(dir) // It may be gone.
		}
	}
}
