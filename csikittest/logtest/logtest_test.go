package logtest_test

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/longshore-csi/longshore/csikittest/logtest"
)

var errFull = errors.New("full")

// full is a writer that cannot be written.
type full struct{}

func (full) Write([]byte) (int, error) { return 0, errFull }

// TestLog reads a log while several goroutines write it.
func TestLog(t *testing.T) {
	var copied strings.Builder
	log := &logtest.Log{Copy: &copied}
	var writers sync.WaitGroup
	for range 4 {
		writers.Go(func() {
			for range 100 {
				fmt.Fprintln(log, "line")
				if text := log.String(); !strings.HasSuffix(text, "line\n") {
					t.Errorf("read %q, which ends within a line", text)
				}
			}
		})
	}
	writers.Wait()
	if want := strings.Repeat("line\n", 400); log.String() != want || copied.String() != want {
		t.Errorf("%d bytes were written and %d copied, want %d", len(log.String()), copied.Len(), len(want))
	}
}

// TestCopyFails keeps what is written although it cannot be copied, and returns the error.
func TestCopyFails(t *testing.T) {
	log := &logtest.Log{Copy: full{}}
	if _, err := log.Write([]byte("line")); !errors.Is(err, errFull) || log.String() != "line" {
		t.Errorf("error %v, text %q", err, log.String())
	}
}
