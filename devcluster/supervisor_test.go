package devcluster

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
	"golang.org/x/sync/errgroup"

	"github.com/longshore-csi/longshore/devcluster/internal/clean"
	"github.com/longshore-csi/longshore/devcluster/internal/layout"
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
	l, err := s.listen(ctx)
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

// TestFirstStatusComesAtOnce: a client that knows nothing does not wait for a change.
func TestFirstStatusComesAtOnce(t *testing.T) {
	s, err := newSupervisor(Options{Dir: filepath.Join(t.TempDir(), "c"), Nodes: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer s.procs.Stop()
	defer s.unlock()
	ctx, cancel := context.WithCancel(t.Context())
	cancel() // a client that is kept waiting goes away
	w := httptest.NewRecorder()
	s.handleStatus(w, httptest.NewRequestWithContext(ctx, http.MethodGet, "/status?after=0", nil))
	if status, _ := s.look(); status.Version == 0 || !strings.Contains(w.Body.String(), `"version":1`) {
		t.Errorf("version %d, answer %s", status.Version, w.Body)
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
	if err := clean.Mark(dir); err != nil {
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

// superviseIn runs a supervisor until the test ends or it is stopped.
func superviseIn(t *testing.T, o Options) (*Client, <-chan error) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		done <- Supervise(ctx, o)
	}()
	t.Cleanup(func() {
		cancel()
		<-ended
	})
	c := Connect(o.Dir)
	for {
		_, err := c.Status(t.Context(), 0)
		if err == nil {
			return c, done
		}
		if !errors.Is(err, ErrDown) {
			t.Fatal(err)
		}
		select {
		case err := <-done:
			t.Fatalf("the supervisor ended: %v", err)
		default:
		}
	}
}

func TestSuperviseKeepsAFailureForTheOneWhoAsks(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "c")
	o := Options{Dir: dir, Nodes: 1, ControlPlane: t.TempDir(), Cache: t.TempDir()}
	c, done := superviseIn(t, o)
	status, err := follow(t.Context(), c, &strings.Builder{}, 0)
	if err == nil || !strings.Contains(err.Error(), "read the pins of the control plane") || status.Phase != Failed || status.Took <= 0 {
		t.Fatalf("got %+v, %v", status, err)
	}
	if err := Supervise(t.Context(), o); !errors.Is(err, errUp) {
		t.Errorf("a second supervisor: %v", err)
	}
	if err := c.stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Errorf("ended with %v", err)
	}
	unlock, err := lock(layout.Dir(dir))
	if err != nil {
		t.Fatalf("the lock is still held: %v", err)
	}
	unlock()
	if _, err := c.Status(t.Context(), 0); !errors.Is(err, ErrDown) {
		t.Errorf("after the end: %v", err)
	}
}

// TestSuperviseIsInterruptedDuringTheBuild: a stop does not wait for a compiler.
func TestSuperviseIsInterruptedDuringTheBuild(t *testing.T) {
	pins, bin := t.TempDir(), t.TempDir()
	for path, text := range map[string]string{
		filepath.Join(pins, "go.mod"): "module m\n\nrequire k8s.io/kubernetes v1.2.3\n", filepath.Join(pins, "go.sum"): "",
		filepath.Join(bin, "go"): "#!/bin/sh\n[ $1 = env ] && exec echo go1\nexec sleep 1000\n",
	} {
		if err := os.WriteFile(path, []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("PATH", bin+":"+os.Getenv("PATH"))
	c, done := superviseIn(t, Options{Dir: filepath.Join(t.TempDir(), "c"), Nodes: 1, ControlPlane: pins, Cache: t.TempDir()})
	status, err := c.Status(t.Context(), 0)
	for err == nil && len(status.Progress) == 0 {
		status, err = c.Status(t.Context(), status.Version)
	}
	if err != nil || !strings.Contains(status.Progress[0], "building etcd (1 of 5, up to 30s") {
		t.Fatalf("got %+v, %v", status, err)
	}
	if err := c.stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Errorf("ended with %v", err)
	}
}

func TestSuperviseRefusesAForeignDirectory(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "thesis"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := Supervise(t.Context(), Options{Dir: dir}); !errors.Is(err, clean.ErrForeign) {
		t.Errorf("got %v", err)
	}
}

func TestLaunchGivesUpOnAProcessThatCannotRun(t *testing.T) {
	s, _ := serveOnly(t)
	never := func(context.Context) error { return errors.New("never") }
	spec := proc.Spec{Name: "broken", Path: "/bin/false", Log: filepath.Join(s.options.Dir, "broken.log"), Ready: never}
	if err := s.launch(t.Context(), spec); !errors.Is(err, proc.ErrHopeless) || !strings.Contains(err.Error(), "broken.log") {
		t.Errorf("got %v", err)
	}
	if err := s.launch(t.Context(), spec); err == nil || !strings.Contains(err.Error(), "runs already") {
		t.Errorf("the same again: %v", err)
	}
}

func TestUnchangedStatusIsAnsweredAfterAWhile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &supervisor{procs: proc.New(), changed: make(chan struct{}), status: Status{Version: 3, Phase: Running}}
		defer s.procs.Stop()
		ask := func(after string) time.Duration {
			began := time.Now()
			w := httptest.NewRecorder()
			s.handleStatus(w, httptest.NewRequest(http.MethodGet, "/status?after="+after, nil))
			if !strings.Contains(w.Body.String(), `"version":3`) || w.Header().Get("Content-Type") != "application/json" {
				t.Errorf("after %s: %s, %s", after, w.Header(), w.Body)
			}
			return time.Since(began)
		}
		if got := ask("3"); got != longPoll {
			t.Errorf("a client that knows all waited %s, want %s", got, longPoll)
		}
		for _, after := range []string{"0", "2", "4", "x", ""} {
			if got := ask(after); got != 0 {
				t.Errorf("after=%s waited %s", after, got)
			}
		}
	})
}

func TestProcessesAreToldWithoutInternalTypes(t *testing.T) {
	since := time.Unix(7, 0)
	got := processes([]proc.Status{{Name: "a", State: proc.Backoff, PID: 0, Restarts: 2, Since: since, LastExit: "exit status 1"}, {Name: "b", State: proc.Ready, PID: 9}},
		map[string]string{"b": "http://127.0.0.1:4321"})
	want := []Process{{Name: "a", State: ProcessBackoff, Restarts: 2, Since: since, LastExit: "exit status 1"}, {Name: "b", State: ProcessReady, PID: 9, HTTP: "http://127.0.0.1:4321"}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	for state, want := range map[proc.State]ProcessState{proc.Starting: ProcessStarting, proc.Ready: ProcessReady, proc.Backoff: ProcessBackoff, proc.Held: ProcessHeld} {
		if string(state) != string(want) {
			t.Errorf("state %s is told as %s", state, want)
		}
	}
}
