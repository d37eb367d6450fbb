package provisioner

import (
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/grpc"

	"github.com/longshore-csi/longshore/csikittest/csitest"
	"github.com/longshore-csi/longshore/csikittest/kubetest"
	"github.com/longshore-csi/longshore/csikittest/sidecartest"
	"github.com/longshore-csi/longshore/provisioner/internal/kubeapitest"
)

// onSocket starts an instance whose driver is at a unix socket, with an HTTP endpoint.
func onSocket(t *testing.T, cluster *kubetest.Cluster, address string, o Options) (*sidecartest.Running, *process) {
	t.Helper()
	o.CSI.Address = address
	config, p := o.sidecar(connections{kube: kubeapitest.New(cluster.Client()), host: "me", identity: "me"}), &process{}
	p.observe(&config)
	return sidecartest.Start(t, config), p
}

// TestHTTP provisions over a real socket and reads what the endpoint says meanwhile.
func TestHTTP(t *testing.T) {
	cluster, driver := kubeapitest.NewCluster(newClass(), newClaim("a")), csitest.New(csitest.Options{})
	r, _ := onSocket(t, cluster, driver.Serve(t), withElection())
	r.Eventually("the claim has a volume", func() bool { return len(makers(cluster)) == 1 })
	r.Serves("controller_persistentvolumeclaim_provision_duration_seconds_count")
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
		"/readyz?verbose":          {reason: "The driver and the caches are ready.", want: []string{"[+]driver ok", "[+]informer-sync ok", "[+]capabilities ok"}},
		"/healthz":                 {reason: "The process lives."},
		"/healthz/leader-election": {reason: "The lease is kept."},
		"/debug/state":             {reason: "The state is shown.", want: []string{`"leading": true`, `"driver": "` + csitest.DefaultName + `"`}},
	}
	for path, tc := range pages {
		code, body := r.Get(path)
		if code != http.StatusOK {
			t.Errorf("%s\nGET %s: %d: %s", tc.reason, path, code, body)
		}
		for _, text := range tc.want {
			if !strings.Contains(body, text) {
				t.Errorf("%s\nGET %s has no %q in:\n%s", tc.reason, path, text, body)
			}
		}
	}
	r.CheckMetrics("docs/metrics.md")
	r.Stop()
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
	cluster, driver := kubeapitest.NewCluster(newClass(), newClaim("a")), csitest.New(csitest.Options{})
	path := filepath.Join(t.TempDir(), "csi.sock")
	stop := serveAt(t, driver, path)
	r, _ := onSocket(t, cluster, path, withElection())
	r.Eventually("the first claim has a volume", func() bool { return makers(cluster)["a"] != "" })

	stop()
	apply(t, cluster, newClaim("b"))
	stop = serveAt(t, driver, path)
	r.Eventually("the second claim has a volume", func() bool { return makers(cluster)["b"] != "" })
	stop()

	// A driver of another name is another driver: nothing may be provisioned by it.
	stop = serveAt(t, csitest.New(csitest.Options{Name: "other.example.com"}), path)
	err := r.Wait()
	stop()
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
