package devcluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/longshore-csi/longshore/devcluster/internal/clean"
	"github.com/longshore-csi/longshore/devcluster/internal/layout"
)

// Up starts a cluster and returns when it is ready, telling each step on out. The supervisor goes on after the caller has
// ended. When ctx ends before the cluster is ready, everything is taken down again; when the start fails, everything but the
// logs, and the error says where they are. A cluster that is up already stays as it is: Up prints so and returns no error.
func Up(ctx context.Context, o Options, out io.Writer) (Status, error) {
	if err := o.Complete(); err != nil {
		return Status{}, err
	}
	if err := o.Validate(); err != nil {
		return Status{}, err
	}
	client := Connect(o.Dir)
	status, supervisor, err := begin(ctx, o, client)
	switch {
	case supervisor == nil && err != nil:
		return Status{}, err
	case supervisor == nil:
		tellUp(out, o.Dir, status)
		return follow(ctx, client, out, len(status.Progress))
	case err == nil:
		status, err = supervisor.follow(ctx, client, out)
	}
	if err != nil {
		return status, abandon(ctx, layout.Dir(o.Dir), supervisor, err)
	}
	return status, supervisor.release()
}

// begin starts a supervisor, or returns none but the status of the cluster that is there already. A supervisor that comes
// with an error is to be taken down.
func begin(ctx context.Context, o Options, client *Client) (Status, *child, error) {
	done, err := takeTurn(ctx, o.Dir)
	if err != nil {
		return Status{}, nil, err
	}
	defer done()
	// A cluster whose start failed is replaced.
	status, err := client.Status(ctx, 0)
	if err == nil && status.Phase != Failed {
		return status, nil, nil
	}
	if err := ctx.Err(); err != nil {
		return Status{}, nil, err
	}
	// What an earlier cluster left behind when its supervisor was killed goes first.
	if _, err := clean.All(o.Dir, marker(o.Dir)); err != nil {
		return Status{}, nil, fmt.Errorf("clean up after an earlier cluster: %w", err)
	}
	supervisor, err := spawn(o)
	if err != nil {
		return Status{}, nil, err
	}
	return Status{}, supervisor, supervisor.waitSocket(ctx, client)
}

func tellUp(out io.Writer, dir string, s Status) {
	what := "already up since"
	if s.Phase == Starting {
		what = "already being started since"
	}
	fmt.Fprintf(out, "%s %s, in %s\n", what, s.Started.Format(time.DateTime), dir)
}

// follow prints the progress of the start from the given step on, until the cluster runs.
func follow(ctx context.Context, client *Client, out io.Writer, printed int) (Status, error) {
	version := 0
	for {
		status, err := client.Status(ctx, version)
		if err != nil {
			return Status{}, err
		}
		for _, line := range status.Progress[min(printed, len(status.Progress)):] {
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

// abandon takes down what was started: all of it when the caller no longer wants it, all but the logs when the start failed.
func abandon(ctx context.Context, dir layout.Dir, supervisor *child, cause error) error {
	interrupted := ctx.Err() != nil
	var keep []string
	if !interrupted {
		keep = []string{dir.Logs()}
	}
	_, err := takeDown(context.WithoutCancel(ctx), string(dir), keep...)
	supervisor.reap()
	switch {
	case err != nil:
		return errors.Join(cause, err)
	case interrupted:
		return fmt.Errorf("interrupted, everything is taken down again: %w", cause)
	}
	return fmt.Errorf("%w\nthe logs are in %s until the next `up` or `down`", cause, dir.Logs())
}
