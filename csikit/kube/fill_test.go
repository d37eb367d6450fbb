package kube

import (
	"runtime/debug"
	"testing"
)

// The target of the garbage collector is lower while any copy is filled, and as the user has set it afterwards.
func TestFiller(t *testing.T) {
	target := func() int {
		percent := debug.SetGCPercent(100)
		debug.SetGCPercent(percent)
		return percent
	}
	defer debug.SetGCPercent(target())
	for user, during := range map[int]int{100: fillPercent, 400: fillPercent, 20: 20, -1: -1} {
		debug.SetGCPercent(user)
		var f filler
		first, second := f.begin(), f.begin()
		first(large)
		first(large) // again, as at the end of Run
		if got := target(); got != during {
			t.Errorf("GOGC=%d: %d while a copy is filled, want %d", user, got, during)
		}
		second(0)
		if got := target(); got != user || f.large {
			t.Errorf("GOGC=%d: %d afterwards, memory to be given back: %t", user, got, f.large)
		}
	}
}
