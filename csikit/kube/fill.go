package kube

import (
	"runtime/debug"
	"sync"
	"time"
)

const (
	// fillPercent is the garbage collection target (GOGC) while copies are filled: what is decoded for a first list is garbage at
	// once, and would otherwise be most of what a component ever needs.
	fillPercent = 10
	// large is the number of objects from which on a copy is large. Below, all objects take less memory than the least garbage that
	// the runtime waits for, and collecting it more often would only cost CPU time.
	large = 5000
	// largePercent is the target of a process with a large copy. Its objects have no pointers that a collection would follow, so that
	// one more often costs little, and the memory that lies idle is in proportion to them.
	largePercent = 30
	// settleTime is how long after the first lists of large copies the target stays that low: the component reads all of it
	// then for the first time.
	settleTime = 10 * time.Second
)

// filling counts the copies of the process that are being filled.
var filling filler

type filler struct {
	mu      sync.Mutex
	copies  int
	large   bool // a copy was large
	percent int  // as it was before the first copy
}

// begin has garbage collected more often until the returned function is called with the number of objects of the copy. With the
// last one it is as it was, or, when there are many objects, a while later nearly so, and the memory is given back to the system.
// Later calls do nothing.
func (f *filler) begin() (end func(objects int)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.copies == 0 {
		if before := debug.SetGCPercent(fillPercent); !f.large {
			f.percent = before
		}
		f.setPercent(fillPercent)
	}
	f.copies++
	var once sync.Once
	return func(objects int) { once.Do(func() { f.end(objects) }) }
}

// setPercent sets the target, unless the user wants a lower one, or none.
func (f *filler) setPercent(percent int) {
	if f.percent < percent {
		percent = f.percent
	}
	debug.SetGCPercent(percent)
}

func (f *filler) end(objects int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.large = f.large || objects >= large
	f.copies--
	switch {
	case f.copies > 0:
	case !f.large:
		debug.SetGCPercent(f.percent)
	default:
		time.AfterFunc(settleTime, f.settle)
	}
}

// settle ends the time after large copies were filled.
func (f *filler) settle() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.copies == 0 { // else copies are filled again
		f.setPercent(largePercent)
		debug.FreeOSMemory()
	}
}
