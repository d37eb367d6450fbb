package reconcile

import (
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/client-go/util/workqueue"
)

// Class says with which other keys a key shares workers, and with which of those its own share.
type Class struct {
	// Pool is a name of Config.Workers workers. Keys of other pools have as many of their own.
	Pool string
	// Group names keys whose work may hang together, those of one node for instance. The groups of a pool are served in turn, and one holds
	// at most as many workers as are then free: half of the pool if it is alone, and whatever many groups hold, a new one
	// finds a worker sooner. "": no limit.
	Group string
}

// Running is a key that is being reconciled.
type Running[K comparable] struct {
	Key K
	// Class is that of the key when it was begun.
	Class Class
	Since time.Time
}

// fairQueue holds the keys that wait, and chooses which one is next. The workqueue around it keeps keys from being in it twice, or
// while they are reconciled.
type fairQueue[K comparable] struct {
	workers int // of each pool
	// class and highPriority are those of Config. They are called without the lock of the fairQueue.
	class        func(key K) Class
	highPriority func(key K) bool

	mu      sync.Mutex
	changed sync.Cond // of mu: there may be a next key, or no more
	closed  bool
	pools   []*pool[K]
	waiting map[K]place[K]
	chosen  []K // for Pop, at most one
	running map[K]Running[K]
}

// pool is a set of workers, with the keys that wait for them.
type pool[K comparable] struct {
	name  string
	free  int
	held  map[string]int // busy workers by group
	lines [2]line[K]     // keys of high priority, and others
}

// line has the waiting keys of groups, which are served in turn.
type line[K comparable] struct {
	groups []string // the next one first
	keys   map[string][]waitingKey[K]
}

type waitingKey[K comparable] struct {
	key   K
	since time.Time
}

// place is where a key waits.
type place[K comparable] struct {
	line  *line[K]
	group string
}

var _ workqueue.Queue[string] = (*fairQueue[string])(nil)

func newFairQueue[K comparable](cfg Config[K]) *fairQueue[K] {
	q := &fairQueue[K]{
		workers: cfg.Workers, class: cfg.Class, highPriority: cfg.HighPriority, waiting: map[K]place[K]{}, running: map[K]Running[K]{},
	}
	q.changed.L = &q.mu
	return q
}

// Push implements workqueue.Queue.
func (q *fairQueue[K]) Push(key K) {
	class, first := q.classify(key)
	q.mu.Lock()
	defer q.mu.Unlock()
	q.pushLocked(key, q.placeLocked(class, first))
}

// Touch implements workqueue.Queue: a key that is added again keeps its place, unless its class has changed.
func (q *fairQueue[K]) Touch(key K) {
	class, first := q.classify(key)
	q.mu.Lock()
	defer q.mu.Unlock()
	before, ok := q.waiting[key]
	if now := q.placeLocked(class, first); ok && now != before {
		before.line.remove(before.group, key)
		q.pushLocked(key, now)
	}
}

func (q *fairQueue[K]) classify(key K) (class Class, first bool) {
	if q.class != nil {
		class = q.class(key)
	}
	return class, q.highPriority != nil && q.highPriority(key)
}

// placeLocked returns where keys of a class wait.
func (q *fairQueue[K]) placeLocked(class Class, first bool) place[K] {
	n := slices.IndexFunc(q.pools, func(p *pool[K]) bool { return p.name == class.Pool })
	if n < 0 {
		n = len(q.pools)
		q.pools = append(q.pools, &pool[K]{name: class.Pool, free: q.workers, held: map[string]int{}})
	}
	if first {
		return place[K]{line: &q.pools[n].lines[0], group: class.Group}
	}
	return place[K]{line: &q.pools[n].lines[1], group: class.Group}
}

func (q *fairQueue[K]) pushLocked(key K, to place[K]) {
	to.line.push(to.group, waitingKey[K]{key: key, since: time.Now()})
	q.waiting[key] = to
	q.changed.Signal()
}

// take waits until a key may begin, which Pop then returns. The key holds a worker until release. It returns false after end.
// There must be one caller at a time.
func (q *fairQueue[K]) take() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	for !q.closed && !q.chooseLocked() {
		q.changed.Wait()
	}
	return !q.closed
}

// chooseLocked chooses a key for Pop, if one may begin.
func (q *fairQueue[K]) chooseLocked() bool {
	for _, p := range q.pools {
		if key, group, ok := p.next(); ok {
			p.free--
			p.held[group]++
			delete(q.waiting, key)
			q.chosen = []K{key}
			q.running[key] = Running[K]{Key: key, Class: Class{Pool: p.name, Group: group}, Since: time.Now()}
			return true
		}
	}
	return false
}

// release frees the worker of a key.
func (q *fairQueue[K]) release(key K) {
	q.mu.Lock()
	defer q.mu.Unlock()
	class := q.running[key].Class
	delete(q.running, key)
	for _, p := range q.pools {
		if p.name != class.Pool {
			continue
		}
		p.free++
		if p.held[class.Group]--; p.held[class.Group] == 0 {
			delete(p.held, class.Group)
		}
	}
	q.changed.Signal()
}

// end makes take return false.
func (q *fairQueue[K]) end() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.closed = true
	q.changed.Signal()
}

// next removes the key that is next in the pool, if one may begin.
func (p *pool[K]) next() (key K, group string, ok bool) {
	if p.free == 0 {
		return key, "", false
	}
	for n := range p.lines {
		key, group, ok = p.lines[n].next(func(group string) bool { return group == "" || p.held[group] < p.free })
		if ok {
			return key, group, true
		}
	}
	return key, "", false
}

// next removes the first key of the first group that may begin another. That group becomes the last one, as those that may not.
func (l *line[K]) next(may func(group string) bool) (key K, group string, ok bool) {
	for range l.groups {
		group, l.groups = l.groups[0], l.groups[1:]
		if !may(group) {
			l.groups = append(l.groups, group)
			continue
		}
		keys := l.keys[group]
		key, keys[0] = keys[0].key, waitingKey[K]{}
		if l.keys[group] = keys[1:]; len(keys) > 1 {
			l.groups = append(l.groups, group)
		} else {
			delete(l.keys, group)
		}
		return key, group, true
	}
	return key, "", false
}

func (l *line[K]) push(group string, w waitingKey[K]) {
	if l.keys == nil {
		l.keys = map[string][]waitingKey[K]{}
	}
	if len(l.keys[group]) == 0 {
		l.groups = append(l.groups, group)
	}
	l.keys[group] = append(l.keys[group], w)
}

func (l *line[K]) remove(group string, key K) {
	l.keys[group] = slices.DeleteFunc(l.keys[group], func(w waitingKey[K]) bool { return w.key == key })
	if len(l.keys[group]) == 0 {
		delete(l.keys, group)
		l.groups = slices.DeleteFunc(l.groups, func(other string) bool { return other == group })
	}
}

// Len implements workqueue.Queue.
func (q *fairQueue[K]) Len() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.waiting) + len(q.chosen)
}

// Pop implements workqueue.Queue: it returns the key that take has chosen, after the end any.
func (q *fairQueue[K]) Pop() (key K) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.chosen) > 0 {
		key, q.chosen = q.chosen[0], nil
		return key
	}
	for _, p := range q.pools {
		for n := range p.lines {
			if key, _, ok := p.lines[n].next(func(string) bool { return true }); ok {
				delete(q.waiting, key)
				return key
			}
		}
	}
	return key
}

// list returns the keys that are being reconciled, in no order.
func (q *fairQueue[K]) list() []Running[K] {
	q.mu.Lock()
	defer q.mu.Unlock()
	return slices.Collect(maps.Values(q.running))
}

func (q *fairQueue[K]) isRunning(key K) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	_, ok := q.running[key]
	return ok
}

// oldest returns how long the key waits that has been waiting longest; 0 when none does.
func (q *fairQueue[K]) oldest(now time.Time) time.Duration {
	q.mu.Lock()
	defer q.mu.Unlock()
	var age time.Duration
	for _, p := range q.pools {
		for _, l := range p.lines {
			for _, keys := range l.keys {
				age = max(age, now.Sub(keys[0].since))
			}
		}
	}
	return age
}

// ageGauge measures the queue when it is asked.
func ageGauge[K comparable](name string, q *fairQueue[K]) prometheus.Collector {
	return prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name:        "workqueue_oldest_item_age_seconds",
		Help:        "How long the item waits that has been waiting longest.",
		ConstLabels: prometheus.Labels{"name": name},
	}, func() float64 { return q.oldest(time.Now()).Seconds() })
}
