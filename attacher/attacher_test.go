package attacher

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"
	"k8s.io/klog/v2/textlogger"

	"github.com/longshore-csi/longshore/csikit/csiclient"
	"github.com/longshore-csi/longshore/csikit/csitest"
	"github.com/longshore-csi/longshore/csikit/kubetest"
	"github.com/longshore-csi/longshore/csikit/metrics"
)

const driverName = "test.csi.longshore.example"

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
		Address: o.CSI.Address, Services: csiclient.ControllerService, ExitOnLoss: o.ExitOnConnectionLoss,
		Metrics: measureCalls(registry), Poll: 10 * time.Millisecond,
	})
	if err != nil {
		t.Fatal(err)
	}
	cluster := kubetest.New(testCSINode(), testPV())
	return &component{options: o, kube: cluster.Client(), driver: driver, registry: registry, host: "host-1"}, cluster
}

func testCSINode() *storagev1.CSINode {
	return &storagev1.CSINode{
		ObjectMeta: metav1.ObjectMeta{Name: "node-a"},
		Spec:       storagev1.CSINodeSpec{Drivers: []storagev1.CSINodeDriver{{Name: driverName, NodeID: "id-a"}}},
	}
}

func testPV() *corev1.PersistentVolume {
	return &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: "pv-1"},
		Spec: corev1.PersistentVolumeSpec{
			AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			PersistentVolumeSource: corev1.PersistentVolumeSource{
				CSI: &corev1.CSIPersistentVolumeSource{Driver: driverName, VolumeHandle: "vol-1"},
			},
		},
	}
}

func testVA(name string) *storagev1.VolumeAttachment {
	return &storagev1.VolumeAttachment{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: storagev1.VolumeAttachmentSpec{
			Attacher: driverName, NodeName: "node-a",
			Source: storagev1.VolumeAttachmentSource{PersistentVolumeName: new("pv-1")},
		},
	}
}

// newDriver returns a driver that has vol-1.
func newDriver(o csitest.Options) *csitest.Driver {
	o.Name = driverName
	d := csitest.New(o)
	d.AddVolume(csitest.Volume{ID: "vol-1"})
	return d
}

// eventually waits until ok says so.
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

func (r *running) attached(t *testing.T, name string) func() bool {
	t.Helper()
	return func() bool {
		va, err := r.cluster.Client().VolumeAttachments().Get(t.Context(), name, metav1.GetOptions{})
		return err == nil && va.Status.Attached
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

func TestHTTP(t *testing.T) {
	s := socket(filepath.Join(t.TempDir(), "s"))
	stopDriver := s.serve(t, newDriver(csitest.Options{}))
	r := start(t, s, "--leader-election", "--leader-election-namespace=ns", "--enable-pprof")
	if err := r.cluster.Apply(testVA("va-1")); err != nil {
		t.Fatal(err)
	}
	r.eventually(t, "attach", r.attached(t, "va-1"))

	for path, want := range map[string][]string{
		"/metrics": {
			`csi_sidecar_operations_seconds_count{driver_name="test.csi.longshore.example",grpc_status_code="OK",method_name="/csi.v1.Controller/ControllerPublishVolume"} 1`,
			`workqueue_adds_total{name="csi-attacher-va"}`, `workqueue_adds_total{name="csi-attacher-pv"}`,
			`workqueue_oldest_item_age_seconds{name="csi-attacher-va"}`,
			`leader_election_master_status{name="external-attacher-leader-test-csi-longshore-example"} 1`,
			`process_start_time_seconds`,
		},
		"/healthz": {"ok"}, "/livez": {"ok"}, "/readyz": {"ok"}, "/healthz/leader-election": {"ok"},
		"/debug/pprof/": {"goroutine"},
		"/debug/state":  {`"leading": true`, `"driver": "test.csi.longshore.example"`, `"waiting": []`},
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

	stopDriver()
	if code, body := r.get(t, "/readyz"); code == http.StatusOK {
		t.Errorf("ready without a driver: %s", body)
	}
	r.end(t)
}

// TestMigratedLabel attaches a volume of the in-tree plugin that the driver replaces, one that the VolumeAttachment describes,
// and one of the driver's own: the metric separates them.
func TestMigratedLabel(t *testing.T) {
	const ebs = "ebs.csi.aws.com"
	driver := csitest.New(csitest.Options{Name: ebs})
	node := testCSINode()
	node.Spec.Drivers[0].Name = ebs
	own, plugin := testPV(), testPV()
	own.Name, own.Spec.CSI.Driver, own.Spec.CSI.VolumeHandle = "own", ebs, "vol-own"
	plugin.Name, plugin.Spec.CSI = "plugin", nil
	plugin.Spec.AWSElasticBlockStore = &corev1.AWSElasticBlockStoreVolumeSource{VolumeID: "vol-plugin"}
	sources := map[string]storagev1.VolumeAttachmentSource{
		"own":    {PersistentVolumeName: &own.Name},
		"plugin": {PersistentVolumeName: &plugin.Name},
		"inline": {InlineVolumeSpec: &corev1.PersistentVolumeSpec{
			AccessModes: own.Spec.AccessModes,
			PersistentVolumeSource: corev1.PersistentVolumeSource{
				CSI: &corev1.CSIPersistentVolumeSource{Driver: ebs, VolumeHandle: "vol-inline"},
			},
		}},
	}
	s := socket(filepath.Join(t.TempDir(), "s"))
	defer s.serve(t, driver)()
	r := start(t, s)
	if err := r.cluster.Apply(node, own, plugin); err != nil {
		t.Fatal(err)
	}
	for name, source := range sources {
		driver.AddVolume(csitest.Volume{ID: "vol-" + name})
		va := testVA(name)
		va.Spec.Attacher, va.Spec.Source = ebs, source
		if err := r.cluster.Apply(va); err != nil {
			t.Fatal(err)
		}
		r.eventually(t, "attach "+name, r.attached(t, name))
		if err := r.cluster.Remove("volumeattachments", "", name); err != nil {
			t.Fatal(err)
		}
		r.eventually(t, "detach "+name, func() bool {
			_, err := r.cluster.Client().VolumeAttachments().Get(t.Context(), name, metav1.GetOptions{})
			return apierrors.IsNotFound(err)
		})
	}
	_, body := r.get(t, "/metrics")
	for _, call := range []string{"ControllerPublishVolume", "ControllerUnpublishVolume"} {
		for migrated, want := range map[bool]int{true: 2, false: 1} {
			line := fmt.Sprintf("csi_sidecar_operations_seconds_count{driver_name=%q,grpc_status_code=\"OK\",method_name=\"/csi.v1.Controller/%s\",migrated=\"%t\"} %d\n",
				ebs, call, migrated, want)
			if !strings.Contains(body, line) {
				t.Errorf("/metrics lacks %s in:\n%s", line, body)
			}
		}
	}
	r.end(t)
}

// TestDriverComesBack upgrades a driver that cannot attach to one that can.
func TestDriverComesBack(t *testing.T) {
	s := socket(filepath.Join(t.TempDir(), "s"))
	stopDriver := s.serve(t, newDriver(csitest.Options{Controller: []csi.ControllerServiceCapability_RPC_Type{}}))
	r := start(t, s)
	if err := r.cluster.Apply(testVA("va-1")); err != nil {
		t.Fatal(err)
	}
	r.eventually(t, "mark attached", r.attached(t, "va-1"))
	stopDriver()

	upgraded := newDriver(csitest.Options{})
	defer s.serve(t, upgraded)()
	r.eventually(t, "read the capabilities again", func() bool {
		_, body := r.get(t, "/debug/state")
		var state struct {
			Attachments struct {
				Features struct{ Publish, Readonly, SingleNodeMultiWriter, ListPublished bool }
			}
		}
		if err := json.Unmarshal([]byte(body), &state); err != nil {
			t.Fatal(err)
		}
		return state.Attachments.Features.Publish
	})
	if err := r.cluster.Apply(testVA("va-2")); err != nil {
		t.Fatal(err)
	}
	r.eventually(t, "attach", r.attached(t, "va-2"))
	if volumes := upgraded.Volumes(); len(volumes) != 1 || len(volumes[0].Nodes) != 1 {
		t.Errorf("the upgraded driver was not asked: %+v", volumes)
	}
	r.end(t)
}

// TestLostCapabilityIsReported replaces a driver that has attached a volume by one that announces nothing yet: nothing is
// written, users learn of it, and the capabilities are read again although the connection stays.
func TestLostCapabilityIsReported(t *testing.T) {
	s := socket(filepath.Join(t.TempDir(), "s"))
	stopDriver := s.serve(t, newDriver(csitest.Options{}))
	r := start(t, s)
	if err := r.cluster.Apply(testVA("va-1")); err != nil {
		t.Fatal(err)
	}
	r.eventually(t, "attach", r.attached(t, "va-1"))
	r.cluster.ResetWrites()
	stopDriver()
	starting := newDriver(csitest.Options{Controller: []csi.ControllerServiceCapability_RPC_Type{}})
	defer s.serve(t, starting)()
	r.eventually(t, "notice the loss", func() bool {
		code, body := r.get(t, "/readyz")
		return code != http.StatusOK && strings.Contains(body, "publish-capability failed") && strings.Contains(body, "PUBLISH_UNPUBLISH_VOLUME")
	})
	const lost = `csi_attacher_publish_capability_lost{driver_name="test.csi.longshore.example"} `
	if _, body := r.get(t, "/metrics"); !strings.Contains(body, lost+"1") {
		t.Errorf("metrics lack %s1", lost)
	}
	if writes := r.cluster.Writes(); len(writes) > 0 {
		t.Errorf("%d writes, first: %+v", len(writes), writes[0])
	}
	starting.SetController(csitest.AllController()...)
	r.eventually(t, "notice the return", func() bool {
		code, _ := r.get(t, "/readyz")
		return code == http.StatusOK
	})
	if _, body := r.get(t, "/metrics"); !strings.Contains(body, lost+"0") {
		t.Errorf("metrics lack %s0", lost)
	}
	r.end(t)
}

// TestDriverWakes ends the pause after a failure when the driver comes back.
func TestDriverWakes(t *testing.T) {
	s := socket(filepath.Join(t.TempDir(), "s"))
	broken := newDriver(csitest.Options{})
	broken.Inject(csitest.Fault{Method: "ControllerPublishVolume", Code: 13, Message: "broken"})
	stopDriver := s.serve(t, broken)
	r := start(t, s, "--retry-interval-start=1h", "--retry-interval-max=1h")
	if err := r.cluster.Apply(testVA("va-1")); err != nil {
		t.Fatal(err)
	}
	r.eventually(t, "report the error", func() bool {
		va, err := r.cluster.Client().VolumeAttachments().Get(t.Context(), "va-1", metav1.GetOptions{})
		return err == nil && va.Status.AttachError != nil
	})
	_, body := r.get(t, "/debug/state")
	if !strings.Contains(body, `"error": "Internal: broken"`) {
		t.Errorf("state does not say what is waited for:\n%s", body)
	}
	stopDriver()
	defer s.serve(t, newDriver(csitest.Options{}))()
	r.eventually(t, "attach", r.attached(t, "va-1"))
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
		"AnotherDriver": {reason: "the name is in Lease and finalizers, so it must not change", next: csitest.New(csitest.Options{Name: "other.example"}), want: errDriverChanged},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			s := socket(filepath.Join(t.TempDir(), "s"))
			stopDriver := s.serve(t, newDriver(csitest.Options{}))
			r := start(t, s, tt.args...)
			if err := r.cluster.Apply(testVA("va-1")); err != nil {
				t.Fatal(err)
			}
			r.eventually(t, "attach", r.attached(t, "va-1"))
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

// TestElectedAgain takes the Lease from the leader. The same process is elected again, with the same listener and metrics.
func TestElectedAgain(t *testing.T) {
	s := socket(filepath.Join(t.TempDir(), "s"))
	defer s.serve(t, newDriver(csitest.Options{}))()
	r := start(t, s, "--leader-election", "--leader-election-namespace=ns",
		"--leader-election-lease-duration=2s", "--leader-election-renew-deadline=1s", "--leader-election-retry-period=100ms")
	if err := r.cluster.Apply(testVA("va-1")); err != nil {
		t.Fatal(err)
	}
	r.eventually(t, "attach", r.attached(t, "va-1"))
	status := func(want string) func() bool {
		return func() bool {
			_, body := r.get(t, "/metrics")
			return strings.Contains(body, `leader_election_master_status{name="external-attacher-leader-test-csi-longshore-example"} `+want)
		}
	}
	if err := r.cluster.Merge("leases", "ns", "external-attacher-leader-test-csi-longshore-example", []byte(`{"spec":{"holderIdentity":"thief"}}`)); err != nil {
		t.Fatal(err)
	}
	r.eventually(t, "notice the loss", status("0"))
	if code, body := r.get(t, "/healthz/leader-election"); code != http.StatusOK {
		t.Errorf("an instance that waits is healthy, got %d: %s", code, body)
	}
	r.eventually(t, "lead again", status("1"))
	if err := r.cluster.Apply(testVA("va-2")); err != nil {
		t.Fatal(err)
	}
	r.eventually(t, "attach in the second term", r.attached(t, "va-2"))
	if _, body := r.get(t, "/metrics"); !strings.Contains(body, `workqueue_oldest_item_age_seconds{name="csi-attacher-va"}`) {
		t.Error("the queue of the second term is not measured")
	}
	if _, body := r.get(t, "/debug/state"); !strings.Contains(body, `"leading": true`) {
		t.Errorf("state does not say that this instance leads:\n%s", body)
	}
	r.end(t)
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
		"Options":    {reason: "options are checked first", args: []string{"--worker-threads=0"}, want: "--worker-threads=0"},
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
