// Package state keeps small records on disk so that they survive a crash at
// any moment: one JSON file per record, replaced atomically and synced, with
// a schema version in every file and one writer per directory.
//
// Use it for what a driver must remember between two calls. Do not use it
// for volume contents. A directory has one writer at a time, such as the one
// process that holds its Lock.
package state

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// SchemaVersion is the version written into every record. Records up to this
// version are read, and newer ones are refused.
const SchemaVersion = 1

const (
	suffix        = ".json"
	tempPrefix    = ".tmp-"
	quarantineDir = "quarantine"
)

// ErrNewerSchema says that a record was written by a newer driver. Nothing is
// changed on disk, so that the newer driver can still be started.
var ErrNewerSchema = errors.New("record was written by a newer driver")

// ErrUnreadable says that a file is not a record: torn, empty or foreign.
var ErrUnreadable = errors.New("unreadable record")

// Damaged describes a record that Load could not read, and moved out of the way.
type Damaged struct {
	// ID is the name of the record.
	ID string
	// Path is where the file lies now.
	Path string
	// Err says what is wrong with it; it wraps ErrUnreadable.
	Err error
}

// Records is a directory of records of one kind. It is safe for concurrent
// use as long as no two calls name the same id. An id is a file name that does
// not begin with a dot; any other is an error, and has no record.
type Records[T any] struct {
	dir   string
	kind  string
	spare *spare
}

type envelope[T any] struct {
	Version int    `json:"version"`
	Kind    string `json:"kind"`
	Record  *T     `json:"record"`
}

// Identified is what a record implements that has its own name in it. A file
// of another name, such as a copy made by hand, is unreadable then: two
// files would be the record of one object.
type Identified interface {
	// RecordID is the id by which the record is put.
	RecordID() string
}

// Open creates dir where needed and returns its records for reading and
// writing. Each has the word kind in it; with another one it is unreadable. The
// caller is the only writer of the directory: it holds its Lock, or takes turns
// with other processes in another way.
func Open[T any](dir, kind string) (*Records[T], error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("create directory for %s records: %w", kind, err)
	}
	records := View[T](dir, kind)
	if err := records.spare.prepare(); err != nil {
		return nil, fmt.Errorf("set space aside for %s records: %w", kind, err)
	}
	return records, nil
}

// View returns the records of a directory that another process owns. Only Get,
// Exists and Quarantined may be called; a directory that does not exist has no
// records.
func View[T any](dir, kind string) *Records[T] {
	return &Records[T]{dir: dir, kind: kind, spare: &spare{dir: dir}}
}

// Load reads every record; only the writer of the directory may call it.
// Leftovers of interrupted writes are removed, unreadable records are moved into
// the subdirectory "quarantine" and reported. A record of a newer schema is an
// ErrNewerSchema.
func (r *Records[T]) Load() (map[string]T, []Damaged, error) {
	entries, err := os.ReadDir(r.dir)
	if err != nil {
		return nil, nil, fmt.Errorf("list %s records: %w", r.kind, err)
	}
	loaded := make(map[string]T, len(entries))
	var damaged []Damaged
	for _, entry := range entries {
		id, found := strings.CutSuffix(entry.Name(), suffix)
		switch {
		case strings.HasPrefix(entry.Name(), tempPrefix):
			if err := os.Remove(filepath.Join(r.dir, entry.Name())); err != nil {
				return nil, nil, fmt.Errorf("remove leftover of an interrupted write: %w", err)
			}
			continue
		case entry.IsDir() || !found || checkID(id) != nil:
			continue
		}
		record, err := r.Get(id)
		if errors.Is(err, ErrUnreadable) {
			moved, moveErr := r.quarantine(id)
			if moveErr != nil {
				return nil, nil, moveErr
			}
			damaged = append(damaged, Damaged{ID: id, Path: moved, Err: err})
			continue
		}
		if err != nil {
			return nil, nil, err
		}
		loaded[id] = record
	}
	return loaded, damaged, nil
}

// Get reads one record. The error is fs.ErrNotExist where there is none,
// ErrUnreadable or ErrNewerSchema.
func (r *Records[T]) Get(id string) (T, error) {
	var zero T
	if err := checkID(id); err != nil {
		return zero, err
	}
	path := r.path(id)
	data, err := os.ReadFile(path)
	if err != nil {
		return zero, fmt.Errorf("read %s record %q: %w", r.kind, id, err)
	}
	record, err := decode[T](data, r.kind)
	if err == nil {
		err = checkIdentity(record, id)
	}
	if err != nil {
		return zero, fmt.Errorf("read %s record %s: %w", r.kind, path, err)
	}
	return *record, nil
}

// Put writes one record durably: after it has returned nil the new content
// survives a power cut, after an error or a crash either the old or the new
// content is there. On a full disk a record can be replaced by one that is not
// longer, of at most 64 KiB, so that what is undone needs no free space; not on
// a file system that never writes in place, such as btrfs.
func (r *Records[T]) Put(id string, record T) error {
	if err := checkID(id); err != nil {
		return err
	}
	data, err := json.MarshalIndent(envelope[T]{Version: SchemaVersion, Kind: r.kind, Record: &record}, "", "  ")
	if err != nil {
		return fmt.Errorf("encode %s record %q: %w", r.kind, id, err)
	}
	data = append(data, '\n')
	err = replaceFile(r.path(id), data)
	if IsFull(err) && r.spare.replace(r.path(id), data) == nil {
		return nil
	}
	if err != nil {
		if IsFull(err) {
			return fmt.Errorf("write a record of a %s: %w", r.kind, err) // each attempt may have another ID
		}
		return fmt.Errorf("write %s record %q: %w", r.kind, id, err)
	}
	return nil
}

// Delete removes one record durably. A record that does not exist is no
// error.
func (r *Records[T]) Delete(id string) error {
	if err := checkID(id); err != nil {
		return err
	}
	err := os.Remove(r.path(id))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err == nil {
		err = SyncDir(r.dir)
	}
	if err != nil {
		return fmt.Errorf("remove %s record %q: %w", r.kind, id, err)
	}
	return nil
}

// Exists reports whether there is a record, without reading it.
func (r *Records[T]) Exists(id string) bool {
	if checkID(id) != nil {
		return false
	}
	_, err := os.Lstat(r.path(id))
	return err == nil
}

// Quarantined reports whether an unreadable record of that id was moved aside
// and not dealt with since.
func (r *Records[T]) Quarantined(id string) bool {
	if checkID(id) != nil {
		return false
	}
	_, err := os.Lstat(filepath.Join(r.dir, quarantineDir, id+suffix))
	return err == nil
}

// DeleteQuarantined removes an unreadable record that was moved aside, durably, when it
// is not needed any more. A record that does not exist is no error.
func (r *Records[T]) DeleteQuarantined(id string) error {
	if err := checkID(id); err != nil {
		return err
	}
	err := os.Remove(filepath.Join(r.dir, quarantineDir, id+suffix))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err == nil {
		err = SyncDir(filepath.Join(r.dir, quarantineDir))
	}
	if err != nil {
		return fmt.Errorf("remove unreadable %s record %q: %w", r.kind, id, err)
	}
	return nil
}

func (r *Records[T]) path(id string) string {
	return filepath.Join(r.dir, id+suffix)
}

func (r *Records[T]) quarantine(id string) (string, error) {
	dir := filepath.Join(r.dir, quarantineDir)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", fmt.Errorf("create quarantine for %s record %q: %w", r.kind, id, err)
	}
	moved := filepath.Join(dir, id+suffix)
	if err := os.Rename(r.path(id), moved); err != nil {
		return "", fmt.Errorf("move unreadable %s record %q aside: %w", r.kind, id, err)
	}
	return moved, nil
}

func decode[T any](data []byte, kind string) (*T, error) {
	var head struct {
		Version int    `json:"version"`
		Kind    string `json:"kind"`
	}
	if err := json.Unmarshal(data, &head); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrUnreadable, err)
	}
	switch {
	case head.Version > SchemaVersion:
		return nil, fmt.Errorf("%w: schema version %d, this driver reads up to %d; start the newer driver, or move the file away",
			ErrNewerSchema, head.Version, SchemaVersion)
	case head.Version < 1:
		return nil, fmt.Errorf("%w: schema version %d, must be at least 1", ErrUnreadable, head.Version)
	case head.Kind != kind:
		return nil, fmt.Errorf("%w: kind %q, must be %q", ErrUnreadable, head.Kind, kind)
	}
	var content envelope[T]
	if err := json.Unmarshal(data, &content); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrUnreadable, err)
	}
	if content.Record == nil {
		return nil, fmt.Errorf("%w: no field \"record\"", ErrUnreadable)
	}
	return content.Record, nil
}

func checkIdentity(record any, id string) error {
	if own, ok := record.(Identified); ok && own.RecordID() != id {
		return fmt.Errorf("%w: it is the record of %q", ErrUnreadable, own.RecordID())
	}
	return nil
}

// checkID is the last line of defence: ids are validated before, but no name
// may ever leave the directory.
func checkID(id string) error {
	if id == "" || id[0] == '.' || strings.ContainsAny(id, "/\x00") {
		return fmt.Errorf("record name %q: must not be empty, start with a dot or contain a slash or NUL", id)
	}
	return nil
}
