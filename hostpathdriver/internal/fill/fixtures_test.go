package fill

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
	"k8s.io/klog/v2"

	"github.com/longshore-csi/longshore/hostpathdriver/internal/volume"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// copyTime is how long a copy takes, in virtual time.
const copyTime = time.Minute

var errBroken = errors.New("disk on fire")

// memory is a backend without contents: idempotent, as what Services wraps.
// Everything that is made is to be filled, but for names that begin with
// "empty".
type memory struct {
	volume.Services // what it lacks panics

	// work is what a copy does; nil takes copyTime.
	work func(ctx context.Context, id volume.ID) error
	// undeletable is the answer to deletions.
	undeletable error
	// unreadable is the answer to questions, broken to those for a group.
	unreadable, broken error

	mu        sync.Mutex
	volumes   map[volume.ID]*volume.Volume
	snapshots map[volume.ID]*volume.Snapshot
	groups    map[volume.ID]*volume.Group
	// running are the ids that are copied to now, most how many there were at
	// once.
	running map[volume.ID]int
	most    int
	log     []string
}

func newMemory() *memory {
	return &memory{
		volumes: map[volume.ID]*volume.Volume{}, snapshots: map[volume.ID]*volume.Snapshot{}, groups: map[volume.ID]*volume.Group{},
		running: map[volume.ID]int{},
	}
}

// note keeps a log. It needs the mutex.
func (m *memory) note(format string, args ...any) {
	m.log = append(m.log, fmt.Sprintf(format, args...))
}

func (m *memory) Create(_ context.Context, req *volume.CreateRequest) (*volume.Volume, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	id := volume.ID(req.Name)
	if m.volumes[id] == nil {
		m.note("create %s", id)
		m.volumes[id] = &volume.Volume{ID: id, Filling: req.Name[:1] != "e"}
	}
	return m.volumes[id].Clone(), nil
}

func (m *memory) CreateSnapshot(_ context.Context, req *volume.SnapshotRequest) (*volume.Snapshot, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	id := volume.ID(req.Name)
	if m.snapshots[id] == nil {
		m.note("create %s", id)
		m.snapshots[id] = &volume.Snapshot{ID: id, Filling: true}
	}
	return m.snapshots[id].Clone(), nil
}

func (m *memory) CreateGroup(_ context.Context, req *volume.GroupRequest) (*volume.Group, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	id := volume.ID(req.Name)
	if m.groups[id] == nil {
		m.note("create %s", id)
		m.groups[id] = &volume.Group{ID: id}
		for _, source := range req.Sources {
			member := id + "-" + source
			m.groups[id].Members = append(m.groups[id].Members, member)
			m.snapshots[member] = &volume.Snapshot{ID: member, Group: id, Filling: true}
		}
	}
	return m.group(id)
}

func (m *memory) Get(_ context.Context, id volume.ID) (*volume.Volume, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if found := m.volumes[id]; found != nil {
		return found.Clone(), m.unreadable
	}
	return nil, errors.Join(m.unreadable, volume.ErrNotFound)
}

func (m *memory) GetSnapshot(_ context.Context, id volume.ID) (*volume.Snapshot, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if found := m.snapshots[id]; found != nil {
		return found.Clone(), nil
	}
	return nil, volume.ErrNotFound
}

func (m *memory) GetGroup(_ context.Context, id volume.ID, _ []volume.ID) (*volume.Group, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.broken != nil {
		return nil, m.broken
	}
	return m.group(id)
}

// group needs the mutex.
func (m *memory) group(id volume.ID) (*volume.Group, error) {
	if m.groups[id] == nil {
		return nil, volume.ErrNotFound
	}
	found := m.groups[id].Clone()
	for _, member := range found.Members {
		found.Snapshots = append(found.Snapshots, m.snapshots[member].Clone())
	}
	return found, nil
}

// remove checks that nobody copies to what is deleted.
func (m *memory) remove(id volume.ID, parts ...volume.ID) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.note("delete %s", id)
	if m.running[id] > 0 {
		m.note("deleted %s under a copy", id)
	}
	if m.undeletable != nil {
		return m.undeletable
	}
	for _, part := range parts {
		delete(m.volumes, part)
		delete(m.snapshots, part)
	}
	delete(m.groups, id)
	return nil
}

func (m *memory) Delete(_ context.Context, id volume.ID) error         { return m.remove(id, id) }
func (m *memory) DeleteSnapshot(_ context.Context, id volume.ID) error { return m.remove(id, id) }

func (m *memory) DeleteGroup(_ context.Context, id volume.ID, members []volume.ID) error {
	return m.remove(id, members...)
}

func (m *memory) Unfilled(context.Context) ([]volume.ID, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	var ids []volume.ID
	for id, v := range m.volumes {
		if v.Filling {
			ids = append(ids, id)
		}
	}
	for id, s := range m.snapshots {
		if s.Filling && s.Group == "" {
			ids = append(ids, id)
		}
		if s.Filling && s.Group != "" && !slices.Contains(ids, s.Group) {
			ids = append(ids, s.Group)
		}
	}
	slices.Sort(ids)
	return ids, m.unreadable
}

// filling reports whether an id exists, and is to be filled. It needs the mutex.
func (m *memory) filling(id volume.ID) (exists, filling bool) {
	if v := m.volumes[id]; v != nil {
		return true, v.Filling
	}
	if s := m.snapshots[id]; s != nil {
		return true, s.Filling
	}
	if g, err := m.group(id); err == nil {
		return true, g.Filling()
	}
	return false, false
}

func (m *memory) Copy(ctx context.Context, id volume.ID, then func(context.Context) error) error {
	m.mu.Lock()
	exists, filling := m.filling(id)
	if !exists || !filling {
		m.mu.Unlock()
		if !exists {
			return fmt.Errorf("copy to %q: %w", id, volume.ErrNotFound)
		}
		return nil
	}
	m.note("copy %s", id)
	m.running[id]++
	count := 0
	for _, n := range m.running {
		count += n
	}
	m.most = max(m.most, count)
	m.mu.Unlock()
	err := m.working(ctx, id)
	m.mu.Lock()
	if m.running[id]--; m.running[id] > 0 {
		m.note("two copies to %s", id)
	}
	m.mu.Unlock()
	if err != nil {
		return err
	}
	return then(ctx)
}

func (m *memory) working(ctx context.Context, id volume.ID) error {
	m.mu.Lock()
	work := m.work
	m.mu.Unlock()
	if work != nil {
		return work(ctx, id)
	}
	return pause(ctx, copyTime)
}

func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (m *memory) Complete(_ context.Context, id volume.ID) error {
	m.complete(id)
	return nil
}

func (m *memory) complete(id volume.ID) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.note("complete %s", id)
	if v := m.volumes[id]; v != nil {
		v.Filling = false
	}
	if s := m.snapshots[id]; s != nil {
		s.Filling = false
	}
	if g := m.groups[id]; g != nil {
		for _, member := range g.Members {
			m.snapshots[member].Filling = false
		}
	}
}

// fixture is the decorator over a memory; all of it lives in a bubble.
type fixture struct {
	t      *testing.T
	ctx    context.Context // fixture of one test
	memory *memory
	*Services
}

func inBubble(t *testing.T, workers int, test func(f *fixture)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		f := &fixture{t: t, ctx: klog.NewContext(t.Context(), klog.Logger{}), memory: newMemory()}
		f.open(workers)
		test(f)
		f.must(f.Close(f.ctx))
	})
}

func (f *fixture) open(workers int) {
	f.t.Helper()
	var err error
	f.Services, err = Open(f.ctx, Config{Next: f.memory, Workers: workers})
	f.must(err)
}

func (f *fixture) must(errs ...error) {
	f.t.Helper()
	if err := errors.Join(errs...); err != nil {
		f.t.Fatal(err)
	}
}

func (f *fixture) wantLog(want ...string) {
	f.t.Helper()
	f.memory.mu.Lock()
	defer f.memory.mu.Unlock()
	if diff := cmp.Diff(want, f.memory.log); diff != "" {
		f.t.Errorf("log (-want +got):\n%s", diff)
	}
	f.memory.log = nil
}

func want(t *testing.T, what string, err error, all ...error) {
	t.Helper()
	for _, one := range all {
		if !errors.Is(err, one) {
			t.Errorf("%s: error %v, want %v", what, err, one)
		}
	}
}

// kind is one of the things that are filled.
type kind struct {
	make func(ctx context.Context, s volume.Services) (filling bool, err error)
	// remove deletes it.
	remove func(ctx context.Context, s volume.Services) error
	id     volume.ID
}

func kinds() map[string]kind {
	return map[string]kind{
		"Volume": {
			id: "v",
			make: func(ctx context.Context, s volume.Services) (bool, error) {
				made, err := s.Create(ctx, &volume.CreateRequest{Name: "v"})
				return err == nil && made.Filling, err
			},
			remove: func(ctx context.Context, s volume.Services) error { return s.Delete(ctx, "v") },
		},
		"Snapshot": {
			id: "s",
			make: func(ctx context.Context, s volume.Services) (bool, error) {
				made, err := s.CreateSnapshot(ctx, &volume.SnapshotRequest{Name: "s"})
				return err == nil && made.Filling, err
			},
			remove: func(ctx context.Context, s volume.Services) error { return s.DeleteSnapshot(ctx, "s") },
		},
		"Group": {
			id: "g",
			make: func(ctx context.Context, s volume.Services) (bool, error) {
				made, err := s.CreateGroup(ctx, &volume.GroupRequest{Name: "g", Sources: []volume.ID{"a", "b"}})
				return err == nil && made.Filling(), err
			},
			remove: func(ctx context.Context, s volume.Services) error {
				return s.DeleteGroup(ctx, "g", []volume.ID{"g-a", "g-b"})
			},
		},
	}
}

// eachKind runs a test for everything that is filled.
func eachKind(t *testing.T, test func(f *fixture, k kind)) {
	t.Helper()
	for name, k := range kinds() {
		t.Run(name, func(t *testing.T) {
			inBubble(t, 0, func(f *fixture) { test(f, k) })
		})
	}
}

// makeIt calls, and wants something that is complete.
func (f *fixture) makeIt(k kind) {
	f.t.Helper()
	filling, err := k.make(f.ctx, f)
	if err != nil || filling {
		f.t.Errorf("make %s: filling %t, %v", k.id, filling, err)
	}
}
