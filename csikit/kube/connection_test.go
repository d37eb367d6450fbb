package kube_test

import (
	"context"
	"encoding/pem"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/longshore-csi/longshore/csikit/kube"
)

// holdingServer answers over HTTP/2 as an API server does, Leases at once and all else when it is released.
type holdingServer struct {
	// clients share a connection, and act as users of their own.
	clients                       [3]kube.Client
	release                       chan struct{}
	connections, held, mostOfHeld atomic.Int64
}

func newHoldingServer(t *testing.T) *holdingServer {
	t.Helper()
	s := &holdingServer{release: make(chan struct{})}
	server := httptest.NewUnstartedServer(s)
	server.EnableHTTP2 = true
	server.Config.HTTP2 = &http.HTTP2Config{MaxConcurrentStreams: 100}
	server.Config.ConnState = func(_ net.Conn, state http.ConnState) {
		if state == http.StateNew {
			s.connections.Add(1)
		}
	}
	server.StartTLS()
	t.Cleanup(server.Close)
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	connection := kube.NewConnection()
	for i := range s.clients {
		var err error
		if s.clients[i], err = connection.Client(&rest.Config{
			Host: server.URL + "/behind/a/proxy", QPS: -1, TLSClientConfig: rest.TLSClientConfig{CAData: ca},
			Impersonate: rest.ImpersonationConfig{UserName: fmt.Sprint("user-", i)},
		}); err != nil {
			t.Fatal(err)
		}
	}
	return s
}

// ServeHTTP implements http.Handler.
func (s *holdingServer) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	if !strings.Contains(req.URL.Path, "/leases") {
		now := s.held.Add(1)
		for most := s.mostOfHeld.Load(); now > most && !s.mostOfHeld.CompareAndSwap(most, now); {
			most = s.mostOfHeld.Load()
		}
		select {
		case <-s.release:
		case <-req.Context().Done():
		}
		s.held.Add(-1)
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write([]byte("{}"))
}

// wait returns when a condition holds.
func wait(t *testing.T, what string, holds func() bool) {
	t.Helper()
	for end := time.Now().Add(2 * time.Minute); !holds(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("after two minutes there are still not %s", what)
		}
	}
}

// More requests at once than the API server takes over one connection wait for each other, whichever client sends them, and none opens another connection.
func TestManyRequestsShareOneConnection(t *testing.T) {
	t.Parallel()
	const callers, most = 300, 64
	s := newHoldingServer(t)
	if _, err := s.clients[0].Leases("ns").Get(t.Context(), "a", metav1.GetOptions{}); err != nil {
		t.Fatalf("the request that opens the connection: %v", err)
	}
	var calls sync.WaitGroup
	for i := range callers {
		calls.Go(func() {
			if _, err := s.clients[i%len(s.clients)].Nodes().Get(t.Context(), "a", metav1.GetOptions{}); err != nil {
				t.Error(err)
			}
		})
	}
	wait(t, "64 requests on their way", func() bool { return s.held.Load() >= most })

	if _, err := s.clients[0].Leases("ns").Get(t.Context(), "a", metav1.GetOptions{}); err != nil {
		t.Errorf("a Lease: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		if w, err := s.clients[0].Pods("ns").Watch(ctx, metav1.ListOptions{}); err == nil {
			w.Stop()
		}
	}()
	wait(t, "64 requests and a watch on their way", func() bool { return s.held.Load() > most })
	impatient, stop := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer stop()
	if _, err := s.clients[0].Nodes().Get(impatient, "a", metav1.GetOptions{}); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a request that ended while it waited: %v", err)
	}
	cancel()
	close(s.release)
	calls.Wait()
	if now, most := s.connections.Load(), s.mostOfHeld.Load(); now != 1 || most != 65 {
		t.Errorf("%d connections for at most %d requests at once, want 1 for 65", now, most)
	}
}

// Clients of an equal configuration have one transport, also where they are made at the same time, and the transport of the whole process is left as it is.
func TestClientsMadeAtOnce(t *testing.T) {
	t.Parallel()
	before := http.DefaultTransport.(*http.Transport).HTTP2
	var made sync.WaitGroup
	for range 8 {
		made.Go(func() {
			for _, cfg := range []*rest.Config{{Host: "https://api.test", TLSClientConfig: rest.TLSClientConfig{ServerName: "at.once.test"}}, {Host: "http://api.test"}} {
				if _, err := kube.New(cfg); err != nil {
					t.Error(err)
				}
			}
		})
	}
	made.Wait()
	if after := http.DefaultTransport.(*http.Transport).HTTP2; after != before {
		t.Errorf("http.DefaultTransport has %+v, had %+v", after, before)
	}
}
