package drivername

import (
	"context"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	"github.com/longshore-csi/longshore/csikit/csitest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// serve serves a driver on path until stop is called.
func serve(t *testing.T, d *csitest.Driver, path string) (stop func()) {
	t.Helper()
	listener, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	d.Register(server)
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = server.Serve(listener)
	}()
	stop = func() {
		server.Stop()
		<-done
	}
	t.Cleanup(stop)
	return stop
}

// watch runs a watcher until the test ends; names come on the channel.
func watch(t *testing.T, address string) <-chan string {
	t.Helper()
	w, err := New(Config{Address: address, Timeout: 10 * time.Second, Poll: 10 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	names := make(chan string, 10)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		w.Run(ctx, func(name string) { names <- name })
	}()
	t.Cleanup(func() {
		cancel()
		<-done
	})
	return names
}

func TestNameIsToldWhenItChanges(t *testing.T) {
	path := filepath.Join(t.TempDir(), "csi.sock")
	names := watch(t, path) // before the driver is there
	stop := serve(t, csitest.New(csitest.Options{Name: "one.example"}), path)
	if got := <-names; got != "one.example" {
		t.Errorf("got %q", got)
	}
	stop()
	again := csitest.New(csitest.Options{Name: "one.example"})
	stop = serve(t, again, path)
	// Wait until the watcher has asked the new process, which tells nothing new.
	for len(again.Calls()) == 0 {
		time.Sleep(5 * time.Millisecond)
	}
	stop()
	serve(t, csitest.New(csitest.Options{Name: "two.example"}), path)
	if got := <-names; got != "two.example" {
		t.Errorf("got %q, want the new name and nothing before", got)
	}
}

func TestOnlyTheNameIsAsked(t *testing.T) {
	d := csitest.New(csitest.Options{Name: "one.example"})
	d.SetReady(false)
	d.Inject(csitest.Fault{Method: "GetPluginInfo", Code: codes.Unavailable, Times: 2})
	if got := <-watch(t, d.Serve(t)); got != "one.example" {
		t.Errorf("got %q", got)
	}
	var methods []string
	for _, call := range d.Calls() {
		methods = append(methods, call.Method)
	}
	if diff := cmp.Diff([]string{"GetPluginInfo", "GetPluginInfo", "GetPluginInfo"}, methods); diff != "" {
		t.Errorf("calls, -want +got:\n%s", diff)
	}
}

func TestTCP(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	csitest.New(csitest.Options{Name: "tcp.example"}).Register(server)
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = server.Serve(listener)
	}()
	defer func() {
		server.Stop()
		<-done
	}()
	if got := <-watch(t, "tcp://"+listener.Addr().String()); got != "tcp.example" {
		t.Errorf("got %q", got)
	}
}

func TestNewRefuses(t *testing.T) {
	if _, err := New(Config{Address: "/csi.sock", Timeout: -1}); err == nil || !strings.Contains(err.Error(), "timeout") {
		t.Errorf("got %v, want an error about the timeout", err)
	}
}

func TestCloseWithoutRun(t *testing.T) {
	w, err := New(Config{Address: "/csi.sock"})
	if err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Error(err)
	}
}
