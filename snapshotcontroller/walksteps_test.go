//go:build !race

package snapshotcontroller

// walkDefault is the number of steps of TestWalk.
const walkDefault = 10000
