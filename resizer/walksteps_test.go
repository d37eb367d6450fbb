//go:build !race

package resizer

// walkDefault is the number of steps of TestWalk.
const walkDefault = 10000
