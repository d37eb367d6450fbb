package hostpathdriver

import (
	"context"
	"errors"
	"os"
	"sync/atomic"
	"testing"
	"testing/synctest"
)

// TestProbeOfADeadStateDirectory: each probe has an answer, and all of them wait
// for one look.
func TestProbeOfADeadStateDirectory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var looks atomic.Int64
		back := make(chan struct{})
		d := &driver{dir: newDirCheck("/")}
		d.dir.stat = func(path string) (os.FileInfo, error) {
			looks.Add(1)
			<-back
			return os.Stat(path)
		}
		for range 3 {
			if err := d.Probe(t.Context()); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("while the file system does not answer: %v", err)
			}
		}
		if got := looks.Load(); got != 1 {
			t.Errorf("%d looks wait for the file system, want 1", got)
		}
		close(back)
		synctest.Wait()
		if err := d.Probe(t.Context()); err != nil {
			t.Errorf("when it is back: %v", err)
		}
	})
}
