package state

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

// replaceFile writes data next to path and renames it over path. File and
// directory are synced, in this order, so that the name never points to a
// torn file. Errors name the directory, and not the file beside it, whose name is another one each time: they end in events, where repetitions are counted.
func replaceFile(path string, data []byte) error {
	dir := filepath.Dir(path)
	temp, err := os.CreateTemp(dir, tempPrefix+filepath.Base(path)+"-*")
	if err != nil {
		return about(dir, err)
	}
	err = fillAndSync(temp, data)
	if err == nil {
		err = os.Rename(temp.Name(), path)
	}
	if err != nil {
		return errors.Join(about(dir, err), about(dir, ignoreNotExist(os.Remove(temp.Name()))))
	}
	return SyncDir(dir)
}

// about has the error of an operation on a file name another path.
func about(path string, err error) error {
	if failed, ok := errors.AsType[*fs.PathError](err); ok {
		return &fs.PathError{Op: failed.Op, Path: path, Err: failed.Err}
	}
	if failed, ok := errors.AsType[*os.LinkError](err); ok {
		return &fs.PathError{Op: failed.Op, Path: path, Err: failed.Err}
	}
	return err
}

func fillAndSync(file *os.File, data []byte) error {
	_, err := file.Write(data)
	if err == nil {
		err = file.Sync()
	}
	return errors.Join(err, file.Close())
}

// SyncDir makes the names in a directory durable: after it has returned,
// files created, renamed or removed in it before stay so after a power cut.
func SyncDir(dir string) error {
	handle, err := os.Open(dir)
	if err != nil {
		return fmt.Errorf("sync directory: %w", err)
	}
	if err := errors.Join(handle.Sync(), handle.Close()); err != nil {
		return fmt.Errorf("sync directory %s: %w", dir, err)
	}
	return nil
}

func ignoreNotExist(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// ErrLocked says that another process writes the same records.
var ErrLocked = errors.New("locked by another process")

// Lock is the right to write below a directory, for one process as long as it
// lives. The kernel drops it when the process ends, however it ends.
type Lock struct {
	file *os.File
}

// Acquire takes the lock file at path without waiting. role names what is
// locked in the ErrLocked that a second process gets.
func Acquire(path, role string) (*Lock, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return nil, fmt.Errorf("create directory of lock file: %w", err)
	}
	file, err := openLockFile(path)
	if err != nil {
		return nil, err
	}
	if err := flock(file); err != nil {
		holder := readHolder(file)
		closeErr := file.Close()
		if errors.Is(err, errHeld) {
			err = fmt.Errorf("%w%s: stop it, or give this one another state directory", ErrLocked, holder)
		}
		return nil, errors.Join(fmt.Errorf("lock %s for the %s: %w", path, role, err), closeErr)
	}
	if err := writeHolder(file); err != nil {
		return nil, errors.Join(fmt.Errorf("note the holder in lock file %s: %w", path, err), file.Close())
	}
	return &Lock{file: file}, nil
}

// Release gives the lock back. The file stays: removing it would let two
// processes lock two files of the same name.
func (l *Lock) Release() error {
	if err := l.file.Close(); err != nil {
		return fmt.Errorf("release lock: %w", err)
	}
	return nil
}

func openLockFile(path string) (*os.File, error) {
	file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open lock file: %w", err)
	}
	return file, nil
}

func writeHolder(file *os.File) error {
	if err := file.Truncate(0); err != nil {
		return err
	}
	_, err := file.WriteAt([]byte(strconv.Itoa(os.Getpid())+"\n"), 0)
	return err
}

func readHolder(file *os.File) string {
	buffer := make([]byte, 16)
	n, _ := file.ReadAt(buffer, 0) // the holder only decorates an error message
	pid, err := strconv.Atoi(strings.TrimSpace(string(buffer[:n])))
	if err != nil {
		return ""
	}
	return fmt.Sprintf(" (process %d)", pid)
}

// IsFull reports whether an error says that a disk is full, or a quota used up (ENOSPC, EDQUOT).
func IsFull(err error) bool { return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) }
