package reconcile

import (
	"time"

	"github.com/longshore-csi/longshore/csikit/flagset"
)

// Pause returns the pause after the failure of a key that has failed before that many times in a row: the pauses of a Controller, for
// work whose retries are not those of its key.
func Pause[K comparable](retry flagset.Retry, key K, failures int) time.Duration {
	return spread(key, failures, exponential(retry.Start, retry.Max, failures))
}
