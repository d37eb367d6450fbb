package volume

import "errors"

// The classes of failure of this package's services. Every error of a
// Service or NodeService wraps one of them, or is an unexpected failure of
// the machine. The gRPC border maps each to one code.
var (
	// ErrInvalid is an argument that breaks a rule: INVALID_ARGUMENT.
	ErrInvalid = errors.New("invalid argument")
	// ErrNotFound is a volume, node or path that does not exist: NOT_FOUND.
	ErrNotFound = errors.New("not found")
	// ErrExists is something of that name with other properties: ALREADY_EXISTS.
	ErrExists = errors.New("already exists")
	// ErrExhausted is a lack of space, of a place or of attach slots: RESOURCE_EXHAUSTED.
	ErrExhausted = errors.New("exhausted")
	// ErrOutOfRange is a size that the driver cannot make: OUT_OF_RANGE.
	ErrOutOfRange = errors.New("out of range")
	// ErrInUse is an operation that must wait for another: FAILED_PRECONDITION.
	ErrInUse = errors.New("in use")
	// ErrPrecondition is a call out of order: FAILED_PRECONDITION.
	ErrPrecondition = errors.New("failed precondition")
	// ErrConcurrentWrite: the source changed during each attempt to copy it, so that there is no copy of one point in
	// time: FAILED_PRECONDITION.
	ErrConcurrentWrite = errors.New("the source changed during the copy, which is of no single point in time")
	// ErrBusy is another call on the same volume that did not end in time: ABORTED.
	ErrBusy = errors.New("another operation is running")
	// ErrBadToken is a paging token that this process did not issue: ABORTED.
	ErrBadToken = errors.New("invalid starting token")
)
