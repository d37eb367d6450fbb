package drivertest

import (
	"os"
	"testing"
)

// adoption has the records of a node lost under a workload: the state directory was, or the driver replaces another one, whose volumes are in use. The CO knows nothing of it, and makes its next calls.
func (s *settings) adoption(t *testing.T) {
	l := s.newLife(t, path{}, &fault{at: -1})
	defer func() { l.stop() }()
	forget := func() {
		l.stop()
		if err := os.RemoveAll(l.m.path("state/journal")); err != nil {
			t.Fatal(err)
		}
		l.start()
	}
	calls := func(names ...string) {
		for _, name := range names {
			l.call(name)
		}
	}
	calls("create", "attach", "stage", "publish")
	forget()
	if s.block {
		calls("stage", "publish", "stats", "unpublish")
	} else {
		calls("stats", "publish")
		l.checkPublished("publish")
		calls("unpublish")
		forget() // what is to be unstaged is found by its mount
	}
	calls("unstage", "detach", "delete")
	l.m.checkLeaks(t)
}
