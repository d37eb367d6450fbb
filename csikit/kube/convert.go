package kube

import (
	"errors"
	"io"
	"reflect"

	"k8s.io/client-go/tools/cache"
)

// newOf returns a new object of the type that T points to; client-go wants an example.
func newOf[T Object]() T {
	obj, _ := reflect.New(reflect.TypeFor[T]().Elem()).Interface().(T)
	return obj
}

// unwrap returns the object of an informer's notification, also from a tombstone.
func unwrap[T Object](obj any) T {
	if tombstone, ok := obj.(cache.DeletedFinalStateUnknown); ok {
		obj = tombstone.Obj
	}
	typed, _ := obj.(T)
	return typed
}

func typedList[T Object](objs []any) []T {
	list := make([]T, 0, len(objs))
	for _, obj := range objs {
		if typed, ok := obj.(T); ok {
			list = append(list, typed)
		}
	}
	return list
}

func indexers[T Object](index map[string]func(T) []string) cache.Indexers {
	indexers := make(cache.Indexers, len(index))
	for name, values := range index {
		indexers[name] = func(obj any) ([]string, error) {
			typed, ok := obj.(T)
			if !ok {
				return nil, nil
			}
			return values(typed), nil
		}
	}
	return indexers
}

// transform strips managedFields, then what f strips.
func transform[T Object](f func(T) T) func(T) T {
	if f == nil {
		return StripManagedFields[T]
	}
	return func(obj T) T { return f(StripManagedFields(obj)) }
}

// isEnd reports whether a stream just ended.
func isEnd(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF)
}
