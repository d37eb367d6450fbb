// Package regsocket makes the registration socket and watches that it stays.
//
// A socket appears at its path complete: with mode 0600 and with a
// listener, because it is bound under a hidden name in the same directory
// (kubelets skip names that begin with a dot) and then renamed. The process's
// umask is never touched, so several registrars can run in one process.
//
// It is for sockets in directories that others watch. A server whose clients
// know the path uses package csiserver.
package regsocket

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// mode lets only the owner, which is root on a node, talk to the registrar.
const mode = 0o600

// maxPath is the longest path, in bytes, that a unix socket can be dialled at
// on Linux. A rename could make a longer one, which no client could dial.
const maxPath = 107

// hiddenPrefix begins the name of a socket that is not published yet.
const hiddenPrefix = ".reg"

// answerTimeout bounds the check whether a process listens at a path.
const answerTimeout = time.Second

// State is what became of a socket's path.
type State int

const (
	// Present: the path is the socket that this process made.
	Present State = iota
	// Gone: the path does not exist, or no process listens on its socket.
	Gone
	// Replaced: another process listens there.
	Replaced
)

// String returns the state in lower case.
func (s State) String() string {
	switch s {
	case Present:
		return "present"
	case Gone:
		return "gone"
	case Replaced:
		return "replaced"
	default:
		return fmt.Sprintf("state(%d)", int(s))
	}
}

// Socket is a listening socket at a path.
type Socket struct {
	net.Listener

	path string
	made fs.FileInfo
}

// Listen makes the socket at path, in place of whatever socket is there. A
// file that is not a socket is left alone, and is an error.
func Listen(path string) (*Socket, error) {
	if err := replaceable(path); err != nil {
		return nil, fmt.Errorf("make registration socket %q: %w", path, err)
	}
	hidden := hiddenName(filepath.Dir(path))
	listener, err := net.ListenUnix("unix", &net.UnixAddr{Name: hidden, Net: "unix"})
	if err != nil {
		return nil, fmt.Errorf("make registration socket %q: %w", path, err)
	}
	// The file is this package's to remove, under the name it has then.
	listener.SetUnlinkOnClose(false)
	made, err := publish(hidden, path)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("make registration socket %q: %w", path, err), listener.Close(), removeIfThere(hidden))
	}
	return &Socket{Listener: listener, path: path, made: made}, nil
}

func replaceable(path string) error {
	if len(path) > maxPath {
		return fmt.Errorf("the path must not exceed %d bytes, this one has %d", maxPath, len(path))
	}
	info, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err == nil && info.Mode().Type() != fs.ModeSocket {
		return fmt.Errorf("a file of type %s is there, not a socket", info.Mode().Type())
	}
	return err
}

// hiddenName returns a name in dir that begins with a dot. It is no longer than the shortest name of a
// registration socket, because the path of a socket must not exceed 107 bytes. Should it be taken, which is one
// chance in sixty million, the bind fails and is tried again as after any error.
func hiddenName(dir string) string {
	const names = 36 * 36 * 36 * 36 * 36
	return filepath.Join(dir, hiddenPrefix+strconv.FormatUint(rand.Uint64N(names), 36))
}

// publish gives the bound socket its mode and its name.
func publish(hidden, path string) (fs.FileInfo, error) {
	if err := os.Chmod(hidden, mode); err != nil {
		return nil, err
	}
	made, err := os.Lstat(hidden)
	if err != nil {
		return nil, err
	}
	return made, os.Rename(hidden, path)
}

func removeIfThere(path string) error {
	if err := os.Remove(path); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// Path returns where the socket is.
func (s *Socket) Path() string { return s.path }

// State looks at the path. An error to look is not taken as absence.
func (s *Socket) State(ctx context.Context) State {
	now, err := os.Lstat(s.path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return Gone
	case err != nil || s.mine(now):
		return Present
	case abandoned(ctx, s.path):
		return Gone
	default:
		return Replaced
	}
}

// mine reports whether the file is the socket of s. The inode number
// alone does not identify it: the next socket may get the same number.
func (s *Socket) mine(file fs.FileInfo) bool {
	return os.SameFile(file, s.made) && file.ModTime().Equal(s.made.ModTime())
}

// abandoned reports whether no process listens at path. Only a refusal proves that: a listener that is slow, or a context
// that has ended, must not cost another registrar its socket.
func abandoned(ctx context.Context, path string) bool {
	ctx, cancel := context.WithTimeout(ctx, answerTimeout)
	defer cancel()
	conn, err := new(net.Dialer).DialContext(ctx, "unix", path)
	if err != nil {
		return errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, fs.ErrNotExist)
	}
	_ = conn.Close() // nothing was sent on it
	return false
}

// Remove deletes the file, unless another socket has taken its place.
func (s *Socket) Remove() error {
	now, err := os.Lstat(s.path)
	if errors.Is(err, fs.ErrNotExist) || err == nil && !s.mine(now) {
		return nil
	}
	if err == nil {
		err = removeIfThere(s.path)
	}
	if err != nil {
		return fmt.Errorf("remove registration socket %q: %w", s.path, err)
	}
	return nil
}

// Clean removes hidden sockets that an earlier process left in dir when it was
// killed between making and renaming one.
func Clean(ctx context.Context, dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return fmt.Errorf("read registration directory %q: %w", dir, err)
	}
	var errs []error
	for _, e := range entries {
		path := filepath.Join(dir, e.Name())
		if strings.HasPrefix(e.Name(), hiddenPrefix) && e.Type() == fs.ModeSocket && abandoned(ctx, path) {
			errs = append(errs, removeIfThere(path))
		}
	}
	return errors.Join(errs...)
}
