package proc

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"time"
)

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
	for again := false; p.mayRun(); again = true {
		if again {
			p.update(func() { p.status.Restarts++ })
		}
		began := time.Now()
		exit := p.once()
		if time.Since(began) > healthyAfter {
			backoff = firstBackoff
		}
		p.update(func() {
			p.status.State, p.status.PID, p.status.LastExit, p.status.Since = Backoff, 0, exit, time.Now()
			p.failures++
		})
		p.pause(backoff)
		backoff = min(2*backoff, maxBackoff)
	}
}

// mayRun waits while the process is held; it answers false once the process must not run again.
func (p *process) mayRun() bool {
	for announced := false; ; {
		stop, held, changed := p.wish()
		switch {
		case stop:
			return false
		case !held:
			return true
		case !announced:
			announced = true
			p.update(func() { p.status.State, p.status.Since = Held, time.Now() })
		default:
			<-changed
		}
	}
}

// wish is what is wanted of the process, and a channel that is closed at the next change.
func (p *process) wish() (stop, held bool, changed <-chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.stop, p.held, p.changed
}

// pause waits before a restart, unless there will be none, or not now.
func (p *process) pause(d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	for {
		stop, held, changed := p.wish()
		if stop || held {
			return
		}
		select {
		case <-timer.C:
			return
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
	cmd := exec.Command(p.spec.Path, p.spec.Args...) //nolint:noctx // it ends by Stop, with SIGTERM first
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
	if stop, held, _ := p.wish(); stop || held {
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
