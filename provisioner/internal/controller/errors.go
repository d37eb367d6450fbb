package controller

import (
	"strings"

	"github.com/longshore-csi/longshore/csikit/outcome"
)

// callError is the error of a call to the driver, in words for an event: what was attempted, the code, and the message of
// the driver.
type callError struct {
	what string
	err  error
	// unsent says that the call has not reached the driver.
	unsent bool
}

// Error implements error.
func (e callError) Error() string {
	return e.what + ": " + outcome.Code(e.err).String() + ": " + outcome.Message(e.err)
}

// Unwrap gives package outcome the status of the call.
func (e callError) Unwrap() error {
	return e.err
}

// blockedError is an error which repetition cannot cure: it depends on nothing but the claim and its class, whose changes
// are watched.
type blockedError struct{ err error }

// Error implements error.
func (e blockedError) Error() string {
	return e.err.Error()
}

// Unwrap returns the reason.
func (e blockedError) Unwrap() error {
	return e.err
}

// describe returns an error as one line.
func describe(err error) string {
	return strings.Join(strings.Fields(err.Error()), " ")
}
