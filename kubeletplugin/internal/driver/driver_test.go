package driver

import (
	"errors"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/longshore-csi/longshore/csikittest/csitest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const name = "d.example"

// newRegistry returns a registry that is closed when the test ends.
func newRegistry(t *testing.T, cfg Config) *Registry {
	t.Helper()
	r := NewRegistry(cfg)
	t.Cleanup(r.Close)
	return r
}

// connect returns a driver that is not added yet.
func connect(t *testing.T, r *Registry, endpoint string) *Driver {
	t.Helper()
	d, err := r.Connect(Spec{Name: name, Endpoint: endpoint})
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func nodeID(t *testing.T, d *Driver) string {
	t.Helper()
	reply, err := d.Node().NodeGetInfo(t.Context(), &csi.NodeGetInfoRequest{})
	if err != nil {
		t.Fatalf("NodeGetInfo: %v", err)
	}
	return reply.GetNodeId()
}

func TestRegistry(t *testing.T) {
	r := newRegistry(t, Config{})
	if _, err := r.Get(name); !errors.Is(err, ErrNotRegistered) || !strings.Contains(err.Error(), name) {
		t.Errorf("Get before Add: %v, want ErrNotRegistered with the name", err)
	}
	if _, err := r.Last(name); !errors.Is(err, ErrNotRegistered) {
		t.Errorf("Last before Add: %v", err)
	}
	endpoint := csitest.New(csitest.Options{Name: name, NodeID: "n1"}).Serve(t)
	d := connect(t, r, endpoint)
	if _, err := r.Get(name); err == nil {
		t.Error("Get knows a driver that was not added")
	}
	if got := nodeID(t, d); got != "n1" {
		t.Errorf("node ID before Add: %q", got)
	}
	r.Add(d)
	if got, err := r.Get(name); got != d || err != nil {
		t.Errorf("Get: %v, %v", got, err)
	}
	if diff := cmp.Diff([]string{name}, r.Names()); diff != "" {
		t.Errorf("Names, -want +got:\n%s", diff)
	}
	if d.Name() != name || d.RequiresPublishPod() {
		t.Errorf("driver is %q, pod %v", d.Name(), d.RequiresPublishPod())
	}
	r.Remove(name)
	r.Remove(name)
	if _, err := r.Get(name); !errors.Is(err, ErrNotRegistered) {
		t.Errorf("Get after Remove: %v", err)
	}
	last, err := r.Last(name)
	if err != nil {
		t.Fatalf("Last after Remove: %v; what is mounted could not be unmounted", err)
	}
	if got := nodeID(t, last); got != "n1" {
		t.Errorf("node ID after Remove: %q", got)
	}
}

func TestChanged(t *testing.T) {
	r := newRegistry(t, Config{})
	d := connect(t, r, "/csi.sock")
	steps := []struct {
		what  string
		do    func()
		wakes bool
	}{
		{"add", func() { r.Add(d) }, true},
		{"look", func() { _, _ = r.Get(name) }, false},
		{"remove", func() { r.Remove(name) }, true},
		{"remove what is not there", func() { r.Remove(name) }, false},
	}
	for _, s := range steps {
		changed := r.Changed()
		s.do()
		select {
		case <-changed:
			if !s.wakes {
				t.Errorf("%s: woke the waiters", s.what)
			}
		default:
			if s.wakes {
				t.Errorf("%s: did not wake the waiters", s.what)
			}
		}
	}
}

// A call that runs on the old connection must end by the driver's answer, not
// because somebody registered again: its outcome would be unknown.
func TestReplacedDriverFinishesItsCalls(t *testing.T) {
	former, next := csitest.New(csitest.Options{NodeID: "old"}), csitest.New(csitest.Options{NodeID: "new"})
	entered, leave := make(chan struct{}), make(chan struct{})
	slow := &conn{ClientConnInterface: former.Conn(), during: func() { close(entered); <-leave }}
	r := newRegistry(t, Config{Dial: func(endpoint string) (grpc.ClientConnInterface, error) {
		if endpoint == "/old.sock" {
			return slow, nil
		}
		return next.Conn(), nil
	}})
	first := connect(t, r, "/old.sock")
	r.Add(first)
	result := make(chan error, 1)
	go func() {
		_, err := first.Node().NodeGetInfo(t.Context(), &csi.NodeGetInfoRequest{})
		result <- err
	}()
	<-entered
	r.Add(connect(t, r, "/new.sock"))
	if first.link.isClosed() {
		t.Error("the old connection was closed under a running call")
	}
	close(leave)
	if err := <-result; err != nil {
		t.Errorf("the running call: %v", err)
	}
	if first.link.count() != 0 || !first.link.isClosed() {
		t.Error("the old connection was not closed after its last call")
	}
	d, err := r.Get(name)
	if err != nil {
		t.Fatal(err)
	}
	if got := nodeID(t, d); got != "new" {
		t.Errorf("node ID: %q", got)
	}
}

func TestSameEndpointKeepsTheConnection(t *testing.T) {
	r := newRegistry(t, Config{})
	endpoint := csitest.New(csitest.Options{}).Serve(t)
	first := connect(t, r, endpoint)
	r.Add(first)
	second, err := r.Connect(Spec{Name: name, Endpoint: endpoint, RequiresPublishPod: true})
	if err != nil {
		t.Fatal(err)
	}
	if second.link != first.link {
		t.Error("a second connection was made to the same socket")
	}
	r.Add(second)
	if d, err := r.Get(name); err != nil || !d.RequiresPublishPod() {
		t.Errorf("the new registration does not count: %v, %v", d, err)
	}
	if first.link.count() != 1 {
		t.Errorf("%d users of the connection, want 1", first.link.count())
	}
	third := connect(t, r, endpoint)
	third.Close() // not added
	if got := nodeID(t, second); got == "" || first.link.isClosed() {
		t.Error("closing a driver that was not added closed the connection of the registered one")
	}
}

func TestNodeCapabilitiesAreReadOncePerConnection(t *testing.T) {
	path := filepath.Join(t.TempDir(), "csi.sock")
	stage, expand := csi.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME, csi.NodeServiceCapability_RPC_EXPAND_VOLUME
	before := csitest.New(csitest.Options{})
	before.SetNode(stage)
	before.Inject(csitest.Fault{Method: "NodeGetCapabilities", Code: codes.Internal, Times: 1})
	stop := before.ServeAt(t, path)
	r := newRegistry(t, Config{})
	d := connect(t, r, path)
	r.Add(d)
	if _, err := d.NodeCapabilities(t.Context()); status.Code(err) != codes.Internal || !strings.Contains(err.Error(), name) {
		t.Errorf("an error of the driver: %v", err)
	}
	for range 3 {
		caps, err := d.NodeCapabilities(t.Context())
		if diff := cmp.Diff(Capabilities{stage: true}, caps); err != nil || diff != "" {
			t.Errorf("capabilities: %v, -want +got:\n%s", err, diff)
		}
	}
	if got := len(before.Calls()); got != 2 {
		t.Errorf("%d calls, want 2: an error is not remembered, an answer is", got)
	}

	stop()
	after := csitest.New(csitest.Options{})
	after.SetNode(stage, expand)
	after.ServeAt(t, path)
	// The driver was updated; whatever call comes first makes the new connection.
	waitForLoss(t, d)
	for range 3 {
		caps, err := d.NodeCapabilities(t.Context())
		if diff := cmp.Diff(Capabilities{stage: true, expand: true}, caps); err != nil || diff != "" {
			t.Errorf("capabilities after the restart: %v, -want +got:\n%s", err, diff)
		}
	}
	if got := len(after.Calls()); got != 1 {
		t.Errorf("%d calls after the restart, want 1: the call that makes the connection is remembered", got)
	}
}

// waitForLoss waits until the connection to a driver is lost.
func waitForLoss(t *testing.T, d *Driver) {
	t.Helper()
	for deadline := time.Now().Add(3 * time.Minute); d.link.connected(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("waited 3 minutes for the loss of the connection")
		}
	}
}

func TestMetrics(t *testing.T) {
	reg := prometheus.NewRegistry()
	r := newRegistry(t, Config{Registerer: reg})
	driver := csitest.New(csitest.Options{})
	driver.Inject(csitest.Fault{Method: "NodeGetInfo", Code: codes.NotFound, Times: 1})
	d, err := r.Connect(Spec{Name: name, Endpoint: driver.Serve(t)})
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	for range 3 {
		_, _ = d.Node().NodeGetInfo(t.Context(), &csi.NodeGetInfoRequest{})
	}
	count := func(code string) int {
		families, err := reg.Gather()
		if err != nil || len(families) != 1 || families[0].GetName() != "csi_operations_seconds" {
			t.Fatalf("metrics: %v, %v", families, err)
		}
		for _, m := range families[0].GetMetric() {
			labels := map[string]string{}
			for _, l := range m.GetLabel() {
				labels[l.GetName()] = l.GetValue()
			}
			if labels["driver_name"] == name && labels["migrated"] == "false" && labels["method_name"] == "/csi.v1.Node/NodeGetInfo" && labels["grpc_status_code"] == code {
				return int(m.GetHistogram().GetSampleCount())
			}
		}
		return 0
	}
	if count("OK") != 2 || count("NotFound") != 1 {
		t.Errorf("calls measured: %d OK, %d NotFound, want 2 and 1", count("OK"), count("NotFound"))
	}
	if problems, err := testutil.GatherAndLint(reg); err != nil || len(problems) > 0 {
		t.Errorf("lint: %v, %v", problems, err)
	}
	NewRegistry(Config{Registerer: reg}).Close() // a second agent on one registry shares the metric
}

func TestConnectRefuses(t *testing.T) {
	cases := map[string]struct {
		reason   string
		endpoint string
	}{
		"Empty":    {reason: "there is no default", endpoint: ""},
		"Relative": {reason: "it would depend on where this process runs", endpoint: "csi.sock"},
		"Scheme":   {reason: "drivers on a node listen on unix sockets", endpoint: "tcp://127.0.0.1:1"},
	}
	for caseName, tc := range cases {
		t.Run(caseName, func(t *testing.T) {
			r := newRegistry(t, Config{})
			if _, err := r.Connect(Spec{Name: name, Endpoint: tc.endpoint}); err == nil || !strings.Contains(err.Error(), name) {
				t.Errorf("%s: got %v, want an error that names the driver", tc.reason, err)
			}
		})
	}
}

func TestDriverInTheSameProcess(t *testing.T) {
	inside := csitest.New(csitest.Options{NodeID: "n1"})
	r := newRegistry(t, Config{Dial: func(string) (grpc.ClientConnInterface, error) { return inside.Conn(), nil }})
	d := connect(t, r, "/csi.sock")
	r.Add(d)
	if got := nodeID(t, d); got != "n1" {
		t.Errorf("node ID: %q", got)
	}
	for range 2 {
		if _, err := d.NodeCapabilities(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if got := len(inside.Calls()); got != 2 {
		t.Errorf("%d calls, want 2", got)
	}
}

func TestCloseTwice(t *testing.T) {
	r := NewRegistry(Config{})
	d := connect(t, r, "/csi.sock")
	r.Add(d)
	r.Close()
	r.Close()
	if !d.link.isClosed() {
		t.Error("the connection is open after Close")
	}
	late := connect(t, r, "/csi.sock")
	r.Add(late)
	if !late.link.isClosed() {
		t.Error("a driver that was added after Close keeps its connection")
	}
}
