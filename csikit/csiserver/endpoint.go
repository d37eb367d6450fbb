package csiserver

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path"
	"strings"
	"sync"
	"syscall"
	"time"
)

const (
	// maxSocketPath is the longest path that fits into sockaddr_un on Linux.
	maxSocketPath = 107
	// dialTimeout bounds the connection attempt to a socket that may be stale.
	dialTimeout = time.Second
)

// endpoint has the arguments of net.Listen.
type endpoint struct{ network, address string }

// parseEndpoint reads the forms of Config.Endpoint.
func parseEndpoint(text string) (endpoint, error) {
	scheme, rest, hasScheme := strings.Cut(text, "://")
	switch {
	case !hasScheme:
		return unixEndpoint(text, text)
	case strings.EqualFold(scheme, "unix"):
		// unix://tmp/csi.sock is a wide-spread way to write /tmp/csi.sock.
		return unixEndpoint(text, path.Join("/", rest))
	case strings.EqualFold(scheme, "tcp"):
		if _, _, err := net.SplitHostPort(rest); err != nil {
			return endpoint{}, fmt.Errorf("CSI endpoint %q: must be tcp://host:port: %w", text, err)
		}
		return endpoint{"tcp", rest}, nil
	default:
		return endpoint{}, fmt.Errorf("CSI endpoint %q: the scheme must be unix:// or tcp://, or none", text)
	}
}

func unixEndpoint(text, socket string) (endpoint, error) {
	switch {
	case socket == "" || socket == "/":
		return endpoint{}, fmt.Errorf("CSI endpoint %q: must be the path of a unix socket", text)
	case !path.IsAbs(socket):
		return endpoint{}, fmt.Errorf("CSI endpoint %q: the path of a unix socket must be absolute", text)
	case len(socket) > maxSocketPath:
		return endpoint{}, fmt.Errorf("CSI endpoint %q: the path of a unix socket must not exceed %d bytes, this one has %d", text, maxSocketPath, len(socket))
	}
	return endpoint{"unix", socket}, nil
}

// Bind listens at an endpoint in the forms of Config.Endpoint, for programs that serve no gRPC there; Listen is for those that do. It removes a stale socket:
// the file that a crashed process left and no process listens on. The file of a unix socket has the permissions mode, see Config.SocketMode, and is removed
// by Close of the listener.
func Bind(address string, mode os.FileMode) (net.Listener, error) {
	e, err := parseEndpoint(address)
	if err != nil {
		return nil, err
	}
	return listen(e, mode)
}

// listen binds the endpoint, after it has removed a stale socket.
func listen(e endpoint, mode os.FileMode) (net.Listener, error) {
	if e.network != "unix" {
		return listenOn(e, 0)
	}
	if err := removeStale(e.address); err != nil {
		return nil, err
	}
	l, err := listenOn(e, mode)
	if err != nil {
		return nil, err
	}
	socket, err := newSocket(l, e.address, mode)
	if err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return socket, nil
}

// listenOn binds the endpoint. On Linux the file of a unix socket has never more permissions than mode; zero is no limit.
func listenOn(e endpoint, mode os.FileMode) (net.Listener, error) {
	lc := net.ListenConfig{Control: func(_, _ string, conn syscall.RawConn) error {
		if mode == 0 {
			return nil
		}
		return conn.Control(func(fd uintptr) { limitMode(fd, mode) })
	}}
	l, err := lc.Listen(context.Background(), e.network, e.address)
	if err != nil {
		return nil, fmt.Errorf("listen on CSI endpoint %s %q: %w", e.network, e.address, err)
	}
	return l, nil
}

func removeStale(socket string) error {
	info, err := os.Lstat(socket)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("stat CSI socket %q: %w", socket, err)
	}
	if info.Mode().Type() != fs.ModeSocket {
		return fmt.Errorf("listen on CSI socket %q: the path has a file that is not a socket", socket)
	}
	conn, err := (&net.Dialer{Timeout: dialTimeout}).DialContext(context.Background(), "unix", socket)
	if err == nil {
		return errors.Join(fmt.Errorf("listen on CSI socket %q: another process listens on it", socket), conn.Close())
	}
	if !errors.Is(err, syscall.ECONNREFUSED) {
		return fmt.Errorf("connect to CSI socket %q to check whether it is stale: %w", socket, err)
	}
	if err := os.Remove(socket); err != nil {
		return fmt.Errorf("remove stale CSI socket: %w", err)
	}
	return nil
}

// socket is a unix listener that removes its file when it closes, unless
// another process has replaced the file: a successor may have bound the same
// path while this process was ending.
type socket struct {
	net.Listener
	// remove works once: as soon as the listener is closed, the file system may
	// reuse the inode number for the successor's socket.
	remove func() error
}

func newSocket(l net.Listener, path string, mode os.FileMode) (*socket, error) {
	if u, ok := l.(*net.UnixListener); ok {
		u.SetUnlinkOnClose(false)
	}
	if mode != 0 {
		if err := os.Chmod(path, mode.Perm()); err != nil {
			return nil, errors.Join(fmt.Errorf("set the mode of CSI socket: %w", err), os.Remove(path))
		}
	}
	own, err := os.Lstat(path)
	if err != nil {
		return nil, fmt.Errorf("stat CSI socket: %w", err)
	}
	return &socket{Listener: l, remove: sync.OnceValue(func() error { return removeOwn(path, own) })}, nil
}

// removeOwn removes the socket if it is still the same file.
func removeOwn(path string, own os.FileInfo) error {
	now, err := os.Lstat(path)
	if err != nil || !os.SameFile(now, own) {
		return nil //nolint:nilerr // a file that is not there, or is not seen, cannot be removed
	}
	if err := os.Remove(path); err != nil {
		return fmt.Errorf("remove CSI socket: %w", err)
	}
	return nil
}

// Close stops listening.
func (s *socket) Close() error { return errors.Join(s.remove(), s.Listener.Close()) }
