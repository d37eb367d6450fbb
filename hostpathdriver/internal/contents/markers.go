package contents

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/longshore-csi/longshore/driverkit"
	"github.com/longshore-csi/longshore/driverkit/state"
)

const (
	// unformatted is the name of a file beside a disk until its file system is complete, with owner and mode.
	unformatted = "unformatted"
	// unreplayed is the name of a file beside the copy of a disk until its file system was mounted for writing once: the source may have been in use, and a
	// read-only device keeps the kernel from replaying the journal.
	unreplayed = "unreplayed"
)

// Unformatted reports whether a file system is still to be made on a disk, or an attempt to do so was interrupted.
func (s *Store) Unformatted(id string) (bool, error) { return exists(s.marker(id, unformatted)) }

// Unprepared reports whether the file system of a disk is not ready for use: blank says that it is to be made, else it was not mounted for writing yet.
func (s *Store) Unprepared(id string) (blank, pending bool, err error) {
	if blank, err = s.Unformatted(id); blank || err != nil {
		return blank, blank, err
	}
	pending, err = exists(s.marker(id, unreplayed))
	return false, pending, err
}

// MarkUnreplayed says that the file system of a copy is to be mounted for writing once.
func (s *Store) MarkUnreplayed(id string) error { return s.touch(id, unreplayed, 0) }

// LockPreparation takes the right to prepare the file system of a disk, for one process until unlock: another one gets an ErrBusy.
func (s *Store) LockPreparation(id string) (unlock func() error, err error) {
	dir, err := os.Open(s.Path(id))
	if err != nil {
		return nil, fmt.Errorf("prepare the file system of %q: %w", id, err)
	}
	err = unix.Flock(int(dir.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) {
		err = fmt.Errorf("another node prepares the file system of volume %q: %w", id, driverkit.ErrBusy)
	}
	if err != nil {
		return nil, errors.Join(err, dir.Close())
	}
	return dir.Close, nil
}

// Prepared says that the file system of a disk is complete and durable.
func (s *Store) Prepared(id string) error {
	for _, name := range []string{unformatted, unreplayed} {
		if err := os.Remove(s.marker(id, name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return state.SyncDir(s.Path(id))
}

func (s *Store) marker(id, name string) string { return filepath.Join(s.Path(id), name) }

func exists(path string) (bool, error) {
	_, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil, err
}
