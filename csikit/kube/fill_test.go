package kube

import (
	"runtime/debug"
	"testing"
	"testing/synctest"
	"time"
)

// TestFiller has the target of the garbage collector low while a copy is filled, longer and less so after a large one, and as the user has
// set it otherwise.
func TestFiller(t *testing.T) {
	target := func() int {
		percent := debug.SetGCPercent(100)
		debug.SetGCPercent(percent)
		return percent
	}
	defer debug.SetGCPercent(target())
	for user, want := range map[int]struct{ during, later int }{
		100: {during: fillPercent, later: largePercent}, 400: {during: fillPercent, later: largePercent}, 25: {during: fillPercent, later: 25},
		5: {during: 5, later: 5}, -1: {during: -1, later: -1},
	} {
		synctest.Test(t, func(t *testing.T) {
			check := func(when string, want int) {
				t.Helper()
				if got := target(); got != want {
					t.Errorf("GOGC=%d: %d %s, want %d", user, got, when, want)
				}
			}
			debug.SetGCPercent(user)
			var f filler
			f.begin()(large - 1)
			check("after a small copy", user)
			for range 2 {
				first, second := f.begin(), f.begin()
				first(large)
				first(large) // again, as at the end of Run
				check("while a copy is filled", want.during)
				second(0)
				check("when the last copy is filled", want.during)
				time.Sleep(settleTime)
				synctest.Wait()
				check("after a large copy", want.later)
			}
			f.begin()(0)
			check("when another copy is filled", want.during)
		})
	}
}
