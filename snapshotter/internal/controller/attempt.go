package controller

import (
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"k8s.io/apimachinery/pkg/types"

	"github.com/longshore-csi/longshore/csikit/outcome"
)

// knowledge is what is known of the attempts to take a snapshot.
type knowledge int

const (
	// outcomeForgotten: nothing is remembered; the content says whether an attempt may be in progress.
	outcomeForgotten knowledge = iota
	// outcomeUncertain: the snapshot may exist, or come to exist.
	outcomeUncertain
	// outcomeSettled: no attempt is in progress, and none has left a snapshot that the content does not name.
	outcomeSettled
)

// attempt is what is remembered of the last attempts on a content.
type attempt struct {
	uid types.UID
	// step and deleting say what was tried, failures how often in a row without success, polls how often the driver has answered that
	// the snapshot is not ready.
	step            verdict
	deleting        bool
	failures, polls int
	// due is when the same step is tried again.
	due time.Time
	err string
	// code is that of the last error of the driver, OK if the last error was not the driver's.
	code codes.Code

	outcome knowledge
	// final is the code of a final answer after an uncertain one, and since when the driver has given it.
	final      codes.Code
	finalSince time.Time
}

// wait returns the time until the step is due, 0 or less if it is.
func (a attempt) wait(step verdict, r record, now time.Time) time.Duration {
	if a.step != step || a.deleting != r.deleting {
		return 0
	}
	return a.due.Sub(now)
}

// of returns the attempt if it was of that step, else one without failures that knows the same about the snapshot.
func (a attempt) of(step verdict, r record) attempt {
	if a.step != step || a.deleting != r.deleting {
		return attempt{uid: a.uid, step: step, deleting: r.deleting, outcome: a.outcome, final: a.final, finalSince: a.finalSince}
	}
	return a
}

// begin notes that the driver is about to be called to take the snapshot. open: a former attempt may be in progress.
func (a attempt) begin(open bool) attempt {
	if !open {
		a.final = codes.OK
	}
	a.outcome = outcomeUncertain
	return a
}

// end notes the answer to the call. A final answer settles the outcome if no former attempt may be in progress. If one may, the driver
// might have answered about the latest only, such as NOT_FOUND or PERMISSION_DENIED; then the same answer has to come again when
// every former attempt is over, which is after timeout.
func (a attempt) end(open bool, err error, now time.Time, timeout time.Duration) attempt {
	code := outcome.Code(err)
	switch {
	case !isFinal(err):
		a.final = codes.OK
	case !open, a.final == code && now.Sub(a.finalSince) > timeout:
		a.outcome, a.final = outcomeSettled, codes.OK
	case a.final != code:
		a.final, a.finalSince = code, now
	}
	return a
}

// isFinal reports whether the driver has answered that it failed. Everything else may still be in progress, RESOURCE_EXHAUSTED included:
// gRPC itself answers so, when a call was sent.
func isFinal(err error) bool {
	class := outcome.Of(err)
	return !class.MayStillRun() && class != outcome.Exhausted && class != outcome.Done
}

// memory holds the last attempts by content. A content that was created later under the same name does not inherit them.
// The zero value is ready to use.
type memory struct {
	mu       sync.Mutex
	attempts map[string]attempt
}

// of returns what is remembered of a content.
func (m *memory) of(name string, uid types.UID) attempt {
	m.mu.Lock()
	defer m.mu.Unlock()
	if a, ok := m.attempts[name]; ok && a.uid == uid {
		return a
	}
	return attempt{uid: uid}
}

// put remembers an attempt.
func (m *memory) put(name string, a attempt) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.attempts == nil {
		m.attempts = map[string]attempt{}
	}
	m.attempts[name] = a
}

// forget drops what is remembered of a content.
func (m *memory) forget(name string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.attempts, name)
}

// retryNow ends the pause of a content.
func (m *memory) retryNow(name string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if a, ok := m.attempts[name]; ok {
		a.due = time.Time{}
		m.attempts[name] = a
	}
}
