// Package logtest has a log that a test reads while goroutines write it. The log of a component that package sidecartest starts is read there.
package logtest

import (
	"bytes"
	"io"
	"sync"
)

// Log keeps what is written. The zero value is ready to use; it must not be copied.
type Log struct {
	// Copy gets what is written, too, such as the output of the test; nil for none.
	Copy io.Writer

	mu   sync.Mutex
	text bytes.Buffer
}

var _ io.Writer = (*Log)(nil)

// Write implements io.Writer. It returns the error of Copy.
func (l *Log) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	n, _ := l.text.Write(p) // it has no errors
	if l.Copy == nil {
		return n, nil
	}
	return l.Copy.Write(p)
}

// String returns what was written so far.
func (l *Log) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}
