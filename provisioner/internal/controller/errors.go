package controller

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
