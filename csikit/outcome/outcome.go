// Package outcome says what the error of a CSI call means for the work that
// the call was to do: is it done, has it failed for good, or may it still be
// running in the driver? Every component decides by this one classification
// and never by the text of an error.
//
// It is for errors of calls to a CSI driver. Errors of the Kubernetes API have
// their own vocabulary; do not use it for them.
package outcome

import (
	"context"
	"errors"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Class is what a caller may conclude from the end of a CSI call.
type Class int

const (
	// Done means that the call succeeded.
	Done Class = iota
	// Final means that the driver has answered that it failed: nothing is
	// running any more and nothing was left behind. A retry may succeed.
	Final
	// Infeasible means that this request cannot succeed however often it is
	// repeated: the request itself must change.
	Infeasible
	// Uncertain means that the outcome is not known: the driver may still be
	// working, and whatever was to be created may come to exist.
	Uncertain
	// Exhausted means that the requested place has no free capacity; another
	// node or segment may have. Nothing was left behind.
	Exhausted
)

// String returns the lower-case name of the class, for logs and metrics.
func (c Class) String() string {
	switch c {
	case Done:
		return "done"
	case Final:
		return "final"
	case Infeasible:
		return "infeasible"
	case Uncertain:
		return "uncertain"
	case Exhausted:
		return "exhausted"
	default:
		return "invalid"
	}
}

// MayStillRun reports whether the work may be going on in the driver or may
// have been done after all. Such work must be repeated or undone, never
// forgotten. Classes this package does not know count as running.
func (c Class) MayStillRun() bool {
	switch c {
	case Done, Final, Infeasible, Exhausted:
		return false
	default:
		return true
	}
}

// Of classifies the error of a CSI call, through any wrapping by %w. A nil
// error is Done. An error without a gRPC status says nothing about what the
// driver did and is Uncertain, a context's own errors included.
//
// CSI spec v1.13, "Error Scheme" and the per-call tables of error conditions.
func Of(err error) Class {
	if err == nil {
		return Done
	}
	st, ok := find(err)
	if !ok {
		return Uncertain
	}
	switch st.Code() {
	case codes.Canceled, codes.DeadlineExceeded, codes.Unavailable, codes.Aborted, codes.OK:
		// OK inside an error contradicts itself, so it proves nothing.
		return Uncertain
	case codes.ResourceExhausted:
		return Exhausted
	case codes.InvalidArgument, codes.OutOfRange:
		return Infeasible
	default:
		return Final
	}
}

// Code returns the gRPC code of err through any wrapping: OK for nil, Canceled
// or DeadlineExceeded for the errors of a context, and Unknown for any other
// error that carries no gRPC status.
func Code(err error) codes.Code {
	if err == nil {
		return codes.OK
	}
	if st, ok := find(err); ok {
		return st.Code()
	}
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		return codes.DeadlineExceeded
	case errors.Is(err, context.Canceled):
		return codes.Canceled
	default:
		return codes.Unknown
	}
}

// Message returns what the driver said, without gRPC's decoration ("rpc error:
// code = .. desc = ..") and without what callers wrapped around it, as one line
// of valid UTF-8 that fits into events and object status. An error without a
// gRPC status gives its own text, nil gives "".
func Message(err error) string {
	if err == nil {
		return ""
	}
	text := err.Error()
	if st, ok := find(err); ok {
		text = st.Message()
	}
	var one strings.Builder
	for line := range strings.Lines(strings.ToValidUTF8(text, "\uFFFD")) {
		words := strings.Join(strings.Fields(line), " ")
		switch before := one.String(); {
		case words == "" || before == "":
		case strings.ContainsAny(before[len(before)-1:], ".,:;"):
			one.WriteByte(' ')
		default:
			one.WriteString("; ") // the errors of errors.Join are sentences of their own
		}
		one.WriteString(words)
	}
	return one.String()
}

// FromDriver reports whether err carries a gRPC status: it is the outcome of a call. Other errors are about something before the call, or
// after it.
func FromDriver(err error) bool {
	_, ok := find(err)
	return ok
}

// Text returns what users read about err in status and events: the gRPC code and Message, or the text of an error that is not FromDriver.
func Text(err error) string {
	if FromDriver(err) {
		return Code(err).String() + ": " + Message(err)
	}
	return err.Error()
}

// find returns the gRPC status that err carries. It differs from
// status.FromError in that wrapping text is not mixed into the message.
func find(err error) (*status.Status, bool) {
	var carrier interface{ GRPCStatus() *status.Status }
	if !errors.As(err, &carrier) {
		return nil, false
	}
	st := carrier.GRPCStatus()
	return st, st != nil
}
