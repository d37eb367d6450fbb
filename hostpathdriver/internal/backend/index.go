package backend

import (
	"context"
	"path/filepath"
	"slices"
	"sync"

	"github.com/longshore-csi/longshore/driverkit"
	"github.com/longshore-csi/longshore/driverkit/state"
	"github.com/longshore-csi/longshore/hostpathdriver/internal/contents"
)

// record is a record with an id.
type record interface{ RecordID() string }

// index is the records of one kind: on disk, and in memory by id and by name. Objects in it are never changed, only replaced.
type index[T record] struct {
	kind    string
	records *state.Records[T]
	name    func(*T) string

	mu     sync.RWMutex
	byID   map[string]*T
	byName map[string]*T
	ids    []string // sorted
}

// open reads all records. name returns the name by which an object is found.
func (x *index[T]) open(ctx context.Context, stateDir, dir, kind string, name func(*T) string) (err error) {
	x.kind, x.name, x.byID, x.byName, x.ids = kind, name, map[string]*T{}, map[string]*T{}, nil
	if x.records, err = state.Open[T](filepath.Join(stateDir, dir), kind); err != nil {
		return err
	}
	loaded, damaged, err := x.records.Load()
	if err != nil {
		return err
	}
	reportDamaged(ctx, damaged)
	for _, one := range loaded {
		x.put(&one)
	}
	return nil
}

// get returns an object, which must not be changed.
func (x *index[T]) get(id string) (*T, error) {
	x.mu.RLock()
	defer x.mu.RUnlock()
	if found := x.byID[id]; found != nil {
		return found, nil
	}
	return nil, driverkit.NotFound(x.kind, id)
}

// find returns the object of a name, or nil.
func (x *index[T]) find(name string) *T {
	x.mu.RLock()
	defer x.mu.RUnlock()
	return x.byName[name]
}

// save writes the record, and then changes the memory.
func (x *index[T]) save(changed *T) error {
	if err := x.records.Put((*changed).RecordID(), *changed); err != nil {
		return err
	}
	x.put(changed)
	return nil
}

// adopt makes an object exist whose contents are a complete copy in a store.
func (x *index[T]) adopt(created *T, store *contents.Store, step Step) error {
	id := (*created).RecordID()
	err := store.Adopt(id, func() error {
		step.at("copy:record")
		err := x.records.Put(id, *created)
		step.at("copy:adopt")
		return err
	})
	if err == nil {
		x.put(created)
	}
	return err
}

func (x *index[T]) put(changed *T) {
	x.mu.Lock()
	defer x.mu.Unlock()
	id := (*changed).RecordID()
	if at, found := slices.BinarySearch(x.ids, id); !found {
		x.ids = slices.Insert(x.ids, at, id)
	}
	x.byID[id], x.byName[x.name(changed)] = changed, changed
}

// remove deletes the record, and then forgets the object.
func (x *index[T]) remove(id string) error {
	if err := x.records.Delete(id); err != nil {
		return err
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	if at, found := slices.BinarySearch(x.ids, id); found {
		x.ids = slices.Delete(x.ids, at, at+1)
		delete(x.byName, x.name(x.byID[id]))
		delete(x.byID, id)
	}
	return nil
}

// page returns the objects whose id is greater than after and that match, sorted by id, at most limit of them; limit 0 means all.
func (x *index[T]) page(after string, limit int, match func(*T) bool) []*T {
	x.mu.RLock()
	defer x.mu.RUnlock()
	start, found := slices.BinarySearch(x.ids, after)
	if found {
		start++
	}
	var objects []*T
	for _, id := range x.ids[start:] {
		if one := x.byID[id]; match == nil || match(one) {
			objects = append(objects, one)
		}
		if limit > 0 && len(objects) == limit {
			break
		}
	}
	return objects
}

// all returns all objects, sorted by id.
func (x *index[T]) all() []*T { return x.page("", 0, nil) }

// known reports whether there is a record, including an unreadable one.
func (x *index[T]) known(id string) bool { return x.records.Exists(id) || x.records.Quarantined(id) }
