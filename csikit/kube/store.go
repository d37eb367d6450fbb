package kube

import (
	"hash/maphash"
	"maps"
	"slices"
	"strings"
	"sync"
	"unsafe"

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

// Encoding keeps the objects of a kind of a CustomResourceDefinition in less memory than their fields take.
type Encoding[T Object] struct {
	// Encode returns an object as bytes; name and namespace may be left out. An object that it returns an error for is kept as it is.
	Encode func(T) ([]byte, error)
	// Decode sets the fields of an empty object from what Encode has returned. It must copy what it keeps of the bytes.
	Decode func([]byte, T) error
}

// newItem returns the item of an object that has no other users. encoding may be nil.
func newItem[T Object](obj T, encoding *Encoding[T]) item[T] {
	key := keyOf(obj)
	if encoding != nil {
		data, err := encoding.Encode(obj)
		if err != nil || len(data) == 0 {
			return item[T]{key: key, kept: kept[T]{plain: obj}}
		}
		whole := key + string(data)
		return item[T]{key: whole[:len(key)], kept: kept[T]{encoded: whole[len(key):]}}
	}
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

// object returns the object, decoded if the kind has an encoding. encoding is that of newItem.
func (it item[T]) object(encoding *Encoding[T]) T {
	if it.encoded == "" {
		return it.plain
	}
	obj := newOf[T]()
	// What decodes copies what it keeps, so that it need not get a copy. It cannot fail for what was encoded here.
	data := unsafe.Slice(unsafe.StringData(it.encoded), len(it.encoded)) //nolint:gosec // only read
	if encoding != nil {
		_ = encoding.Decode(data, obj)
	} else if e, ok := any(obj).(encoder); ok {
		_ = e.Unmarshal(data)
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
	encoding  *Encoding[T]
	index     map[string]func(T) []string
	// changed is called after each change, one call at a time, and for each object on a resync.
	changed func(before, after T)
	// listed is called with the version of each list after changed was called for all of it.
	listed func(resourceVersion string)
	// synced is closed when the first list is complete, and changed was called for all of it.
	synced chan struct{}

	// change is held while something changes, until all have heard of it.
	change sync.Mutex
	// mu guards items and keys, which no one but the holder of change writes.
	mu    sync.RWMutex
	items map[string]kept[T]
	// recent has objects as they are read.
	recent *recent[T]
	// keys are those of the objects of an index under the hash of a value.
	keys map[string]map[uint64][]string // each list in order
	seed maphash.Seed
}

var _ cache.TransformingStore = (*store[Object])(nil)

func newStore[T Object](o InformerOptions[T], changed func(before, after T), listed func(resourceVersion string)) *store[T] {
	s := &store[T]{
		transform: transform(o.Transform), encoding: o.Encoding, index: o.Index, changed: changed, listed: listed,
		synced: make(chan struct{}), items: map[string]kept[T]{}, recent: newRecent[T](), keys: map[string]map[uint64][]string{}, seed: maphash.MakeSeed(),
	}
	for name := range o.Index {
		s.keys[name] = map[uint64][]string{}
	}
	return s
}

// Transformer returns what a reflector applies to the objects that it collects of a list.
func (s *store[T]) Transformer() cache.TransformFunc {
	return func(obj any) (any, error) {
		it, _ := s.itemOf(obj)
		return it, nil
	}
}

// itemOf returns an object of a reflector as it is kept, which it may be already, and as it is read.
func (s *store[T]) itemOf(obj any) (item[T], T) {
	if it, ok := obj.(item[T]); ok {
		return it, it.object(s.encoding)
	}
	typed, _ := obj.(T) // a reflector passes on nothing else
	typed = s.transform(typed)
	return newItem(typed, s.encoding), typed
}

// Add implements cache.ReflectorStore.
func (s *store[T]) Add(obj any) error { return s.Update(obj) }

// Update implements cache.ReflectorStore.
func (s *store[T]) Update(obj any) error {
	s.change.Lock()
	defer s.change.Unlock()
	it, after := s.itemOf(obj)
	s.put(it, after, false)
	return nil
}

// Delete implements cache.ReflectorStore.
func (s *store[T]) Delete(obj any) error {
	s.change.Lock()
	defer s.change.Unlock()
	typed, _ := obj.(T) // a reflector passes on nothing else
	key := keyOf(typed)
	if known, ok := s.get(key); ok {
		s.remove(key, known, s.transform(typed))
	}
	return nil
}

// Replace implements cache.ReflectorStore: list has all objects that there are in that version.
func (s *store[T]) Replace(list []any, resourceVersion string) error {
	s.change.Lock()
	defer s.change.Unlock()
	missing := make(map[string]struct{}, len(s.items))
	for key := range s.items {
		missing[key] = struct{}{}
	}
	for n, obj := range list {
		it, after := s.itemOf(obj)
		list[n] = nil // free to go
		delete(missing, it.key)
		s.put(it, after, true)
	}
	for key := range missing {
		if last, ok := s.get(key); ok {
			s.remove(key, last, last)
		}
	}
	s.listed(resourceVersion)
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
func (s *store[T]) put(it item[T], after T, listed bool) {
	before, known := s.get(it.key)
	if known && listed && before.GetResourceVersion() == after.GetResourceVersion() {
		return
	}
	s.mu.Lock()
	s.items[it.key] = it.kept
	s.file(it.key, before, after)
	s.mu.Unlock()
	if !listed {
		s.recent.put(it, after)
	}
	s.changed(before, after)
}

// remove drops an object, of which last is the last state and known the last that was kept.
func (s *store[T]) remove(key string, known, last T) {
	var none T
	s.mu.Lock()
	delete(s.items, key)
	s.file(key, known, none)
	s.mu.Unlock()
	s.recent.remove(key)
	s.changed(last, none)
}

// file moves a key from the values that the object of before has in the indexes to those of after, each of which may be nil.
func (s *store[T]) file(key string, before, after T) {
	var none T
	for name, valuesOf := range s.index {
		var from, to []string
		if any(before) != any(none) {
			from = valuesOf(before)
		}
		if any(after) != any(none) {
			to = valuesOf(after)
		}
		if slices.Equal(from, to) {
			continue
		}
		for _, value := range from {
			s.edit(name, value, key, false)
		}
		for _, value := range to {
			s.edit(name, value, key, true)
		}
	}
}

// edit has a key under a value of an index, or has it there no more.
func (s *store[T]) edit(index, value, key string, wanted bool) {
	under := maphash.String(s.seed, value)
	keys := s.keys[index][under]
	at, found := slices.BinarySearch(keys, key)
	switch {
	case found == wanted:
		return
	case wanted:
		keys = slices.Insert(keys, at, key)
	default:
		keys = slices.Delete(keys, at, at+1)
	}
	if len(keys) == 0 {
		delete(s.keys[index], under)
		return
	}
	s.keys[index][under] = keys
}

// get returns the object of a key.
func (s *store[T]) get(key string) (obj T, ok bool) {
	s.mu.RLock()
	found, ok := s.items[key]
	s.mu.RUnlock()
	if !ok || found.encoded == "" {
		return found.plain, ok
	}
	it := item[T]{key, found}
	obj, ok = s.recent.get(it)
	switch {
	case !ok:
		obj = it.object(s.encoding)
		s.recent.put(it, obj)
	case detectMutations:
		check(it, obj, s.encoding)
	}
	return obj, true
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

// keysUnder returns the keys of the objects that an index has under the hash of a value, and others, each once.
func (s *store[T]) keysUnder(index, value string, others []string) []string {
	s.mu.RLock()
	defer s.mu.RUnlock()
	filed := s.keys[index][maphash.String(s.seed, value)]
	keys := append(make([]string, 0, len(filed)+len(others)), filed...)
	for _, key := range others {
		if _, found := slices.BinarySearch(filed, key); !found {
			keys = append(keys, key)
		}
	}
	return keys
}
