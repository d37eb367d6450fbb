package volume

// BlockedError is an error which repetition cannot cure: it depends on nothing but the claim and its class, whose changes are watched.
type BlockedError struct{ Err error }

// Error implements error.
func (e BlockedError) Error() string { return e.Err.Error() }

// Unwrap returns the reason.
func (e BlockedError) Unwrap() error { return e.Err }
