package registration

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"k8s.io/klog/v2"
	"k8s.io/klog/v2/ktesting"
)

// patience is how long a test waits for what must happen. It only matters
// when the test fails.
const patience = 3 * time.Minute

// lines collects what happened.
type lines struct {
	mu   sync.Mutex
	list []string
}

func (l *lines) log(format string, args ...any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.list = append(l.list, fmt.Sprintf(format, args...))
}

// await waits until text has been logged, and forgets all up to it.
func (l *lines) await(t *testing.T, text string) {
	t.Helper()
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		l.mu.Lock()
		for i, line := range l.list {
			if strings.Contains(line, text) {
				l.list = l.list[i+1:]
				l.mu.Unlock()
				return
			}
		}
		l.mu.Unlock()
	}
	t.Fatalf("waited %v for %q, had %q", patience, text, l.list)
}

// runManager runs a manager on real directories until the test ends.
func runManager(t *testing.T, cfg Config, happened *lines) *Manager {
	t.Helper()
	cfg.DialTimeout, cfg.InfoTimeout, cfg.NotifyTimeout = patience, patience, patience
	cfg.Handler = &recorder{log: happened.log, busy: map[string]bool{}}
	m, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(klog.NewContext(context.Background(), ktesting.NewLogger(t, ktesting.NewConfig())))
	done := make(chan error, 1)
	go func() { done <- m.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	return m
}

// serveAt serves a registrar on a real socket until stop is called, which
// removes the socket.
func serveAt(t *testing.T, path, name string, happened *lines) (stop func()) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o750); err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	server := newFakeRegistrar(registrarOptions{name: name, endpoint: "/" + name + ".sock"}, happened.log).server()
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = server.Serve(listener)
	}()
	stop = func() {
		server.Stop()
		<-done
	}
	t.Cleanup(stop)
	return stop
}

func TestRun(t *testing.T) {
	dir, extra := filepath.Join(t.TempDir(), "plugins_registry"), t.TempDir()
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	var happened lines
	serveAt(t, filepath.Join(dir, "early-reg.sock"), "early", &happened)
	// Rescans are out of reach, so all below is the work of events.
	runManager(t, Config{Dir: dir, ExtraDirs: []string{extra}, Rescan: time.Hour}, &happened)
	happened.await(t, "notify early: registered")

	stop := serveAt(t, filepath.Join(dir, "late-reg.sock"), "late", &happened)
	happened.await(t, "notify late: registered")
	stop()
	happened.await(t, "deregister late")

	stop = serveAt(t, filepath.Join(dir, "late-reg.sock"), "late", &happened)
	happened.await(t, "notify late: registered")
	stop()
	happened.await(t, "deregister late")

	serveAt(t, filepath.Join(dir, "sub", "dir", "deep-reg.sock"), "deep", &happened)
	happened.await(t, "notify deep: registered")
	serveAt(t, filepath.Join(extra, "extra-reg.sock"), "extra", &happened)
	happened.await(t, "notify extra: registered")
	if err := os.RemoveAll(filepath.Join(dir, "sub")); err != nil {
		t.Fatal(err)
	}
	happened.await(t, "deregister deep")
	serveAt(t, filepath.Join(dir, "sub", "deep-reg.sock"), "deeper", &happened)
	happened.await(t, "notify deeper: registered")
}

// A socket that is renamed over another one is how our own registrar tries
// again; the kubelet sees a Create and no Remove.
func TestRunSeesARename(t *testing.T) {
	dir := t.TempDir()
	var happened lines
	m := runManager(t, Config{Dir: dir, Rescan: time.Hour}, &happened)
	serveAt(t, filepath.Join(dir, "d-reg.sock"), "one", &happened)
	happened.await(t, "notify one: registered")
	for status := m.Status(); len(status) != 1 || !status[0].Registered; status = m.Status() {
		time.Sleep(time.Millisecond) // the answer to the notification is on its way
	}
	serveAt(t, filepath.Join(dir, ".hidden"), "two", &happened)
	if err := os.Rename(filepath.Join(dir, ".hidden"), filepath.Join(dir, "d-reg.sock")); err != nil {
		t.Fatal(err)
	}
	happened.await(t, "notify two: registered")
	happened.await(t, "deregister one")
}

// Events may be lost, or not be had at all.
func TestRunWithoutEvents(t *testing.T) {
	dir := t.TempDir()
	var happened lines
	handler := &recorder{log: happened.log, busy: map[string]bool{}}
	m, err := New(Config{Dir: dir, Handler: handler, Rescan: 10 * time.Millisecond, InfoTimeout: patience, NotifyTimeout: patience})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	blind := &watcher{roots: []string{dir}, watched: map[string]bool{}}
	done := make(chan error, 1)
	go func() { done <- m.watch(ctx, blind, &running) }()
	stop := serveAt(t, filepath.Join(dir, "d-reg.sock"), "d", &happened)
	happened.await(t, "notify d: registered")
	stop()
	happened.await(t, "deregister d")
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
	running.Wait()
}

func TestRunCreatesTheDirectory(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "var", "plugins_registry")
	var happened lines
	runManager(t, Config{Dir: dir}, &happened)
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		if info, err := os.Stat(dir); err == nil {
			if info.Mode().Perm() != 0o755 {
				t.Errorf("mode %v, want 0755", info.Mode().Perm())
			}
			return
		}
	}
	t.Error("the directory was not created")
}

func TestRunRefusesAFileInPlaceOfTheDirectory(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	m, err := New(Config{Dir: path, Handler: &recorder{}})
	if err != nil {
		t.Fatal(err)
	}
	if err := m.Run(t.Context()); err == nil || !strings.Contains(err.Error(), path) {
		t.Errorf("got %v, want an error about %q", err, path)
	}
}
