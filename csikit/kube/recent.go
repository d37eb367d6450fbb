package kube

import (
	"fmt"
	"os"
	"strconv"
	"sync"
	"unsafe"
)

// recentObjects is how many objects of a kind are kept decoded, too: those that a component works on at a time, or a few more.
const recentObjects = 128

// detectMutations has each object compared, when it is read again, with what is encoded of it. The variable is that of client-go.
var detectMutations, _ = strconv.ParseBool(os.Getenv("KUBE_CACHE_MUTATION_DETECTOR"))

// recent has the objects that have changed or were asked for last, as they are read: a component reads an object several times while it works on it.
type recent[T Object] struct {
	mu   sync.Mutex
	objs map[string]recentObject[T] // by key
	// ring has the keys in the order in which they came. An object that changes keeps its place.
	ring [recentObjects]string
	next int
}

// recentObject is an object and what it was decoded from, or encoded to.
type recentObject[T Object] struct {
	encoded string
	obj     T
}

func newRecent[T Object]() *recent[T] { return &recent[T]{objs: map[string]recentObject[T]{}} }

// put keeps an object, which is not modified any more, in place of the one that came first.
func (r *recent[T]) put(it item[T], obj T) {
	if it.encoded == "" {
		return // it is kept as it is
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if _, ok := r.objs[it.key]; !ok {
		delete(r.objs, r.ring[r.next])
		r.ring[r.next] = it.key
		r.next = (r.next + 1) % recentObjects
	}
	r.objs[it.key] = recentObject[T]{encoded: it.encoded, obj: obj}
}

// get returns the object if it was decoded from, or encoded to, what the store has.
func (r *recent[T]) get(it item[T]) (obj T, ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	known, ok := r.objs[it.key]
	if !ok || unsafe.StringData(known.encoded) != unsafe.StringData(it.encoded) {
		return obj, false
	}
	return known.obj, true
}

// remove forgets an object. Its key stays in the ring, where another takes its place in time.
func (r *recent[T]) remove(key string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.objs, key)
}

// check panics if an object is not any more what the store has of it.
func check[T Object](it item[T], obj T, encoding *Encoding[T]) {
	copied, ok := obj.DeepCopyObject().(T)
	if !ok {
		return
	}
	if now, was := newItem(copied, encoding), newItem(it.object(encoding), encoding); now.encoded != was.encoded {
		panic(fmt.Sprintf("%T %q was modified by one of its readers:\n%q\nIt was:\n%q", obj, it.key, now.encoded, was.encoded))
	}
}
