// Package redact formats CSI messages for logs without what must not be
// logged: fields that the CSI specification marks as secret, and service
// account tokens. Formatting is lazy: a value that is never written costs one
// small allocation and no walk over the message.
//
// It is for protobuf messages. Of anything else only the type is printed, as
// it does not say which of its parts are secret.
package redact

import (
	"fmt"
	"log/slog"

	"google.golang.org/protobuf/proto"
)

// Stripped stands in the output where a secret value was.
const Stripped = "***stripped***"

// TokensKey is the key under which kubelet hands service account tokens to a
// driver, in the volume context or among the secrets (KEP-1855, KEP-5538).
const TokensKey = "csi.storage.k8s.io/serviceAccount.tokens"

// Message returns a value that formats m when it is printed or logged: one
// line of JSON with the field names of the specification, maps in sorted
// order, unset fields left out. m must not change before that.
func Message(m any) fmt.Stringer { return lazy{m: m} }

// Limited is Message cut to about limit bytes; the cut is marked by "...". The
// rest of the message is not even visited, so the cost is bounded as well. A
// limit of zero or less means no limit.
func Limited(m any, limit int) fmt.Stringer { return lazy{m: m, limit: limit} }

type lazy struct {
	m     any
	limit int
}

// String formats the message.
func (l lazy) String() string {
	switch m := l.m.(type) {
	case nil:
		return "null"
	case proto.Message:
		return format(m.ProtoReflect(), l.limit)
	default:
		return fmt.Sprintf("%q", fmt.Sprintf("%T", m))
	}
}

// MarshalLog makes logr sinks log the redacted text (logr.Marshaler).
func (l lazy) MarshalLog() any { return l.String() }

// LogValue makes slog handlers log the redacted text (slog.LogValuer).
func (l lazy) LogValue() slog.Value { return slog.StringValue(l.String()) }
