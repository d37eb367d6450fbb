package volume

import (
	"errors"
	"maps"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// presence is what is known about a staging or target path.
type presence int

const (
	absent    presence = iota // nothing is there, and no record
	uncertain                 // the outcome of a call is unknown; a record exists
	present                   // the driver has confirmed it; a record exists
)

// inUseState is what is known about the volume's name in volumesInUse.
type inUseState int

const (
	inUseNone      inUseState = iota
	inUseSent                 // the name may be there
	inUseConfirmed            // the API server has confirmed it
)

// state is all that an actor knows. It is changed only under the Manager's lock.
type state struct {
	volume Volume
	device device
	uses   map[Key]*use
	// call is what the actor is doing at the driver, since a time; empty for nothing.
	call  string
	since time.Time
	// expansions holds, by PersistentVolume, the state of the expansion of volumes that are or were published.
	expansions map[string]*expansion
}

// device is the part of the state that all uses share.
type device struct {
	retryState
	stage presence
	// undo asks for NodeUnstageVolume before the next NodeStageVolume: an error left doubt.
	undo  bool
	inUse inUseState
	// keepInUse is true if the volume needs no attachment, but is in volumesAttached.
	keepInUse bool
	// pinned is true if the volume is, or may be, mounted where no record explains it.
	pinned bool
	// attached is set once the attachment was verified for all pods that want the volume now.
	attached *Attachment
	// attachChanges counts how often the volume was attached while this actor exists: a look at volumesAttached that
	// began before the last change proves nothing.
	attachChanges int
	// explained is true if err has the reason why the volume is not attached.
	explained bool
	// stagedFor is the UID of the attachment for which the volume is, or may be, staged; empty if that is not known.
	stagedFor types.UID
	// stagedAs is the form in which the volume is, or may be, staged.
	stagedAs form
}

// stale reports whether the volume was detached and attached again since it was staged: what is staged belongs to a
// device that may be gone.
func (d *device) stale() bool {
	return d.stage != absent && d.stagedFor != "" && d.attached != nil && d.attached.UID != d.stagedFor
}

// use is one target path.
type use struct {
	retryState
	// want is what the pod asks for; nil if the pod does not want the volume, or is not known yet.
	want *Publication
	// podUnknown is true for a use that was found on disk until the first pod list has shown whether its pod still exists.
	podUnknown bool
	// wantedSince is when the pod asked for the volume; zero once it has got it.
	wantedSince time.Time
	mount       presence
	// readOnly says that the last NodePublishVolume was read-only.
	readOnly bool
	// seLinuxContext is the SELinux context with which the target path is, or may be, mounted.
	seLinuxContext string
	// undo asks for NodeUnpublishVolume before the next NodePublishVolume.
	undo bool
	// recovered is true for a use found on disk of a pod that may be running, until a call of this process has succeeded, and the files have their group.
	recovered bool
	// republish is the time of the next repeated NodePublishVolume of a published volume, or its backoff.
	republish retryState
	// groupPending is true from NodePublishVolume until the files have the fsGroup of the pod. The pod has to wait for it if
	// groupAwaited is true, which it is not if the call was repeated for a volume that the pod has.
	groupPending, groupAwaited bool
	// groupFailures counts the failures of the change in a row, between which the volume is published again.
	groupFailures int
	// interrupt ends a change of the group; nil if there is none in progress.
	interrupt func()
	// refusalReported is true once the pod has the event about files whose group cannot be changed.
	refusalReported bool
	// unchecked is true from NodePublishVolume until the claim was looked at for an expansion: the pod has to wait.
	unchecked bool
	// notice is the last message to the pod about what its volume waits for.
	notice string
}

func (u *use) unwanted() bool { return u.want == nil && !u.podUnknown }

// mayBeOpen reports whether containers may use the target path. A pod is reported as running as soon as its volumes
// are published, so a published volume counts as open.
func (u *use) mayBeOpen() bool {
	return u.mount != absent && (u.podUnknown || u.want != nil && (u.recovered || u.mount == present))
}

// retryState is the backoff of one operation: its failures in a row and the time of the next try.
type retryState struct {
	failures int
	retryAt  time.Time
	err      error
	// waiting is true if the next try waits for volumesAttached rather than for time, and waitingSince is when the wait
	// began.
	waiting      bool
	waitingSince time.Time
}

func (s *retryState) reset() { *s = retryState{} }

// backoff is how long to wait after a number of failures in a row.
type backoff struct {
	start, quick, limit time.Duration
	// look is the time between two looks at a claim, and between two NodePublishVolume calls that are repeated.
	look time.Duration
	// spread returns a number in [0, 1).
	spread func() float64
}

// untilLook is the time until the next look at a claim or repeated call, spread so that the nodes do not do it all at once.
func (b backoff) untilLook() time.Duration {
	return b.look + time.Duration(b.spread()*float64(b.look)/2)
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

// ErrTransient marks an error that usually goes away by itself: an authorizer that has not seen the pod's binding
// yet, a driver that is starting. The step is retried fast, and reported after quietFailures failures in a row.
var ErrTransient = errors.New("not ready yet")

const (
	// attachPatience is how long a volume waits to be attached before its pods get an event.
	attachPatience = 10 * time.Second
	// attachRecheck is how often a volume that waits to be attached looks although the Node has not changed.
	attachRecheck = time.Minute
)

func (s *retryState) fail(err error, now time.Time, b backoff) {
	s.err = err
	if errors.Is(err, ErrNotAttached) {
		s.wait(now)
		return
	}
	s.waiting = false
	s.failures++
	s.retryAt = now.Add(b.after(s.failures, errors.Is(err, ErrTransient)))
}

func (s *retryState) wait(now time.Time) {
	if !s.waiting {
		s.waiting, s.waitingSince = true, now
	}
	s.retryAt = now.Add(attachRecheck)
	if !s.impatient(now) {
		s.retryAt = s.waitingSince.Add(attachPatience)
	}
}

// impatient reports whether the wait is long enough to be worth an event.
func (s *retryState) impatient(now time.Time) bool {
	return s.waiting && now.Sub(s.waitingSince) >= attachPatience
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

// needlesslyInUse reports whether a volume is in use that needs no attachment: it was recovered, and counted as in use until its pods were
// known, or its driver needed attachments before.
func (s *state) needlesslyInUse() bool {
	if s.volume.Attachable || s.device.keepInUse || s.device.inUse == inUseNone {
		return false
	}
	for _, u := range s.uses {
		if u.podUnknown {
			return false
		}
	}
	return true
}

// mounted reports whether the volume is, or may be, mounted anywhere but at its staging path.
func (s *state) mounted() bool {
	if s.device.pinned {
		return true
	}
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
