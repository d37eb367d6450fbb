package kube

import (
	"runtime/debug"
	"sync"
)

const (
	// fillPercent is the garbage collection target (GOGC) while copies are filled: what is decoded for a first list is garbage at
	// once, and would otherwise be most of what a component ever needs.
	fillPercent = 50
	// large is the number of objects from which on the memory of that garbage is worth being given back.
	large = 1000
)

// filling counts the copies of the process that are being filled.
var filling filler

type filler struct {
	mu      sync.Mutex
	copies  int
	large   bool
	percent int // as it was before
}

// begin has garbage collected more often until the returned function is called with the number of objects of the copy, which gives the
// memory back to the system if it was the last one. Later calls do nothing.
func (f *filler) begin() (end func(objects int)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.copies == 0 {
		if f.percent = debug.SetGCPercent(fillPercent); f.percent < fillPercent {
			debug.SetGCPercent(f.percent) // the user wants it even more often, or never
		}
	}
	f.copies++
	var once sync.Once
	return func(objects int) { once.Do(func() { f.end(objects) }) }
}

func (f *filler) end(objects int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.large = f.large || objects >= large
	if f.copies--; f.copies > 0 {
		return
	}
	debug.SetGCPercent(f.percent)
	if f.large {
		f.large = false
		debug.FreeOSMemory()
	}
}
