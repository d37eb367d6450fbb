package kube

import (
	"hash/maphash"
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

// duplicate is the copy of all objects of a kind that a reflector feeds. Keys are those of cache.ObjectName.
type duplicate[T Object] struct {
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

var _ cache.TransformingStore = (*duplicate[Object])(nil)

func newDuplicate[T Object](o InformerOptions[T], changed func(before, after T)) *duplicate[T] {
	d := &duplicate[T]{
		transform: transform(o.Transform), index: o.Index, changed: changed,
		synced: make(chan struct{}), items: map[string]kept[T]{}, keys: map[string]map[uint64][]string{}, seed: maphash.MakeSeed(),
	}
	for name := range o.Index {
		d.keys[name] = map[uint64][]string{}
	}
	return d
}

// Transformer returns what a reflector applies to the objects that it collects of a list.
func (d *duplicate[T]) Transformer() cache.TransformFunc {
	return func(obj any) (any, error) { return d.itemOf(obj), nil }
}

// itemOf returns an object of a reflector as it is kept, which it may be already.
func (d *duplicate[T]) itemOf(obj any) item[T] {
	if it, ok := obj.(item[T]); ok {
		return it
	}
	typed, _ := obj.(T) // a reflector passes on nothing else
	return newItem(d.transform(typed))
}

// Add implements cache.ReflectorStore.
func (d *duplicate[T]) Add(obj any) error { return d.Update(obj) }

// Update implements cache.ReflectorStore.
func (d *duplicate[T]) Update(obj any) error {
	d.change.Lock()
	defer d.change.Unlock()
	d.put(d.itemOf(obj), false)
	return nil
}

// Delete implements cache.ReflectorStore.
func (d *duplicate[T]) Delete(obj any) error {
	d.change.Lock()
	defer d.change.Unlock()
	last := d.itemOf(obj)
	if _, ok := d.get(last.key); ok {
		d.remove(last.key, last.object())
	}
	return nil
}

// Replace implements cache.ReflectorStore: list has all objects that there are.
func (d *duplicate[T]) Replace(list []any, _ string) error {
	d.change.Lock()
	defer d.change.Unlock()
	missing := make(map[string]struct{}, len(d.items))
	for key := range d.items {
		missing[key] = struct{}{}
	}
	for n, obj := range list {
		it := d.itemOf(obj)
		list[n] = nil // free to go
		delete(missing, it.key)
		d.put(it, true)
	}
	for key := range missing {
		if last, ok := d.get(key); ok {
			d.remove(key, last)
		}
	}
	select {
	case <-d.synced:
	default:
		close(d.synced)
	}
	return nil
}

// Resync implements cache.ReflectorStore.
func (d *duplicate[T]) Resync() error {
	d.change.Lock()
	defer d.change.Unlock()
	for _, obj := range d.list() {
		d.changed(obj, obj)
	}
	return nil
}

// put keeps an object. What is listed in the version that is known is no change.
func (d *duplicate[T]) put(it item[T], listed bool) {
	after := it.object()
	before, known := d.get(it.key)
	if known && listed && before.GetResourceVersion() == after.GetResourceVersion() {
		return
	}
	d.mu.Lock()
	if known {
		d.file(it.key, before, without)
	}
	d.items[it.key] = it.kept
	d.file(it.key, after, with)
	d.mu.Unlock()
	d.changed(before, after)
}

// remove drops the object of a key, of which last is the last state.
func (d *duplicate[T]) remove(key string, last T) {
	known, _ := d.get(key)
	d.mu.Lock()
	d.file(key, known, without)
	delete(d.items, key)
	d.mu.Unlock()
	var none T
	d.changed(last, none)
}

// file changes the keys that the indexes have under the values of an object.
func (d *duplicate[T]) file(key string, obj T, edit func(keys []string, key string) []string) {
	for name, values := range d.index {
		for _, value := range values(obj) {
			under := maphash.String(d.seed, value)
			keys := edit(d.keys[name][under], key)
			if len(keys) == 0 {
				delete(d.keys[name], under)
				continue
			}
			d.keys[name][under] = keys
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
func (d *duplicate[T]) get(key string) (obj T, ok bool) {
	d.mu.RLock()
	found, ok := d.items[key]
	d.mu.RUnlock()
	if ok {
		obj = item[T]{key, found}.object()
	}
	return obj, ok
}

// list returns all objects.
func (d *duplicate[T]) list() []T {
	d.mu.RLock()
	items := make([]item[T], 0, len(d.items))
	for key, found := range d.items {
		items = append(items, item[T]{key, found})
	}
	d.mu.RUnlock()
	list := make([]T, 0, len(items))
	for _, it := range items {
		list = append(list, it.object())
	}
	return list
}

// size returns the number of objects.
func (d *duplicate[T]) size() int {
	d.mu.RLock()
	defer d.mu.RUnlock()
	return len(d.items)
}

// byIndex returns the objects that an index files under a value.
func (d *duplicate[T]) byIndex(name, value string) []T {
	d.mu.RLock()
	keys := d.keys[name][maphash.String(d.seed, value)]
	items := make([]item[T], 0, len(keys))
	for _, key := range keys {
		items = append(items, item[T]{key, d.items[key]})
	}
	d.mu.RUnlock()
	list := make([]T, 0, len(items))
	for _, it := range items {
		// Of two values with one hash, the other's objects are left out.
		if obj := it.object(); slices.Contains(d.index[name](obj), value) {
			list = append(list, obj)
		}
	}
	return list
}
