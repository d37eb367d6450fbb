package redact

import (
	"cmp"
	"slices"
	"strconv"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// writer appends one message as JSON. Once out exceeds limit it only returns.
type writer struct {
	out   []byte
	limit int
}

func format(m protoreflect.Message, limit int) string {
	if !m.IsValid() {
		return "null"
	}
	w := &writer{limit: limit}
	w.message(m)
	if w.full() {
		return string(w.out[:limit]) + "..."
	}
	return string(w.out)
}

func (w *writer) full() bool { return w.limit > 0 && len(w.out) > w.limit }

func (w *writer) message(m protoreflect.Message) {
	w.out = append(w.out, '{')
	fields := m.Descriptor().Fields()
	first := true
	for i := 0; i < fields.Len() && !w.full(); i++ {
		fd := fields.Get(i)
		if !m.Has(fd) {
			continue
		}
		w.comma(&first)
		w.key(string(fd.Name()))
		w.field(fd, m.Get(fd))
	}
	w.out = append(w.out, '}')
}

func (w *writer) field(fd protoreflect.FieldDescriptor, v protoreflect.Value) {
	secret := isSecret(fd)
	switch {
	case fd.IsMap():
		w.mapping(fd, v.Map(), secret)
	case secret:
		w.quote(Stripped)
	case fd.IsList():
		w.list(fd, v.List())
	default:
		w.value(fd, v)
	}
}

// mapping writes a map in sorted order. Of a secret map the keys stay visible:
// they help to find a wrong Secret, and the specification marks values only.
func (w *writer) mapping(fd protoreflect.FieldDescriptor, m protoreflect.Map, secret bool) {
	keys := make([]protoreflect.MapKey, 0, m.Len())
	m.Range(func(k protoreflect.MapKey, _ protoreflect.Value) bool {
		keys = append(keys, k)
		return true
	})
	slices.SortFunc(keys, func(a, b protoreflect.MapKey) int { return cmp.Compare(a.String(), b.String()) })
	w.out = append(w.out, '{')
	first := true
	for _, k := range keys {
		if w.full() {
			break
		}
		w.comma(&first)
		w.key(k.String())
		if secret || k.String() == TokensKey {
			w.quote(Stripped)
		} else {
			w.value(fd.MapValue(), m.Get(k))
		}
	}
	w.out = append(w.out, '}')
}

func (w *writer) list(fd protoreflect.FieldDescriptor, l protoreflect.List) {
	w.out = append(w.out, '[')
	first := true
	for i := 0; i < l.Len() && !w.full(); i++ {
		w.comma(&first)
		w.value(fd, l.Get(i))
	}
	w.out = append(w.out, ']')
}

func (w *writer) value(fd protoreflect.FieldDescriptor, v protoreflect.Value) {
	switch fd.Kind() {
	case protoreflect.MessageKind, protoreflect.GroupKind:
		w.message(v.Message())
	case protoreflect.StringKind:
		w.quote(v.String())
	case protoreflect.EnumKind:
		w.enum(fd.Enum(), v.Enum())
	case protoreflect.BytesKind:
		w.quote(strconv.Itoa(len(v.Bytes())) + " bytes")
	default:
		// Numbers and booleans print as JSON does.
		w.out = append(w.out, v.String()...)
	}
}

func (w *writer) enum(ed protoreflect.EnumDescriptor, n protoreflect.EnumNumber) {
	if vd := ed.Values().ByNumber(n); vd != nil {
		w.quote(string(vd.Name()))
		return
	}
	w.out = strconv.AppendInt(w.out, int64(n), 10)
}

func (w *writer) comma(first *bool) {
	if !*first {
		w.out = append(w.out, ',')
	}
	*first = false
}

func (w *writer) key(k string) {
	w.quote(k)
	w.out = append(w.out, ':')
}

func (w *writer) quote(s string) { w.out = appendJSONString(w.out, s) }

// isSecret reports whether the specification marks the field by the option
// csi_secret (CSI spec v1.13, "Secrets Requirements").
func isSecret(fd protoreflect.FieldDescriptor) bool {
	opts := fd.Options()
	if opts == nil || !opts.ProtoReflect().IsValid() {
		return false
	}
	secret, ok := proto.GetExtension(opts, csi.E_CsiSecret).(bool)
	return ok && secret
}
