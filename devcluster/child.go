package devcluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/longshore-csi/longshore/devcluster/internal/clean"
	"github.com/longshore-csi/longshore/devcluster/internal/layout"
)

// markerName is an environment variable of every process of a cluster; its value is the cluster's directory.
const markerName = "LONGSHORE_DEVCLUSTER"

const (
	pollPeriod = 20 * time.Millisecond
	// endTimeout is how long the end of a supervisor that no longer answers is waited for, on a machine that may be loaded.
	endTimeout = 30 * time.Second
)

func marker(dir string) string { return markerName + "=" + dir }

// child is a supervisor that this process has started.
type child struct {
	cmd *exec.Cmd
	log string
}

// spawn starts the supervisor in a session of its own, so that Ctrl-C reaches only the caller.
func spawn(o Options) (*child, error) {
	path, err := self()
	if err != nil {
		return nil, err
	}
	return spawnProgram(path, append([]string{"supervise"}, o.Args()...), layout.Dir(o.Dir))
}

func spawnProgram(path string, args []string, dir layout.Dir) (*child, error) {
	if err := clean.Mark(string(dir)); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(dir.Logs(), 0o755); err != nil {
		return nil, fmt.Errorf("make the directory of the logs: %w", err)
	}
	log, err := os.OpenFile(dir.Log("supervisor"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, fmt.Errorf("open the log of the supervisor: %w", err)
	}
	defer log.Close()
	cmd := exec.Command(path, args...) //nolint:noctx // the supervisor outlives its caller
	cmd.Stdout, cmd.Stderr = log, log
	cmd.Env = append(os.Environ(), marker(string(dir)))
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start the supervisor: %w", err)
	}
	return &child{cmd: cmd, log: log.Name()}, nil
}

// waitSocket waits until the supervisor answers or has ended.
func (c *child) waitSocket(ctx context.Context, client *Client) error {
	tick := time.NewTicker(pollPeriod)
	defer tick.Stop()
	for {
		if _, err := client.Status(ctx, 0); !errors.Is(err, ErrDown) {
			return err
		}
		if c.ended() {
			return c.explain()
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// follow is the function follow for the process that started the supervisor, which knows how the supervisor ended.
func (c *child) follow(ctx context.Context, client *Client, out io.Writer) (Status, error) {
	status, err := follow(ctx, client, out, 0)
	if err == nil || status.Phase != "" || ctx.Err() != nil {
		return status, err
	}
	// The supervisor does not answer, most likely because it is just ending.
	ctx, cancel := context.WithTimeout(ctx, endTimeout)
	defer cancel()
	if c.waitEnd(ctx) {
		return status, c.explain()
	}
	return status, err
}

// waitEnd waits until the process has ended and reports whether it has.
func (c *child) waitEnd(ctx context.Context) bool {
	tick := time.NewTicker(pollPeriod)
	defer tick.Stop()
	for !c.ended() {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return false
		}
	}
	return true
}

// ended reports whether the process has ended; it leaves it to be waited for.
func (c *child) ended() bool {
	var info unix.Siginfo
	err := unix.Waitid(unix.P_PID, c.cmd.Process.Pid, &info, unix.WEXITED|unix.WNOHANG|unix.WNOWAIT, nil)
	return err != nil || info.Signo != 0
}

// explain says how a process that has ended did so.
func (c *child) explain() error {
	c.reap()
	return fmt.Errorf("the supervisor ended: %s: %s", c.cmd.ProcessState, lastLine(c.log))
}

// reap waits for a process that has ended; one that has not is killed.
func (c *child) reap() {
	if c.cmd.ProcessState == nil {
		_ = c.cmd.Process.Kill() // an error says that it has ended
		_ = c.cmd.Wait()         // how it ended is in ProcessState
	}
}

// release lets the process go on alone.
func (c *child) release() error {
	if err := c.cmd.Process.Release(); err != nil {
		return fmt.Errorf("let the supervisor go: %w", err)
	}
	return nil
}

func lastLine(path string) string {
	data, err := os.ReadFile(path)
	if err != nil {
		return err.Error()
	}
	lines := strings.Split(strings.TrimSpace(string(data)), "\n")
	return lines[len(lines)-1]
}
