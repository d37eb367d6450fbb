package kube

import (
	"errors"
	"io"
	"reflect"
)

// newOf returns a new object of the type that T points to; client-go wants an example.
func newOf[T Object]() T {
	obj, _ := reflect.New(reflect.TypeFor[T]().Elem()).Interface().(T)
	return obj
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
