package kube

import (
	"slices"
	"sync"

	"k8s.io/apimachinery/pkg/util/sets"
)

// index finds objects by the values that its function returns for them. client-go's index keeps a set for each value: where most values have one object, as those
// of snapshots and their contents, these sets take more memory than the objects.
type index[T Object] struct {
	values func(T) []string

	mu sync.RWMutex
	// one has the key of each value with one object, and many those of the others.
	one  map[string]string
	many map[string]sets.Set[string]
}

func newIndex[T Object](values func(T) []string) *index[T] {
	return &index[T]{values: values, one: map[string]string{}, many: map[string]sets.Set[string]{}}
}

// keys returns those of the objects with a value.
func (x *index[T]) keys(value string) []string {
	x.mu.RLock()
	defer x.mu.RUnlock()
	if key, ok := x.one[value]; ok {
		return []string{key}
	}
	return x.many[value].UnsortedList()
}

// move files the object of a key under its values in place of those that it had.
func (x *index[T]) move(key string, before, after []string) {
	x.mu.Lock()
	defer x.mu.Unlock()
	for _, value := range before {
		if !slices.Contains(after, value) {
			x.remove(value, key)
		}
	}
	for _, value := range after {
		x.add(value, key)
	}
}

func (x *index[T]) add(value, key string) {
	only, one := x.one[value]
	switch keys := x.many[value]; {
	case keys != nil:
		keys.Insert(key)
	case one && only != key:
		delete(x.one, value)
		x.many[value] = sets.New(only, key)
	default:
		x.one[value] = key
	}
}

func (x *index[T]) remove(value, key string) {
	if x.one[value] == key {
		delete(x.one, value)
		return
	}
	keys := x.many[value].Delete(key)
	if only, one := keys.PopAny(); one && len(keys) == 0 {
		delete(x.many, value)
		x.one[value] = only
	} else if one {
		keys.Insert(only)
	}
}
