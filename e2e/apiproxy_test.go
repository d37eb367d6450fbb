package e2e

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

// apiProxy is between one component and the API server. It counts all requests, reads included, which the audit log does not have, and may
// fail some of them.
type apiProxy struct {
	// kubeconfig is that of the component. The API server knows the component as the user of the kubeconfig that the proxy was made of.
	kubeconfig string
	proxy      *httputil.ReverseProxy

	mu sync.Mutex
	// counts are the requests by what they did ("patch volumesnapshots/status").
	counts map[string]int
	// fault decides about each request; nil: none fails.
	fault func(what string) apiFault
	// watches end the watches that are open.
	watches map[int]context.CancelFunc
	serial  int
}

// apiFault is what becomes of a request.
type apiFault struct {
	// code is what the proxy answers in place of the API server. 0: the request is passed on.
	code int
	// lost has the API server act, and the component not learn of it.
	lost bool
	// delay is the time before anything else.
	delay time.Duration
}

// errLost is the answer of the API server that is lost.
var errLost = errors.New("the answer is lost")

type lostKey struct{}

// newProxy starts a proxy, which ends with the test.
func newProxy(t testing.TB, kubeconfig string) *apiProxy {
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
	p := &apiProxy{counts: map[string]int{}, watches: map[int]context.CancelFunc{}}
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
		p.endWatches()
		server.CloseClientConnections()
		server.Close()
	})
	p.kubeconfig = filepath.Join(t.TempDir(), "kubeconfig")
	err = clientcmd.WriteToFile(clientcmdapi.Config{
		Clusters:       map[string]*clientcmdapi.Cluster{"proxy": {Server: server.URL}},
		Contexts:       map[string]*clientcmdapi.Context{"proxy": {Cluster: "proxy", AuthInfo: "proxy"}},
		AuthInfos:      map[string]*clientcmdapi.AuthInfo{"proxy": {}},
		CurrentContext: "proxy",
	}, p.kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// ServeHTTP implements http.Handler.
func (p *apiProxy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	what := requestName(r)
	fault := p.begin(what)
	if !pause(r.Context(), fault.delay) {
		return
	}
	if fault.code != 0 {
		w.Header().Set("Content-Type", "application/json")
		if fault.code == http.StatusTooManyRequests {
			w.Header().Set("Retry-After", "1")
		}
		w.WriteHeader(fault.code)
		fmt.Fprintf(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":%q,"message":"a fault of the test","code":%d}`, reasonOf(fault.code), fault.code)
		return
	}
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	if fault.lost {
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
func (p *apiProxy) begin(what string) apiFault {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.counts[what]++
	if p.fault == nil {
		return apiFault{}
	}
	return p.fault(what)
}

// open keeps the end of a watch until it has ended.
func (p *apiProxy) open(cancel context.CancelFunc) (ended func()) {
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

// endWatches ends all watches that are open, as an API server does from time to time.
func (p *apiProxy) endWatches() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, cancel := range p.watches {
		cancel()
	}
}

// setFault replaces the fault of requests.
func (p *apiProxy) setFault(fault func(what string) apiFault) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.fault = fault
}

// countsNow returns the requests so far.
func (p *apiProxy) countsNow() map[string]int {
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

func TestNamesOfRequests(t *testing.T) {
	for request, want := range map[string]string{
		"GET /api/v1/persistentvolumeclaims?limit=500&resourceVersion=0":                          "list persistentvolumeclaims",
		"GET /api/v1/persistentvolumeclaims?allowWatchBookmarks=true&watch=true":                  "watch persistentvolumeclaims",
		"PATCH /api/v1/namespaces/default/persistentvolumeclaims/a":                               "patch persistentvolumeclaims",
		"POST /api/v1/namespaces/default/events":                                                  "create events",
		"PUT /apis/snapshot.storage.k8s.io/v1/namespaces/default/volumesnapshots/a/status":        "update volumesnapshots/status",
		"PATCH /apis/snapshot.storage.k8s.io/v1/volumesnapshotcontents/a/status?fieldManager=b":   "patch volumesnapshotcontents/status",
		"DELETE /apis/snapshot.storage.k8s.io/v1/volumesnapshotcontents/a":                        "delete volumesnapshotcontents",
		"DELETE /apis/coordination.k8s.io/v1/namespaces/default/leases":                           "deletecollection leases",
		"GET /apis/snapshot.storage.k8s.io/v1":                                                    "get /apis/snapshot.storage.k8s.io/v1",
		"GET /apis/groupsnapshot.storage.k8s.io/v1/namespaces/default/volumegroupsnapshots/watch": "get volumegroupsnapshots",
	} {
		method, path, _ := strings.Cut(request, " ")
		if got := requestName(httptest.NewRequest(method, path, http.NoBody)); got != want {
			t.Errorf("%s: got %q, want %q", request, got, want)
		}
	}
}

// TestAPIProxy has a server behind the proxy that counts what reaches it.
func TestAPIProxy(t *testing.T) {
	reached := 0
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		reached++
		fmt.Fprint(w, "{}")
	}))
	t.Cleanup(server.Close)
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	err := clientcmd.WriteToFile(clientcmdapi.Config{
		Clusters: map[string]*clientcmdapi.Cluster{"a": {Server: server.URL}}, Contexts: map[string]*clientcmdapi.Context{"a": {Cluster: "a"}}, CurrentContext: "a",
	}, kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct {
		reason string
		fault  apiFault
		// code is what the client sees, 0 for a broken connection.
		code, reached int
	}{
		"None":      {reason: "the request is passed on", code: http.StatusOK, reached: 1},
		"Refused":   {reason: "the API server does not see it", fault: apiFault{code: http.StatusTooManyRequests}, code: http.StatusTooManyRequests},
		"LostReply": {reason: "the API server acts, and the client does not learn of it", fault: apiFault{lost: true}, reached: 1},
	} {
		t.Run(name, func(t *testing.T) {
			p := newProxy(t, kubeconfig)
			p.setFault(func(string) apiFault { return tc.fault })
			config, err := clientcmd.BuildConfigFromFlags("", p.kubeconfig)
			if err != nil {
				t.Fatal(err)
			}
			reached = 0
			code := 0
			// A POST: a GET whose connection breaks is sent again by net/http.
			reply, err := http.Post(config.Host+"/api/v1/namespaces/default/events", "application/json", http.NoBody)
			if err == nil {
				code = reply.StatusCode
				_ = reply.Body.Close()
			}
			if code != tc.code || reached != tc.reached || p.countsNow()["create events"] != 1 {
				t.Errorf("%s: code %d (%v), reached the server %d times, counted %v", tc.reason, code, err, reached, p.countsNow())
			}
		})
	}
}
