package snapshotapi

import (
	"bytes"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	kubejson "k8s.io/apimachinery/pkg/runtime/serializer/json"
)

// A component gets most objects from watches, as JSON, of which the decoders of Kubernetes read each event four times as a whole before they decode its object: twice
// for the fields of the event, and once each for the kind of the event and that of the object. An API server writes these fields first, where the decoders
// below find them. JSON in another order is decoded as ever.

// serializers are those of a codec factory, with another one for JSON.
type serializers struct {
	runtime.NegotiatedSerializer
	infos []runtime.SerializerInfo
}

// newSerializers returns serializers that convert nothing.
func newSerializers(scheme *runtime.Scheme) runtime.NegotiatedSerializer {
	s := serializers{NegotiatedSerializer: serializer.NewCodecFactory(scheme).WithoutConversion()}
	s.infos = slices.Clone(s.NegotiatedSerializer.SupportedMediaTypes())
	for i := range s.infos {
		if info := &s.infos[i]; info.MediaType == runtime.ContentTypeJSON {
			info.Serializer = eventSerializer{kubejson.NewSerializerWithOptions(headerFactory{}, scheme, scheme, kubejson.SerializerOptions{})}
			stream := *info.StreamSerializer
			stream.Serializer = info.Serializer
			info.StreamSerializer = &stream
		}
	}
	return s
}

// SupportedMediaTypes implements runtime.NegotiatedSerializer.
func (s serializers) SupportedMediaTypes() []runtime.SerializerInfo { return s.infos }

// eventSerializer finds the object of a watch event, which has two fields, without a look into it.
type eventSerializer struct{ runtime.Serializer }

// Decode implements runtime.Decoder. The object of an event is part of data.
func (s eventSerializer) Decode(data []byte, defaults *schema.GroupVersionKind, into runtime.Object) (runtime.Object, *schema.GroupVersionKind, error) {
	if event, ok := into.(*metav1.WatchEvent); ok {
		if what, rest, ok := field(data, `{"type":"`); ok {
			if object, ok := bytes.CutPrefix(bytes.TrimSpace(rest), []byte(`,"object":`)); ok && bytes.HasSuffix(object, []byte("}")) {
				event.Type, event.Object.Raw = what, object[:len(object)-1]
				return event, &schema.GroupVersionKind{}, nil
			}
		}
	}
	return s.Serializer.Decode(data, defaults, into)
}

// headerFactory finds the version and the kind of an object at its beginning.
type headerFactory struct{ kubejson.SimpleMetaFactory }

// Interpret implements kubejson.MetaFactory.
func (f headerFactory) Interpret(data []byte) (*schema.GroupVersionKind, error) {
	if version, rest, ok := field(data, `{"apiVersion":"`); ok {
		if kind, _, ok := field(rest, `,"kind":"`); ok {
			gv, err := schema.ParseGroupVersion(version)
			if err != nil {
				return nil, err
			}
			return &schema.GroupVersionKind{Group: gv.Group, Version: gv.Version, Kind: kind}, nil
		}
	}
	return f.SimpleMetaFactory.Interpret(data)
}

// field returns the text after a prefix up to the next quotation mark, if it has no escapes, and what follows the mark.
func field(data []byte, prefix string) (value string, rest []byte, ok bool) {
	data, ok = bytes.CutPrefix(data, []byte(prefix))
	if !ok {
		return "", nil, false
	}
	text, rest, ok := bytes.Cut(data, []byte(`"`))
	return string(text), rest, ok && !bytes.ContainsRune(text, '\\')
}
