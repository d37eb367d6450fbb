package flagset

import (
	"errors"
	"flag"
	"fmt"
	"time"
)

// Retry says how failed work is repeated.
type Retry struct {
	// Start is the pause after the first failure. It doubles with each further one.
	Start time.Duration
	// Max is the longest pause.
	Max time.Duration
}

// NewRetry returns the defaults: 1s doubling up to 5m.
func NewRetry() Retry {
	return Retry{Start: time.Second, Max: 5 * time.Minute}
}

// AddFlags registers --retry-interval-start and --retry-interval-max.
func (r *Retry) AddFlags(fs *flag.FlagSet) {
	fs.DurationVar(&r.Start, "retry-interval-start", r.Start, "retry interval after the first failure; it doubles with each further failure")
	fs.DurationVar(&r.Max, "retry-interval-max", r.Max, "maximum retry interval")
}

// Validate reports pauses that are not positive or in the wrong order.
func (r *Retry) Validate() error {
	var errs []error
	if r.Start <= 0 {
		errs = append(errs, invalid("retry-interval-start", r.Start, "must be greater than 0"))
	}
	if r.Max < r.Start {
		errs = append(errs, invalid("retry-interval-max", r.Max,
			fmt.Sprintf("must not be smaller than --retry-interval-start (%v)", r.Start)))
	}
	return errors.Join(errs...)
}
