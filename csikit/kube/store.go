package kube

import (
	"hash/maphash"
	"maps"
	"slices"
	"strings"
	"sync"

	"k8s.io/client-go/tools/cache"
)

// item is an object as a copy keeps it: encoded where its kind has an encoding, which takes a fraction of the memory of its
// fields, most of which are empty.
type item[T Object] struct {
	key string
	kept[T]
}

// kept is an object without its key.
type kept[T Object] struct {
	// encoded is the object without name and namespace. It has its memory together with the key.
	encoded string
	plain   T // of a kind that has no encoding
}

// encoder is what the kinds of Kubernetes itself are, in protobuf, and those of CustomResourceDefinitions are not.
type encoder interface {
	Size() int
	MarshalToSizedBuffer(data []byte) (int, error)
	Unmarshal(data []byte) error
}

// newItem returns the item of an object that has no other users.
func newItem[T Object](obj T) item[T] {
	key := keyOf(obj)
	e, ok := any(obj).(encoder)
	if !ok {
		return item[T]{key: key, kept: kept[T]{plain: obj}}
	}
	namespace, name := obj.GetNamespace(), obj.GetName()
	obj.SetNamespace("")
	obj.SetName("")
	data := make([]byte, len(key)+e.Size())
	_, err := e.MarshalToSizedBuffer(data[copy(data, key):])
	obj.SetNamespace(namespace)
	obj.SetName(name)
	if err != nil {
		return item[T]{key: key, kept: kept[T]{plain: obj}}
	}
	whole := string(data)
	return item[T]{key: whole[:len(key)], kept: kept[T]{encoded: whole[len(key):]}}
}

func keyOf(obj Object) string { return cache.MetaObjectToName(obj).String() }

// object returns the object, which is the caller's own if the kind has an encoding.
func (it item[T]) object() T {
	if it.encoded == "" {
		return it.plain
	}
	obj := newOf[T]()
	if e, ok := any(obj).(encoder); ok {
		_ = e.Unmarshal([]byte(it.encoded)) // what MarshalToSizedBuffer has made
	}
	namespace, name, found := strings.Cut(it.key, "/")
	if !found {
		namespace, name = "", it.key
	}
	obj.SetNamespace(namespace)
	obj.SetName(name)
	return obj
}

// store is the copy of all objects of a kind that a reflector feeds. Keys are those of cache.ObjectName.
type store[T Object] struct {
	transform func(T) T
	index     map[string]func(T) []string
	// changed is called after each change, one call at a time, and for each object on a resync.
	changed func(before, after T)
	// synced is closed when the first list is complete, and changed was called for all of it.
	synced chan struct{}

	// change is held while something changes, until all have heard of it.
	change sync.Mutex
	// mu guards items and keys, which no one but the holder of change writes.
	mu    sync.RWMutex
	items map[string]kept[T]
	// keys are those of the objects of an index under the hash of a value.
	keys map[string]map[uint64][]string
	seed maphash.Seed
}

var _ cache.TransformingStore = (*store[Object])(nil)

func newStore[T Object](o InformerOptions[T], changed func(before, after T)) *store[T] {
	s := &store[T]{
		transform: transform(o.Transform), index: o.Index, changed: changed,
		synced: make(chan struct{}), items: map[string]kept[T]{}, keys: map[string]map[uint64][]string{}, seed: maphash.MakeSeed(),
	}
	for name := range o.Index {
		s.keys[name] = map[uint64][]string{}
	}
	return s
}

// Transformer returns what a reflector applies to the objects that it collects of a list.
func (s *store[T]) Transformer() cache.TransformFunc {
	return func(obj any) (any, error) { return s.itemOf(obj), nil }
}

// itemOf returns an object of a reflector as it is kept, which it may be already.
func (s *store[T]) itemOf(obj any) item[T] {
	if it, ok := obj.(item[T]); ok {
		return it
	}
	typed, _ := obj.(T) // a reflector passes on nothing else
	return newItem(s.transform(typed))
}

// Add implements cache.ReflectorStore.
func (s *store[T]) Add(obj any) error { return s.Update(obj) }

// Update implements cache.ReflectorStore.
func (s *store[T]) Update(obj any) error {
	s.change.Lock()
	defer s.change.Unlock()
	s.put(s.itemOf(obj), false)
	return nil
}

// Delete implements cache.ReflectorStore.
func (s *store[T]) Delete(obj any) error {
	s.change.Lock()
	defer s.change.Unlock()
	last := s.itemOf(obj)
	if _, ok := s.get(last.key); ok {
		s.remove(last.key, last.object())
	}
	return nil
}

// Replace implements cache.ReflectorStore: list has all objects that there are.
func (s *store[T]) Replace(list []any, _ string) error {
	s.change.Lock()
	defer s.change.Unlock()
	missing := make(map[string]struct{}, len(s.items))
	for key := range s.items {
		missing[key] = struct{}{}
	}
	for n, obj := range list {
		it := s.itemOf(obj)
		list[n] = nil // free to go
		delete(missing, it.key)
		s.put(it, true)
	}
	for key := range missing {
		if last, ok := s.get(key); ok {
			s.remove(key, last)
		}
	}
	select {
	case <-s.synced:
	default:
		close(s.synced)
	}
	return nil
}

// Resync implements cache.ReflectorStore.
func (s *store[T]) Resync() error {
	s.change.Lock()
	defer s.change.Unlock()
	for _, key := range s.allKeys(nil) {
		if obj, ok := s.get(key); ok {
			s.changed(obj, obj)
		}
	}
	return nil
}

// put keeps an object. What is listed in the version that is known is no change.
func (s *store[T]) put(it item[T], listed bool) {
	after := it.object()
	before, known := s.get(it.key)
	if known && listed && before.GetResourceVersion() == after.GetResourceVersion() {
		return
	}
	s.mu.Lock()
	if known {
		s.file(it.key, before, without)
	}
	s.items[it.key] = it.kept
	s.file(it.key, after, with)
	s.mu.Unlock()
	s.changed(before, after)
}

// remove drops the object of a key, of which last is the last state.
func (s *store[T]) remove(key string, last T) {
	known, _ := s.get(key)
	s.mu.Lock()
	s.file(key, known, without)
	delete(s.items, key)
	s.mu.Unlock()
	var none T
	s.changed(last, none)
}

// file changes the keys that the indexes have under the values of an object.
func (s *store[T]) file(key string, obj T, edit func(keys []string, key string) []string) {
	for name, values := range s.index {
		for _, value := range values(obj) {
			under := maphash.String(s.seed, value)
			keys := edit(s.keys[name][under], key)
			if len(keys) == 0 {
				delete(s.keys[name], under)
				continue
			}
			s.keys[name][under] = keys
		}
	}
}

func with(keys []string, key string) []string {
	if slices.Contains(keys, key) {
		return keys
	}
	return append(slices.Clip(keys), key)
}

func without(keys []string, key string) []string {
	return slices.DeleteFunc(slices.Clone(keys), func(other string) bool { return other == key })
}

// get returns the object of a key.
func (s *store[T]) get(key string) (obj T, ok bool) {
	s.mu.RLock()
	found, ok := s.items[key]
	s.mu.RUnlock()
	if ok {
		obj = item[T]{key, found}.object()
	}
	return obj, ok
}

// allKeys returns the keys of all objects, and others, each once.
func (s *store[T]) allKeys(others []string) []string {
	s.mu.RLock()
	defer s.mu.RUnlock()
	keys := slices.AppendSeq(make([]string, 0, len(s.items)+len(others)), maps.Keys(s.items))
	for _, key := range others {
		if _, ok := s.items[key]; !ok {
			keys = append(keys, key)
		}
	}
	return keys
}

// size returns the number of objects.
func (s *store[T]) size() int {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return len(s.items)
}

// byIndex returns the objects that an index files under a value.
func (s *store[T]) byIndex(name, value string) []T {
	s.mu.RLock()
	keys := s.keys[name][maphash.String(s.seed, value)]
	items := make([]item[T], 0, len(keys))
	for _, key := range keys {
		items = append(items, item[T]{key, s.items[key]})
	}
	s.mu.RUnlock()
	list := make([]T, 0, len(items))
	for _, it := range items {
		// Of two values with one hash, the other's objects are left out.
		if obj := it.object(); slices.Contains(s.index[name](obj), value) {
			list = append(list, obj)
		}
	}
	return list
}
