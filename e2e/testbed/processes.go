package testbed

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"

	"github.com/longshore-csi/longshore/devcluster"
)

// Background starts a program, and kills it when the test ends. A test that failed logs the end of its output.
func (s *Scene) Background(cmd *exec.Cmd) {
	s.T.Helper()
	log, err := os.Create(filepath.Join(s.T.TempDir(), "log"))
	if err != nil {
		s.T.Fatal(err)
	}
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		s.T.Fatal(err)
	}
	s.T.Cleanup(func() {
		Kill(cmd)
		if s.T.Failed() {
			s.T.Logf("== end of the log of %s\n%s", cmd.Path, Tail(log.Name(), 30))
		}
		_ = log.Close()
	})
}

// Run starts a component of ours, "csi-attacher" for instance, with these arguments. The function that it returns terminates it and waits for its end; so does
// the end of the test. The test fails if the exit code is not 0.
func (s *Scene) Run(component string, args ...string) (end func()) {
	s.T.Helper()
	return s.RunWith(nil, component, args...)
}

// RunWith is Run with further variables in the environment, each as "NAME=VALUE".
func (s *Scene) RunWith(env []string, component string, args ...string) (end func()) {
	s.T.Helper()
	var log bytes.Buffer
	ctx, cancel := context.WithCancel(context.Background())
	cmd := exec.CommandContext(ctx, s.Dev.Program, append([]string{"run", component}, args...)...)
	cmd.Env = slices.Concat(os.Environ(), []string{"KUBE_FEATURE_WatchListClient=false"}, env)
	cmd.Stdout, cmd.Stderr = &log, &log
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = Patience
	if err := cmd.Start(); err != nil {
		cancel()
		s.T.Fatal(err)
	}
	end = sync.OnceFunc(func() {
		cancel()
		if err := cmd.Wait(); cmd.ProcessState.ExitCode() != 0 || s.T.Failed() {
			s.T.Errorf("the second %s ended with %v: %s", component, err, log.String())
		}
	})
	s.T.Cleanup(end)
	return end
}

// Signal sends a signal, "KILL", "STOP" or "CONT", to a process of the development cluster as soon as it runs: a test before may just have killed it. After
// STOP it waits until all threads of the process are stopped; if the test fails, the process is continued.
func (s *Scene) Signal(process, signal string) {
	s.T.Helper()
	s.Retry("signal "+signal+" to "+process, func(ctx context.Context) error { return s.Dev.Signal(ctx, process, signal) })
	if signal == "STOP" {
		s.T.Cleanup(func() {
			if s.T.Failed() {
				_ = s.Dev.Signal(context.Background(), process, "CONT") // if it does not run it is not frozen
			}
		})
		// A signal is sent at once, but each thread goes on until the kernel comes to it: long enough to answer a call.
		s.Wait(process+" to stand still", func(ctx context.Context) (bool, error) {
			frozen, err := s.frozen(ctx, process)
			if frozen || err != nil {
				return frozen, err
			}
			return false, s.Dev.Signal(ctx, process, signal) // to another one, if that which got the first was about to end
		})
	}
}

// frozen reports whether all threads of a process are stopped.
func (s *Scene) frozen(ctx context.Context, process string) (bool, error) {
	status, err := s.Dev.Client.Status(ctx, 0)
	if err != nil {
		return false, err
	}
	i := slices.IndexFunc(status.Processes, func(p devcluster.Process) bool { return p.Name == process })
	if i < 0 || status.Processes[i].PID == 0 {
		return false, fmt.Errorf("%s does not run", process)
	}
	threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", status.Processes[i].PID))
	for _, thread := range threads {
		stat, err := os.ReadFile(thread)
		if errors.Is(err, fs.ErrNotExist) {
			continue // it has ended
		}
		if _, state, _ := strings.Cut(string(stat), ") "); err != nil || !strings.HasPrefix(state, "T") {
			return false, err
		}
	}
	return len(threads) > 0, err
}
