package sidecar_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"

	"github.com/longshore-csi/longshore/csikit/component"
	"github.com/longshore-csi/longshore/csikit/csiclient"
	"github.com/longshore-csi/longshore/csikit/sidecar"
	"github.com/longshore-csi/longshore/csikittest/csitest"
	"github.com/longshore-csi/longshore/csikittest/kubetest"
	"github.com/longshore-csi/longshore/csikittest/sidecartest"
)

const lease = "example-test-csi-longshore-example"

var (
	errPublish  = errors.New("driver does not announce PUBLISH_UNPUBLISH_VOLUME")
	errUnsynced = errors.New("waiting for the first list of Thing")
	errBroken   = errors.New("broken")
)

// features are what the component of these tests needs of a driver.
type features struct{ Publish bool }

func featuresOf(info *csiclient.Info) features {
	return features{info.Controller[csi.ControllerServiceCapability_RPC_PUBLISH_UNPUBLISH_VOLUME]}
}

// example makes controllers that do nothing, and notes what happens to them.
type example struct {
	// state is what the controllers show, synced why they are not ready, and fails why Run ends at once.
	state         any
	synced, fails error
	// atEnd is called when Run is to end. nil: nothing.
	atEnd func(sidecar.Environment)
	// replace ends Run with ErrReplace, for each value. changed is what Work.DriverChanged returns.
	replace chan struct{}
	changed error

	mu     sync.Mutex
	events []string
}

func (c *example) note(event string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.events = append(c.events, event)
}

// count returns how often something has happened.
func (c *example) count(event string) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(slices.DeleteFunc(slices.Clone(c.events), func(e string) bool { return e != event }))
}

// happened returns a condition: something has happened so many times.
func (c *example) happened(event string, times int) func() bool {
	return func() bool { return c.count(event) >= times }
}

// controller is one of a component's controllers.
type controller struct {
	*example
	env sidecar.Environment
}

func (c controller) Run(ctx context.Context) error {
	c.note("run")
	defer c.note("ran")
	if c.fails != nil {
		return c.fails
	}
	select {
	case <-ctx.Done():
	case <-c.replace:
		return fmt.Errorf("other objects: %w", component.ErrReplace)
	}
	if c.atEnd != nil {
		c.atEnd(c.env)
	}
	return nil
}

// Prepare implements component.Preparer.
func (c controller) Prepare(context.Context) (stop func()) {
	c.note("prepare")
	return func() { c.note("unprepare") }
}

func (c controller) Synced() error                 { return c.synced }
func (c controller) DriverChanged(context.Context) { c.note("changed") }
func (c controller) State() any                    { return c.state }

// config returns a configuration for the driver at the socket, with an API server in memory.
func (c *example) config(t *testing.T, socket string, args ...string) (sidecar.Config, *kubetest.Cluster) {
	t.Helper()
	cluster := kubetest.New()
	o := parse(t, args...)
	o.CSI.Address = socket
	return sidecar.Config{
		Name: "csi-example", Options: o, Warnings: o.Warnings(),
		CSI:            csiclient.Config{Services: csiclient.ControllerService},
		EventComponent: func(driver string) string { return "example " + driver },
		LeaseName:      func(driver string) string { return "example-" + strings.ReplaceAll(driver, ".", "-") },
		StateKey:       "things",
		Features:       func(info *csiclient.Info) any { return featuresOf(info) },
		CheckName:      "publish", CheckMessage: "Nothing can be published",
		New: func(_ context.Context, env sidecar.Environment) (sidecar.Work, error) {
			c.note("new")
			check := func() error {
				if featuresOf(env.CSI.Info()).Publish {
					return nil
				}
				return errPublish
			}
			changed := func(context.Context, *csiclient.Info) error { return c.changed }
			return sidecar.Work{Check: check, DriverChanged: changed, NewController: func() sidecar.Controller { return controller{c, env} }}, nil
		},
		Client: cluster.Client(), Host: "host-1",
	}, cluster
}

// start runs the component beside the driver at the socket.
func (c *example) start(t *testing.T, socket string, args ...string) (*sidecartest.Running, *kubetest.Cluster) {
	t.Helper()
	config, cluster := c.config(t, socket, args...)
	return sidecartest.Start(t, config), cluster
}

func newSocket(t *testing.T) string {
	t.Helper()
	return filepath.Join(t.TempDir(), "s")
}

// mute returns a driver that announces nothing.
func mute() *csitest.Driver {
	return csitest.New(csitest.Options{Controller: []csi.ControllerServiceCapability_RPC_Type{}})
}

// serves returns a condition: a path has an answer with this code and this part.
func serves(r *sidecartest.Running, path string, code int, part string) func() bool {
	return func() bool {
		got, body := r.Get(path)
		return got == code && strings.Contains(body, part)
	}
}

func TestHTTP(t *testing.T) {
	socket := newSocket(t)
	stopDriver := csitest.New(csitest.Options{}).ServeAt(t, socket)
	c := &example{state: map[string]string{"answer": "42"}}
	r, _ := c.start(t, socket, "--leader-election", "--leader-election-namespace=ns", "--http-endpoint=:0", "--enable-pprof")
	r.Eventually("lead", c.happened("run", 1))
	for path, parts := range map[string][]string{
		"/metrics": {
			`csi_sidecar_operations_seconds_count{driver_name="test.csi.longshore.example",grpc_status_code="OK",method_name="/csi.v1.Identity/GetPluginCapabilities"} 1`,
			`csi_sidecar_events_dropped_total 0`, `leader_election_master_status{name="` + lease + `"} 1`, `process_start_time_seconds`,
		},
		"/healthz": {"ok"}, "/livez": {"ok"}, "/healthz/leader-election": {"ok"}, "/debug/pprof/": {"goroutine"},
		"/readyz?verbose": {"[+]driver ok", "[+]informer-sync ok", "[+]publish ok"},
		"/debug/state":    {"{\n  \"version\": \"", "\",\n  \"leading\": true,\n  \"leader\": {\n    \"identity\": \"host-1\",\n    \"since\": \"20", "\"\n  },\n  \"things\": {\n    \"answer\": \"42\"\n  }\n}"},
	} {
		code, body := r.Get(path)
		if code != http.StatusOK {
			t.Errorf("GET %s: %d %s", path, code, body)
		}
		for _, part := range parts {
			if !strings.Contains(body, part) {
				t.Errorf("GET %s lacks %s in:\n%s", path, part, body)
			}
		}
	}
	stopDriver()
	if code, body := r.Get("/readyz"); code == http.StatusOK || !strings.Contains(body, "[-]driver failed") {
		t.Errorf("without a driver: %d %s", code, body)
	}
	r.Stop()
}

// TestNotSynced has a controller that waits for its caches, and no state to show yet.
func TestNotSynced(t *testing.T) {
	socket := newSocket(t)
	csitest.New(csitest.Options{}).ServeAt(t, socket)
	c := &example{synced: errUnsynced}
	r, _ := c.start(t, socket)
	r.Eventually("report the caches", serves(r, "/readyz", http.StatusInternalServerError, "[-]informer-sync failed: "+errUnsynced.Error()))
	if code, body := r.Get("/readyz?exclude=informer-sync"); code != http.StatusOK {
		t.Errorf("with a driver that is ready: %d %s", code, body)
	}
	if _, body := r.Get("/debug/state"); strings.Contains(body, "things") {
		t.Errorf("without a state, /debug/state is %s", body)
	}
	r.Stop()
}

// TestDriverComesBack restarts a driver: its capabilities are read again, and the controller is notified.
func TestDriverComesBack(t *testing.T) {
	socket := newSocket(t)
	stopDriver := mute().ServeAt(t, socket)
	c := &example{}
	r, _ := c.start(t, socket)
	r.Eventually("report the missing capability", serves(r, "/readyz", http.StatusInternalServerError, "[-]publish failed: "+errPublish.Error()))
	stopDriver()
	csitest.New(csitest.Options{}).ServeAt(t, socket)
	r.Eventually("notify the controller", c.happened("changed", 1))
	r.Eventually("be ready", serves(r, "/readyz", http.StatusOK, ""))
	for _, part := range []string{
		`"Read capabilities of the driver" logger="csi-example" driver="test.csi.longshore.example" capabilities={"Publish":false}`,
		`"Nothing can be published" err="` + errPublish.Error(), `capabilities={"Publish":true}`,
	} {
		if !strings.Contains(r.Log(), part) {
			t.Errorf("the log lacks %s:\n%s", part, r.Log())
		}
	}
	r.Stop()
	if made := c.count("new"); made != 1 {
		t.Errorf("New was called %d times, want 1", made)
	}
}

// TestAway has the driver of one of two instances go: its work ends, and it writes nothing until the driver is back, as the external sidecars, which exit then. The other
// instance takes over at once; the first takes no part in an election before its driver is back.
func TestAway(t *testing.T) {
	sockets := []string{newSocket(t), newSocket(t)}
	stopDriver := csitest.New(csitest.Options{}).ServeAt(t, sockets[0])
	csitest.New(csitest.Options{}).ServeAt(t, sockets[1])
	args := []string{"--leader-election", "--leader-election-namespace=ns"}
	first, second := &example{}, &example{}
	r, cluster := first.start(t, sockets[0], args...)
	r.Eventually("lead", first.happened("run", 1))
	config, _ := second.config(t, sockets[1], args...)
	config.Client, config.Host = cluster.Client(), "host-2"
	standby := sidecartest.Start(t, config)
	standby.Eventually("prepare", second.happened("prepare", 1))
	stopDriver()
	standby.Eventually("lead", second.happened("run", 1))
	for path, want := range map[string]string{
		"/debug/state":             `"leading": false`,
		"/readyz":                  "[-]driver failed",
		"/metrics":                 `leader_election_master_status{name="` + lease + `"} 0`,
		"/healthz/leader-election": "ok",
	} {
		if _, body := r.Get(path); !strings.Contains(body, want) {
			t.Errorf("while its driver is away, GET %s lacks %s in:\n%s", path, want, body)
		}
	}
	standby.Stop() // the Lease is free
	time.Sleep(500 * time.Millisecond)
	if run := first.count("run"); run != 1 {
		t.Errorf("%d controllers were run beside a driver that is away, want only the one from before", run)
	}
	csitest.New(csitest.Options{}).ServeAt(t, sockets[0])
	r.Eventually("lead again", first.happened("run", 2))
	r.Stop()
	if first.count("ran") != 2 || first.count("new") != 1 {
		t.Errorf("%d controllers ended and New was called %d times, want 2 and 1", first.count("ran"), first.count("new"))
	}
}

// TestAwayForLong has the driver of the only instance go, with an election and without: the API server is not written to until it is back, but for the release of the Lease.
func TestAwayForLong(t *testing.T) {
	for name, tt := range map[string]struct {
		args []string
		most int
	}{
		"Alone": {nil, 0},
		"Elected": { // a renewal may come before
			[]string{"--leader-election", "--leader-election-namespace=ns", "--leader-election-lease-duration=2s", "--leader-election-renew-deadline=1s", "--leader-election-retry-period=100ms"}, 2,
		},
	} {
		t.Run(name, func(t *testing.T) {
			socket, c := newSocket(t), &example{}
			stopDriver := csitest.New(csitest.Options{}).ServeAt(t, socket)
			r, cluster := c.start(t, socket, tt.args...)
			r.Eventually("run", c.happened("run", 1))
			cluster.ResetWrites()
			stopDriver()
			r.Eventually("stop", c.happened("ran", 1))
			time.Sleep(time.Second) // ten pauses of the election
			if writes := cluster.Writes(); len(writes) > tt.most {
				t.Errorf("%d writes while the driver was away, want at most %d: %+v", len(writes), tt.most, writes)
			}
			if run := c.count("run"); run != 1 {
				t.Errorf("%d controllers were run, want 1", run)
			}
			csitest.New(csitest.Options{}).ServeAt(t, socket)
			r.Eventually("run again", c.happened("run", 2))
			r.Stop()
		})
	}
}

// TestServesWithoutDriver has a component without an election, such as one that serves requests of others: it goes on while the driver is away.
func TestServesWithoutDriver(t *testing.T) {
	socket, c := newSocket(t), &example{}
	stopDriver := csitest.New(csitest.Options{}).ServeAt(t, socket)
	config, _ := c.config(t, socket)
	config.LeaseName = nil
	r := sidecartest.Start(t, config)
	r.Eventually("run", c.happened("run", 1))
	stopDriver()
	csitest.New(csitest.Options{}).ServeAt(t, socket)
	r.Eventually("notify the controller", c.happened("changed", 1))
	if run, ran := c.count("run"), c.count("ran"); run != 1 || ran != 0 {
		t.Errorf("%d controllers were run and %d ended, want 1 and 0", run, ran)
	}
	r.Stop()
}

// TestCapabilitiesAreReadAgain has a driver that announces nothing while it starts, over one connection.
func TestCapabilitiesAreReadAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		driver, c := mute(), &example{}
		config, _ := c.config(t, "/no/socket")
		config.CSI.Conn = driver.Conn()
		ctx, stop := context.WithCancel(klog.NewContext(t.Context(), klog.Logger{}))
		ended := make(chan error, 1)
		go func() { ended <- sidecar.Run(ctx, config) }()
		time.Sleep(time.Minute)
		if got := c.count("changed"); got != 0 {
			t.Errorf("the controller was notified of %d changes while there was none", got)
		}
		driver.SetController(csitest.AllController()...)
		time.Sleep(6 * time.Second)
		if got := c.count("changed"); got != 1 {
			t.Errorf("the controller was notified of %d changes within 6 s, want 1", got)
		}
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

func TestConnectionLoss(t *testing.T) {
	tests := map[string]struct {
		reason string
		args   []string
		next   *csitest.Driver // nil: none comes back
		want   error
	}{
		"ExitOnLoss":    {reason: "the behaviour of old, if asked for", args: []string{"--exit-on-connection-loss"}, want: csiclient.ErrConnectionLost},
		"AnotherDriver": {reason: "the name is in the Lease, so it must not change", next: csitest.New(csitest.Options{Name: "other.example"}), want: sidecar.ErrDriverChanged},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			socket := newSocket(t)
			stopDriver := csitest.New(csitest.Options{}).ServeAt(t, socket)
			c := &example{}
			r, _ := c.start(t, socket, tt.args...)
			r.Eventually("run", c.happened("run", 1))
			stopDriver()
			if tt.next != nil {
				tt.next.ServeAt(t, socket)
			}
			if err := r.Wait(); !errors.Is(err, tt.want) {
				t.Errorf("%s: ended in %v, want %v", tt.reason, err, tt.want)
			}
		})
	}
}

// TestElectedAgain takes the Lease from the leader. The same process is elected again, with another controller.
func TestElectedAgain(t *testing.T) {
	socket := newSocket(t)
	csitest.New(csitest.Options{}).ServeAt(t, socket)
	c := &example{}
	r, cluster := c.start(t, socket, "--leader-election", "--leader-election-namespace=ns",
		"--leader-election-lease-duration=2s", "--leader-election-renew-deadline=1s", "--leader-election-retry-period=100ms")
	r.Eventually("lead", c.happened("run", 1))
	if err := cluster.Merge("leases", "ns", lease, []byte(`{"spec":{"holderIdentity":"thief","leaseDurationSeconds":3600}}`)); err != nil {
		t.Fatal(err)
	}
	status := func(want string) func() bool {
		return serves(r, "/metrics", http.StatusOK, `leader_election_master_status{name="`+lease+`"} `+want)
	}
	r.Eventually("notice the loss", status("0"))
	if code, body := r.Get("/healthz/leader-election"); code != http.StatusOK {
		t.Errorf("an instance that waits is healthy, got %d: %s", code, body)
	}
	if err := cluster.Merge("leases", "ns", lease, []byte(`{"spec":{"holderIdentity":""}}`)); err != nil {
		t.Fatal(err)
	}
	r.Eventually("lead again", status("1"))
	r.Eventually("run another controller", c.happened("run", 2))
	r.Eventually("show it", serves(r, "/debug/state", http.StatusOK, `"leading": true`))
	r.Eventually("show who leads", serves(r, "/debug/state", http.StatusOK, `"identity": "host-1"`))
	r.Stop()
	if got := c.count("new"); got != 1 {
		t.Errorf("New was called %d times, want 1", got)
	}
}

// TestPrepares has the controller of a standby prepare itself, once for each election that it waits for.
func TestPrepares(t *testing.T) {
	socket := newSocket(t)
	csitest.New(csitest.Options{}).ServeAt(t, socket)
	first, second := &example{}, &example{}
	r, cluster := first.start(t, socket, "--leader-election", "--leader-election-namespace=ns")
	r.Eventually("lead", first.happened("run", 1))
	config, _ := second.config(t, socket, "--leader-election", "--leader-election-namespace=ns", "--leader-election-lease-duration=2s",
		"--leader-election-renew-deadline=1s", "--leader-election-retry-period=100ms")
	config.Client, config.Host = cluster.Client(), "host-2"
	standby := sidecartest.Start(t, config)
	standby.Eventually("prepare", second.happened("prepare", 1))
	if run := second.count("run"); run != 0 {
		t.Errorf("Run of a standby was called %d times", run)
	}
	r.Stop()
	standby.Eventually("lead", second.happened("run", 1))
	if err := cluster.Merge("leases", "ns", lease, []byte(`{"spec":{"holderIdentity":"thief","leaseDurationSeconds":3600}}`)); err != nil {
		t.Fatal(err)
	}
	standby.Eventually("prepare again", second.happened("prepare", 2))
	standby.Stop()
	if first.count("prepare") != 1 || second.count("prepare") != 2 || second.count("unprepare") < 2 {
		t.Errorf("the first prepared %d times, the second %d times and ended that %d times", first.count("prepare"), second.count("prepare"), second.count("unprepare"))
	}
	leaders := 0
	for _, object := range cluster.Objects("events") {
		if event, ok := object.(*corev1.Event); ok && event.Reason == "LeaderElection" && event.InvolvedObject.Kind == "Lease" {
			leaders++
		}
	}
	if leaders != 2 {
		t.Errorf("%d events LeaderElection of a Lease, want one for each leader", leaders)
	}
}

// TestReplaced has a controller end because what it was made for has changed: another one goes on, under the same Lease.
func TestReplaced(t *testing.T) {
	for _, args := range [][]string{nil, {"--leader-election", "--leader-election-namespace=ns"}} {
		socket := newSocket(t)
		csitest.New(csitest.Options{}).ServeAt(t, socket)
		c := &example{replace: make(chan struct{})}
		r, cluster := c.start(t, socket, args...)
		for n := range 3 {
			r.Eventually("run", c.happened("run", n+1))
			c.replace <- struct{}{}
		}
		r.Eventually("run the last", c.happened("run", 4))
		for _, object := range cluster.Objects("leases") {
			if got := object.(*coordinationv1.Lease).Spec.LeaseTransitions; got != nil && *got != 0 {
				t.Errorf("%d changes of the leader, want none", *got)
			}
		}
		r.Stop()
		if made := c.count("new"); made != 1 {
			t.Errorf("New was called %d times, want 1", made)
		}
	}
}

// TestChangeRefused has a driver come back as one that the component cannot work with.
func TestChangeRefused(t *testing.T) {
	socket := newSocket(t)
	stopDriver := csitest.New(csitest.Options{}).ServeAt(t, socket)
	c := &example{changed: errBroken}
	r, _ := c.start(t, socket)
	r.Eventually("run", c.happened("run", 1))
	stopDriver()
	csitest.New(csitest.Options{}).ServeAt(t, socket)
	if err := r.Wait(); !errors.Is(err, errBroken) || c.count("changed") != 0 {
		t.Errorf("ended in %v after %d notifications of the controller, want %v and none", err, c.count("changed"), errBroken)
	}
}

// TestNewFails ends the component with the error of New.
func TestNewFails(t *testing.T) {
	socket := newSocket(t)
	csitest.New(csitest.Options{}).ServeAt(t, socket)
	config, _ := (&example{}).config(t, socket)
	config.New = func(context.Context, sidecar.Environment) (sidecar.Work, error) { return sidecar.Work{}, errBroken }
	if err := sidecar.Run(klog.NewContext(t.Context(), klog.Logger{}), config); !errors.Is(err, errBroken) {
		t.Errorf("ended in %v, want %v", err, errBroken)
	}
}

// TestOrderOfTheEnd records an event when the last operation ends: it is written, and metrics are served until then.
func TestOrderOfTheEnd(t *testing.T) {
	socket := newSocket(t)
	csitest.New(csitest.Options{}).ServeAt(t, socket)
	var r *sidecartest.Running
	c := &example{atEnd: func(env sidecar.Environment) {
		env.Events.Normal(&corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "pv"}}, "Ended", "the last operation")
		if code, _ := r.Get("/metrics"); code != http.StatusOK {
			t.Errorf("/metrics: %d when the last operation ends", code)
		}
	}}
	r, cluster := c.start(t, socket)
	r.Eventually("run", c.happened("run", 1))
	r.Stop()
	events := cluster.Objects("events")
	if len(events) != 1 {
		t.Fatalf("%d events, want 1", len(events))
	}
	if event, ok := events[0].(*corev1.Event); !ok || event.Source.Component != "example test.csi.longshore.example" || event.Source.Host != "host-1" {
		t.Errorf("event is %+v", events[0])
	}
}

// TestControllerFails ends the component when its controller does.
func TestControllerFails(t *testing.T) {
	socket := newSocket(t)
	csitest.New(csitest.Options{}).ServeAt(t, socket)
	config, _ := (&example{fails: errBroken}).config(t, socket)
	if err := sidecar.Run(klog.NewContext(t.Context(), klog.Logger{}), config); !errors.Is(err, errBroken) {
		t.Errorf("ended in %v, want %v", err, errBroken)
	}
}

func TestStopWhileWaiting(t *testing.T) {
	r, _ := (&example{}).start(t, newSocket(t))
	if code, body := r.Get("/livez"); code != http.StatusOK {
		t.Errorf("/livez: %d %s", code, body)
	}
	r.Stop()
}

// TestWithKubeconfig connects as the options say, to an API server that is away: it warns, serves and waits for the driver.
func TestWithKubeconfig(t *testing.T) {
	path := filepath.Join(t.TempDir(), "kubeconfig")
	kubeconfig := "apiVersion: v1\nkind: Config\nclusters: [{name: c, cluster: {server: 'http://127.0.0.1:1'}}]\n" +
		"contexts: [{name: x, context: {cluster: c}}]\ncurrent-context: x\n"
	if err := os.WriteFile(path, []byte(kubeconfig), 0o600); err != nil {
		t.Fatal(err)
	}
	socket, driver, c := newSocket(t), csitest.New(csitest.Options{}), &example{}
	driver.ServeAt(t, socket)
	config, _ := c.config(t, socket, "--kubeconfig="+path, "--automaxprocs")
	config.Client = nil
	var reached string
	config.Connected = func(cfg *rest.Config) error {
		reached = cfg.Host
		return nil
	}
	r := sidecartest.Start(t, config)
	r.Eventually("run", c.happened("run", 1))
	if reached != "http://127.0.0.1:1" {
		t.Errorf("Connected was called for %q", reached)
	}
	if !strings.Contains(r.Log(), "--automaxprocs has no effect") {
		t.Error("no warning about a flag without effect")
	}
	driver.SetReady(false)
	if code, body := r.Get("/readyz"); code == http.StatusOK || !strings.Contains(body, "not ready yet") {
		t.Errorf("with a driver that is not ready: %d %s", code, body)
	}
	if code, body := r.Get("/livez"); code != http.StatusOK {
		t.Errorf("a restart would not help: %d %s", code, body)
	}
	r.Stop()
}

func TestRunErrors(t *testing.T) {
	t.Setenv("KUBECONFIG", "")
	t.Setenv("KUBERNETES_SERVICE_HOST", "")
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = listener.Close() }()
	busy := listener.Addr().String()
	tests := map[string]struct {
		reason   string
		args     []string
		inMemory bool
		want     string
	}{
		"NoCluster":  {reason: "no way to the API server", want: "neither --kubeconfig nor $KUBECONFIG is set"},
		"Kubeconfig": {reason: "a file that is not there", args: []string{"--kubeconfig=/no/such/file"}, want: "/no/such/file"},
		"Busy":       {reason: "the address is in use", args: []string{"--http-endpoint=" + busy}, inMemory: true, want: busy},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			config, _ := (&example{}).config(t, newSocket(t), tt.args...)
			if !tt.inMemory {
				config.Client = nil
			}
			if err := sidecar.Run(t.Context(), config); err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("%s: got %v, want %q in it", tt.reason, err, tt.want)
			}
		})
	}
}
