package devcluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/longshore-csi/longshore/devcluster/internal/clean"
	"github.com/longshore-csi/longshore/devcluster/internal/layout"
)

// stopTimeout bounds the orderly stop of a cluster; processes that are left after it are killed.
const stopTimeout = 30 * time.Second

// Down stops the cluster in dir and removes everything of it: processes, mounts, loop devices, files. It also cleans up after
// a supervisor that was killed. When no cluster is there, Down prints so and returns no error. A directory that is not a cluster's is
// refused.
func Down(ctx context.Context, dir string, out io.Writer) error {
	dir, err := layout.Resolve(dir)
	if err != nil {
		return err
	}
	running, err := clean.Marked(marker(dir))
	if err != nil {
		return err
	}
	if _, err := os.Stat(dir); errors.Is(err, os.ErrNotExist) && len(running) == 0 {
		fmt.Fprintf(out, "no cluster is up in %s\n", dir)
		return nil
	}
	report, err := takeDown(ctx, dir)
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "down: %s\n", report)
	return nil
}

// takeDown ends the cluster in dir and removes everything but the paths to keep.
func takeDown(ctx context.Context, dir string, keep ...string) (clean.Report, error) {
	done, err := takeTurn(ctx, dir)
	if err != nil {
		return clean.Report{}, err
	}
	defer done()
	running, err := clean.Marked(marker(dir))
	if err != nil {
		return clean.Report{}, err
	}
	client := Connect(dir)
	if err := client.stop(ctx); err == nil {
		waitGone(ctx, client)
	}
	report, err := clean.All(dir, marker(dir), keep...)
	report.Processes = max(report.Processes, len(running))
	return report, err
}

// waitGone waits until the supervisor has stopped its processes; at the end of ctx the caller goes on to kill them.
func waitGone(ctx context.Context, client *Client) {
	ctx, cancel := context.WithTimeout(ctx, stopTimeout)
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

// takeTurn lets one caller at a time start or end clusters that lie side by side: two that clean up after the same dead
// cluster would each take down what the other one starts. The turn is a lock on the directory above, so it leaves no file.
func takeTurn(ctx context.Context, dir string) (done func(), err error) {
	above := filepath.Dir(dir)
	if err := os.MkdirAll(above, 0o755); err != nil {
		return nil, fmt.Errorf("make the directory above the cluster's: %w", err)
	}
	f, err := os.Open(above)
	if err != nil {
		return nil, fmt.Errorf("lock the directory above the cluster's: %w", err)
	}
	tick := time.NewTicker(pollPeriod)
	defer tick.Stop()
	for {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			return func() { _ = f.Close() }, nil
		}
		if !errors.Is(err, unix.EWOULDBLOCK) {
			return nil, errors.Join(fmt.Errorf("lock %q: %w", above, err), f.Close())
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil, errors.Join(fmt.Errorf("wait for another up or down in %q: %w", above, context.Cause(ctx)), f.Close())
		}
	}
}
