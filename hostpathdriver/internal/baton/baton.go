// Package baton hands the right to write below a directory from one process to
// another, again and again, as several controllers on one state directory need
// it. For a directory that one process writes as long as it lives, use the Lock
// of package state of driverkit.
package baton

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Baton is the right to write below a directory, for processes that hand it
// on to each other again and again. Where a state.Lock is for life, a Baton is
// for a turn. The kernel takes it from a process that ends, however it ends, and
// the Stamp tells the next one whether there is something to clean up.
//
// It is two flocks: who wants the first waits for it while holding the
// second, the queue. So the holder can see that somebody waits, and gets in
// line behind it when it comes back: of two processes none waits for longer
// than a turn. Among more, chance decides who is the next in the queue.
//
// A Baton is not safe for concurrent use.
type Baton struct {
	lock  *os.File
	queue *os.File
}

// Stamp is what holders of a Baton tell each other. The zero Stamp is that of
// a new directory.
type Stamp struct {
	// Version names what is written below the directory. Who changes
	// something makes a new one.
	Version string
	// Complete is false from before the first change of a turn until after
	// the last one. A turn that begins with an incomplete stamp follows one
	// whose holder was killed.
	Complete bool
}

const (
	stampFormat   = "%-26s %-8s\n"
	stampLength   = 26 + 1 + 8 + 1
	stampComplete = "complete"
	stampChanging = "changing"
)

// Open prepares the lock file at path, and the one of the queue next to it. It
// does not wait for a turn.
func Open(path string) (*Baton, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return nil, fmt.Errorf("create directory of lock file: %w", err)
	}
	lock, err := openLockFile(path)
	if err != nil {
		return nil, err
	}
	queue, err := openLockFile(strings.TrimSuffix(path, ".lock") + "-queue.lock")
	if err != nil {
		return nil, errors.Join(err, lock.Close())
	}
	return &Baton{lock: lock, queue: queue}, nil
}

func openLockFile(path string) (*os.File, error) {
	file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open lock file: %w", err)
	}
	return file, nil
}

// Take waits for the turn of this process, and returns the stamp of the last
// one that changed something. The error wraps that of ctx when it ends first.
func (b *Baton) Take(ctx context.Context) (Stamp, error) {
	if err := await(ctx, b.queue); err != nil {
		return Stamp{}, err
	}
	err := await(ctx, b.lock)
	if leave := unlock(b.queue); err == nil && leave != nil {
		err = errors.Join(leave, b.Give())
	}
	if err != nil {
		return Stamp{}, err
	}
	return b.read(), nil
}

// Wanted tells the holder whether another process waits.
func (b *Baton) Wanted() (bool, error) {
	free, err := try(b.queue)
	if err != nil || !free {
		return !free, err
	}
	return false, unlock(b.queue)
}

// Note writes the stamp. It is for other processes of machines that are up,
// so it is not synced: after a power cut there are none.
func (b *Baton) Note(s Stamp) error {
	word := stampChanging
	if s.Complete {
		word = stampComplete
	}
	if _, err := b.lock.WriteAt(fmt.Appendf(nil, stampFormat, s.Version, word), 0); err != nil {
		return fmt.Errorf("note what was done in lock file: %w", err)
	}
	return nil
}

// Give ends the turn.
func (b *Baton) Give() error { return unlock(b.lock) }

// Close ends the turn, if there is one, and the use of the files.
func (b *Baton) Close() error {
	if err := errors.Join(b.lock.Close(), b.queue.Close()); err != nil {
		return fmt.Errorf("close lock files: %w", err)
	}
	return nil
}

// read returns the zero stamp for anything that is none.
func (b *Baton) read() Stamp {
	buffer := make([]byte, stampLength)
	n, _ := b.lock.ReadAt(buffer, 0) // what cannot be read is no stamp
	fields := strings.Fields(string(buffer[:n]))
	if len(fields) != 2 || n != stampLength || (fields[1] != stampComplete && fields[1] != stampChanging) {
		return Stamp{}
	}
	return Stamp{Version: fields[0], Complete: fields[1] == stampComplete}
}

// await asks for a flock until it is granted. The kernel could be waited for
// as well, but not together with ctx. Pauses differ by chance and do not grow,
// so that of several that wait each may be the next.
func await(ctx context.Context, file *os.File) error {
	const shortest, longest = time.Millisecond, 10 * time.Millisecond
	for {
		granted, err := try(file)
		if err != nil || granted {
			return err
		}
		timer := time.NewTimer(shortest + rand.N(longest-shortest)) // no secret
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return fmt.Errorf("wait for the lock %s: %w", file.Name(), context.Cause(ctx))
		}
	}
}

// try takes a flock if nobody has it.
func try(file *os.File) (granted bool, err error) {
	err = unix.Flock(int(file.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) || errors.Is(err, unix.EINTR) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("lock %s: %w", file.Name(), err)
	}
	return true, nil
}

func unlock(file *os.File) error {
	if err := unix.Flock(int(file.Fd()), unix.LOCK_UN); err != nil {
		return fmt.Errorf("unlock %s: %w", file.Name(), err)
	}
	return nil
}
