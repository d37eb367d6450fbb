package reconciletest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/klog/v2"
	"k8s.io/klog/v2/textlogger"

	"github.com/longshore-csi/longshore/csikittest/csitest"
	"github.com/longshore-csi/longshore/csikittest/kubetest"
)

const (
	// settleTime is how long commands wait for the component's own work. It is shorter than the
	// backoff after failures.
	settleTime = 500 * time.Millisecond
	// stopTime is how long a component may take to stop.
	stopTime = time.Hour
)

// stage is the state of a transcript: the API server, the driver and the component.
type stage struct {
	t         testing.TB
	component Start
	kinds     Kinds
	cluster   *kubetest.Cluster
	driver    *csitest.Driver
	log       *record
	pace      pace

	args    map[string]string // of the last start
	running *run              // nil: the component does not run
	crashes []*crashPoint     // of CSI calls
}

// run is one run of the component, from start to stop or crash.
type run struct {
	session *kubetest.Session
	conn    *conn
	cancel  context.CancelCauseFunc
	done    chan struct{}
	err     error
	crashed atomic.Bool
}

// errCrash is the cause of the end of a crashed component's context; no work may be finished.
var errCrash error = crashError{}

type crashError struct{}

// Error implements error.
func (crashError) Error() string { return "crash" }

// Abort reports that running work must not be finished.
func (crashError) Abort() bool { return true }

func newStage(tb testing.TB, kinds Kinds, component Start) *stage {
	tb.Helper()
	s := &stage{t: tb, component: component, kinds: kinds, cluster: kubetest.New(), driver: csitest.New(csitest.Options{}), log: &record{}}
	if kinds.Install != nil {
		kinds.Install(s.cluster)
	}
	s.cluster.Observe(func(w kubetest.Write) {
		s.log.write(w)
		s.pace.write(w)
	})
	return s
}

// start starts the component.
func (s *stage) start(c *command) string {
	if s.running != nil {
		c.fatalf("the component runs already")
	}
	s.args = c.pairs()
	s.launch()
	return ""
}

func (s *stage) launch() {
	s.pace.begin(s.args)
	ctx, cancel := context.WithCancelCause(klog.NewContext(context.Background(), s.logger()))
	r := &run{session: s.cluster.NewSession(), cancel: cancel, done: make(chan struct{})}
	r.conn = &conn{inner: s.driver.Conn(), stage: s, run: r}
	env := &Env{Kube: r.session.Client(), Session: r.session, Conn: r.conn, Driver: s.driver, Cluster: s.cluster, Args: maps.Clone(s.args)}
	s.running = r
	go func() {
		defer close(r.done)
		r.err = s.component(ctx, env)
	}()
}

// logger writes the component's log to the test's log when the tests run with -v.
func (s *stage) logger() klog.Logger {
	to := io.Discard
	if testing.Verbose() {
		to = s.t.Output()
	}
	return textlogger.NewLogger(textlogger.NewConfig(textlogger.Output(to), textlogger.Verbosity(4)))
}

// stop ends the component's context and waits.
func (s *stage) stop(c *command) string {
	if s.running == nil {
		c.fatalf("the component does not run")
	}
	s.pace.end()
	s.running.cancel(nil)
	return s.await()
}

// restart stops the component, if it has not crashed, and starts it again.
func (s *stage) restart(c *command) string {
	printed := ""
	if s.running != nil {
		printed = s.stop(c)
	}
	if pairs := c.pairs(); len(pairs) > 0 {
		s.args = pairs
	}
	s.launch()
	return printed
}

// crash ends the component without any further call or write.
func (s *stage) crash(c *command) string {
	if s.running == nil {
		c.fatalf("the component does not run")
	}
	s.running.kill()
	return s.await()
}

// kill cuts all connections, then ends the component's context.
func (r *run) kill() {
	r.session.Cut()
	r.conn.cut.Store(true)
	r.crashed.Store(true)
	r.cancel(errCrash)
}

// await waits for the component and returns a note on how it ended.
func (s *stage) await() string {
	s.t.Helper()
	r := s.running
	select {
	case <-r.done:
	case <-time.After(stopTime):
		s.t.Fatalf("the component has not ended within %v after its context", stopTime)
	}
	s.running = nil
	if r.err != nil && !r.crashed.Load() && !errors.Is(r.err, context.Canceled) {
		return fmt.Sprintf("stopped: %v\n", r.err)
	}
	return ""
}

// nothing is the function of verbs that only wait.
func (s *stage) nothing(*command) string { return "" }

// settle waits for the component's own work. A component that has ended meanwhile is noted.
func (s *stage) settle() {
	time.Sleep(settleTime) //nolint:forbidigo // the time is virtual: there is nothing to wait for but time
	synctest.Wait()
	s.noteEnd()
}

// advance lets time pass.
func (s *stage) advance(c *command) string {
	time.Sleep(c.duration(c.word("duration"))) //nolint:forbidigo // the time is virtual: there is nothing to wait for but time
	synctest.Wait()
	s.noteEnd()
	return ""
}

// noteEnd notes that a component has ended by itself, or at a crash point.
func (s *stage) noteEnd() {
	if s.running == nil {
		return
	}
	if s.running.crashed.Load() {
		s.await()
		s.log.note("crashed")
		return
	}
	select {
	case <-s.running.done:
		s.log.note(cmp.Or(s.await(), "stopped"))
	default:
	}
}

// finish ends a transcript.
func (s *stage) finish() {
	s.t.Helper()
	if s.running != nil {
		s.pace.end()
		s.running.cancel(nil)
		s.await()
	}
	for _, violation := range s.driver.Violations() {
		s.t.Errorf("against the life cycle of CSI: %s", violation)
	}
}
