package csitest

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
)

// stopGrace is how long running calls may take when a driver stops.
const stopGrace = 3 * time.Second

// Serve serves the driver on a unix socket in a temporary directory until the
// test ends, and returns the address as unix:///path.
func (d *Driver) Serve(tb testing.TB) (address string) {
	tb.Helper()
	// Not tb.TempDir: with a long test name its path does not fit into the
	// address of a unix socket.
	dir, err := os.MkdirTemp("", "csitest")
	if err != nil {
		tb.Fatalf("make a directory for the CSI socket: %v", err)
	}
	tb.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			tb.Errorf("remove the directory of the CSI socket: %v", err)
		}
	})
	socket := filepath.Join(dir, "csi.sock")
	d.ServeAt(tb, socket)
	return "unix://" + socket
}

// ServeAt serves the driver on a unix socket at path until stop is called or
// the test ends, for drivers that start and stop several times. Calls that began
// before stop may finish within stopGrace.
func (d *Driver) ServeAt(tb testing.TB, path string) (stop func()) {
	tb.Helper()
	listener, err := (&net.ListenConfig{}).Listen(context.Background(), "unix", path)
	if err != nil {
		tb.Fatalf("listen on CSI socket %q: %v", path, err)
	}
	server := grpc.NewServer()
	d.Register(server)
	served := make(chan error, 1)
	go func() { served <- serve(server, listener) }()
	end := sync.OnceFunc(func() {
		server.Stop()
		if err := <-served; err != nil {
			tb.Errorf("serve CSI driver on %q: %v", path, err)
		}
	})
	tb.Cleanup(end)
	return func() {
		timer := time.AfterFunc(stopGrace, server.Stop)
		defer timer.Stop()
		server.GracefulStop()
		end()
	}
}

// serve serves until the server is stopped, which is no error, even if it was
// stopped before serving began.
func serve(server *grpc.Server, listener net.Listener) error {
	if err := server.Serve(listener); !errors.Is(err, grpc.ErrServerStopped) {
		return err
	}
	return nil
}
