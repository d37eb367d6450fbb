package devcluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/longshore-csi/longshore/devcluster/internal/clean"
	"github.com/longshore-csi/longshore/devcluster/internal/layout"
)

// markerName is an environment variable of every process of a cluster; its value is the cluster's directory.
const markerName = "LONGSHORE_DEVCLUSTER"

func marker(dir string) string { return markerName + "=" + dir }

// Up starts a cluster and returns when it is ready, telling each step on out. The supervisor goes on after the caller has
// ended. When ctx ends before the cluster is ready, everything is taken down again. A cluster that is up already is left
// alone: that is told, and no error.
func Up(ctx context.Context, o Options, out io.Writer) (Status, error) {
	if err := o.Complete(); err != nil {
		return Status{}, err
	}
	if err := o.Validate(); err != nil {
		return Status{}, err
	}
	client := Connect(o.Dir)
	if status, err := client.Status(ctx, 0); err == nil {
		fmt.Fprintf(out, "already up since %s, in %s\n", status.Started.Format(time.DateTime), o.Dir)
		return follow(ctx, client, out, len(status.Progress))
	}
	// Nothing answers: what an earlier cluster left behind when its supervisor was killed goes first.
	if _, err := clean.All(o.Dir, marker(o.Dir)); err != nil {
		return Status{}, fmt.Errorf("clean up after an earlier cluster: %w", err)
	}
	supervisor, err := spawn(o)
	if err != nil {
		return Status{}, err
	}
	status, err := followProcess(ctx, client, supervisor, out)
	if err != nil {
		_ = Down(context.WithoutCancel(ctx), o.Dir, io.Discard, KeepLogs(err == nil || ctx.Err() != nil))
	}
	return status, err
}

// spawn starts the supervisor in a session of its own, so that Ctrl-C reaches only the caller.
func spawn(o Options) (*exec.Cmd, error) {
	path, err := self()
	if err != nil {
		return nil, err
	}
	dir := layout.Dir(o.Dir)
	if err := os.MkdirAll(dir.Logs(), 0o755); err != nil {
		return nil, fmt.Errorf("make the directory of the logs: %w", err)
	}
	log, err := os.OpenFile(dir.Log("supervisor"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, fmt.Errorf("open the log of the supervisor: %w", err)
	}
	defer log.Close()
	cmd := exec.Command(path, append([]string{"supervise"}, o.Args()...)...)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.Env = append(os.Environ(), marker(o.Dir))
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start the supervisor: %w", err)
	}
	return cmd, nil
}

// followProcess follows the start and notices when the supervisor ends instead.
func followProcess(ctx context.Context, client *Client, supervisor *exec.Cmd, out io.Writer) (Status, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	go func() {
		err := supervisor.Wait()
		cancel(fmt.Errorf("the supervisor ended: %v: %s", err, lastLine(client.Log("supervisor"))))
	}()
	if err := waitSocket(ctx, client); err != nil {
		return Status{}, err
	}
	return follow(ctx, client, out, 0)
}

func waitSocket(ctx context.Context, client *Client) error {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		if _, err := client.Status(ctx, 0); !errors.Is(err, ErrDown) {
			return err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// follow prints the progress of the start from the given step on, until the cluster runs.
func follow(ctx context.Context, client *Client, out io.Writer, printed int) (Status, error) {
	version := 0
	for {
		status, err := client.Status(ctx, version)
		if err != nil {
			if ctx.Err() != nil {
				err = context.Cause(ctx)
			}
			return Status{}, err
		}
		for _, line := range status.Progress[printed:] {
			fmt.Fprintf(out, "%6.1fs  %s\n", time.Since(status.Started).Seconds(), line)
		}
		printed, version = len(status.Progress), status.Version
		switch status.Phase {
		case Running:
			return status, nil
		case Failed:
			return status, fmt.Errorf("start the cluster: %s", status.Error)
		case Stopping:
			return status, errors.New("the cluster is being stopped")
		case Starting:
		}
	}
}

// DownOption changes what Down leaves.
type DownOption func(*downOptions)

type downOptions struct{ removeAll bool }

// KeepLogs says whether the whole directory is removed (the default) or the logs stay for somebody to read.
func KeepLogs(removeAll bool) DownOption {
	return func(o *downOptions) { o.removeAll = removeAll }
}

// Down stops the cluster in dir and removes everything of it: processes, mounts, loop devices, files. It also cleans up after
// a supervisor that was killed. When no cluster is there, that is told, and no error.
func Down(ctx context.Context, dir string, out io.Writer, options ...DownOption) error {
	o := downOptions{removeAll: true}
	for _, option := range options {
		option(&o)
	}
	dir, err := filepath.Abs(dir)
	if err != nil {
		return fmt.Errorf("make %q absolute: %w", dir, err)
	}
	if _, err := os.Stat(dir); errors.Is(err, os.ErrNotExist) {
		fmt.Fprintf(out, "no cluster is up in %s\n", dir)
		return nil
	}
	running, err := clean.Marked(marker(dir))
	if err != nil {
		return err
	}
	client := Connect(dir)
	if err := client.stop(ctx); err == nil {
		waitGone(ctx, client)
	}
	if !o.removeAll {
		return keepLogs(layout.Dir(dir))
	}
	report, err := clean.All(dir, marker(dir))
	if err != nil {
		return err
	}
	report.Processes = max(report.Processes, len(running))
	fmt.Fprintf(out, "down: %s\n", report)
	return nil
}

// keepLogs ends everything but leaves the directory, whose logs tell what went wrong.
func keepLogs(dir layout.Dir) error {
	if _, err := clean.Processes(marker(string(dir))); err != nil {
		return err
	}
	if _, err := clean.Mounts(string(dir)); err != nil {
		return err
	}
	_, err := clean.Loops(string(dir))
	return err
}

// waitGone waits until the supervisor has stopped its processes; whoever is impatient goes on to kill them.
func waitGone(ctx context.Context, client *Client) {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	version := 0
	for {
		status, err := client.Status(ctx, version)
		if err != nil {
			return
		}
		version = status.Version
	}
}

func lastLine(path string) string {
	data, err := os.ReadFile(path)
	if err != nil {
		return err.Error()
	}
	lines := strings.Split(strings.TrimSpace(string(data)), "\n")
	return lines[len(lines)-1]
}
