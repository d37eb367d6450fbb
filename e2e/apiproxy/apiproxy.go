// Package apiproxy puts an HTTP proxy between one component and the API server, for tests and benchmarks that count all requests of the component, or fail some.
package apiproxy

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// Proxy counts all requests of a component, reads included, which the audit log does not have, and may fail some of them.
type Proxy struct {
	// Kubeconfig is the path of the kubeconfig of the component. The API server knows the component as the user of the kubeconfig that the proxy was made of.
	Kubeconfig string
	proxy      *httputil.ReverseProxy

	mu sync.Mutex
	// counts are the requests by what they did ("patch volumesnapshots/status").
	counts map[string]int
	// fault decides about each request; nil: none fails.
	fault func(what string) Fault
	// watches end the watches that are open.
	watches map[int]context.CancelFunc
	serial  int
}

// Fault is what the proxy does with a request; the zero value passes it on.
type Fault struct {
	// Code is the HTTP status that the proxy answers in place of the API server. 0: the request is passed on.
	Code int
	// Lost passes the request on, and drops the answer.
	Lost bool
	// Delay is the time that the proxy waits before anything else.
	Delay time.Duration
}

// errLost is the answer of the API server that is lost.
var errLost = errors.New("the answer is lost")

type lostKey struct{}

// New starts a proxy to the API server of a kubeconfig, as the user of it. The proxy ends with the test.
func New(t testing.TB, kubeconfig string) *Proxy {
	t.Helper()
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	config.QPS = -1
	transport, err := rest.TransportFor(config)
	if err != nil {
		t.Fatal(err)
	}
	target, err := url.Parse(config.Host)
	if err != nil {
		t.Fatal(err)
	}
	p := &Proxy{counts: map[string]int{}, watches: map[int]context.CancelFunc{}}
	p.proxy = &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(target) }, Transport: transport, FlushInterval: -1,
		ModifyResponse: func(r *http.Response) error {
			if r.Request.Context().Value(lostKey{}) != nil {
				return errLost
			}
			return nil
		},
		ErrorHandler: func(http.ResponseWriter, *http.Request, error) { panic(http.ErrAbortHandler) }, // as if the connection broke
	}
	server := httptest.NewServer(p)
	t.Cleanup(func() {
		p.EndWatches()
		server.CloseClientConnections()
		server.Close()
	})
	p.Kubeconfig = filepath.Join(t.TempDir(), "kubeconfig")
	err = clientcmd.WriteToFile(clientcmdapi.Config{
		Clusters:       map[string]*clientcmdapi.Cluster{"proxy": {Server: server.URL}},
		Contexts:       map[string]*clientcmdapi.Context{"proxy": {Cluster: "proxy", AuthInfo: "proxy"}},
		AuthInfos:      map[string]*clientcmdapi.AuthInfo{"proxy": {}},
		CurrentContext: "proxy",
	}, p.Kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// ServeHTTP implements http.Handler.
func (p *Proxy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	what := requestName(r)
	fault := p.begin(what)
	if !pause(r.Context(), fault.Delay) {
		return
	}
	if fault.Code != 0 {
		w.Header().Set("Content-Type", "application/json")
		if fault.Code == http.StatusTooManyRequests {
			w.Header().Set("Retry-After", "1")
		}
		w.WriteHeader(fault.Code)
		fmt.Fprintf(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":%q,"message":"a fault of the test","code":%d}`, reasonOf(fault.Code), fault.Code)
		return
	}
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	if fault.Lost {
		ctx = context.WithValue(ctx, lostKey{}, true)
	}
	if strings.HasPrefix(what, "watch ") {
		defer p.open(cancel)()
	}
	p.proxy.ServeHTTP(w, r.WithContext(ctx))
}

// pause waits, and reports whether ctx still goes on then.
func pause(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// reasonOf is the reason of a Status with that code.
func reasonOf(code int) string {
	switch code {
	case http.StatusTooManyRequests:
		return "TooManyRequests"
	case http.StatusServiceUnavailable:
		return "ServiceUnavailable"
	}
	return "InternalError"
}

// begin counts a request, and decides about it.
func (p *Proxy) begin(what string) Fault {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.counts[what]++
	if p.fault == nil {
		return Fault{}
	}
	return p.fault(what)
}

// open keeps the end of a watch until it has ended.
func (p *Proxy) open(cancel context.CancelFunc) (ended func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.serial++
	n := p.serial
	p.watches[n] = cancel
	return func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		delete(p.watches, n)
	}
}

// EndWatches ends all watches that are open, as an API server does from time to time.
func (p *Proxy) EndWatches() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, cancel := range p.watches {
		cancel()
	}
}

// SetFault replaces the function that decides about each request, given its name as in Counts.
func (p *Proxy) SetFault(fault func(what string) Fault) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.fault = fault
}

// Counts returns the numbers of requests so far, by verb, resource and subresource ("patch volumesnapshots/status").
func (p *Proxy) Counts() map[string]int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return maps.Clone(p.counts)
}

// requestName says what a request does: "patch volumesnapshots/status".
func requestName(r *http.Request) string {
	parts := strings.Split(strings.Trim(r.URL.Path, "/"), "/")
	switch {
	case len(parts) > 2 && parts[0] == "api":
		parts = parts[2:]
	case len(parts) > 3 && parts[0] == "apis":
		parts = parts[3:]
	default: // discovery, health
		return strings.ToLower(r.Method) + " " + r.URL.Path
	}
	if len(parts) > 2 && parts[0] == "namespaces" {
		parts = parts[2:]
	}
	what := parts[0]
	if len(parts) > 2 {
		what += "/" + parts[2]
	}
	return verbOf(r, len(parts) > 1) + " " + what
}

// verbOf is the verb of Kubernetes.
func verbOf(r *http.Request, named bool) string {
	switch r.Method {
	case http.MethodPost:
		return "create"
	case http.MethodPut:
		return "update"
	case http.MethodGet:
		switch {
		case slices.Contains([]string{"true", "1"}, r.URL.Query().Get("watch")):
			return "watch"
		case !named:
			return "list"
		}
	case http.MethodDelete:
		if !named {
			return "deletecollection"
		}
	}
	return strings.ToLower(r.Method)
}
