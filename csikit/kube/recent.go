package kube

import (
	"fmt"
	"os"
	"strconv"
	"sync"
)

// recentObjects is how many objects of a kind are kept decoded, too: those that a component works on at a time, or a few more.
const recentObjects = 128

// detectMutations has each object compared, when it is read again, with what is encoded of it. The variable is that of client-go.
var detectMutations, _ = strconv.ParseBool(os.Getenv("KUBE_CACHE_MUTATION_DETECTOR"))

// recent decodes items, and has the objects that have changed or were asked for last as they are read: a component reads an object several times while
// it works on it, and so do the indexes.
type recent[T Object] struct {
	encoding *Encoding[T]

	mu   sync.Mutex
	objs map[*item[T]]T
	ring [recentObjects]*item[T] // in the order in which they came
	next int
}

func newRecent[T Object](encoding *Encoding[T]) *recent[T] {
	return &recent[T]{encoding: encoding, objs: map[*item[T]]T{}}
}

// put keeps the object of an item, which is not modified any more, in place of the one that came first.
func (r *recent[T]) put(it *item[T], obj T) {
	if it.encoded == "" {
		return // it is kept as it is
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if _, ok := r.objs[it]; !ok {
		delete(r.objs, r.ring[r.next])
		r.ring[r.next] = it
		r.next = (r.next + 1) % recentObjects
	}
	r.objs[it] = obj
}

// object returns the object of an item.
func (r *recent[T]) object(it *item[T]) T {
	if it.encoded == "" {
		return it.plain
	}
	r.mu.Lock()
	obj, ok := r.objs[it]
	r.mu.Unlock()
	switch {
	case !ok:
		obj = it.object(r.encoding)
		r.put(it, obj)
	case detectMutations:
		check(it, obj, r.encoding)
	}
	return obj
}

// check panics if an object is not any more what the store has of it.
func check[T Object](it *item[T], obj T, encoding *Encoding[T]) {
	copied, ok := obj.DeepCopyObject().(T)
	if !ok {
		return
	}
	if now, was := newItem(copied, encoding), newItem(it.object(encoding), encoding); now.encoded != was.encoded {
		panic(fmt.Sprintf("%T %q was modified by one of its readers:\n%q\nIt was:\n%q", obj, it.key, now.encoded, was.encoded))
	}
}
