package backend

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/longshore-csi/longshore/driverkit/state"
	"github.com/longshore-csi/longshore/hostpathdriver/internal/volume"
)

const (
	// unformattedName is beside a disk until a file system was made on it.
	unformattedName = "unformatted"
	// unreplayedName is beside a copy of a disk until its file system was mounted
	// for writing once.
	unreplayedName = "unreplayed"
)

// Unformatted reports whether a file system is still to be made on a disk, or an
// attempt to do so was interrupted.
func (c *Contents) Unformatted(id volume.ID) (bool, error) {
	_, err := os.Lstat(c.marker(id))
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil, err
}

// Formatted says that the file system on a disk is complete and durable.
func (c *Contents) Formatted(id volume.ID) error {
	if err := os.Remove(c.marker(id)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return state.SyncDir(c.Path(id))
}

func (c *Contents) marker(id volume.ID) string {
	return filepath.Join(c.Path(id), unformattedName)
}

// CopyUnreplayed says that the file system of a copy may have changes in its
// journal, as the source may be in use.
func (c *Contents) CopyUnreplayed(id volume.ID) error {
	return c.touch(id, unreplayedName, 0)
}

// Unreplayed reports whether the journal is still to be replayed, which is then the
// right of the caller until unlock: another node gets an ErrBusy.
func (c *Contents) Unreplayed(id volume.ID) (unlock func() error, pending bool, err error) {
	marker := filepath.Join(c.Path(id), unreplayedName)
	file, err := os.Open(marker)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, false, nil
	}
	if err != nil {
		return nil, false, err
	}
	err = unix.Flock(int(file.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) {
		err = fmt.Errorf("another node replays the journal of volume %q: %w", id, volume.ErrBusy)
	}
	if err != nil || gone(marker) { // gone: another node has done so since
		return nil, false, errors.Join(err, file.Close())
	}
	return file.Close, true, nil
}

// Replayed says that the journal was replayed.
func (c *Contents) Replayed(id volume.ID) error {
	err := os.Remove(filepath.Join(c.Path(id), unreplayedName))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}
