package kube

import (
	"strings"

	"k8s.io/client-go/tools/cache"
)

// item is an object as a copy keeps it: encoded where its kind has an encoding, which takes a fraction of the memory of its
// fields, most of which are empty. It is never changed.
type item[T Object] struct {
	key string
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
func newItem[T Object](obj T, encoding *Encoding[T]) *item[T] {
	key := keyOf(obj)
	if encoding != nil {
		data, err := encoding.Encode(obj)
		if err != nil || len(data) == 0 {
			return &item[T]{key: key, plain: obj}
		}
		return joined[T](key, key+string(data))
	}
	e, ok := any(obj).(encoder)
	if !ok {
		return &item[T]{key: key, plain: obj}
	}
	namespace, name := obj.GetNamespace(), obj.GetName()
	obj.SetNamespace("")
	obj.SetName("")
	data := make([]byte, len(key)+e.Size())
	_, err := e.MarshalToSizedBuffer(data[copy(data, key):])
	obj.SetNamespace(namespace)
	obj.SetName(name)
	if err != nil {
		return &item[T]{key: key, plain: obj}
	}
	return joined[T](key, string(data))
}

// joined is an item whose key and encoded object are one string.
func joined[T Object](key, whole string) *item[T] {
	return &item[T]{key: whole[:len(key)], encoded: whole[len(key):]}
}

// keyOf returns what the store finds an object by.
func keyOf(obj Object) string { return cache.MetaObjectToName(obj).String() }

// keyOfAny does so for what passes through client-go: an object before it is encoded, or an item.
func keyOfAny[T Object](obj any) (string, error) {
	if it, ok := obj.(*item[T]); ok {
		return it.key, nil
	}
	return cache.MetaNamespaceKeyFunc(obj)
}

// object returns the object, decoded if the kind has an encoding. encoding is that of newItem.
func (it *item[T]) object(encoding *Encoding[T]) T {
	if it.encoded == "" {
		return it.plain
	}
	obj := newOf[T]()
	data := []byte(it.encoded)
	// It cannot fail for what was encoded here.
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
