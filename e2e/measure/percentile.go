package measure

import (
	"math"
	"slices"
	"time"
)

// Percentile returns the smallest of the times that so large a share of them, 0.99 for instance, does not exceed.
func Percentile(times []time.Duration, share float64) time.Duration {
	sorted := slices.Sorted(slices.Values(times))
	return sorted[max(0, int(math.Ceil(share*float64(len(sorted))))-1)]
}
