package devcluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/longshore-csi/longshore/devcluster/internal/layout"
)

// serveFake answers every call in the way that the handler says, and keeps the paths.
func serveFake(t *testing.T, handler http.HandlerFunc) *Client {
	t.Helper()
	dir := layout.Dir(t.TempDir())
	l, err := net.Listen("unix", dir.Supervisor())
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: handler}
	served := make(chan error, 1)
	go func() { served <- server.Serve(l) }()
	t.Cleanup(func() {
		_ = server.Close()
		<-served
	})
	return Connect(string(dir))
}

func TestClientAsksForWhatItIsTold(t *testing.T) {
	var asked string
	c := serveFake(t, func(w http.ResponseWriter, r *http.Request) {
		asked = r.Method + " " + r.URL.EscapedPath()
		if r.URL.RawQuery != "" {
			asked += "?" + r.URL.RawQuery
		}
		fmt.Fprint(w, `{}`)
	})
	ctx := t.Context()
	tests := map[string]struct {
		call func() error
		want string
	}{
		"Status":  {func() error { _, err := c.Status(ctx, 7); return err }, "GET /status?after=7"},
		"Signal":  {func() error { return c.Signal(ctx, "driver.node-1", "KILL") }, "POST /processes/driver.node-1/signal/KILL"},
		"Hold":    {func() error { return c.Hold(ctx, "csi-attacher") }, "POST /processes/csi-attacher/hold"},
		"Release": {func() error { return c.Release(ctx, "csi-attacher") }, "POST /processes/csi-attacher/release"},
		"Stop":    {func() error { return c.stop(ctx) }, "POST /stop"},
		"Escaped": {func() error { return c.Hold(ctx, "../stop") }, "POST /processes/..%2Fstop/hold"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			if err := tc.call(); err != nil || asked != tc.want {
				t.Errorf("asked %q, want %q, %v", asked, tc.want, err)
			}
		})
	}
}

func TestClientErrors(t *testing.T) {
	tests := map[string]struct {
		reason  string
		handler http.HandlerFunc
		want    string
	}{
		"Refused": {reason: "the words of the supervisor", handler: func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "why not", http.StatusBadRequest) }, want: "why not"},
		"NotJSON": {reason: "another program behind the socket", handler: func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "hello") }, want: "read the status of the cluster"},
		"CutOff": {reason: "a supervisor that ends within its answer", handler: func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "100")
			fmt.Fprint(w, "{")
		}, want: "read the answer of the supervisor"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			if _, err := serveFake(t, tc.handler).Status(t.Context(), 0); err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("%s: got %v, want %q", tc.reason, err, tc.want)
			}
		})
	}
}

// TestDroppedConnection: a supervisor that was killed takes connections until the kernel has closed its socket.
func TestDroppedConnection(t *testing.T) {
	tests := map[string]struct {
		reason string
		last   func(*Client, http.ResponseWriter)
		want   error
	}{
		"Answers": {"it was not killed after all", func(_ *Client, w http.ResponseWriter) { fmt.Fprint(w, `{}`) }, nil},
		"Down": {"nobody listens any more", func(c *Client, _ http.ResponseWriter) {
			_ = os.Remove(c.dir.Supervisor())
			panic(http.ErrAbortHandler)
		}, ErrDown},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			var c *Client
			var calls atomic.Int32
			c = serveFake(t, func(w http.ResponseWriter, _ *http.Request) {
				if calls.Add(1) < 3 {
					panic(http.ErrAbortHandler)
				}
				tc.last(c, w)
			})
			if _, err := c.Status(t.Context(), 0); !errors.Is(err, tc.want) {
				t.Errorf("%s: got %v, want %v", tc.reason, err, tc.want)
			}
		})
	}
}

// roundTrip is how calls end.
type roundTrip func() error

func (r roundTrip) RoundTrip(*http.Request) (*http.Response, error) { return nil, r() }

// TestDroppedConnectionsInTime: a call that was kept waiting for a change is asked again as any other is, and none forever.
func TestDroppedConnectionsInTime(t *testing.T) {
	tests := map[string]struct {
		reason string
		ends   roundTrip
		want   error
		took   time.Duration
	}{
		"KeptWaiting": {"the supervisor is killed while a client waits for a change", endsOnce(25*time.Second, syscall.ECONNREFUSED), ErrDown, 25*time.Second + pollPeriod},
		"ForEver":     {"another program is behind the socket", func() error { return io.EOF }, io.EOF, dropTimeout},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := Connect("/c")
				c.http.Transport = tc.ends
				began := time.Now()
				if _, err := c.Status(t.Context(), 1); !errors.Is(err, tc.want) || time.Since(began) != tc.took {
					t.Errorf("%s: got %v after %s, want %v after %s", tc.reason, err, time.Since(began), tc.want, tc.took)
				}
			})
		})
	}
}

// endsOnce drops the connection after a while, and is gone.
func endsOnce(after time.Duration, gone error) roundTrip {
	dropped := false
	return func() error {
		if dropped {
			return gone
		}
		dropped = true
		<-time.After(after)
		return io.EOF
	}
}

// TestDroppedConnectionForGood: what changes something is not asked for twice, and nobody waits longer than he wants.
func TestDroppedConnectionForGood(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	var signals atomic.Int32
	c := serveFake(t, func(_ http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodGet {
			cancel()
		} else {
			signals.Add(1)
		}
		panic(http.ErrAbortHandler)
	})
	if err := c.Signal(ctx, "etcd", "KILL"); err == nil || signals.Load() != 1 {
		t.Errorf("%d signals, %v", signals.Load(), err)
	}
	if _, err := c.Status(ctx, 0); err == nil || !strings.Contains(err.Error(), "ask the supervisor") || errors.Is(err, ErrDown) {
		t.Errorf("got %v", err)
	}
}

func TestNobodyListens(t *testing.T) {
	stale, file := t.TempDir(), filepath.Join(t.TempDir(), "file")
	l, err := net.Listen("unix", layout.Dir(stale).Supervisor())
	if err != nil {
		t.Fatal(err)
	}
	l.(*net.UnixListener).SetUnlinkOnClose(false)
	if err := errors.Join(l.Close(), os.WriteFile(file, nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	for name, dir := range map[string]string{
		"NoDirectory": filepath.Join(t.TempDir(), "c"), "NoSocket": t.TempDir(), "StaleSocket": stale, "File": file,
		"TooLong": "/" + strings.Repeat("d", 200),
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := Connect(dir).Status(t.Context(), 0); !errors.Is(err, ErrDown) || !strings.Contains(err.Error(), dir) {
				t.Errorf("got %v", err)
			}
		})
	}
}

func TestCancelledCallIsNotTakenForDown(t *testing.T) {
	_, c := serveOnly(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := c.Status(ctx, 0); !errors.Is(err, context.Canceled) || errors.Is(err, ErrDown) {
		t.Errorf("got %v", err)
	}
}

func TestLogPath(t *testing.T) {
	if got := Connect("/c").Log("etcd"); got != "/c/logs/etcd.log" {
		t.Errorf("got %q", got)
	}
}
