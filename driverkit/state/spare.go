package state

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
)

const (
	// spareName is the name of the spare file. Load passes over it, as it is no record.
	spareName = ".spare"
	// spareSize is its length, and that of the longest record that is replaced with it, in bytes.
	spareSize = 64 << 10
)

// errNoSpare says that a record cannot be replaced on a full disk.
var errNoSpare = errors.New("the new record is longer than the old one, or than the spare file")

// spare is a file in the directory of records whose blocks are there already: with it a record is replaced when the disk is full.
type spare struct {
	dir string
	mu  sync.Mutex
}

func (s *spare) path() string { return filepath.Join(s.dir, spareName) }

// prepare makes the file unless it is there. On a disk that is full, it is there from the next start with free space on.
func (s *spare) prepare() error {
	if info, err := os.Lstat(s.path()); err == nil && info.Size() == spareSize {
		return nil
	}
	if err := replaceFile(s.path(), blank(spareSize)); !IsFull(err) {
		return err
	}
	return nil
}

// replace gives the file of a record another content, which is not longer. The spare file takes it and changes places with the old one, so that a crash
// leaves either content; then the old one takes it, too, and they change back: no other writer can take the blocks of either
// meanwhile. Where they could not change back, the next replacement makes a spare file of full length, which needs free space.
func (s *spare) replace(path string, data []byte) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	old, err := os.Lstat(path)
	if err != nil {
		return err
	}
	if int64(len(data)) > min(old.Size(), spareSize) {
		return errNoSpare
	}
	if err := s.prepare(); err != nil {
		return err
	}
	if err := s.fill(append(bytes.Clone(data), blank(spareSize-len(data))...)); err != nil {
		return err
	}
	if err := s.swap(path); err != nil {
		return err
	}
	if s.fill(data) == nil {
		_ = s.swap(path) // the record has its new content either way
	}
	return nil
}

// fill overwrites the spare file, in place.
func (s *spare) fill(data []byte) error {
	file, err := os.OpenFile(s.path(), os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	if info, statErr := file.Stat(); statErr != nil || info.Size() < int64(len(data)) {
		return errors.Join(errNoSpare, statErr, file.Close())
	}
	_, err = file.WriteAt(data, 0)
	if err == nil {
		err = file.Truncate(int64(len(data)))
	}
	if err == nil {
		err = file.Sync()
	}
	return errors.Join(err, file.Close())
}

// swap has the spare file and another one change places.
func (s *spare) swap(path string) error {
	if err := exchange(s.path(), path); err != nil {
		return fmt.Errorf("exchange %s and the spare file: %w", path, err)
	}
	return SyncDir(s.dir)
}

// blank is white space, which JSON has no meaning for.
func blank(n int) []byte { return bytes.Repeat([]byte{'\n'}, n) }
