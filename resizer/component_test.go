package resizer

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	"k8s.io/klog/v2/textlogger"

	"github.com/longshore-csi/longshore/csikit/csiclient"
	"github.com/longshore-csi/longshore/csikit/csitest"
	"github.com/longshore-csi/longshore/csikit/kubetest"
	"github.com/longshore-csi/longshore/csikit/metrics"
)

const (
	driverName = "test.csi.longshore.example"

	oneGi = "1Gi"
	twoGi = "2Gi"
)

// socket is where drivers come and go.
type socket string

// serve lets a driver answer on the socket until the function that it returns is called.
func (s socket) serve(t *testing.T, d *csitest.Driver) (stop func()) {
	t.Helper()
	listener, err := net.Listen("unix", string(s))
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	d.Register(server)
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	return func() {
		server.Stop()
		if err := <-served; err != nil {
			t.Errorf("serve driver: %v", err)
		}
	}
}

// running is a component with a real socket and a real HTTP listener.
type running struct {
	cluster *kubetest.Cluster
	url     string
	stop    context.CancelFunc
	ended   <-chan error
}

// start runs a component; the flags are added to those of the socket and the listener.
func start(t *testing.T, s socket, args ...string) *running {
	t.Helper()
	c, cluster := newComponent(t, s, args...)
	logger := textlogger.NewLogger(textlogger.NewConfig(textlogger.Output(t.Output())))
	ctx, cancel := context.WithCancel(klog.NewContext(t.Context(), logger))
	server, err := c.listen(ctx)
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- errors.Join(c.serve(ctx, server), c.driver.Close()) }()
	return &running{cluster: cluster, url: "http://" + server.Addr(), stop: cancel, ended: ended}
}

// newComponent makes a component for the socket, with a listener on a port that the system chooses.
func newComponent(t *testing.T, s socket, args ...string) (*component, *kubetest.Cluster) {
	t.Helper()
	o, err := parse(append([]string{"--csi-address=" + string(s), "--http-endpoint=127.0.0.1:0"}, args...)...)
	if err != nil {
		t.Fatal(err)
	}
	registry := metrics.NewRegistry()
	driver, err := csiclient.New(csiclient.Config{
		Address: o.CSI.Address, Services: csiclient.ControllerService | csiclient.NodeService, ExitOnLoss: o.ExitOnConnectionLoss,
		Metrics: measureCalls(registry), Poll: 10 * time.Millisecond,
	})
	if err != nil {
		t.Fatal(err)
	}
	cluster := kubetest.New(testClass())
	return &component{options: o, kube: cluster.Client(), driver: driver, registry: registry, host: "host-1"}, cluster
}

// size returns a list with an amount of storage.
func size(amount string) corev1.ResourceList {
	return corev1.ResourceList{corev1.ResourceStorage: resource.MustParse(amount)}
}

// testPV returns the volume of 1Gi that claim name is bound to.
func testPV(name string) *corev1.PersistentVolume {
	return &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: "pv-" + name},
		Spec: corev1.PersistentVolumeSpec{
			Capacity:    size(oneGi),
			AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			ClaimRef:    &corev1.ObjectReference{Namespace: "default", Name: name, UID: types.UID("uid-" + name)},
			PersistentVolumeSource: corev1.PersistentVolumeSource{
				CSI: &corev1.CSIPersistentVolumeSource{Driver: driverName, VolumeHandle: "vol-" + name},
			},
		},
	}
}

// testClaim returns a claim of 1Gi that asks for another amount now.
func testClaim(name, requested string) *corev1.PersistentVolumeClaim {
	return &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID("uid-" + name)},
		Spec: corev1.PersistentVolumeClaimSpec{
			AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			VolumeName:  "pv-" + name, Resources: corev1.VolumeResourceRequirements{Requests: size(requested)},
		},
		Status: corev1.PersistentVolumeClaimStatus{Phase: corev1.ClaimBound, Capacity: size(oneGi)},
	}
}

func testClass() *storagev1.VolumeAttributesClass {
	return &storagev1.VolumeAttributesClass{
		ObjectMeta: metav1.ObjectMeta{Name: "gold"}, DriverName: driverName, Parameters: map[string]string{"iops": "1000"},
	}
}

// newDriver returns a driver that has the volumes of some claims and completes expansions without the node.
func newDriver(o csitest.Options, claims ...string) *csitest.Driver {
	if o.Name == "" {
		o.Name = driverName
	}
	o.Node = []csi.NodeServiceCapability_RPC_Type{}
	d := csitest.New(o)
	for _, name := range claims {
		d.AddVolume(csitest.Volume{ID: "vol-" + name, Capacity: 1 << 30})
	}
	return d
}

// ask applies claims that ask for 2Gi, with their volumes.
func (r *running) ask(t *testing.T, names ...string) {
	t.Helper()
	for _, name := range names {
		if err := r.cluster.Apply(testPV(name), testClaim(name, twoGi)); err != nil {
			t.Fatal(err)
		}
	}
}

// eventually waits until ok returns true.
func (r *running) eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	deadline := time.After(2 * time.Minute)
	for !ok() {
		select {
		case <-deadline:
			t.Fatalf("%s: did not happen", what)
		case err := <-r.ended:
			t.Fatalf("%s: the component ended: %v", what, err)
		case <-time.After(10 * time.Millisecond):
		}
	}
}

func (r *running) claim(t *testing.T, name string) *corev1.PersistentVolumeClaim {
	t.Helper()
	claim, err := r.cluster.Client().PersistentVolumeClaims("default").Get(t.Context(), name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return claim
}

// expanded returns a condition: the claim has 2Gi.
func (r *running) expanded(t *testing.T, name string) func() bool {
	t.Helper()
	want := resource.MustParse(twoGi)
	return func() bool {
		return want.Cmp(r.claim(t, name).Status.Capacity[corev1.ResourceStorage]) == 0
	}
}

func (r *running) get(t *testing.T, path string) (code int, body string) {
	t.Helper()
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: 20 * time.Second}
	response, err := client.Get(r.url + path)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = response.Body.Close() }()
	data, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return response.StatusCode, string(data)
}

func (r *running) end(t *testing.T) {
	t.Helper()
	r.stop()
	if err := <-r.ended; err != nil {
		t.Errorf("an ordinary stop ended in %v", err)
	}
}

// TestHTTP expands and modifies a volume, and compares what is served with docs/metrics.md.
func TestHTTP(t *testing.T) {
	s := socket(filepath.Join(t.TempDir(), "s"))
	stopDriver := s.serve(t, newDriver(csitest.Options{}, "data"))
	r := start(t, s, "--leader-election", "--leader-election-namespace=ns", "--enable-pprof")
	claim := testClaim("data", twoGi)
	claim.Spec.VolumeAttributesClassName = new("gold")
	if err := r.cluster.Apply(testPV("data"), claim); err != nil {
		t.Fatal(err)
	}
	r.eventually(t, "expand", r.expanded(t, "data"))
	r.eventually(t, "modify", func() bool {
		current := r.claim(t, "data").Status.CurrentVolumeAttributesClassName
		return current != nil && *current == "gold"
	})

	for path, want := range map[string][]string{
		"/metrics": {
			`csi_sidecar_operations_seconds_count{driver_name="test.csi.longshore.example",grpc_status_code="OK",method_name="/csi.v1.Controller/ControllerExpandVolume"} 1`,
			`csi_sidecar_operations_seconds_count{driver_name="test.csi.longshore.example",grpc_status_code="OK",method_name="/csi.v1.Controller/ControllerModifyVolume"} 1`,
			`workqueue_adds_total{name="test.csi.longshore.example-pvc"}`,
			`workqueue_oldest_item_age_seconds{name="test.csi.longshore.example-pvc"}`,
			`csi_sidecar_events_dropped_total 0`,
			`leader_election_master_status{name="external-resizer-test-csi-longshore-example"} 1`,
			`process_start_time_seconds`,
		},
		"/healthz": {"ok"}, "/livez": {"ok"}, "/readyz": {"ok"}, "/healthz/leader-election": {"ok"},
		"/debug/pprof/": {"goroutine"},
		"/debug/state":  {`"leading": true`, `"driver": "test.csi.longshore.example"`, `"expand": true`, `"modify": true`, `"waiting": []`},
	} {
		code, body := r.get(t, path)
		if code != http.StatusOK {
			t.Errorf("GET %s: %d %s", path, code, body)
		}
		for _, part := range want {
			if !strings.Contains(body, part) {
				t.Errorf("GET %s lacks %s in:\n%s", path, part, body)
			}
		}
	}
	r.documented(t)

	stopDriver()
	if code, body := r.get(t, "/readyz"); code == http.StatusOK {
		t.Errorf("ready without a driver: %s", body)
	}
	r.end(t)
}

// documented checks that docs/metrics.md has every metric that is served.
func (r *running) documented(t *testing.T) {
	t.Helper()
	document, err := os.ReadFile("docs/metrics.md")
	if err != nil {
		t.Fatal(err)
	}
	_, body := r.get(t, "/metrics")
	families := regexp.MustCompile(`(?m)^# TYPE (\S+) `).FindAllStringSubmatch(body, -1)
	if len(families) < 15 {
		t.Errorf("only %d metrics are served:\n%s", len(families), body)
	}
	for _, family := range families {
		name := family[1]
		if strings.HasPrefix(name, "go_") || strings.HasPrefix(name, "process_") {
			continue
		}
		if !strings.Contains(string(document), "`"+name+"`") {
			t.Errorf("metric %s is not in docs/metrics.md", name)
		}
	}
}

// TestMigratedLabel expands a volume of the in-tree plugin that the driver replaces, and one of the driver's own: the metric
// separates them.
func TestMigratedLabel(t *testing.T) {
	const ebs = "ebs.csi.aws.com"
	s := socket(filepath.Join(t.TempDir(), "s"))
	defer s.serve(t, newDriver(csitest.Options{Name: ebs}, "own", "plugin"))()
	r := start(t, s)
	own, plugin, migrated := testPV("own"), testPV("plugin"), testClaim("plugin", twoGi)
	own.Spec.CSI.Driver = ebs
	plugin.Spec.PersistentVolumeSource = corev1.PersistentVolumeSource{
		AWSElasticBlockStore: &corev1.AWSElasticBlockStoreVolumeSource{VolumeID: "vol-plugin"},
	}
	migrated.Annotations = map[string]string{"volume.kubernetes.io/storage-resizer": ebs}
	if err := r.cluster.Apply(own, plugin, testClaim("own", twoGi), migrated); err != nil {
		t.Fatal(err)
	}
	r.eventually(t, "expand the driver's own volume", r.expanded(t, "own"))
	r.eventually(t, "expand the plugin's volume", r.expanded(t, "plugin"))
	_, body := r.get(t, "/metrics")
	for _, migrated := range []bool{true, false} {
		line := fmt.Sprintf("csi_sidecar_operations_seconds_count{driver_name=%q,grpc_status_code=\"OK\","+
			"method_name=\"/csi.v1.Controller/ControllerExpandVolume\",migrated=\"%t\"} 1\n", ebs, migrated)
		if !strings.Contains(body, line) {
			t.Errorf("/metrics lacks %s in:\n%s", line, body)
		}
	}
	r.end(t)
}

// TestDriverComesBack upgrades a driver that cannot expand to one that can: users learn why nothing happens, and the claim
// that waits is expanded.
func TestDriverComesBack(t *testing.T) {
	s := socket(filepath.Join(t.TempDir(), "s"))
	stopDriver := s.serve(t, newDriver(csitest.Options{Controller: []csi.ControllerServiceCapability_RPC_Type{}}))
	r := start(t, s)
	r.ask(t, "data")
	r.eventually(t, "report the missing capabilities", func() bool {
		code, body := r.get(t, "/readyz")
		return code != http.StatusOK && strings.Contains(body, "[-]capabilities failed") && strings.Contains(body, "EXPAND_VOLUME")
	})
	r.eventually(t, "report it on the claim", func() bool {
		return slices.ContainsFunc(r.claim(t, "data").Status.Conditions, func(c corev1.PersistentVolumeClaimCondition) bool {
			return c.Type == corev1.PersistentVolumeClaimControllerResizeError && strings.Contains(c.Message, "EXPAND_VOLUME")
		})
	})
	stopDriver()

	upgraded := newDriver(csitest.Options{}, "data")
	defer s.serve(t, upgraded)()
	r.eventually(t, "read the capabilities again", func() bool {
		_, body := r.get(t, "/debug/state")
		var state struct {
			Claims struct{ Features struct{ Expand bool } }
		}
		if err := json.Unmarshal([]byte(body), &state); err != nil {
			t.Fatal(err)
		}
		return state.Claims.Features.Expand
	})
	r.eventually(t, "expand", r.expanded(t, "data"))
	if volumes := upgraded.Volumes(); len(volumes) != 1 || volumes[0].Capacity != 2<<30 {
		t.Errorf("the upgraded driver was not asked: %+v", volumes)
	}
	r.end(t)
}

// TestDriverWakes ends the pause after a failure when the driver comes back.
func TestDriverWakes(t *testing.T) {
	s := socket(filepath.Join(t.TempDir(), "s"))
	broken := newDriver(csitest.Options{}, "data")
	broken.Inject(csitest.Fault{Method: "ControllerExpandVolume", Code: 13, Message: "broken"})
	stopDriver := s.serve(t, broken)
	r := start(t, s, "--retry-interval-start=1h", "--retry-interval-max=1h")
	r.ask(t, "data")
	r.eventually(t, "show the error in the state", func() bool {
		_, body := r.get(t, "/debug/state")
		return strings.Contains(body, `"error": "Internal: broken"`)
	})
	stopDriver()
	defer s.serve(t, newDriver(csitest.Options{}, "data"))()
	r.eventually(t, "expand", r.expanded(t, "data"))
	r.end(t)
}

func TestConnectionLoss(t *testing.T) {
	tests := map[string]struct {
		reason string
		args   []string
		next   *csitest.Driver // nil: none comes back
		want   error
	}{
		"ExitOnLoss":    {reason: "the behaviour of old, if asked for", args: []string{"--exit-on-connection-loss"}, want: csiclient.ErrConnectionLost},
		"AnotherDriver": {reason: "the name is in the Lease, so it must not change", next: csitest.New(csitest.Options{Name: "other.example"}), want: errDriverChanged},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			s := socket(filepath.Join(t.TempDir(), "s"))
			stopDriver := s.serve(t, newDriver(csitest.Options{}, "data"))
			r := start(t, s, tt.args...)
			r.ask(t, "data")
			r.eventually(t, "expand", r.expanded(t, "data"))
			stopDriver()
			if tt.next != nil {
				defer s.serve(t, tt.next)()
			}
			if err := <-r.ended; !errors.Is(err, tt.want) {
				t.Errorf("%s: ended in %v, want %v", tt.reason, err, tt.want)
			}
		})
	}
}

func TestStopWhileWaiting(t *testing.T) {
	r := start(t, socket(filepath.Join(t.TempDir(), "s")))
	r.eventually(t, "listen", func() bool {
		response, err := http.Get(r.url + "/livez")
		if err != nil {
			return false
		}
		http.DefaultClient.CloseIdleConnections()
		return response.Body.Close() == nil
	})
	r.end(t)
}

func TestRunErrors(t *testing.T) {
	t.Setenv("KUBECONFIG", "")
	t.Setenv("KUBERNETES_SERVICE_HOST", "")
	tests := map[string]struct {
		reason string
		args   []string
		want   string
	}{
		"Options":    {reason: "options are checked first", args: []string{"--workers=0"}, want: "--workers=0"},
		"NoCluster":  {reason: "no way to the API server", want: "neither --kubeconfig nor $KUBECONFIG is set"},
		"Kubeconfig": {reason: "a file that is not there", args: []string{"--kubeconfig=/no/such/file"}, want: "/no/such/file"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			o, err := parse(tt.args...)
			if err != nil {
				t.Fatal(err)
			}
			if err := Run(t.Context(), o); err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("%s: got %v, want %q in it", tt.reason, err, tt.want)
			}
		})
	}
}

func TestBusyAddress(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = listener.Close() }()
	address := listener.Addr().String()
	c, _ := newComponent(t, socket(filepath.Join(t.TempDir(), "s")), "--http-endpoint="+address)
	err = errors.Join(c.run(t.Context()), c.driver.Close())
	if err == nil || !strings.Contains(err.Error(), address) {
		t.Errorf("ended in %v, want an error that names %s", err, address)
	}
}
