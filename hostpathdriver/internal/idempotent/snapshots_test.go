package idempotent

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/longshore-csi/longshore/hostpathdriver/internal/volume"
)

// memory is a backend that watches who touches what: two calls that touch one
// id at a time are what the locks are for. Calls take as long as pause says.
type memory struct {
	volume.Services // what it lacks panics

	t     *testing.T
	pause func(ctx context.Context)

	mu        sync.Mutex
	made      int
	touched   map[volume.ID]bool
	volumes   map[volume.ID]*volume.Volume
	snapshots map[volume.ID]*volume.Snapshot
	groups    map[volume.ID]*volume.Group
}

// newMemory has the volumes.
func newMemory(t *testing.T, ids ...volume.ID) (*memory, *Services) {
	t.Helper()
	m := &memory{
		t: t, pause: func(context.Context) {}, touched: map[volume.ID]bool{}, volumes: map[volume.ID]*volume.Volume{},
		snapshots: map[volume.ID]*volume.Snapshot{}, groups: map[volume.ID]*volume.Group{},
	}
	for _, id := range ids {
		m.volumes[id] = &volume.Volume{ID: id, Name: string(id)}
	}
	return m, New(m)
}

// touching is a call that needs the ids for itself.
func (m *memory) touching(ctx context.Context, ids ...volume.ID) (done func()) {
	m.mu.Lock()
	for _, id := range ids {
		if m.touched[id] {
			m.t.Errorf("two calls at once touch %q", id)
		}
		m.touched[id] = true
	}
	m.mu.Unlock()
	m.pause(ctx)
	m.mu.Lock()
	return func() {
		defer m.mu.Unlock()
		for _, id := range ids {
			delete(m.touched, id)
		}
	}
}

// newID needs the mutex.
func (m *memory) newID(kind string) volume.ID {
	m.made++
	return volume.ID(fmt.Sprintf("%s-%d", kind, m.made))
}

func find[T interface{ Key() (volume.ID, string) }](m *memory, all map[volume.ID]T, match func(id volume.ID, name string) bool) (none T, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, one := range all {
		if match(one.Key()) {
			return one, nil
		}
	}
	return none, volume.ErrNotFound
}

func named(name string) func(volume.ID, string) bool {
	return func(_ volume.ID, other string) bool { return other == name }
}

func identified(id volume.ID) func(volume.ID, string) bool {
	return func(other volume.ID, _ string) bool { return other == id }
}

func (m *memory) Find(_ context.Context, name string) (*volume.Volume, error) {
	return find(m, m.volumes, named(name))
}

func (m *memory) Get(_ context.Context, id volume.ID) (*volume.Volume, error) {
	return find(m, m.volumes, identified(id))
}

func (m *memory) FindSnapshot(_ context.Context, name string) (*volume.Snapshot, error) {
	return find(m, m.snapshots, named(name))
}

func (m *memory) GetSnapshot(_ context.Context, id volume.ID) (*volume.Snapshot, error) {
	return find(m, m.snapshots, identified(id))
}

func (m *memory) FindGroup(_ context.Context, name string) (*volume.Group, error) {
	return find(m, m.groups, named(name))
}

func (m *memory) GetGroup(_ context.Context, id volume.ID, _ []volume.ID) (*volume.Group, error) {
	return find(m, m.groups, identified(id))
}

func (m *memory) Create(ctx context.Context, req *volume.CreateRequest) (*volume.Volume, error) {
	defer m.touching(ctx, req.Source.IDs()...)()
	for _, id := range req.Source.IDs() {
		if m.volumes[id] == nil && m.snapshots[id] == nil {
			return nil, volume.ErrNotFound
		}
	}
	made := &volume.Volume{ID: m.newID("volume"), Name: req.Name, Source: req.Source, Filling: req.Source != nil}
	m.volumes[made.ID] = made
	return made, nil
}

func (m *memory) Delete(ctx context.Context, id volume.ID) error {
	defer m.touching(ctx, id)()
	if m.volumes[id] == nil {
		return volume.ErrNotFound
	}
	delete(m.volumes, id)
	return nil
}

func (m *memory) CreateSnapshot(ctx context.Context, req *volume.SnapshotRequest) (*volume.Snapshot, error) {
	defer m.touching(ctx, req.Source)()
	if m.volumes[req.Source] == nil {
		return nil, volume.ErrNotFound
	}
	made := &volume.Snapshot{ID: m.newID("snapshot"), Name: req.Name, Source: req.Source, Filling: true}
	m.snapshots[made.ID] = made
	return made, nil
}

func (m *memory) DeleteSnapshot(ctx context.Context, id volume.ID) error {
	defer m.touching(ctx, id)()
	if m.snapshots[id] == nil {
		return volume.ErrNotFound
	}
	delete(m.snapshots, id)
	return nil
}

func (m *memory) CreateGroup(ctx context.Context, req *volume.GroupRequest) (*volume.Group, error) {
	defer m.touching(ctx, req.Sources...)()
	made := &volume.Group{ID: m.newID("group"), Name: req.Name, Parameters: req.Parameters}
	for _, source := range req.Sources {
		if m.volumes[source] == nil {
			return nil, volume.ErrNotFound
		}
	}
	for _, source := range req.Sources {
		member := &volume.Snapshot{ID: m.newID("member"), Source: source, Group: made.ID, Filling: true}
		member.Name = string(member.ID)
		m.snapshots[member.ID] = member
		made.Members, made.Snapshots = append(made.Members, member.ID), append(made.Snapshots, member)
	}
	m.groups[made.ID] = made
	return made, nil
}

// around is what a group consists of, with its volumes.
func (m *memory) around(id volume.ID) []volume.ID {
	m.mu.Lock()
	defer m.mu.Unlock()
	var ids []volume.ID
	if g := m.groups[id]; g != nil {
		ids = append(ids, id)
		for _, s := range g.Snapshots {
			ids = append(ids, s.ID, s.Source)
		}
	}
	return ids
}

func (m *memory) DeleteGroup(ctx context.Context, id volume.ID, members []volume.ID) error {
	defer m.touching(ctx, m.around(id)...)()
	g := m.groups[id]
	if g == nil {
		return volume.ErrNotFound
	}
	if err := g.CheckMembers(members); err != nil {
		return err
	}
	for _, member := range g.Members {
		delete(m.snapshots, member)
	}
	delete(m.groups, id)
	return nil
}

// Complete touches all of a group, and the volumes that it releases.
func (m *memory) Complete(ctx context.Context, id volume.ID) error {
	ids := m.around(id)
	if len(ids) == 0 {
		ids = []volume.ID{id}
	}
	defer m.touching(ctx, ids...)()
	if m.volumes[id] == nil && m.snapshots[id] == nil && m.groups[id] == nil {
		return volume.ErrNotFound
	}
	return nil
}

func wantErr(t *testing.T, what string, err, want error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Errorf("%s: error %v, want %v", what, err, want)
	}
}

func must(t *testing.T, errs ...error) {
	t.Helper()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
}

func TestCreateSnapshotAgain(t *testing.T) {
	_, s := newMemory(t, "a", "b")
	ctx := t.Context()
	create := func(source volume.ID) (volume.ID, error) {
		made, err := s.CreateSnapshot(ctx, &volume.SnapshotRequest{Name: "snap", Source: source})
		if err != nil {
			return "", err
		}
		return made.ID, nil
	}
	first, err := create("a")
	again, errAgain := create("a")
	must(t, err, errAgain)
	if first != again {
		t.Errorf("the same request made a second snapshot: %s and %s", first, again)
	}
	_, err = create("b")
	wantErr(t, "another source", err, volume.ErrExists)
	must(t, s.DeleteSnapshot(ctx, first), s.DeleteSnapshot(ctx, first))
	next, err := create("b")
	must(t, err)
	if next == first {
		t.Error("a deleted snapshot has come back")
	}
	_, err = s.CreateSnapshot(ctx, &volume.SnapshotRequest{Name: "other", Source: "unknown"})
	wantErr(t, "unknown source", err, volume.ErrNotFound)
}

func TestCreateGroupAgain(t *testing.T) {
	m, s := newMemory(t, "a", "b")
	ctx := t.Context()
	create := func(parameters map[string]string, sources ...volume.ID) (*volume.Group, error) {
		return s.CreateGroup(ctx, &volume.GroupRequest{Name: "group", Sources: sources, Parameters: parameters})
	}
	first, err := create(nil, "a", "b")
	must(t, err)
	again, err := create(nil, "b", "a")
	must(t, err)
	if first.ID != again.ID {
		t.Errorf("the same request made a second group: %s and %s", first.ID, again.ID)
	}
	_, err = create(nil, "a")
	wantErr(t, "other volumes", err, volume.ErrExists)
	_, err = create(map[string]string{"a": "b"}, "a", "b")
	wantErr(t, "other parameters", err, volume.ErrExists)
	wantErr(t, "other members", s.DeleteGroup(ctx, first.ID, first.Members[:1]), volume.ErrInvalid)
	delete(m.snapshots, first.Members[0]) // an earlier call was interrupted
	must(t, s.DeleteGroup(ctx, first.ID, first.Members), s.DeleteGroup(ctx, first.ID, first.Members), s.DeleteGroup(ctx, "unknown", nil))
	if len(m.snapshots) > 0 {
		t.Errorf("members left: %v", m.snapshots)
	}
}

// TestFillingVolumeIsReturned: what waits for contents is above.
func TestFillingVolumeIsReturned(t *testing.T) {
	_, s := newMemory(t, "a")
	for range 2 {
		made, err := s.Create(t.Context(), &volume.CreateRequest{Name: "clone", Source: &volume.Source{Volume: "a"}})
		if err != nil || !made.Filling {
			t.Errorf("clone: %v, %v, want one that is to be filled", made, err)
		}
	}
}

// TestSourcesStay: while something is made of a source, the source cannot be
// deleted; and what is deleted is no source any more.
func TestSourcesStay(t *testing.T) {
	clone := func(ctx context.Context, s *Services, source volume.Source) error {
		_, err := s.Create(ctx, &volume.CreateRequest{Name: "new", Source: &source})
		return err
	}
	cases := map[string]struct {
		make, remove func(ctx context.Context, s *Services) error
	}{
		"Clone": {
			make:   func(ctx context.Context, s *Services) error { return clone(ctx, s, volume.Source{Volume: "a"}) },
			remove: func(ctx context.Context, s *Services) error { return s.Delete(ctx, "a") },
		},
		"Restore": {
			make: func(ctx context.Context, s *Services) error {
				return clone(ctx, s, volume.Source{Snapshot: "snapshot-1"})
			},
			remove: func(ctx context.Context, s *Services) error { return s.DeleteSnapshot(ctx, "snapshot-1") },
		},
		"Snapshot": {
			make: func(ctx context.Context, s *Services) error {
				_, err := s.CreateSnapshot(ctx, &volume.SnapshotRequest{Name: "new", Source: "a"})
				return err
			},
			remove: func(ctx context.Context, s *Services) error { return s.Delete(ctx, "a") },
		},
		"Group": {
			make: func(ctx context.Context, s *Services) error {
				_, err := s.CreateGroup(ctx, &volume.GroupRequest{Name: "new", Sources: []volume.ID{"b", "a"}})
				return err
			},
			remove: func(ctx context.Context, s *Services) error { return s.Delete(ctx, "a") },
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m, s := newMemory(t, "a", "b")
				_, err := s.CreateSnapshot(t.Context(), &volume.SnapshotRequest{Name: "snap", Source: "a"})
				must(t, err)
				m.pause = func(context.Context) { time.Sleep(time.Hour) }
				var group sync.WaitGroup
				group.Go(func() { must(t, tc.make(t.Context(), s)) })
				synctest.Wait()
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				wantErr(t, "delete while it is a source", tc.remove(ctx, s), volume.ErrBusy)
				group.Wait()
				m.pause = func(context.Context) {}
				must(t, tc.remove(t.Context(), s))
			})
		})
	}
}

// TestCompleteKeepsOthersOut: from what it says is complete, and from the
// volumes that it releases.
func TestCompleteKeepsOthersOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, s := newMemory(t, "a", "b", "c")
		ctx := t.Context()
		g, err := s.CreateGroup(ctx, &volume.GroupRequest{Name: "group", Sources: []volume.ID{"a", "b"}})
		must(t, err)
		m.pause = func(context.Context) { time.Sleep(time.Hour) }
		var group sync.WaitGroup
		for _, id := range []volume.ID{g.ID, "c"} {
			group.Go(func() { must(t, s.Complete(ctx, id)) })
		}
		synctest.Wait()
		short, cancel := context.WithTimeout(ctx, time.Minute)
		defer cancel()
		for name, err := range map[string]error{
			"source":          s.Delete(short, "a"),
			"another source":  s.Delete(short, "b"),
			"the same volume": s.Delete(short, "c"),
			"group":           s.DeleteGroup(short, g.ID, g.Members),
			"snapshot":        s.DeleteSnapshot(short, g.Members[1]),
		} {
			wantErr(t, name, err, volume.ErrBusy)
		}
		group.Wait()
		wantErr(t, "unknown", s.Complete(ctx, "unknown"), volume.ErrNotFound)
	})
}

// TestNobodyWaitsForEver calls at random, with sources in any order. A deadlock
// would end the bubble, and the memory sees when two calls touch one thing.
func TestNobodyWaitsForEver(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	synctest.Test(t, func(t *testing.T) {
		sources := []volume.ID{"a", "b", "c", "d"}
		m, s := newMemory(t, sources...)
		m.pause = func(context.Context) { time.Sleep(time.Second) }
		var group sync.WaitGroup
		for worker := range uint64(16) {
			random := rand.New(rand.NewPCG(seed, worker))
			group.Go(func() {
				for range 60 {
					if err := callAtRandom(t.Context(), random, s, sources); err != nil && !errors.Is(err, volume.ErrExists) && !errors.Is(err, volume.ErrNotFound) {
						t.Error(err)
					}
				}
			})
		}
		group.Wait()
		locks := s.Volumes.ids.Len() + s.Volumes.names.Len() + s.Snapshots.names.Len() + s.Groups.names.Len()
		if locks > 0 {
			t.Errorf("%d locks are held when nothing runs", locks)
		}
	})
}

func callAtRandom(ctx context.Context, random *rand.Rand, s *Services, sources []volume.ID) error {
	order := slices.Clone(sources)
	random.Shuffle(len(order), func(i, j int) { order[i], order[j] = order[j], order[i] })
	name := fmt.Sprintf("n%d", random.IntN(4))
	switch random.IntN(6) {
	case 0:
		_, err := s.Create(ctx, &volume.CreateRequest{Name: name, Source: &volume.Source{Volume: order[0]}})
		return err
	case 1:
		_, err := s.CreateSnapshot(ctx, &volume.SnapshotRequest{Name: name, Source: order[0]})
		return err
	case 2:
		if found, err := s.FindSnapshot(ctx, name); err == nil {
			_, err = s.Create(ctx, &volume.CreateRequest{Name: name, Source: &volume.Source{Snapshot: found.ID}})
			return errors.Join(err, s.DeleteSnapshot(ctx, found.ID))
		}
		return nil
	case 3:
		if found, err := s.Find(ctx, name); err == nil {
			return errors.Join(s.Complete(ctx, found.ID), s.Delete(ctx, found.ID))
		}
		return nil
	case 4:
		g, err := s.CreateGroup(ctx, &volume.GroupRequest{Name: name, Sources: order[:2+random.IntN(3)]})
		if err != nil {
			return err
		}
		return s.Complete(ctx, g.ID)
	}
	if found, err := s.FindGroup(ctx, name); err == nil {
		return s.DeleteGroup(ctx, found.ID, found.Members)
	}
	return nil
}

// brokenSnapshots cannot even look; what it is asked to do panics.
type brokenSnapshots struct{ volume.Services }

func (brokenSnapshots) FindSnapshot(context.Context, string) (*volume.Snapshot, error) {
	return nil, errBroken
}

func (brokenSnapshots) GetSnapshot(context.Context, volume.ID) (*volume.Snapshot, error) {
	return nil, errBroken
}

func (brokenSnapshots) GetGroup(context.Context, volume.ID, []volume.ID) (*volume.Group, error) {
	return nil, errBroken
}

func (brokenSnapshots) FindGroup(context.Context, string) (*volume.Group, error) {
	return nil, errBroken
}

// TestWhoCannotLookMakesNoSnapshot is TestWhoCannotLookDoesNothing for what
// has to do with snapshots.
func TestWhoCannotLookMakesNoSnapshot(t *testing.T) {
	s, ctx := New(brokenSnapshots{}), t.Context()
	for range 2 {
		_, err := s.CreateSnapshot(ctx, &volume.SnapshotRequest{Name: "snap"})
		wantErr(t, "create snapshot", err, errBroken)
		_, err = s.CreateGroup(ctx, &volume.GroupRequest{Name: "group"})
		wantErr(t, "create group", err, errBroken)
		wantErr(t, "delete group", s.DeleteGroup(ctx, "g", []volume.ID{"s"}), errBroken)
		wantErr(t, "complete", s.Complete(ctx, "s"), errBroken)
	}
}

// TestWithoutGroups: a driver that has none completes one thing at a time.
func TestWithoutGroups(t *testing.T) {
	m, s := newMemory(t, "a")
	s.Copies.around = nil
	must(t, s.Complete(t.Context(), "a"))
	if len(m.touched) > 0 {
		t.Errorf("touched: %v", m.touched)
	}
}
