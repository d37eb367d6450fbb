//go:build race

package snapshotcontroller

// walkDefault is the number of steps of TestWalk with the race detector, which makes each take several times longer.
const walkDefault = 800
