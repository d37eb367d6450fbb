package proxy

import (
	"bytes"
	"context"
	"errors"
	"io"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/longshore-csi/longshore/csikit/csiserver"
	"github.com/longshore-csi/longshore/csikittest/csitest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience only ends a test that hangs.
const patience = 5 * time.Minute

// counted is a listener that counts the connections that it has accepted and that are not closed.
type counted struct {
	net.Listener

	mu         sync.Mutex
	open, most int
}

func (l *counted) add(n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.open += n
	l.most = max(l.most, l.open)
}

func (l *counted) Accept() (net.Conn, error) {
	accepted, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	l.add(1)
	return &countedConn{conn: accepted.(conn), closed: sync.OnceFunc(func() { l.add(-1) })}, nil
}

type countedConn struct {
	conn
	closed func()
}

func (c *countedConn) Close() error {
	defer c.closed()
	return c.conn.Close()
}

// bed is a proxy that runs.
type bed struct {
	t                *testing.T
	ctx              context.Context // fixture of one test
	socket           string
	clients, drivers *counted
	// end ends the proxy, as a signal does, and waits for it.
	end func()
}

// newBed has the driver connect to TCP, or to a unix socket.
func newBed(t *testing.T, network string) *bed {
	t.Helper()
	dir, err := os.MkdirTemp("", "proxy") // t.TempDir has a path too long for a socket
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	b := &bed{t: t, socket: filepath.Join(dir, "csi.sock")}
	endpoint := "tcp://127.0.0.1:0"
	if network == "unix" {
		endpoint = filepath.Join(dir, "driver.sock")
	}
	b.clients, b.drivers = b.bind(b.socket), b.bind(endpoint)
	var cancel, stop context.CancelFunc
	b.ctx, cancel = context.WithTimeout(context.WithoutCancel(t.Context()), patience) // until end, as clean-ups of the test need it
	ctx, stop := context.WithCancel(b.ctx)
	done := make(chan error, 1)
	go func() { done <- Run(ctx, b.clients, b.drivers) }()
	b.end = sync.OnceFunc(func() {
		stop()
		if err := <-done; err != nil {
			t.Errorf("end of the proxy: %v", err)
		}
		cancel()
	})
	t.Cleanup(b.end)
	return b
}

func (b *bed) bind(endpoint string) *counted {
	b.t.Helper()
	l, err := csiserver.Bind(endpoint, 0o660)
	b.must(err)
	return &counted{Listener: l}
}

func (b *bed) must(err error) {
	b.t.Helper()
	if err != nil {
		b.t.Fatal(err)
	}
}

// dial makes a connection that has the deadline of the test.
func (b *bed) dial(to net.Listener) conn {
	b.t.Helper()
	dialed, err := (&net.Dialer{}).DialContext(b.ctx, to.Addr().Network(), to.Addr().String())
	b.must(err)
	b.t.Cleanup(func() { _ = dialed.Close() })
	b.must(dialed.SetDeadline(time.Now().Add(patience)))
	return dialed.(conn)
}

func (b *bed) client() conn { return b.dial(b.clients) }
func (b *bed) driver() conn { return b.dial(b.drivers) }

func (b *bed) send(c conn, text string) {
	b.t.Helper()
	_, err := io.WriteString(c, text)
	b.must(err)
}

// receive checks the next bytes of a connection.
func (b *bed) receive(c conn, want string) {
	b.t.Helper()
	got := make([]byte, len(want))
	if _, err := io.ReadFull(c, got); err != nil || string(got) != want {
		b.t.Fatalf("received %q, %v; want %q", got, err, want)
	}
}

// receiveEnd checks the last bytes of a connection.
func (b *bed) receiveEnd(c conn, want string) {
	b.t.Helper()
	if got, err := io.ReadAll(c); err != nil || string(got) != want {
		b.t.Fatalf("received until the end %q, %v; want %q", got, err, want)
	}
}

// await waits until the proxy has a number of connections.
func (b *bed) await(l *counted, want int) {
	b.t.Helper()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for b.ctx.Err() == nil {
		l.mu.Lock()
		got := l.open
		l.mu.Unlock()
		if got == want {
			return
		}
		<-tick.C
	}
	b.t.Fatalf("the proxy never has %d connections at %v", want, l.Addr())
}

// reverse is the listener of a driver that makes its connections itself and always has ten, like that of Kubernetes' mock suite. They end with it, as a gRPC
// server waits two minutes for the first bytes of those that wait.
type reverse struct {
	ctx   context.Context // ended by Close
	stop  context.CancelFunc
	to    net.Addr
	slots chan struct{}
}

func (r *reverse) Accept() (net.Conn, error) {
	select {
	case r.slots <- struct{}{}:
	case <-r.ctx.Done():
		return nil, net.ErrClosed
	}
	dialed, err := (&net.Dialer{}).DialContext(r.ctx, r.to.Network(), r.to.String())
	if err != nil {
		return nil, err
	}
	free := sync.OnceFunc(func() { <-r.slots })
	unlink := context.AfterFunc(r.ctx, func() { _ = dialed.Close() })
	return &countedConn{conn: dialed.(conn), closed: func() {
		unlink()
		free()
	}}, nil
}

func (r *reverse) Close() error {
	r.stop()
	return nil
}

func (r *reverse) Addr() net.Addr { return &net.TCPAddr{} }

// serveDriver runs a driver of a name until stop is called.
func (b *bed) serveDriver(name string) (stop func()) {
	server := grpc.NewServer()
	csitest.New(csitest.Options{Name: name, NodeID: "node-of-" + name}).Register(server)
	l := &reverse{to: b.drivers.Addr(), slots: make(chan struct{}, 10)}
	l.ctx, l.stop = context.WithCancel(b.ctx)
	done := make(chan error, 1)
	go func() { done <- server.Serve(l) }()
	stop = sync.OnceFunc(func() {
		server.Stop()
		if err := <-done; err != nil {
			b.t.Errorf("end of driver %s: %v", name, err)
		}
	})
	b.t.Cleanup(stop)
	return stop
}

// connect makes a gRPC connection, like a sidecar.
func (b *bed) connect() *grpc.ClientConn {
	b.t.Helper()
	connection, err := grpc.NewClient("unix://"+b.socket, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: backoff.Config{BaseDelay: time.Millisecond, Multiplier: 1.5, MaxDelay: 20 * time.Millisecond}, MinConnectTimeout: patience}))
	b.must(err)
	b.t.Cleanup(func() { _ = connection.Close() })
	return connection
}

// call makes calls of Identity and Node, and checks which driver answers.
func (b *bed) call(connection *grpc.ClientConn, name string) error {
	wait := grpc.WaitForReady(true)
	identity, node := csi.NewIdentityClient(connection), csi.NewNodeClient(connection)
	info, err := identity.GetPluginInfo(b.ctx, &csi.GetPluginInfoRequest{}, wait)
	if err != nil || info.GetName() != name {
		return errors.Join(errors.New("GetPluginInfo: "+info.GetName()), err)
	}
	probed, err := identity.Probe(b.ctx, &csi.ProbeRequest{}, wait)
	if err != nil {
		return errors.Join(errors.New("Probe: "+probed.String()), err)
	}
	at, err := node.NodeGetInfo(b.ctx, &csi.NodeGetInfoRequest{}, wait)
	if err != nil || at.GetNodeId() != "node-of-"+name {
		return errors.Join(errors.New("NodeGetInfo: "+at.GetNodeId()), err)
	}
	_, err = node.NodeGetCapabilities(b.ctx, &csi.NodeGetCapabilitiesRequest{}, wait)
	return err
}

// TestProxy makes CSI calls through the proxy.
func TestProxy(t *testing.T) {
	for _, network := range []string{"tcp", "unix"} {
		t.Run("DriverFirst/"+network, func(t *testing.T) {
			b := newBed(t, network)
			b.serveDriver("first.example.com")
			b.await(b.drivers, 10)
			for range 30 { // three times the connections that the driver has at once
				connection := b.connect()
				b.must(b.call(connection, "first.example.com"))
				b.must(connection.Close())
			}
		})
		t.Run("ClientFirst/"+network, func(t *testing.T) {
			b := newBed(t, network)
			const clients = 5
			calls := make(chan error, clients)
			for range clients {
				connection := b.connect()
				go func() { calls <- b.call(connection, "late.example.com") }()
			}
			b.await(b.clients, clients)
			b.serveDriver("late.example.com")
			for range clients {
				b.must(<-calls)
			}
		})
		t.Run("DriverRestarts/"+network, func(t *testing.T) {
			b := newBed(t, network)
			connection := b.connect()
			for _, name := range []string{"a.example.com", "b.example.com", "c.example.com"} {
				stop := b.serveDriver(name)
				err := b.call(connection, name)
				for status.Code(err) == codes.Unavailable { // The connection was that of the driver before.
					err = b.call(connection, name)
				}
				b.must(err)
				stop()
			}
		})
	}
}

// TestDeadDriverIsSkipped: a connection that ended while it waited takes no client, also when bytes of it wait.
func TestDeadDriverIsSkipped(t *testing.T) {
	for _, network := range []string{"tcp", "unix"} {
		b := newBed(t, network)
		for range 200 {
			dead := b.driver()
			b.send(dead, "greeting")
			b.must(dead.Close())
			client := b.client()
			b.send(client, "request")
			driver := b.driver()
			b.receive(driver, "request")
			b.send(driver, "answer")
			b.receive(client, "answer")
			b.must(client.Close())
			b.must(driver.Close())
		}
		b.await(b.clients, 0)
		b.await(b.drivers, 0)
	}
}

// TestGoneClient leaves nothing, and uses up no connection of the driver.
func TestGoneClient(t *testing.T) {
	b := newBed(t, "tcp")
	for range 200 {
		gone := b.client()
		b.send(gone, "forgotten")
		b.must(gone.Close())
		driver, client := b.driver(), b.client()
		b.send(client, "request")
		b.receive(driver, "request")
		b.must(client.Close())
		b.must(driver.Close())
	}
	waits := b.client()
	b.await(b.clients, 1)
	b.must(waits.Close())
	b.await(b.clients, 0)
}

// TestHalfClose: the end of one direction is passed on, and the other goes on.
func TestHalfClose(t *testing.T) {
	for _, network := range []string{"tcp", "unix"} {
		for _, first := range []string{"client", "driver"} {
			b := newBed(t, network)
			from, to := b.client(), b.driver()
			if first == "driver" {
				from, to = to, from
			}
			b.send(from, "joined")
			b.receive(to, "joined")
			b.send(from, "request")
			b.must(from.CloseWrite())
			b.receiveEnd(to, "request")
			b.send(to, "answer")
			b.must(to.CloseWrite())
			b.receiveEnd(from, "answer")
			b.await(b.clients, 0)
			b.await(b.drivers, 0)
		}
	}
}

// TestClosedClientEndsItsDriver: a driver that does not react to the end of a client occupies no connection.
func TestClosedClientEndsItsDriver(t *testing.T) {
	for _, network := range []string{"tcp", "unix"} {
		b := newBed(t, network)
		client, driver := b.client(), b.driver()
		b.send(client, "request")
		b.receive(driver, "request")
		b.must(client.Close())
		b.await(b.drivers, 0)
		b.await(b.clients, 0)
		b.receiveEnd(driver, "")
	}
}

// TestBytesAreKept sends more than the buffers of the kernel hold, both ways at once.
func TestBytesAreKept(t *testing.T) {
	b := newBed(t, "tcp")
	client, driver := b.client(), b.driver()
	content := bytes.Repeat([]byte("0123456789abcdef"), 1<<20)
	sent := make(chan error, 2)
	for _, c := range []conn{client, driver} {
		go func() {
			_, err := c.Write(content)
			sent <- errors.Join(err, c.CloseWrite())
		}()
	}
	received := make(chan error, 2)
	for _, c := range []conn{client, driver} {
		go func() {
			got, err := io.ReadAll(c)
			if err == nil && !bytes.Equal(got, content) {
				err = errors.New("other bytes arrive than those that were sent")
			}
			received <- err
		}()
	}
	b.must(errors.Join(<-sent, <-sent, <-received, <-received))
}

// TestLimit: a crowd of clients waits in the kernel, and all of them are served.
func TestLimit(t *testing.T) {
	b := newBed(t, "tcp")
	const crowd = maxConnections + 50
	ended := make(chan error, crowd)
	for range crowd {
		client := b.client()
		b.send(client, "request")
		go func() {
			_, err := io.ReadAll(client)
			ended <- errors.Join(err, client.Close())
		}()
	}
	b.await(b.clients, maxConnections)
	for range crowd {
		driver := b.driver()
		b.receive(driver, "request")
		b.must(driver.Close())
	}
	for range crowd {
		b.must(<-ended)
	}
	b.await(b.clients, 0)
	if b.clients.most != maxConnections {
		t.Errorf("the proxy had %d connections of clients, want %d at most", b.clients.most, maxConnections)
	}
}

// TestEnd ends the proxy with connections in each state, and leaves nothing.
func TestEnd(t *testing.T) {
	for _, waiting := range []string{"clients", "drivers"} {
		before := goleak.IgnoreCurrent()
		b := newBed(t, "tcp")
		client, driver := b.client(), b.driver()
		b.send(client, "request")
		b.receive(driver, "request")
		ended := []conn{client, driver}
		l := map[string]*counted{"clients": b.clients, "drivers": b.drivers}[waiting]
		for range 3 {
			ended = append(ended, b.dial(l))
		}
		b.await(l, 4)
		b.end()
		goleak.VerifyNone(t, before)
		for _, c := range ended {
			b.receiveEnd(c, "")
		}
		if _, err := os.Lstat(b.socket); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("the socket is left: %v", err)
		}
	}
}

// broken is a listener that fails.
type broken struct{ net.Listener }

var errBroken = errors.New("out of descriptors")

func (broken) Accept() (net.Conn, error) { return nil, errBroken }

// TestListenerFails: the process is to end, and to be started again, with an error that names the address.
func TestListenerFails(t *testing.T) {
	b := newBed(t, "tcp")
	b.end()
	clients, drivers := b.bind(b.socket), b.bind("tcp://127.0.0.1:0")
	if err := Run(t.Context(), clients, broken{drivers}); !errors.Is(err, errBroken) || !bytes.Contains([]byte(err.Error()), []byte(drivers.Addr().String())) {
		t.Errorf("got %v, want the error of the listener with its address", err)
	}
}
