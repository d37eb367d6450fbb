// Package oneline joins errors to texts of one line, as logs, events and answers of HTTP have them.
package oneline

import (
	"errors"
	"strings"
)

// Join is errors.Join with "; " between the texts.
func Join(errs ...error) error {
	if err := errors.Join(errs...); err != nil {
		return joined{err}
	}
	return nil
}

type joined struct{ error }

// Error implements error.
func (j joined) Error() string { return strings.ReplaceAll(j.error.Error(), "\n", "; ") }

// Unwrap returns the errors.
func (j joined) Unwrap() error { return j.error }
