package registration

import (
	"context"
	"slices"
	"strings"
	"sync"
	"time"

	"k8s.io/klog/v2"

	"github.com/longshore-csi/longshore/csikit/keymutex"
	"github.com/longshore-csi/longshore/csikit/logging"
)

// Manager watches the directories and runs one session per socket.
type Manager struct {
	cfg    Config
	owners *nameOwners
	// names serializes the handler's calls by driver name.
	names keymutex.Locks[string]

	mu       sync.Mutex
	sessions map[string]*session
}

// New checks cfg and returns a manager that does nothing until Run.
func New(cfg Config) (*Manager, error) {
	cfg = cfg.withDefaults()
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	return &Manager{cfg: cfg, owners: newNameOwners(), sessions: map[string]*session{}}, nil
}

// Run registers drivers until ctx ends, which is no error, and returns when no
// handler runs any more. Drivers stay registered then: the next process finds
// their sockets again. It is called once.
func (m *Manager) Run(ctx context.Context) error {
	w, err := newWatcher(ctx, append([]string{m.cfg.Dir}, m.cfg.ExtraDirs...), m.cfg.Inotify)
	if err != nil {
		return err
	}
	defer w.close()
	var running sync.WaitGroup
	defer running.Wait()
	return m.watch(ctx, w, &running)
}

// watch looks at the directories when something happens, and now and then.
func (m *Manager) watch(ctx context.Context, w *watcher, running *sync.WaitGroup) error {
	logger := klog.FromContext(ctx)
	ticker := time.NewTicker(m.cfg.Rescan)
	defer ticker.Stop()
	var track tracker
	removedPaths := map[string]bool{}
	for ctx.Err() == nil {
		if seen, err := w.look(ctx); err != nil {
			logger.Error(err, "Looking for registration sockets")
		} else {
			m.apply(ctx, track.update(seen, removedPaths), running)
			clear(removedPaths)
		}
		select {
		case <-ctx.Done():
		case <-ticker.C:
		case event := <-w.events():
			w.note(event, removedPaths)
		case err := <-w.errors():
			logger.Error(err, "Watching registration directories, reading them again")
		}
	}
	return nil
}

// apply starts and ends sessions.
func (m *Manager) apply(ctx context.Context, c change, running *sync.WaitGroup) {
	m.mu.Lock()
	defer m.mu.Unlock()
	logger := klog.FromContext(ctx)
	for _, gen := range c.gone {
		logger.V(2).Info("Registration socket is gone", logging.KeyPath, gen.Path)
		m.sessions[gen.Path].end()
		delete(m.sessions, gen.Path)
	}
	slices.SortFunc(c.added, func(a, b Generation) int { return strings.Compare(a.Path, b.Path) })
	for _, gen := range c.added {
		logger.V(2).Info("Registration socket found", logging.KeyPath, gen.Path)
		m.sessions[gen.Path] = m.start(ctx, gen, m.sessions[gen.Path], running)
	}
}

// Status is the progress of the registration of one socket.
type Status struct {
	// Path of the registration socket.
	Path string
	// Driver is the name it gave, empty before it answered.
	Driver string
	// Endpoint is the socket of the driver that it gave.
	Endpoint string
	// Registered is true once the registrar was notified of it.
	Registered bool
	// Problem is why it is not registered; empty if nothing has failed.
	Problem string
}

// Status returns the state of all sockets, sorted by path, for people to read.
func (m *Manager) Status() []Status {
	m.mu.Lock()
	defer m.mu.Unlock()
	all := make([]Status, 0, len(m.sessions))
	for _, s := range m.sessions {
		all = append(all, s.status())
	}
	slices.SortFunc(all, func(a, b Status) int { return strings.Compare(a.Path, b.Path) })
	return all
}
