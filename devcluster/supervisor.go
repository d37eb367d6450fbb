package devcluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/longshore-csi/longshore/devcluster/internal/build"
	"github.com/longshore-csi/longshore/devcluster/internal/clean"
	"github.com/longshore-csi/longshore/devcluster/internal/layout"
	"github.com/longshore-csi/longshore/devcluster/internal/plane"
	"github.com/longshore-csi/longshore/devcluster/internal/proc"
)

// readyTimeout bounds the start of one process on a slow machine; a start takes a second or two.
const readyTimeout = 2 * time.Minute

// Supervise starts a cluster and keeps it running until ctx ends or a client asks for the stop. It is the body of the
// process that Up starts; everything else that runs is its child and dies with it.
func Supervise(ctx context.Context, o Options) error {
	s, err := newSupervisor(o)
	if err != nil {
		return err
	}
	defer s.unlock()
	listener, err := s.listen(ctx)
	if err != nil {
		return err
	}
	ctx, s.stop = context.WithCancel(ctx)
	defer s.stop()
	// Clients are served until the last process has ended, so that one who asked for the stop can wait for it.
	serving, served := context.WithCancel(context.WithoutCancel(ctx))
	var group errgroup.Group
	group.Go(func() error {
		defer s.stop()
		return s.serve(serving, listener)
	})
	group.Go(func() error {
		defer served()
		s.start(ctx)
		<-ctx.Done()
		s.update(func(st *Status) { st.Phase = Stopping })
		s.procs.Stop()
		return s.close()
	})
	return group.Wait()
}

type supervisor struct {
	options Options
	dir     layout.Dir
	procs   *proc.Manager
	// plane holds the ports of the control plane; nil until the start has come that far.
	plane  *plane.Plane
	unlock func()
	stop   context.CancelFunc

	mu      sync.Mutex
	status  Status
	http    map[string]string // base URLs by process; not changed once it is set
	changed chan struct{}
}

func newSupervisor(o Options) (*supervisor, error) {
	dir := layout.Dir(o.Dir)
	if err := clean.Mark(o.Dir); err != nil {
		return nil, err
	}
	unlock, err := lock(dir)
	if err != nil {
		return nil, err
	}
	s := &supervisor{options: o, dir: dir, procs: proc.New(), unlock: unlock, changed: make(chan struct{})}
	s.procs.OnChange = func(proc.Status) { s.update(func(*Status) {}) }
	nodes := NodeNames(o.Nodes)
	s.status = Status{Version: 1, Phase: Starting, Kubeconfig: dir.Kubeconfig(), Nodes: nodes, Started: time.Now(), StateDir: dir.DriverState(""), NodeDirs: map[string]string{}}
	for _, node := range nodes {
		s.status.NodeDirs[node] = dir.Node(node)
	}
	return s, nil
}

// errUp is what a second supervisor for the same directory gets.
var errUp = errors.New("a cluster is up in this directory already")

func lock(dir layout.Dir) (unlock func(), err error) {
	f, err := os.OpenFile(dir.Lock(), os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, fmt.Errorf("lock the directory of the cluster: %w", err)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return nil, errors.Join(fmt.Errorf("lock %q: %w", f.Name(), errUp), f.Close())
	}
	return func() { _ = f.Close() }, nil
}

// start brings the cluster up and records the outcome.
func (s *supervisor) start(ctx context.Context) {
	err := s.up(ctx)
	s.update(func(st *Status) {
		st.Took = time.Since(st.Started)
		switch {
		case ctx.Err() != nil:
		case err != nil:
			st.Phase, st.Error = Failed, err.Error()
		default:
			st.Phase = Running
		}
	})
}

func (s *supervisor) up(ctx context.Context) error {
	bin, err := build.ControlPlane(ctx, build.Config{
		Module: s.options.ControlPlane, Cache: s.options.Cache, Progress: progressWriter{s},
		Servers: build.Servers{Kubernetes: s.options.KubernetesURL, Etcd: s.options.EtcdURL},
	})
	if err != nil {
		return err
	}
	s.update(func(st *Status) { st.Kubernetes, st.Programs = bin.Version, bin.Dir })
	return newStarter(s, bin).run(ctx)
}

// close gives back what the processes needed while they ran.
func (s *supervisor) close() error {
	if s.plane == nil {
		return nil
	}
	return s.plane.Close()
}

// launch starts processes and waits until all of them are ready.
func (s *supervisor) launch(ctx context.Context, specs ...proc.Spec) error {
	ctx, cancel := context.WithTimeout(ctx, readyTimeout)
	defer cancel()
	group, ctx := errgroup.WithContext(ctx)
	for _, spec := range specs {
		if err := s.procs.Start(spec); err != nil {
			return err
		}
		group.Go(func() error { return s.procs.WaitReady(ctx, spec.Name) })
	}
	return group.Wait()
}

func (s *supervisor) progress(format string, args ...any) {
	line := fmt.Sprintf(format, args...)
	s.update(func(st *Status) { st.Progress = append(slices.Clone(st.Progress), line) })
}

// progressWriter turns lines of the build into progress.
type progressWriter struct{ s *supervisor }

// Write takes whole lines: the build writes one with each call.
func (w progressWriter) Write(line []byte) (int, error) {
	w.s.progress("%s", string(line[:max(0, len(line)-1)]))
	return len(line), nil
}

func (s *supervisor) update(change func(*Status)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change(&s.status)
	s.status.Version++
	close(s.changed)
	s.changed = make(chan struct{})
}

// look returns the status and a channel that is closed at the next change.
func (s *supervisor) look() (Status, <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	status := s.status
	status.Processes = processes(s.procs.Statuses(), s.http)
	return status, s.changed
}

// self is the path of this program, which is also every component (see package components).
func self() (string, error) {
	path, err := os.Executable()
	if err != nil {
		return "", fmt.Errorf("find the path of this program: %w", err)
	}
	return filepath.EvalSymlinks(path)
}
