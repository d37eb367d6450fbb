package provisioner

import (
	"context"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"k8s.io/klog/v2"

	"github.com/longshore-csi/longshore/csikit/csiclient"
	"github.com/longshore-csi/longshore/csikit/metrics"
	"github.com/longshore-csi/longshore/csikit/procmetrics"
	"github.com/longshore-csi/longshore/csikittest/csitest"
	"github.com/longshore-csi/longshore/csikittest/kubetest"
	"github.com/longshore-csi/longshore/provisioner/internal/kubeapitest"
)

// patience bounds the waits of the tests that use real sockets; none of them depends on how long it is.
const patience = time.Minute

// eventually waits until a condition holds.
func eventually(t *testing.T, what string, holds func() bool) {
	t.Helper()
	timeout := time.After(patience)
	ticker := time.NewTicker(10 * time.Millisecond)
	defer ticker.Stop()
	for !holds() {
		select {
		case <-ticker.C:
		case <-timeout:
			t.Fatalf("not within %v: %s", patience, what)
		}
	}
}

// get reads a page of the HTTP endpoint.
func get(t *testing.T, address, path string) (int, string) {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+address+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: patience}
	response, err := client.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return response.StatusCode, string(body)
}

// onSocket returns an instance whose driver is at a unix socket, with an HTTP endpoint on a free port.
func onSocket(t *testing.T, cluster *kubetest.Cluster, address string) *instance {
	t.Helper()
	registry := procmetrics.NewRegistry()
	client, err := csiclient.New(csiclient.Config{Address: address, Services: csiclient.ControllerService, Metrics: metrics.NewSidecarCSI(registry)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := client.Close(); err != nil {
			t.Error(err)
		}
	})
	o := withElection()
	o.HTTP.Endpoint = "127.0.0.1:0"
	return newInstance(o, environment{kube: kubeapitest.New(cluster.Client()), driver: client, registry: registry, identity: "me"})
}

// TestHTTP provisions over a real socket and reads what the endpoint says meanwhile.
func TestHTTP(t *testing.T) {
	cluster, driver := kubetest.New(newClass(), newClaim("a")), csitest.New(csitest.Options{})
	p := onSocket(t, cluster, driver.Serve(t))
	server, err := p.listen(klog.Background())
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- p.serve(ctx, server) }()
	eventually(t, "the claim has a volume", func() bool { return len(makers(cluster)) == 1 })

	eventually(t, "the volume is counted", func() bool {
		_, body := get(t, server.Addr(), "/metrics")
		return strings.Contains(body, "controller_persistentvolumeclaim_provision_duration_seconds_count")
	})

	pages := map[string]struct {
		reason string
		want   []string
	}{
		"/metrics": {
			reason: "Metrics have the names that dashboards know.",
			want: []string{
				`controller_persistentvolumeclaim_provision_total{class="fast",source=""} 1`,
				`controller_persistentvolumeclaim_provision_duration_seconds_count{class="fast",source=""} 1`,
				`csi_sidecar_operations_seconds_count{driver_name="` + csitest.DefaultName + `",grpc_status_code="OK",method_name="/csi.v1.Controller/CreateVolume"} 1`,
				`workqueue_adds_total{name="claims"}`, `workqueue_adds_total{name="volumes"}`, `workqueue_depth{name="unsavedpvs"} 0`,
				`leader_election_master_status{name="test-csi-longshore-example"} 1`,
				`provisioner_volumes_under_way{stage="creating"} 0`, "process_start_time_seconds", "go_goroutines",
			},
		},
		"/readyz":                  {reason: "The driver and the caches are ready."},
		"/healthz":                 {reason: "The process lives."},
		"/healthz/leader-election": {reason: "The lease is kept."},
		"/debug/state":             {reason: "The state is shown.", want: []string{`"driver": "` + csitest.DefaultName + `"`}},
	}
	for path, tc := range pages {
		code, body := get(t, server.Addr(), path)
		if code != http.StatusOK {
			t.Errorf("%s\nGET %s: %d: %s", tc.reason, path, code, body)
		}
		for _, text := range tc.want {
			if !strings.Contains(strings.ReplaceAll(body, `":"`, `": "`), text) {
				t.Errorf("%s\nGET %s has no %q in:\n%s", tc.reason, path, text, body)
			}
		}
	}
	cancel()
	if err := <-ended; err != nil {
		t.Errorf("ended with %v, want a good end", err)
	}
}

// serveAt serves a driver at a path until the returned function is called.
func serveAt(t *testing.T, driver *csitest.Driver, path string) (stop func()) {
	t.Helper()
	listener, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	driver.Register(server)
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = server.Serve(listener) // ends by Stop
	}()
	return func() {
		server.Stop()
		<-done
	}
}

// TestDriverRestarts stops the driver and starts it again: the instance stays, and goes on.
func TestDriverRestarts(t *testing.T) {
	cluster, driver := kubetest.New(newClass(), newClaim("a")), csitest.New(csitest.Options{})
	path := filepath.Join(t.TempDir(), "csi.sock")
	stop := serveAt(t, driver, path)
	p := onSocket(t, cluster, path)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- p.serve(ctx, nil) }()
	eventually(t, "the first claim has a volume", func() bool { return makers(cluster)["a"] != "" })

	stop()
	apply(t, cluster, newClaim("b"))
	stop = serveAt(t, driver, path)
	eventually(t, "the second claim has a volume", func() bool { return makers(cluster)["b"] != "" })
	stop()

	// A driver of another name is another driver: nothing may be provisioned by it.
	stop = serveAt(t, csitest.New(csitest.Options{Name: "other.example.com"}), path)
	err := <-ended
	stop()
	cancel()
	if err == nil || !strings.Contains(err.Error(), "other.example.com") || !strings.Contains(err.Error(), csitest.DefaultName) {
		t.Errorf("ended with %v, want an error that names both drivers", err)
	}
}

func TestRunReportsWhatIsMissing(t *testing.T) {
	cases := map[string]struct {
		reason string
		change func(*Options)
		want   string
	}{
		"Kubeconfig": {
			reason: "A file that is not there is named.",
			change: func(o *Options) { o.Kube.Kubeconfig = "/no/such/kubeconfig" },
			want:   "/no/such/kubeconfig",
		},
		"Address": {
			reason: "An address that cannot be is named.",
			change: func(o *Options) { o.Kube.Master, o.CSI.Address = "http://127.0.0.1:1", "relative" },
			want:   `"relative"`,
		},
		"Endpoint": {
			reason: "An endpoint that cannot be bound is named.",
			change: func(o *Options) { o.Kube.Master, o.HTTP.Endpoint = "http://127.0.0.1:1", "256.0.0.1:80" },
			want:   "256.0.0.1:80",
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			o := NewOptions()
			tc.change(&o)
			err := Run(t.Context(), o)
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("%s\nerror %v, want it to name %s", tc.reason, err, tc.want)
			}
		})
	}
}
