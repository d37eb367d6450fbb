package events

import (
	"time"

	"golang.org/x/time/rate"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// The limits for one object are those of client-go's event correlator, which users know from other components.
const (
	// similar is how many Event objects there are of one object, type and reason. The last of them has the newest of all further messages.
	similar = 10
	// calm is how long nothing of a series is recorded until its next messages have Event objects of their own again.
	calm     = 10 * time.Minute
	combined = "(combined from similar events): "
	// objectBurst is how many writes one object may cause at once, and objectPause the time until it may cause one more.
	objectBurst = 25
	objectPause = 5 * time.Minute
	// repeatPause is the time until the count of an event that is recorded again is written.
	repeatPause = time.Minute
	maxMemory   = 4096 // events that are remembered to recognise repetitions
)

// about is what is remembered of an object.
type about struct {
	limiter *rate.Limiter
	series  map[seriesKey]*series
}

type objectKey struct {
	kind, namespace, name string
	uid                   types.UID
}

type seriesKey struct{ eventType, reason string }

// series are the events of one object, type and reason, which differ in their messages.
type series struct {
	of      objectKey
	key     seriesKey
	entries map[string]*entry // by message; not the combined one
	rest    *entry            // the combined one, nil unless there is one
	latest  *entry            // what was queued last
	own     int               // messages that got an Event object of their own since it was calm
	seen    time.Time
}

// entry is one Event object.
type entry struct {
	*series
	ref     corev1.ObjectReference
	message string
	// name is that of the Event object, "" before it is written, and after the API server has forgotten it.
	name string
	// first and last are when it was recorded, created and written when it was queued to be written; it is not before notBefore.
	first, last, created, written, notBefore time.Time
	count                                    int32 // how often it was recorded
	waiting                                  int   // writes that are queued or on their way
}

// write is a request for an entry, with what it was when it was recorded.
type write struct {
	*entry
	message string
	last    time.Time
	count   int32
	// news: the cause is not the one that users saw as the newest.
	news bool
	// event is the Event object to create, the same at each attempt: the answer to one may be lost. nil before the first.
	event *corev1.Event
}

// observeLocked counts what is recorded, and returns what to write now, nil if that is nothing.
func (a *Async) observeLocked(ref corev1.ObjectReference, key seriesKey, message string, now time.Time) *write {
	if a.entries >= maxMemory {
		a.forgetLocked(now)
	}
	object, s := a.seriesLocked(objectKey{kind: ref.Kind, namespace: ref.Namespace, name: ref.Name, uid: ref.UID}, key)
	e := s.entry(message, now)
	if e == nil {
		e = &entry{series: s, first: now}
		a.keepLocked(e, message)
	}
	s.seen = now
	e.ref, e.last, e.count = ref, now, e.count+1
	if !a.dueLocked(e, now) {
		return nil
	}
	if !object.limiter.AllowN(now, 1) {
		if e.name == "" {
			a.countLocked()
		}
		return nil
	}
	w := &write{entry: e, message: e.message, last: now, count: e.count, news: s.latest != e}
	s.latest, e.written = e, now
	return w
}

// entry returns the event of a message, nil if there is none yet.
func (s *series) entry(message string, now time.Time) *entry {
	if now.Sub(s.seen) >= calm {
		s.own = 0
	}
	if e := s.entries[message]; e != nil {
		return e
	}
	if s.own >= similar-1 && s.rest != nil {
		s.rest.message = cut(combined + message)
		return s.rest
	}
	return nil
}

// keepLocked remembers a new event: that of a message, or the combined one.
func (a *Async) keepLocked(e *entry, message string) {
	a.entries++
	if e.own >= similar-1 {
		e.message, e.rest = cut(combined+message), e
		return
	}
	e.own++
	e.message, e.entries[message] = message, e
}

// dueLocked reports whether an event is written now.
func (a *Async) dueLocked(e *entry, now time.Time) bool {
	switch {
	case now.Before(e.notBefore):
		return false
	case e.latest != e: // another cause than the one that users see as the newest
		return true
	case e.waiting > 0:
		return false
	case e.name == "": // it could not be written
		return true
	case len(a.queue) >= a.cfg.Burst: // others wait, of which users do not know yet
		return false
	case now.Before(a.noPatch):
		return now.Sub(e.created) >= a.cfg.Repeat
	}
	return now.Sub(e.written) >= repeatPause
}

func (a *Async) seriesLocked(of objectKey, key seriesKey) (*about, *series) {
	object := a.objects[of]
	if object == nil {
		object = &about{limiter: rate.NewLimiter(rate.Every(objectPause), objectBurst), series: map[seriesKey]*series{}}
		a.objects[of] = object
	}
	s := object.series[key]
	if s == nil {
		s = &series{of: of, key: key, entries: map[string]*entry{}}
		object.series[key] = s
	}
	return object, s
}

// removeLocked forgets an event, and what has none any more.
func (a *Async) removeLocked(e *entry) {
	object := a.objects[e.of]
	if object == nil || object.series[e.key] != e.series {
		return // it was forgotten
	}
	switch {
	case e.rest == e:
		e.rest = nil
	case e.entries[e.message] == e:
		delete(e.entries, e.message)
	default:
		return
	}
	a.entries--
	if e.latest == e {
		e.latest = nil
	}
	if len(e.entries) == 0 && e.rest == nil {
		delete(object.series, e.key)
	}
	if len(object.series) == 0 {
		delete(a.objects, e.of)
	}
}

// forgetLocked removes an eighth of the entries, as it reads all of them: first the old ones, then any
// others. The worst consequence is one repetition of each.
func (a *Async) forgetLocked(now time.Time) {
	for _, old := range []bool{true, false} {
		for _, object := range a.objects {
			for _, s := range object.series {
				a.forgetSeriesLocked(s, now, old)
			}
		}
	}
}

// forgetSeriesLocked removes the old events of a series, or all of them as long as too many are left.
func (a *Async) forgetSeriesLocked(s *series, now time.Time, old bool) {
	unwanted := func(e *entry) bool {
		return e != nil && (old && now.Sub(e.last) >= a.cfg.Repeat || !old && a.entries > maxMemory-maxMemory/8)
	}
	for _, e := range s.entries {
		if unwanted(e) {
			a.removeLocked(e)
		}
	}
	if unwanted(s.rest) {
		a.removeLocked(s.rest)
	}
}
