//go:build !race

package snapshotter

// walkDefault is the number of steps of TestWalk.
const walkDefault = 10000
