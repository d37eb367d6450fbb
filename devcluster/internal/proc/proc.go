// Package proc runs a set of processes and restarts those that end.
//
// It stands where the kubelet stands in a real cluster: a component that crashes comes back after a short wait. Each process
// has its own group and dies with the manager's process, so nothing stays behind whatever happens. It is not an init
// system: it knows no dependencies; the caller starts things in order and waits for Ready.
package proc

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
)

// ErrHopeless says that a process ended again and again and was never ready.
var ErrHopeless = errors.New("it ends again and again")

// ErrStopped says that the manager was stopped and starts nothing any more.
var ErrStopped = errors.New("the manager was stopped")

// State of a process.
type State string

// States of a process.
const (
	Starting State = "Starting" // runs, not ready yet
	Ready    State = "Ready"
	Backoff  State = "Backoff" // ended, waits to be started again
	Held     State = "Held"    // stopped on request, not restarted until released
)

const (
	firstBackoff = 100 * time.Millisecond
	maxBackoff   = 10 * time.Second
	// healthyAfter is how long a process must have lived for the next restart to be quick again.
	healthyAfter = 10 * time.Second
	readyPeriod  = 50 * time.Millisecond
	// hopeless is how often in a row a process may end without having been ready before waiting for it ends with an error.
	hopeless = 5
)

// Spec says how to run a process.
type Spec struct {
	Name string
	Path string
	Args []string
	// Env is added to the environment of the manager.
	Env []string
	// Log is the file that gets standard output and standard error, appended.
	Log string
	// Ready is asked until it answers nil. Nil: ready as soon as it runs.
	Ready func(context.Context) error
	// Grace is the time between SIGTERM and SIGKILL at a stop; 10 s by default.
	Grace time.Duration
}

// Status is what is known of a process.
type Status struct {
	Name     string    `json:"name"`
	State    State     `json:"state"`
	PID      int       `json:"pid,omitempty"`
	Restarts int       `json:"restarts"`
	Since    time.Time `json:"since"`
	// LastExit says how the process ended last, empty while it never did.
	LastExit string `json:"lastExit,omitempty"`
}

// Manager owns processes. Make one with New.
type Manager struct {
	// OnChange is called after each change of a status, without locks held. Set it before the first Start.
	OnChange func(Status)

	mu      sync.Mutex
	procs   []*process
	stopped bool
	wg      sync.WaitGroup

	forks  chan func()
	forker sync.WaitGroup
	once   sync.Once
}

// New makes a manager. Stop it, also when nothing was started.
func New() *Manager {
	m := &Manager{forks: make(chan func())}
	m.forker.Go(m.fork)
	return m
}

// fork starts processes from one locked thread: the kernel ties "kill me when my parent dies" to the parent's thread, and an
// ordinary goroutine's thread may end before the process does.
func (m *Manager) fork() {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	for start := range m.forks {
		start()
	}
}

// Start runs a process and keeps it running. It returns at once; wait for readiness with WaitReady.
func (m *Manager) Start(spec Spec) error {
	if spec.Grace == 0 {
		spec.Grace = 10 * time.Second
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.stopped {
		return fmt.Errorf("start %s: %w", spec.Name, ErrStopped)
	}
	if slices.ContainsFunc(m.procs, func(p *process) bool { return p.spec.Name == spec.Name }) {
		return fmt.Errorf("start %s: a process of this name runs already", spec.Name)
	}
	p := &process{spec: spec, m: m, changed: make(chan struct{}), status: Status{Name: spec.Name, State: Starting, Since: time.Now()}}
	m.procs = append(m.procs, p)
	m.wg.Go(p.run)
	return nil
}

// Statuses lists the processes in the order in which they were started.
func (m *Manager) Statuses() []Status {
	m.mu.Lock()
	defer m.mu.Unlock()
	all := make([]Status, 0, len(m.procs))
	for _, p := range m.procs {
		s, _ := p.look()
		all = append(all, s)
	}
	return all
}

// WaitReady waits until the process is ready. It gives up with ErrHopeless on a process that ended five times in a row before it
// was ready. The error, also that of a context that ends first, says how the process ended, names its log, and has the last lines of it.
func (m *Manager) WaitReady(ctx context.Context, name string) error {
	p, err := m.find(name)
	if err != nil {
		return err
	}
	for {
		s, changed := p.look()
		if s.State == Ready {
			return nil
		}
		if p.isHopeless() {
			return fmt.Errorf("start %s: %w, the last time with %q; its log is %s%s", name, ErrHopeless, s.LastExit, p.spec.Log, LastLines(p.spec.Log))
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return fmt.Errorf("wait for %s, state %s, log %s%s: %w%s", name, s.State, p.spec.Log, prefixed(", ", s.LastExit), ctx.Err(), LastLines(p.spec.Log))
		}
	}
}

// lastLines is how many lines of a log an error shows, each of at most so many bytes.
const lastLines, lineLength = 10, 500

// LastLines returns the last lines of a log, for the end of an error: after a heading, or nothing if the log is empty or cannot be read.
func LastLines(log string) string {
	data, err := os.ReadFile(log)
	text := strings.TrimSpace(string(data))
	if err != nil || text == "" {
		return ""
	}
	lines := strings.Split(text, "\n")
	lines = lines[max(0, len(lines)-lastLines):]
	for i, line := range lines {
		lines[i] = line[:min(len(line), lineLength)]
	}
	return "\nthe log ends with:\n  " + strings.Join(lines, "\n  ")
}

// Signal sends a signal to the group of a process; a process that ends is restarted as after a crash.
func (m *Manager) Signal(name string, sig syscall.Signal) error {
	p, err := m.find(name)
	if err != nil {
		return err
	}
	return p.signal(sig)
}

// Hold kills a process and leaves it down until Release.
func (m *Manager) Hold(name string) error {
	p, err := m.find(name)
	if err != nil {
		return err
	}
	p.update(func() { p.held = true })
	if err := p.signal(syscall.SIGKILL); err != nil && !errors.Is(err, errNotRunning) {
		return err
	}
	return nil
}

// Release lets a held process run again.
func (m *Manager) Release(name string) error {
	p, err := m.find(name)
	if err != nil {
		return err
	}
	p.update(func() { p.held = false })
	return nil
}

// Stop asks all processes to end by SIGTERM, the one started last first, kills those that are still there after their grace
// period, and waits for all. Nothing can be started after it: Start answers ErrStopped.
func (m *Manager) Stop() {
	m.mu.Lock()
	m.stopped = true
	procs := slices.Clone(m.procs)
	m.mu.Unlock()
	for _, p := range slices.Backward(procs) {
		p.update(func() { p.stop = true })
		_ = p.signal(syscall.SIGTERM) // not running is what we want
	}
	for _, p := range slices.Backward(procs) {
		p.awaitEnd()
	}
	m.wg.Wait()
	m.once.Do(func() { close(m.forks) })
	m.forker.Wait()
}

func (m *Manager) find(name string) (*process, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	names := make([]string, 0, len(m.procs))
	for _, p := range m.procs {
		if p.spec.Name == name {
			return p, nil
		}
		names = append(names, p.spec.Name)
	}
	return nil, fmt.Errorf("no process is named %q: there are %q", name, names)
}
