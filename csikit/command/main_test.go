package command_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/longshore-csi/longshore/csikit/command"
)

// behaviour is the environment variable by which this test binary becomes a component.
const behaviour = "COMMAND_TEST_BEHAVIOUR"

func TestMain(m *testing.M) {
	runs := map[string]func(context.Context, options) error{
		"waits": func(ctx context.Context, _ options) error {
			fmt.Println("ready")
			<-ctx.Done()
			return fmt.Errorf("wait: %w", ctx.Err())
		},
		"fails":  func(context.Context, options) error { return errors.New("no driver") },
		"passes": func(_ context.Context, o options) error { fmt.Println("n is", o.n); return nil },
		"counts": func(context.Context, options) error { fmt.Println("processors:", runtime.GOMAXPROCS(0)); return nil },
	}
	if run, ok := runs[os.Getenv(behaviour)]; ok {
		os.Exit(newComponent(run).OnOneProcessor().Main())
	}
	os.Exit(m.Run())
}

// process is this binary as a component.
func process(t *testing.T, does string, args ...string) (cmd *exec.Cmd, stdout, stderr *bytes.Buffer) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	cmd = exec.CommandContext(ctx, self, args...)
	cmd.Env = append(os.Environ(), behaviour+"="+does)
	stdout, stderr = &bytes.Buffer{}, &bytes.Buffer{}
	cmd.Stdout, cmd.Stderr = stdout, stderr
	return cmd, stdout, stderr
}

func TestProcess(t *testing.T) {
	t.Parallel()
	cases := map[string]struct {
		reason string
		does   string
		args   []string
		code   int
		stdout string // contained
		stderr string // contained; empty: nothing is written
	}{
		"Passes":  {reason: "An end without error is success.", does: "passes", stdout: "n is 7\n"},
		"Flags":   {reason: "Flags come from the command line.", does: "passes", args: []string{"-n", "3"}, stdout: "n is 3\n"},
		"Fails":   {reason: "The error is printed once, with the name of the program.", does: "fails", code: 1, stderr: "csi-thing: no driver\n"},
		"Usage":   {reason: "A wrong command line has an exit code of its own.", does: "passes", args: []string{"--none"}, code: 2, stderr: "flag provided but not defined: -none"},
		"Invalid": {reason: "An invalid value is named.", does: "passes", args: []string{"--n=-3"}, code: 1, stderr: "csi-thing: --n=-3: must not be negative\n"},
		"Help":    {reason: "Help is no failure.", does: "fails", args: []string{"--help"}, stderr: "Usage of csi-thing:"},
		"Version": {reason: "The version goes where scripts read it.", does: "fails", args: []string{"--version"}, stdout: "csi-thing "},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cmd, stdout, stderr := process(t, tc.does, tc.args...)
			err := cmd.Run()
			var exit *exec.ExitError
			if err != nil && !errors.As(err, &exit) {
				t.Fatal(err)
			}
			if code := cmd.ProcessState.ExitCode(); code != tc.code {
				t.Errorf("%s: exit code %d, want %d", tc.reason, code, tc.code)
			}
			if !strings.Contains(stdout.String(), tc.stdout) || (tc.stdout == "") != (stdout.Len() == 0) {
				t.Errorf("%s: stdout %q, want %q", tc.reason, stdout, tc.stdout)
			}
			if !strings.Contains(stderr.String(), tc.stderr) || (tc.stderr == "") != (stderr.Len() == 0) {
				t.Errorf("%s: stderr %q, want %q", tc.reason, stderr, tc.stderr)
			}
		})
	}
}

// On a node with many processors, a component takes no more than on one with few. Who sets the number of the Go runtime keeps it.
func TestOneProcessor(t *testing.T) {
	t.Parallel()
	for set, want := range map[string]string{"": "processors: 1\n", "3": "processors: 3\n"} {
		cmd, stdout, stderr := process(t, "counts")
		cmd.Env = append(cmd.Env, "GOMAXPROCS="+set)
		if err := cmd.Run(); err != nil || stdout.String() != want {
			t.Errorf("GOMAXPROCS=%q: %q, %v, want %q; stderr %q", set, stdout, err, want, stderr)
		}
	}
}

// What the container runtime sends, and what a terminal does, end the process in good order.
func TestSignals(t *testing.T) {
	t.Parallel()
	for name, signal := range map[string]syscall.Signal{"SIGTERM": syscall.SIGTERM, "SIGINT": syscall.SIGINT} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cmd, _, stderr := process(t, "waits")
			cmd.Stdout = nil
			out, err := cmd.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			ready := make([]byte, len("ready\n"))
			if _, err := out.Read(ready); err != nil || string(ready) != "ready\n" {
				t.Errorf("the component says %q, %v", ready, err)
			}
			if err := cmd.Process.Signal(signal); err != nil {
				t.Fatal(err)
			}
			if err := cmd.Wait(); err != nil || stderr.Len() > 0 {
				t.Errorf("after %s: %v, stderr %q; want silence and success", name, err, stderr)
			}
		})
	}
}

func TestExitCode(t *testing.T) {
	t.Parallel()
	cases := map[string]struct {
		reason string
		err    error
		want   int
	}{
		"None":    {reason: "Success.", want: 0},
		"Any":     {reason: "Failure.", err: errors.New("x"), want: 1},
		"Usage":   {reason: "The caller is to blame.", err: command.ErrUsage, want: 2},
		"Wrapped": {reason: "However it is wrapped.", err: fmt.Errorf("run: %w", fmt.Errorf("%w: -x", command.ErrUsage)), want: 2},
		"Joined":  {reason: "Or joined.", err: errors.Join(errors.New("x"), command.ErrUsage), want: 2},
		"Context": {reason: "An end that nobody asked for is a failure.", err: context.Canceled, want: 1},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if got := command.ExitCode(tc.err); got != tc.want {
				t.Errorf("%s: got %d, want %d", tc.reason, got, tc.want)
			}
		})
	}
}

// A deadline of the component itself is its failure, also when the process is stopped later.
func TestOtherEndsAreErrors(t *testing.T) {
	for name, tc := range map[string]struct {
		cancel bool
		err    error
		want   bool
	}{
		"OwnDeadline":       {err: context.DeadlineExceeded, want: true},
		"OwnCancel":         {err: context.Canceled, want: true},
		"AskedButFailed":    {cancel: true, err: errors.New("drain: disk is full"), want: true},
		"AskedAndDeadline":  {cancel: true, err: context.DeadlineExceeded, want: true},
		"AskedAndCancelled": {cancel: true, err: context.Canceled},
		"AskedAndNil":       {cancel: true},
	} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			c := newComponent(func(context.Context, options) error {
				if tc.cancel {
					cancel()
				}
				return tc.err
			})
			if err := c.Execute(ctx, nil, nil, &bytes.Buffer{}); (err != nil) != tc.want {
				t.Errorf("got %v", err)
			}
		})
	}
}
