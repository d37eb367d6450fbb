package driverkit

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/longshore-csi/longshore/csikit/redact"
	"github.com/longshore-csi/longshore/driverkit/filesystem"
	"github.com/longshore-csi/longshore/driverkit/mount"
)

// Errors that a driver's errors wrap, so that the CO gets the right gRPC code.
var (
	// ErrInvalid says that an argument breaks a rule, which the text names: INVALID_ARGUMENT.
	ErrInvalid = errors.New("invalid argument")
	// ErrNotFound says that a volume, snapshot, source or node does not exist: NOT_FOUND. NotFound says which: only that makes a deletion succeed.
	ErrNotFound = errors.New("not found")
	// ErrExists says that an object of this name or at this path is not as requested: ALREADY_EXISTS.
	ErrExists = errors.New("already exists")
	// ErrExhausted says that there is no space, or none in the requested topology: RESOURCE_EXHAUSTED. The provisioner then tries another topology.
	ErrExhausted = errors.New("resource exhausted")
	// ErrOutOfRange says that a size is impossible: OUT_OF_RANGE.
	ErrOutOfRange = errors.New("out of range")
	// ErrInUse says that the object has users, which must leave first: FAILED_PRECONDITION.
	ErrInUse = errors.New("in use")
	// ErrPrecondition says that the call is out of order: FAILED_PRECONDITION.
	ErrPrecondition = errors.New("failed precondition")
	// ErrBusy says that another operation on the object is running, or that its outcome is not known: ABORTED. The CO retries.
	ErrBusy = errors.New("another operation is running")
	// ErrUnauthenticated says that secrets are missing or wrong: UNAUTHENTICATED.
	ErrUnauthenticated = errors.New("unauthenticated")
	// ErrDenied says that the account of the secrets lacks a right: PERMISSION_DENIED.
	ErrDenied = errors.New("permission denied")
	// ErrUnavailable says that the storage system does not answer: UNAVAILABLE. The CO retries.
	ErrUnavailable = errors.New("unavailable")
	// ErrRunning says that the work of a call goes on in the background: ABORTED. A repeated call waits for it.
	ErrRunning = errors.New("call again to wait for it")
	// ErrDataLoss says that contents are lost or damaged, and that the CO cannot help: DATA_LOSS.
	ErrDataLoss = errors.New("data loss")
)

// NotFound is the ErrNotFound for an object: "volume", "snapshot", "group snapshot" or "node". The deletion of an object that does not exist is a success, and so is a detachment from it, or from
// a node that does not exist. Any other ErrNotFound is no evidence of that: an answer 404 may be that of a wrong address.
func NotFound(kind, id string) error { return &notFoundError{kind, id} }

// notFoundError is the error of NotFound.
type notFoundError struct{ kind, id string }

// Error implements error.
func (n *notFoundError) Error() string { return fmt.Sprintf("%s %q: %v", n.kind, n.id, ErrNotFound) }

// Is says that it is an ErrNotFound.
func (*notFoundError) Is(target error) bool { return target == ErrNotFound }

// IsNotFound reports whether an error is NotFound of one of these ids.
func IsNotFound(err error, ids ...string) bool {
	found, ok := errors.AsType[*notFoundError](err)
	return ok && slices.Contains(ids, found.id)
}

// ignoreNotFound returns nil for an error that says that one of these objects does not exist. Another ErrNotFound is INTERNAL, so that no CO takes it for that.
func ignoreNotFound(err error, ids ...string) error {
	if IsNotFound(err, ids...) {
		return nil
	}
	if isNotFound(err) {
		//nolint:errorlint // its code is not to be seen
		return fmt.Errorf("%v (which does not say that %q does not exist: the driver has to use driverkit.NotFound for that)", err, ids)
	}
	return err
}

// isNotFound reports whether an error says that an object does not exist, by ErrNotFound or by its gRPC status.
func isNotFound(err error) bool { return err != nil && codeOf(err) == codes.NotFound }

// Final says that a call that makes something has made nothing, and that nothing of it is going on, for an error that is none of this package: the CO may give up its request, and forget it.
// Without it such an error may be that of an answer that was lost, and is ABORTED: the CO repeats the same request until it has an answer, and deletes what was made.
func Final(err error) error { return &final{err} }

// final is the error of Final.
type final struct{ error }

// Unwrap returns the error that is final.
func (f *final) Unwrap() error { return f.error }

// uncertain has an error of a call that makes something say that the outcome is not known, unless the error itself says more.
func uncertain(err error) error {
	if _, final := errors.AsType[*final](err); err == nil || final || classified(err) {
		return err
	}
	return fmt.Errorf("%w (what was asked for may exist: the same request is to be repeated): %w", err, ErrBusy)
}

// errorCode is the gRPC code of an error.
type errorCode struct {
	err  error
	code codes.Code
}

// codesOfErrors is the order in which an error that wraps several is classified. ErrBusy precedes all: an outcome that is not known must not look final.
func codesOfErrors() []errorCode {
	return []errorCode{
		{ErrBusy, codes.Aborted},
		{ErrRunning, codes.Aborted},
		{ErrInvalid, codes.InvalidArgument},
		{ErrExists, codes.AlreadyExists},
		{ErrExhausted, codes.ResourceExhausted},
		{ErrOutOfRange, codes.OutOfRange},
		{ErrInUse, codes.FailedPrecondition},
		{ErrPrecondition, codes.FailedPrecondition},
		{mount.ErrOccupied, codes.FailedPrecondition},
		{ErrNotFound, codes.NotFound},
		{ErrUnauthenticated, codes.Unauthenticated},
		{ErrDenied, codes.PermissionDenied},
		{ErrDataLoss, codes.DataLoss},
		{filesystem.ErrLost, codes.DataLoss},
		{ErrUnavailable, codes.Unavailable},
		{context.DeadlineExceeded, codes.DeadlineExceeded},
		{context.Canceled, codes.Canceled},
	}
}

// classified reports whether an error has a code.
func classified(err error) bool {
	_, ok := status.FromError(err)
	return ok || codeOf(err) != codes.Internal
}

// codeOf classifies an error: by the errors above, then by its own gRPC status; INTERNAL for any other error.
func codeOf(err error) codes.Code {
	for _, c := range codesOfErrors() {
		if errors.Is(err, c.err) {
			return c.code
		}
	}
	if s, ok := status.FromError(err); ok {
		return s.Code()
	}
	return codes.Internal
}

// statusOf returns err as a gRPC status whose text has no secret. nil stays nil.
func statusOf(err error, secrets Secrets) error {
	if err == nil {
		return nil
	}
	return status.Error(codeOf(err), secrets.remove(err.Error()))
}

// allSecrets returns the secrets of a request, with the tokens of service accounts that Kubernetes puts into the volume context, and the values of mount flags (CSI v1.13, "VolumeCapability":
// mount_flags may be secrets).
func allSecrets(secrets, volumeContext map[string]string, mountFlags []string) Secrets {
	all := Secrets{}
	maps.Copy(all, secrets)
	if tokens := volumeContext[redact.TokensKey]; tokens != "" {
		all[redact.TokensKey] = tokens
	}
	for _, flag := range mountFlags {
		if _, value, ok := strings.Cut(flag, "="); ok {
			all["mount flag "+flag] = value
		}
	}
	return all
}

// stripped stands in a text where a secret was.
const stripped = "***stripped***"

// shortestSecret is the length in bytes of the shortest value that is removed from texts. A shorter one is part of many words.
const shortestSecret = 4

// Secrets are the secrets of a request, by name. They print as their names, without values.
type Secrets map[string]string

// String implements fmt.Stringer without values.
func (s Secrets) String() string {
	names := make([]string, 0, len(s))
	for name := range s {
		names = append(names, name+":"+stripped)
	}
	slices.Sort(names)
	return "[" + strings.Join(names, " ") + "]"
}

// GoString implements fmt.GoStringer without values.
func (s Secrets) GoString() string { return "driverkit.Secrets" + s.String() }

// MarshalText implements encoding.TextMarshaler without values, for JSON too.
func (s Secrets) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// remove removes the secrets' values from a text that a storage system may have quoted them in.
func (s Secrets) remove(text string) string {
	values := slices.Collect(maps.Values(s))
	for _, token := range parseTokens(s[redact.TokensKey]) {
		values = append(values, token.Value)
	}
	// The longest comes first: another one may be a part of it.
	slices.SortFunc(values, func(a, b string) int { return len(b) - len(a) })
	for _, value := range values {
		if len(value) >= shortestSecret {
			quoted := strings.Trim(strconv.Quote(value), `"`)
			text = strings.ReplaceAll(strings.ReplaceAll(text, value, stripped), quoted, stripped)
		}
	}
	return text
}
