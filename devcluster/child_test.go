package devcluster

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/longshore-csi/longshore/devcluster/internal/clean"
	"github.com/longshore-csi/longshore/devcluster/internal/layout"
)

// spawnShell starts a script in the place of a supervisor.
func spawnShell(t *testing.T, script string) (*child, *Client) {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "c")
	c, err := spawnProgram("/bin/sh", []string{"-c", script}, layout.Dir(dir))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_, _ = clean.Processes(marker(dir))
		c.reap()
	})
	return c, Connect(dir)
}

func TestSupervisorThatEndsIsExplainedByItsLog(t *testing.T) {
	c, client := spawnShell(t, "echo first; echo the reason >&2; exit 3")
	err := c.waitSocket(t.Context(), client)
	if err == nil || !strings.Contains(err.Error(), "the supervisor ended: exit status 3: the reason") {
		t.Errorf("got %v", err)
	}
}

func TestWaitSocketEndsWithItsCaller(t *testing.T) {
	c, client := spawnShell(t, "exec sleep 1000")
	ctx, cancel := context.WithCancelCause(t.Context())
	cause := errors.New("no more patience")
	cancel(cause)
	if err := c.waitSocket(ctx, client); !errors.Is(err, cause) && !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	if c.ended() {
		t.Error("the process was ended too")
	}
}

// TestFollowNoticesTheEnd kills a supervisor in the middle of a start, as the kernel does when memory is short.
func TestFollowNoticesTheEnd(t *testing.T) {
	c, client := spawnShell(t, "echo started; exec sleep 1000")
	if err := unix.Kill(c.cmd.Process.Pid, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	_, err := c.follow(t.Context(), client, &strings.Builder{})
	if err == nil || !strings.Contains(err.Error(), "the supervisor ended: signal: killed") {
		t.Errorf("got %v", err)
	}
}

func TestSupervisorHasItsOwnSessionAndTheMark(t *testing.T) {
	c, client := spawnShell(t, "exec sleep 1000")
	pid := c.cmd.Process.Pid
	if sid, err := unix.Getsid(pid); err != nil || sid != pid {
		t.Errorf("session %d of process %d, %v: Ctrl-C would reach it", sid, pid, err)
	}
	if pids, err := clean.Marked(marker(string(client.dir))); err != nil || len(pids) != 1 || pids[0] != pid {
		t.Errorf("marked %v, %v, want %d", pids, err, pid)
	}
	if err := clean.Owned(string(client.dir)); err != nil {
		t.Errorf("the directory is not claimed: %v", err)
	}
}

func TestEnded(t *testing.T) {
	c, _ := spawnShell(t, "read line; exit 0")
	// The input of the shell is /dev/null: it ends by itself.
	var info unix.Siginfo
	if err := unix.Waitid(unix.P_PID, c.cmd.Process.Pid, &info, unix.WEXITED|unix.WNOWAIT, nil); err != nil {
		t.Fatal(err)
	}
	for range 2 { // asking does not change the answer
		if !c.ended() {
			t.Error("not ended")
		}
	}
	c.reap()
	if !c.ended() || c.cmd.ProcessState.ExitCode() != 0 {
		t.Errorf("after it was waited for: %s", c.cmd.ProcessState)
	}
	c.reap() // again: nothing to wait for
}

func TestSpawnErrorsSayWhatIsMissing(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	tests := map[string]struct {
		reason, program string
		dir             layout.Dir
		want            string
	}{
		"NoProgram": {reason: "a program that is not there", program: "/nonexistent", dir: layout.Dir(filepath.Join(t.TempDir(), "c")), want: "start the supervisor"},
		"NoDir":     {reason: "a directory that cannot be made", program: "/bin/true", dir: layout.Dir(filepath.Join(file, "c")), want: file},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			if _, err := spawnProgram(tc.program, nil, tc.dir); err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("%s: got %v", tc.reason, err)
			}
		})
	}
}

func TestLastLine(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	for text, want := range map[string]string{"": "", "one": "one", "one\ntwo\n": "two", "one\ntwo\n\n": "two"} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if got := lastLine(path); got != want {
			t.Errorf("%q: got %q", text, got)
		}
	}
	if got := lastLine("/nonexistent/log"); !strings.Contains(got, "/nonexistent/log") {
		t.Errorf("got %q", got)
	}
}
