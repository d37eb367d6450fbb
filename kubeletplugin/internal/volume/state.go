package volume

import (
	"errors"
	"maps"
	"slices"
	"time"
)

// stage is what is known about the staging path.
type stage int

const (
	absent    stage = iota // nothing is staged, no record
	unsure                 // a call may have had an effect; a record exists
	confirmed              // the driver has said so; a record exists
)

// claim is what is known about the volume's name in volumesInUse.
type claim int

const (
	unclaimed claim = iota
	claimed         // the name may be there
	raised          // the API server has confirmed it
)

// state is all that an actor knows. It is changed only under the Manager's lock.
type state struct {
	volume Volume
	device device
	uses   map[Key]*use
}

// device is the part of the state that all uses share.
type device struct {
	slot
	stage stage
	// undo asks for NodeUnstageVolume before the next NodeStageVolume: an error left doubt.
	undo  bool
	inUse claim
	// pinned keeps the volume staged although no pod is known to have it.
	pinned bool
	// attached is set once the attachment was verified for everyone who wants the volume now.
	attached *Attachment
	// stagedFor is the attachment for which the volume was staged.
	stagedFor *Attachment
}

// use is one target path.
type use struct {
	slot
	// want is the pod's wish. It is nil if there is none, or if it is not known yet (held).
	want *Publication
	// held keeps a recovered use as it is until its pod is known to want it or to be gone.
	held  bool
	mount stage
	// undo asks for NodeUnpublishVolume before the next NodePublishVolume.
	undo bool
	// recovered is true until a call of this process has succeeded: a pod may be running on it.
	recovered bool
}

func (u *use) unwanted() bool { return u.want == nil && !u.held }

// slot holds back what has failed.
type slot struct {
	failures int
	retryAt  time.Time
	err      error
	// waiting is true if the next try waits for a change of the Node rather than for time.
	waiting bool
}

func (s *slot) reset() { *s = slot{} }

// backoff is how long to wait after a number of failures in a row.
type backoff struct {
	start, quick, limit time.Duration
	// spread returns a number in [0, 1).
	spread func() float64
}

func (b backoff) after(failures int, quick bool) time.Duration {
	d := b.start
	if quick {
		d = b.quick
	}
	for range failures - 1 {
		if d *= 2; d >= b.limit {
			d = b.limit
			break
		}
	}
	return d/8 + time.Duration(b.spread()*float64(d-d/8))
}

// ErrNotAttached says that the attach/detach controller has not attached the volume yet.
var ErrNotAttached = errors.New("volume is not attached to this node yet")

// ErrLag marks an error that is expected to go away within milliseconds, such as a refusal by an
// authorizer that has not seen the pod's binding yet. It is tried again soon, and reported late.
var ErrLag = errors.New("not ready yet")

// recheck is how often a volume that waits for the Node to change is looked at anyway.
const recheck = time.Minute

func (s *slot) fail(err error, now time.Time, b backoff) {
	s.err = err
	if s.waiting = errors.Is(err, ErrNotAttached); s.waiting {
		s.retryAt = now.Add(recheck)
		return
	}
	s.failures++
	s.retryAt = now.Add(b.after(s.failures, errors.Is(err, ErrLag)))
}

func (s *state) keys() []Key { return slices.SortedFunc(maps.Keys(s.uses), Key.compare) }

// wanted reports whether any pod wants the volume, or may want it.
func (s *state) wanted() bool {
	for _, u := range s.uses {
		if !u.unwanted() {
			return true
		}
	}
	return false
}

// mounted reports whether any target path is, or may be, published.
func (s *state) mounted() bool {
	for _, u := range s.uses {
		if u.mount != absent {
			return true
		}
	}
	return false
}

// blockedBy returns the other pod's use that keeps an exclusive volume from being published.
func (s *state) blockedBy(k Key) (Key, bool) {
	if u := s.uses[k]; u.want == nil || !u.want.Volume.Exclusive {
		return Key{}, false
	}
	for _, other := range s.keys() {
		if other.Pod != k.Pod && s.uses[other].mount != absent {
			return other, true
		}
	}
	return Key{}, false
}

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
