package hostpathdriver

import (
	"context"
	"errors"
	"io/fs"
	"net"
	"os"
	"strings"
	"testing"
	"time"
)

// TestProxyEndpoint starts a proxy with the flags of Kubernetes' mock suite, where a crash has left its socket, and ends it.
func TestProxyEndpoint(t *testing.T) {
	m := newMachine(t)
	client, driver := m.path("csi.sock"), m.path("driver.sock")
	stale, err := net.Listen("unix", client)
	m.must(nil, err)
	stale.(*net.UnixListener).SetUnlinkOnClose(false)
	m.must(nil, stale.Close())
	o, err := parse("-nodeid=n1", "-endpoint="+client, "-proxy-endpoint=unix://"+driver, "-statedir="+m.path("state"))
	m.must(nil, err)
	ctx, stop := context.WithCancel(m.ctx)
	defer stop()
	done := make(chan error, 1)
	go func() { done <- Run(ctx, o) }()
	dial := func(path string) net.Conn {
		for {
			c, err := (&net.Dialer{}).DialContext(m.ctx, "unix", path)
			if err == nil {
				t.Cleanup(func() { _ = c.Close() })
				m.must(nil, c.SetDeadline(time.Now().Add(patience)))
				return c
			}
			if len(done) > 0 || m.ctx.Err() != nil {
				t.Fatalf("connect to the proxy: %v", err)
			}
			time.Sleep(time.Millisecond)
		}
	}
	d := dial(driver) // bound last
	c := dial(client)
	for _, path := range []string{client, driver} {
		if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o660 {
			t.Errorf("%s: mode %v, %v; want the group to read and write, and no others", path, info.Mode(), err)
		}
	}
	m.must(c.Write([]byte("request")))
	got := make([]byte, len("request"))
	if n, err := d.Read(got); err != nil || string(got[:n]) != "request" {
		t.Errorf("the driver reads %q, %v", got[:n], err)
	}
	stop()
	m.must(nil, <-done)
	for _, path := range []string{client, driver, m.path("state")} {
		if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s is left, or was made: %v", path, err)
		}
	}
}

// TestProxyRefuses: an error names the flag, and leaves no socket.
func TestProxyRefuses(t *testing.T) {
	m := newMachine(t)
	busy, err := net.Listen("tcp", "127.0.0.1:0")
	m.must(nil, err)
	defer busy.Close() // test
	good := m.path("csi.sock")
	for name, c := range map[string]struct{ endpoint, proxy, flag, part string }{
		"Scheme":       {good, "http://x", "--proxy-endpoint", "http://x"},
		"NoPort":       {good, "tcp://x", "--proxy-endpoint", "tcp://x"},
		"Taken":        {good, "tcp://" + busy.Addr().String(), "--proxy-endpoint", "in use"},
		"NoDirectory":  {good, m.path("none/d.sock"), "--proxy-endpoint", "none/d.sock"},
		"SameSpelling": {good, good, "--proxy-endpoint", "--endpoint"},
		"Same":         {good, "unix://" + good, "--proxy-endpoint", good},
		"Relative":     {"csi.sock", "tcp://127.0.0.1:0", "--endpoint", "absolute"},
		"Missing":      {"", "tcp://127.0.0.1:0", "--endpoint", "empty"},
	} {
		o := NewOptions()
		o.Endpoint, o.ProxyEndpoint = c.endpoint, c.proxy
		if err := Run(m.ctx, o); err == nil || !strings.HasPrefix(err.Error(), c.flag) || !strings.Contains(err.Error(), c.part) {
			t.Errorf("%s: %v, want an error of %s that has %q", name, err, c.flag, c.part)
		}
		if _, err := os.Lstat(good); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s: the socket is left: %v", name, err)
		}
	}
}
