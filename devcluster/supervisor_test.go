package devcluster

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"go.uber.org/goleak"
	"golang.org/x/sync/errgroup"

	"github.com/longshore-csi/longshore/devcluster/internal/clean"
	"github.com/longshore-csi/longshore/devcluster/internal/proc"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// serveOnly runs a supervisor that serves clients and owns one process, without a cluster.
func serveOnly(t *testing.T) (*supervisor, *Client) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	s, err := newSupervisor(Options{Dir: filepath.Join(t.TempDir(), "c"), Nodes: 2})
	if err != nil {
		t.Fatal(err)
	}
	s.stop = cancel
	l, err := s.listen()
	if err != nil {
		t.Fatal(err)
	}
	var group errgroup.Group
	group.Go(func() error { return s.serve(ctx, l) })
	t.Cleanup(func() {
		cancel()
		if err := group.Wait(); err != nil {
			t.Error(err)
		}
		s.procs.Stop()
		s.unlock()
	})
	spec := proc.Spec{Name: "sleeper", Path: "/bin/sleep", Args: []string{"1000"}, Log: filepath.Join(s.options.Dir, "log")}
	if err := s.launch(ctx, spec); err != nil {
		t.Fatal(err)
	}
	return s, Connect(s.options.Dir)
}

func TestClientSeesAndSignalsProcesses(t *testing.T) {
	_, c := serveOnly(t)
	status, err := c.Status(t.Context(), 0)
	if err != nil || status.Phase != Starting || len(status.Nodes) != 2 || len(status.Processes) != 1 {
		t.Fatalf("got %+v, %v", status, err)
	}
	first := status.Processes[0].PID
	if err := c.Signal(t.Context(), "sleeper", "kill"); err != nil {
		t.Fatal(err)
	}
	for status.Processes[0].PID == first || status.Processes[0].State != ProcessReady {
		if status, err = c.Status(t.Context(), status.Version); err != nil {
			t.Fatal(err)
		}
	}
	if err := c.Hold(t.Context(), "sleeper"); err != nil {
		t.Fatal(err)
	}
	if err := c.Release(t.Context(), "sleeper"); err != nil {
		t.Fatal(err)
	}
}

func TestClientGetsTheReasonOfARefusal(t *testing.T) {
	_, c := serveOnly(t)
	tests := map[string]struct {
		err  error
		want string
	}{
		"NoProcess": {c.Signal(t.Context(), "nobody", "KILL"), `"nobody"`},
		"NoSignal":  {c.Signal(t.Context(), "sleeper", "BOO"), `"BOO"`},
		"Hold":      {c.Hold(t.Context(), "nobody"), `"nobody"`},
		"Release":   {c.Release(t.Context(), "nobody"), `"nobody"`},
	}
	for name, tc := range tests {
		if tc.err == nil || !strings.Contains(tc.err.Error(), tc.want) {
			t.Errorf("%s: got %v, want %s", name, tc.err, tc.want)
		}
	}
}

func TestStatusWaitsForAChange(t *testing.T) {
	s, c := serveOnly(t)
	now, err := c.Status(t.Context(), 0)
	if err != nil {
		t.Fatal(err)
	}
	go s.progress("a step")
	next, err := c.Status(t.Context(), now.Version)
	if err != nil || len(next.Progress) != 1 || next.Progress[0] != "a step" {
		t.Fatalf("got %+v, %v", next, err)
	}
}

func TestSecondSupervisorIsRefused(t *testing.T) {
	s, _ := serveOnly(t)
	if _, err := newSupervisor(s.options); !errors.Is(err, errUp) {
		t.Fatalf("got %v", err)
	}
}

func TestDownWithoutCluster(t *testing.T) {
	c := Connect(t.TempDir())
	if _, err := c.Status(t.Context(), 0); !errors.Is(err, ErrDown) {
		t.Errorf("got %v", err)
	}
	dir := filepath.Join(t.TempDir(), "c")
	if err := clean.Claim(dir); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "left"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	if err := Down(t.Context(), dir, &out); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) || !strings.Contains(out.String(), "down: 0 processes") {
		t.Errorf("%v, %q", err, &out)
	}
}

func TestStopEndsTheSupervisor(t *testing.T) {
	s, c := serveOnly(t)
	if err := c.stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	waitGone(t.Context(), c)
	s.update(func(st *Status) { st.Phase = Stopping })
	if got, _ := s.look(); got.Phase != Stopping {
		t.Errorf("phase %s", got.Phase)
	}
}

func TestBuildProgressBecomesLines(t *testing.T) {
	s, _ := serveOnly(t)
	if n, err := (progressWriter{s}).Write([]byte("building etcd\n")); n != 14 || err != nil {
		t.Fatalf("%d, %v", n, err)
	}
	if got, _ := s.look(); got.Progress[0] != "building etcd" {
		t.Errorf("got %q", got.Progress)
	}
}
