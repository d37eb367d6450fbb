package reconcile

import (
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/client-go/util/workqueue"
)

// lateQueue keeps keys until the workqueue is made, which starts goroutines, and hands them over then. The zero value is
// ready to use.
type lateQueue[K comparable] struct {
	queue atomic.Pointer[workqueue.TypedDelayingInterface[K]]

	mu    sync.Mutex
	ready []K // in the order in which they came first
	known map[K]bool
	later map[K]time.Time // when the key is due, at the earliest
}

// add is AddAfter or, without a pause, Add.
func (q *lateQueue[K]) add(key K, pause time.Duration) {
	if opened := q.queue.Load(); opened != nil {
		addTo(*opened, key, pause)
		return
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if opened := q.queue.Load(); opened != nil { // meanwhile
		addTo(*opened, key, pause)
		return
	}
	q.keep(key, pause)
}

func addTo[K comparable](queue workqueue.TypedDelayingInterface[K], key K, pause time.Duration) {
	if pause <= 0 {
		queue.Add(key) // AddAfter would count a retry
		return
	}
	queue.AddAfter(key, pause)
}

func (q *lateQueue[K]) keep(key K, pause time.Duration) {
	if q.known == nil {
		q.known, q.later = map[K]bool{}, map[K]time.Time{}
	}
	if pause <= 0 {
		if !q.known[key] {
			q.known[key], q.ready = true, append(q.ready, key)
		}
		return
	}
	due := time.Now().Add(pause)
	if before, ok := q.later[key]; !ok || due.Before(before) {
		q.later[key] = due
	}
}

// open hands everything over to queue, where pauses go on from their beginning.
func (q *lateQueue[K]) open(queue workqueue.TypedDelayingInterface[K]) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, key := range q.ready {
		queue.Add(key)
	}
	for key, due := range q.later {
		addTo(queue, key, time.Until(due))
	}
	q.ready, q.known, q.later = nil, nil, nil
	q.queue.Store(&queue)
}

// count returns how many keys wait for the queue to be made, without those that pause.
func (q *lateQueue[K]) count() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.ready)
}
