package csitest

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"testing"

	"google.golang.org/grpc"
)

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
	socket := filepath.Join(dir, "csi.sock")
	listener, err := (&net.ListenConfig{}).Listen(context.Background(), "unix", socket)
	if err != nil {
		tb.Fatalf("listen on CSI socket %q: %v", socket, err)
	}
	server := grpc.NewServer()
	d.Register(server)
	served := make(chan error, 1)
	go func() { served <- serve(server, listener) }()
	tb.Cleanup(func() {
		server.Stop()
		if err := <-served; err != nil {
			tb.Errorf("serve CSI driver on %q: %v", socket, err)
		}
		if err := os.RemoveAll(dir); err != nil {
			tb.Errorf("remove the directory of the CSI socket: %v", err)
		}
	})
	return "unix://" + socket
}

// serve serves until the server is stopped, which is no error, also when it
// was stopped before it began.
func serve(server *grpc.Server, listener net.Listener) error {
	if err := server.Serve(listener); !errors.Is(err, grpc.ErrServerStopped) {
		return err
	}
	return nil
}
