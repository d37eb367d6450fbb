package backend

import (
	"context"
	"errors"
	"path/filepath"

	"github.com/longshore-csi/longshore/driverkit/state"
	"github.com/longshore-csi/longshore/hostpathdriver/internal/volume"
)

// recordOf is a pointer to a record that a catalog can have.
type recordOf[V, P any] interface {
	*V
	object[P]
	// KeptIn is the home of the contents.
	KeptIn() string
}

// store keeps the objects of one kind: records on disk, the index over them in
// memory, and contents. An object exists when its record exists.
type store[V any, P recordOf[V, P]] struct {
	records *state.Records[V]
	catalog *catalog[P]
	homes   *homes
	// name is the name of the directory with the contents, in each home; empty for
	// a kind without contents.
	name string
}

// open prepares the records; contents are optional.
func (s *store[V, P]) open(h *homes, kind, records, contents string) (err error) {
	s.catalog, s.homes, s.name = newCatalog[P](kind), h, contents
	s.records, err = state.Open[V](filepath.Join(h.root, records), kind)
	return err
}

// contents returns the store with the contents of a record.
func (s *store[V, P]) contents(of P) *Contents { return s.homes.contents(of.KeptIn(), s.name) }

// add makes a new object: its contents come first, its record makes it exist.
func (s *store[V, P]) add(step Step, created P, makeContents func() error) error {
	id, _ := created.Key()
	step.at("create:contents")
	err := makeContents()
	if err == nil {
		step.at("create:record")
		err = s.put(created)
	}
	if err == nil {
		return nil
	}
	// The record may exist although writing it was reported as failed, so it is
	// deleted first. While it exists the contents stay: after a restart the object
	// is complete, and the repeated call finds it.
	if undo := s.records.Delete(string(id)); undo != nil {
		return errors.Join(err, undo)
	}
	return errors.Join(err, s.contents(created).Abandon(id))
}

// put writes the record, and then the index.
func (s *store[V, P]) put(changed P) error {
	id, _ := changed.Key()
	if err := s.records.Put(string(id), *changed); err != nil {
		return err
	}
	s.catalog.put(changed.Clone())
	return nil
}

// discard deletes an object: it moves the contents to the trash before it deletes
// the record.
func (s *store[V, P]) discard(ctx context.Context, step Step, gone P) error {
	id, _ := gone.Key()
	if s.name != "" {
		step.at("delete:discard")
		if err := s.contents(gone).Discard(ctx, id); err != nil {
			return err
		}
	}
	step.at("delete:record")
	if err := s.records.Delete(string(id)); err != nil {
		return err
	}
	s.catalog.remove(gone)
	return nil
}

// load reads the records from disk.
func (s *store[V, P]) load(ctx context.Context) (map[volume.ID]P, error) {
	loaded, damaged, err := s.records.Load()
	if err != nil {
		return nil, err
	}
	reportDamaged(ctx, damaged)
	found := make(map[volume.ID]P, len(loaded))
	for _, read := range loaded {
		one := P(&read)
		id, _ := one.Key()
		found[id] = one
	}
	return found, nil
}

// known reports whether contents belong to a record, including an unreadable one.
func (s *store[V, P]) known(id volume.ID) bool {
	return s.records.Exists(string(id)) || s.records.Quarantined(string(id))
}

// removeOrphans removes contents that a crash left without a record.
func (s *store[V, P]) removeOrphans(ctx context.Context) error {
	for _, contents := range s.homes.everywhere(s.name) {
		left, err := contents.Recover(ctx, s.known)
		if err != nil {
			return err
		}
		reportLeftovers(ctx, left)
	}
	return nil
}
