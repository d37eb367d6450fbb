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
	"os/exec"
	"runtime"
	"slices"
	"sync"
	"syscall"
	"time"
)

// ErrHopeless says that a process ended again and again and was never ready.
var ErrHopeless = errors.New("it ends again and again")

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
	// hopeless is how often in a row a process may end without having been ready before nobody waits for it any longer.
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

	mu    sync.Mutex
	procs []*process
	wg    sync.WaitGroup

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

type process struct {
	spec Spec
	m    *Manager

	mu      sync.Mutex
	status  Status
	changed chan struct{} // closed at the next change of status or wish
	held    bool
	stop    bool
	// failures counts the ends in a row without having been ready.
	failures int
}

// Start runs a process and keeps it running. It returns at once; wait for readiness with WaitReady.
func (m *Manager) Start(spec Spec) error {
	if spec.Grace == 0 {
		spec.Grace = 10 * time.Second
	}
	m.mu.Lock()
	defer m.mu.Unlock()
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
// was ready. The error, also that of a context that ends first, says how the process ended and names its log.
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
			return fmt.Errorf("start %s: %w, the last time with %q; its log is %s", name, ErrHopeless, s.LastExit, p.spec.Log)
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return fmt.Errorf("wait for %s, state %s, log %s%s: %w", name, s.State, p.spec.Log, prefixed(", ", s.LastExit), ctx.Err())
		}
	}
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
// period, and waits for all. Nothing can be started after it.
func (m *Manager) Stop() {
	m.mu.Lock()
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

var errNotRunning = errors.New("not running")

func (p *process) signal(sig syscall.Signal) error {
	s, _ := p.look()
	if s.PID == 0 {
		return fmt.Errorf("signal %s: %w", p.spec.Name, errNotRunning)
	}
	if err := syscall.Kill(-s.PID, sig); err != nil {
		return fmt.Errorf("signal %s (process group %d): %w", p.spec.Name, s.PID, err)
	}
	return nil
}

// awaitEnd waits for the end of a process that was asked to stop, and kills it when its grace period is over.
func (p *process) awaitEnd() {
	grace := time.NewTimer(p.spec.Grace)
	defer grace.Stop()
	for {
		s, changed := p.look()
		if s.PID == 0 {
			return
		}
		select {
		case <-changed:
		case <-grace.C:
			_ = p.signal(syscall.SIGKILL)
		}
	}
}

func (p *process) isHopeless() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.failures >= hopeless
}

func (p *process) look() (Status, <-chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.status, p.changed
}

// update changes the process under its lock and wakes everybody who waits for a change.
func (p *process) update(change func()) {
	p.mu.Lock()
	change()
	s := p.status
	close(p.changed)
	p.changed = make(chan struct{})
	p.mu.Unlock()
	if p.m.OnChange != nil {
		p.m.OnChange(s)
	}
}

// run is the life of a process: start, wait for its end, wait a little, start again.
func (p *process) run() {
	backoff := firstBackoff
	for p.mayRun() {
		began := time.Now()
		exit := p.once()
		if time.Since(began) > healthyAfter {
			backoff = firstBackoff
		}
		p.update(func() {
			p.status.State, p.status.PID, p.status.LastExit, p.status.Since = Backoff, 0, exit, time.Now()
			p.failures++
		})
		if p.pause(backoff) {
			p.update(func() { p.status.Restarts++ })
		}
		backoff = min(2*backoff, maxBackoff)
	}
}

// mayRun waits while the process is held; it answers false once the process must not run again.
func (p *process) mayRun() bool {
	for {
		p.mu.Lock()
		stop, held, changed := p.stop, p.held, p.changed
		if held && p.status.State != Held {
			p.status.State = Held
		}
		p.mu.Unlock()
		if stop {
			return false
		}
		if !held {
			return true
		}
		<-changed
	}
}

// pause waits before a restart; it answers false when there will be none.
func (p *process) pause(d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	for {
		p.mu.Lock()
		stop, changed := p.stop, p.changed
		p.mu.Unlock()
		if stop {
			return false
		}
		select {
		case <-timer.C:
			return true
		case <-changed:
		}
	}
}

// once runs the process until it ends and says how it ended.
func (p *process) once() string {
	log, err := os.OpenFile(p.spec.Log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return fmt.Sprintf("open log: %v", err)
	}
	defer log.Close()
	cmd := exec.Command(p.spec.Path, p.spec.Args...)
	cmd.Env = append(os.Environ(), p.spec.Env...)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	if err := p.fork(cmd); err != nil {
		return err.Error()
	}
	ctx, cancel := context.WithCancel(context.Background())
	var probe sync.WaitGroup
	probe.Go(func() { p.probe(ctx) })
	err = cmd.Wait()
	cancel()
	probe.Wait()
	_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) // what the process itself had started
	return cmd.ProcessState.String() + prefixed(": ", waitError(err))
}

func (p *process) fork(cmd *exec.Cmd) error {
	done := make(chan error, 1)
	p.m.forks <- func() { done <- cmd.Start() }
	if err := <-done; err != nil {
		return fmt.Errorf("start: %w", err)
	}
	p.update(func() { p.status.State, p.status.PID, p.status.Since = Starting, cmd.Process.Pid, time.Now() })
	// A stop or a hold that came while nothing ran found no process to signal.
	p.mu.Lock()
	unwanted := p.stop || p.held
	p.mu.Unlock()
	if unwanted {
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
	}
	return nil
}

func (p *process) probe(ctx context.Context) {
	tick := time.NewTicker(readyPeriod)
	defer tick.Stop()
	for p.spec.Ready != nil {
		attempt, cancel := context.WithTimeout(ctx, 5*time.Second)
		err := p.spec.Ready(attempt)
		cancel()
		if err == nil {
			break
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
	p.update(func() {
		if ctx.Err() == nil {
			p.status.State, p.failures = Ready, 0
		}
	})
}

// waitError drops the error that only repeats the exit status.
func waitError(err error) string {
	var exit *exec.ExitError
	if err == nil || errors.As(err, &exit) {
		return ""
	}
	return err.Error()
}

func prefixed(prefix, text string) string {
	if text == "" {
		return ""
	}
	return prefix + text
}
