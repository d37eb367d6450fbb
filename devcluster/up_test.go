package devcluster

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/longshore-csi/longshore/devcluster/internal/clean"
	"github.com/longshore-csi/longshore/devcluster/internal/layout"
)

func TestFollowTellsEachStepOnce(t *testing.T) {
	s, c := serveOnly(t)
	s.progress("told before")
	s.progress("first")
	var out strings.Builder
	done := make(chan error, 1)
	go func() {
		_, err := follow(t.Context(), c, &out, 1)
		done <- err
	}()
	s.progress("second")
	s.update(func(st *Status) { st.Phase = Running })
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if got := out.String(); strings.Contains(got, "told before") || strings.Count(got, "first\n") != 1 || strings.Count(got, "second\n") != 1 {
		t.Errorf("got %q", got)
	}
}

func TestFollowEndsWithThePhase(t *testing.T) {
	tests := map[string]struct {
		reason string
		phase  Phase
		err    string
		want   string
	}{
		"Running":  {reason: "the cluster is ready", phase: Running},
		"Failed":   {reason: "the reason of the failure is told", phase: Failed, err: "etcd would not", want: "start the cluster: etcd would not"},
		"Stopping": {reason: "somebody takes it down", phase: Stopping, want: "being stopped"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			s, c := serveOnly(t)
			s.update(func(st *Status) { st.Phase, st.Error = tc.phase, tc.err })
			var out strings.Builder
			status, err := follow(t.Context(), c, &out, 0)
			if tc.want == "" && err != nil || tc.want != "" && (err == nil || err.Error() != tc.want && !strings.Contains(err.Error(), tc.want)) {
				t.Errorf("%s: got %v, want %q", tc.reason, err, tc.want)
			}
			if status.Phase != tc.phase {
				t.Errorf("%s: phase %s", tc.reason, status.Phase)
			}
		})
	}
}

func TestBeginLeavesARunningClusterAlone(t *testing.T) {
	s, c := serveOnly(t)
	for _, phase := range []Phase{Starting, Running, Stopping} {
		s.update(func(st *Status) { st.Phase = phase })
		status, supervisor, err := begin(t.Context(), s.options, c)
		if err != nil || supervisor != nil || status.Phase != phase {
			t.Errorf("%s: got %+v, %v, %v", phase, status, supervisor, err)
		}
	}
	if got := s.procs.Statuses(); len(got) != 1 || got[0].Restarts != 0 {
		t.Errorf("its process was touched: %+v", got)
	}
}

func TestBeginStartsNothing(t *testing.T) {
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	foreign := t.TempDir()
	if err := os.WriteFile(filepath.Join(foreign, "thesis"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	tests := map[string]struct {
		reason string
		ctx    context.Context
		dir    string
		want   error
	}{
		"Cancelled": {reason: "a caller who has gone wants no cluster", ctx: ended, dir: filepath.Join(t.TempDir(), "c"), want: context.Canceled},
		"Foreign":   {reason: "other people's files stay", ctx: t.Context(), dir: foreign, want: clean.ErrForeign},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			_, supervisor, err := begin(tc.ctx, Options{Dir: tc.dir}, Connect(tc.dir))
			if !errors.Is(err, tc.want) || supervisor != nil {
				t.Errorf("%s: got %v, %v", tc.reason, supervisor, err)
			}
			if _, err := os.Stat(layout.Dir(tc.dir).Logs()); err == nil {
				t.Errorf("%s: logs were made", tc.reason)
			}
		})
	}
}

func TestUpRefusesBadOptions(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "c")
	var out strings.Builder
	if _, err := Up(t.Context(), Options{Dir: dir, Nodes: -1}, &out); err == nil || !strings.Contains(err.Error(), "--nodes=-1") {
		t.Errorf("got %v", err)
	}
	if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) || out.Len() > 0 {
		t.Errorf("something happened: %v, %q", err, &out)
	}
}

func TestTellUp(t *testing.T) {
	since := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	for phase, want := range map[Phase]string{
		Running:  "already up since 2026-01-02 03:04:05, in /d\n",
		Starting: "already being started since 2026-01-02 03:04:05, in /d\n",
	} {
		var out strings.Builder
		if tellUp(&out, "/d", Status{Phase: phase, Started: since}); out.String() != want {
			t.Errorf("%s: got %q, want %q", phase, &out, want)
		}
	}
}

// failedStart is a cluster whose supervisor is a mere shell: it has logs, other files, and one process.
func failedStart(t *testing.T) (layout.Dir, *child) {
	t.Helper()
	dir := layout.Dir(filepath.Join(t.TempDir(), "c"))
	supervisor, err := spawnProgram("/bin/sh", []string{"-c", "exec sleep 1000"}, dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(dir.Kubeconfig(), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	return dir, supervisor
}

func TestAbandonAfterAFailureKeepsTheLogs(t *testing.T) {
	dir, supervisor := failedStart(t)
	cause := errors.New("etcd would not")
	err := abandon(t.Context(), dir, supervisor, cause)
	if !errors.Is(err, cause) || !strings.Contains(err.Error(), dir.Logs()) {
		t.Errorf("got %v", err)
	}
	if _, err := os.Stat(dir.Log("supervisor")); err != nil {
		t.Errorf("the log is gone: %v", err)
	}
	if _, err := os.Stat(dir.Kubeconfig()); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the kubeconfig of a dead cluster is left: %v", err)
	}
	if !supervisor.cmd.ProcessState.Exited() && supervisor.cmd.ProcessState.String() != "signal: killed" {
		t.Errorf("the supervisor: %s", supervisor.cmd.ProcessState)
	}
}

func TestAbandonAfterCtrlCLeavesNothing(t *testing.T) {
	dir, supervisor := failedStart(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	err := abandon(ctx, dir, supervisor, ctx.Err())
	if !errors.Is(err, context.Canceled) || !strings.Contains(err.Error(), "interrupted") {
		t.Errorf("got %v", err)
	}
	if _, err := os.Stat(string(dir)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the directory is left: %v", err)
	}
	if left, err := clean.Marked(marker(string(dir))); err != nil || len(left) > 0 {
		t.Errorf("processes are left: %v, %v", left, err)
	}
}
