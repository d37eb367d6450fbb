package proc_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/longshore-csi/longshore/devcluster/internal/proc"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func newManager(t *testing.T) *proc.Manager {
	t.Helper()
	t.TempDir() // what is asked for first is removed last: the logs must outlive the processes
	m := proc.New()
	t.Cleanup(m.Stop)
	return m
}

func shell(t *testing.T, name, script string) proc.Spec {
	return proc.Spec{Name: name, Path: "/bin/sh", Args: []string{"-c", script}, Log: filepath.Join(t.TempDir(), name+".log")}
}

// await waits for a status that satisfies ok; the deadline only ends a test that would hang.
func await(t *testing.T, m *proc.Manager, name string, ok func(proc.Status) bool) proc.Status {
	t.Helper()
	deadline := time.After(3 * time.Minute)
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for {
		for _, s := range m.Statuses() {
			if s.Name == name && ok(s) {
				return s
			}
		}
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("%s never got there: %+v", name, m.Statuses())
		}
	}
}

func start(t *testing.T, m *proc.Manager, spec proc.Spec) {
	t.Helper()
	if err := m.Start(spec); err != nil {
		t.Fatal(err)
	}
}

func waitReady(t *testing.T, m *proc.Manager, name string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
	defer cancel()
	if err := m.WaitReady(ctx, name); err != nil {
		t.Fatal(err)
	}
}

func alive(pid int) bool { return syscall.Kill(pid, 0) == nil }

func TestKilledProcessComesBack(t *testing.T) {
	m := newManager(t)
	start(t, m, shell(t, "a", "exec sleep 1000"))
	waitReady(t, m, "a")
	first := m.Statuses()[0].PID
	if err := m.Signal("a", syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	s := await(t, m, "a", func(s proc.Status) bool { return s.State == proc.Ready && s.PID != first })
	if s.Restarts != 1 || !strings.Contains(s.LastExit, "killed") {
		t.Errorf("got %+v", s)
	}
}

func TestReadyIsAskedUntilItAnswers(t *testing.T) {
	m := newManager(t)
	ready := make(chan struct{})
	spec := shell(t, "a", "exec sleep 1000")
	spec.Ready = func(context.Context) error {
		select {
		case <-ready:
			return nil
		default:
			return errors.New("not yet")
		}
	}
	start(t, m, spec)
	s := await(t, m, "a", func(s proc.Status) bool { return s.PID != 0 })
	if s.State != proc.Starting {
		t.Fatalf("state %s before the probe succeeded", s.State)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if err := m.WaitReady(ctx, "a"); err == nil || !strings.Contains(err.Error(), spec.Log) {
		t.Errorf("the error does not name the log: %v", err)
	}
	close(ready)
	waitReady(t, m, "a")
}

func TestHeldProcessStaysDownUntilReleased(t *testing.T) {
	m := newManager(t)
	start(t, m, shell(t, "a", "exec sleep 1000"))
	waitReady(t, m, "a")
	if err := m.Hold("a"); err != nil {
		t.Fatal(err)
	}
	await(t, m, "a", func(s proc.Status) bool { return s.State == proc.Held && s.PID == 0 })
	if err := m.Release("a"); err != nil {
		t.Fatal(err)
	}
	await(t, m, "a", func(s proc.Status) bool { return s.State == proc.Ready })
}

// TestHoldIsTold: whoever waits for changes learns that a process is held.
func TestHoldIsTold(t *testing.T) {
	m := newManager(t)
	held := make(chan struct{}, 1)
	m.OnChange = func(s proc.Status) {
		if s.State == proc.Held {
			select {
			case held <- struct{}{}:
			default: // Stop changes the wish, not the state
			}
		}
	}
	start(t, m, shell(t, "a", "exec sleep 1000"))
	waitReady(t, m, "a")
	if err := m.Hold("a"); err != nil {
		t.Fatal(err)
	}
	select {
	case <-held:
	case <-time.After(3 * time.Minute):
		t.Errorf("nobody was told: %+v", m.Statuses())
	}
}

func TestStopEndsGrandchildrenToo(t *testing.T) {
	m := newManager(t)
	pidFile := filepath.Join(t.TempDir(), "pid")
	spec := shell(t, "a", "sleep 1000 & echo $! > "+pidFile+".tmp; mv "+pidFile+".tmp "+pidFile+"; wait")
	spec.Ready = func(context.Context) error { _, err := os.Stat(pidFile); return err }
	start(t, m, spec)
	waitReady(t, m, "a")
	data, err := os.ReadFile(pidFile)
	if err != nil {
		t.Fatal(err)
	}
	grandchild, err := strconv.Atoi(strings.TrimSpace(string(data)))
	if err != nil || !alive(grandchild) {
		t.Fatalf("grandchild %d: %v", grandchild, err)
	}
	m.Stop()
	// The grandchild was killed and belongs to init now. It dies when it is scheduled next, and its entry stays until init
	// collects it.
	deadline := time.After(3 * time.Minute)
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for alive(grandchild) {
		state, _ := os.ReadFile("/proc/" + strconv.Itoa(grandchild) + "/stat")
		if strings.Contains(string(state), ") Z ") {
			return
		}
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("process %d outlived the stop: %s", grandchild, state)
		}
	}
}

func TestStopKillsWhatIgnoresSIGTERM(t *testing.T) {
	m := newManager(t)
	trapped := filepath.Join(t.TempDir(), "trapped")
	spec := shell(t, "a", "trap '' TERM; touch "+trapped+"; while :; do sleep 1000; done")
	spec.Grace = 10 * time.Millisecond
	spec.Ready = func(context.Context) error { _, err := os.Stat(trapped); return err }
	start(t, m, spec)
	waitReady(t, m, "a")
	pid := m.Statuses()[0].PID
	m.Stop()
	if alive(pid) {
		t.Errorf("process %d lives", pid)
	}
}

func TestFailingProcessIsTriedAgain(t *testing.T) {
	m := newManager(t)
	spec := shell(t, "a", "echo it broke; exit 7")
	start(t, m, spec)
	s := await(t, m, "a", func(s proc.Status) bool { return s.Restarts >= 2 })
	if s.LastExit != "exit status 7" {
		t.Errorf("last exit %q", s.LastExit)
	}
	if log, err := os.ReadFile(spec.Log); err != nil || strings.Count(string(log), "it broke") < 2 {
		t.Errorf("log %q, %v", log, err)
	}
}

func TestErrorsNameTheProcess(t *testing.T) {
	m := newManager(t)
	start(t, m, shell(t, "a", "exec sleep 1000"))
	tests := map[string]error{
		"Twice":   m.Start(shell(t, "a", "true")),
		"Signal":  m.Signal("b", syscall.SIGTERM),
		"Hold":    m.Hold("b"),
		"Release": m.Release("b"),
		"Wait":    m.WaitReady(context.Background(), "b"),
	}
	for name, err := range tests {
		if err == nil || !strings.Contains(err.Error(), "a") {
			t.Errorf("%s: got %v", name, err)
		}
	}
}

func TestProgramThatIsMissing(t *testing.T) {
	m := newManager(t)
	start(t, m, proc.Spec{Name: "a", Path: "/nonexistent", Log: filepath.Join(t.TempDir(), "a.log")})
	s := await(t, m, "a", func(s proc.Status) bool { return s.LastExit != "" })
	if !strings.Contains(s.LastExit, "/nonexistent") {
		t.Errorf("last exit %q", s.LastExit)
	}
}

func TestEveryChangeIsTold(t *testing.T) {
	m := proc.New()
	states := make(chan proc.State, 100)
	m.OnChange = func(s proc.Status) { states <- s.State }
	start(t, m, shell(t, "a", "exec sleep 1000"))
	waitReady(t, m, "a")
	m.Stop()
	close(states)
	seen := map[proc.State]bool{}
	for s := range states {
		seen[s] = true
	}
	if !seen[proc.Starting] || !seen[proc.Ready] || !seen[proc.Backoff] {
		t.Errorf("saw %v", seen)
	}
}

func TestHopelessProcessIsGivenUp(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		reason, script string
		wants          []string
	}{
		"Fails":   {reason: "a program that cannot work", script: "exit 3", wants: []string{"exit status 3"}},
		"Speaks":  {reason: "the last words of a program say why", script: "echo first; echo no license; exit 4", wants: []string{"exit status 4", "the log ends with:\n  first\n  no license\n"}},
		"EndsOK":  {reason: "a program that does not stay", script: "exit 0", wants: []string{"exit status 0"}},
		"Crashes": {reason: "a program that is killed by a signal", script: "kill -SEGV $$", wants: []string{"signal: segmentation fault"}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := newManager(t)
			spec := shell(t, "a", tc.script)
			spec.Ready = func(context.Context) error { return errors.New("never") }
			start(t, m, spec)
			err := m.WaitReady(t.Context(), "a")
			if !errors.Is(err, proc.ErrHopeless) {
				t.Fatalf("%s: got %v", tc.reason, err)
			}
			for _, want := range append(tc.wants, "start a:", spec.Log) {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("%s: lacks %q: %v", tc.reason, want, err)
				}
			}
		})
	}
}

// TestProcessThatWasReadyIsNotHopeless: a component that is killed again and again, as tests do, is waited for.
func TestProcessThatWasReadyIsNotHopeless(t *testing.T) {
	t.Parallel()
	m := newManager(t)
	start(t, m, shell(t, "a", "exec sleep 1000"))
	for range 5 {
		waitReady(t, m, "a")
		pid := m.Statuses()[0].PID
		if err := m.Signal("a", syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		await(t, m, "a", func(s proc.Status) bool { return s.PID != pid })
	}
	waitReady(t, m, "a")
}

func TestNothingStartsAfterStop(t *testing.T) {
	m := proc.New()
	m.Stop()
	if err := m.Start(shell(t, "a", "true")); !errors.Is(err, proc.ErrStopped) {
		t.Errorf("got %v", err)
	}
	m.Stop() // again: nothing to do
	if all := m.Statuses(); len(all) != 0 {
		t.Errorf("got %+v", all)
	}
}

func TestHoldDuringBackoffAndTwice(t *testing.T) {
	t.Parallel()
	m := newManager(t)
	start(t, m, shell(t, "a", "exit 1"))
	await(t, m, "a", func(s proc.Status) bool { return s.State == proc.Backoff && s.Restarts >= 1 })
	for range 2 {
		if err := m.Hold("a"); err != nil {
			t.Fatal(err)
		}
	}
	held := await(t, m, "a", func(s proc.Status) bool { return s.State == proc.Held && s.PID == 0 })
	if err := m.Signal("a", syscall.SIGTERM); err == nil || !strings.Contains(err.Error(), "not running") {
		t.Errorf("signal to a held process: %v", err)
	}
	for range 2 {
		if err := m.Release("a"); err != nil {
			t.Fatal(err)
		}
	}
	await(t, m, "a", func(s proc.Status) bool { return s.Restarts > held.Restarts })
}

func TestStopWhileHeld(t *testing.T) {
	m := newManager(t)
	start(t, m, shell(t, "a", "exec sleep 1000"))
	waitReady(t, m, "a")
	if err := m.Hold("a"); err != nil {
		t.Fatal(err)
	}
	m.Stop() // would hang if a held process never looked up
}

func TestEnvironmentAndLogAreGiven(t *testing.T) {
	t.Setenv("INHERITED", "from the manager")
	m := newManager(t)
	spec := shell(t, "a", `echo "$INHERITED, $OWN"; echo "on stderr" >&2; exec sleep 1000`)
	spec.Env = []string{"OWN=from the spec"}
	if err := os.WriteFile(spec.Log, []byte("earlier\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	spec.Ready = func(context.Context) error {
		if log, _ := os.ReadFile(spec.Log); !strings.Contains(string(log), "on stderr") {
			return errors.New("not written yet")
		}
		return nil
	}
	start(t, m, spec)
	waitReady(t, m, "a")
	if log, err := os.ReadFile(spec.Log); err != nil || string(log) != "earlier\nfrom the manager, from the spec\non stderr\n" {
		t.Errorf("log %q, %v", log, err)
	}
}

func TestLogThatCannotBeOpened(t *testing.T) {
	m := newManager(t)
	start(t, m, proc.Spec{Name: "a", Path: "/bin/true", Log: "/nonexistent/a.log"})
	s := await(t, m, "a", func(s proc.Status) bool { return s.LastExit != "" })
	if !strings.Contains(s.LastExit, "open log") {
		t.Errorf("last exit %q", s.LastExit)
	}
}

func TestStatusesKeepTheOrderOfStarts(t *testing.T) {
	m := newManager(t)
	want := []string{"z", "a", "m"}
	for _, name := range want {
		start(t, m, shell(t, name, "exec sleep 1000"))
	}
	for i, s := range m.Statuses() {
		if s.Name != want[i] || s.Since.IsZero() {
			t.Errorf("%d: %+v, want %s", i, s, want[i])
		}
	}
}
