package registrar

import (
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/testing/protocmp"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"github.com/longshore-csi/longshore/csikit/csiregistration"
	"github.com/longshore-csi/longshore/csikittest/csitest"
)

const driverName = "test.csi.example"

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// withDriver starts a driver, and a registrar next to it.
func withDriver(t *testing.T, change func(*Options)) *running {
	t.Helper()
	address := csitest.New(csitest.Options{Name: driverName}).Serve(t)
	return start(t, func(o *Options) {
		o.CSI.Address = address
		if change != nil {
			change(o)
		}
	})
}

func TestRun(t *testing.T) {
	cases := map[string]struct {
		reason  string
		change  func(*Options)
		info    *registerapi.PluginInfo
		options *csiregistration.CSIDriverInfo
	}{
		"Defaults": {
			reason: "without --kubelet-registration-path the kubelet is sent to the usual place of the driver",
			info: &registerapi.PluginInfo{
				Type: "CSIPlugin", Name: driverName, Endpoint: "/var/lib/kubelet/plugins/test.csi.example/csi.sock",
				SupportedVersions: []string{"1.0.0"},
			},
			options: &csiregistration.CSIDriverInfo{
				CsiEndpoint: "/var/lib/kubelet/plugins/test.csi.example/csi.sock", Options: &csiregistration.CSIDriverOptions{},
			},
		},
		"AllFlags": {
			reason: "the path and the wish for pod information are handed on",
			change: func(o *Options) {
				o.KubeletRegistrationPath, o.RequiresPublishPod = "unix:///kubelet/plugins/d/csi.sock", true
			},
			info: &registerapi.PluginInfo{
				Type: "CSIPlugin", Name: driverName, Endpoint: "/kubelet/plugins/d/csi.sock", SupportedVersions: []string{"1.0.0"},
			},
			options: &csiregistration.CSIDriverInfo{
				CsiEndpoint: "/kubelet/plugins/d/csi.sock", Options: &csiregistration.CSIDriverOptions{RequiresPublishPod: true},
			},
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			r := withDriver(t, tc.change)
			k := findSocket(t, r.socket(driverName))
			if mode := k.file.Mode().Perm(); mode != 0o600 {
				t.Errorf("mode of the socket: got %v, want -rw-------", mode)
			}
			info, err := k.GetInfo(t.Context(), &registerapi.InfoRequest{})
			if diff := cmp.Diff(tc.info, info, protocmp.Transform()); err != nil || diff != "" {
				t.Errorf("%s: GetInfo: %v, -want +got:\n%s", tc.reason, err, diff)
			}
			options, err := csiregistration.NewCSIRegistrationClient(k.conn).GetCSIDriverInfo(t.Context(), &csiregistration.CSIDriverInfoRequest{})
			if diff := cmp.Diff(tc.options, options, protocmp.Transform()); err != nil || diff != "" {
				t.Errorf("%s: GetCSIDriverInfo: %v, -want +got:\n%s", tc.reason, err, diff)
			}
		})
	}
}

func TestHealthFollowsTheRegistration(t *testing.T) {
	r := withDriver(t, nil)
	k := findSocket(t, r.socket(driverName))
	eventually(t, "healthy while the kubelet has not decided", func() bool {
		health, _ := r.get(t, "/healthz")
		ready, _ := r.get(t, "/readyz")
		return health == 200 && ready != 200
	})
	k.decide(t, true, "")
	eventually(t, "ready once registered", func() bool {
		health, _ := r.get(t, "/healthz")
		ready, _ := r.get(t, "/readyz")
		return health == 200 && ready == 200
	})
	_, metrics := r.get(t, "/metrics")
	for _, want := range []string{
		`csi_registration_status{state="registered"} 1`,
		`csi_registration_status{state="rejected"} 0`,
		`csi_registration_attempts_total{result="registered"} 1`,
		"process_start_time_seconds",
	} {
		if !strings.Contains(metrics, want) {
			t.Errorf("metrics lack %q", want)
		}
	}
	if _, state := r.get(t, "/debug/state"); !strings.Contains(state, `"phase": "registered"`) && !strings.Contains(state, `"phase":"registered"`) {
		t.Errorf("/debug/state: got %s", state)
	}
}

// A driver with an invalid name was a driver that is waited for: the reason was in the log only.
func TestReasonForWaitingIsInHealthz(t *testing.T) {
	address := csitest.New(csitest.Options{Name: "not_valid"}).Serve(t)
	r := start(t, func(o *Options) { o.CSI.Address = address })
	eventually(t, "the invalid name on /healthz", func() bool {
		code, body := r.get(t, "/healthz")
		return code == 500 && strings.Contains(body, `waiting for driver: CSI driver name "not_valid"`)
	})
}

func TestDeniedSocketIsExplained(t *testing.T) {
	address, ok := csitest.New(csitest.Options{}).ServeDenied(t)
	if !ok {
		return
	}
	r := start(t, func(o *Options) { o.CSI.Address = address })
	for _, path := range []string{"/healthz", "/readyz"} {
		eventually(t, "the mode of the socket on "+path, func() bool {
			code, body := r.get(t, path)
			return code == 500 && strings.Contains(body, "permission denied: socket ") && strings.Contains(body, "needs write permission")
		})
	}
}

// A livenessProbe must not restart a registrar whose driver is late or whose kubelet refuses it: only /livez is about the process.
func TestLivenessIsAboutTheProcessAlone(t *testing.T) {
	r := start(t, func(o *Options) { o.CSI.Address = filepath.Join(t.TempDir(), "csi.sock") })
	eventually(t, "/healthz to say that the driver is absent", func() bool {
		code, _ := r.get(t, "/healthz")
		return code == 500
	})
	if code, body := r.get(t, "/livez"); code != 200 {
		t.Errorf("/livez while the driver is absent: %d %s", code, body)
	}
	readme, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(readme), "httpGet: {path: /livez,") {
		t.Error("the example in README.md does not use /livez")
	}
}

func TestRefusedRegistrationIsTriedAgain(t *testing.T) {
	r := withDriver(t, func(o *Options) { o.Retry.Start, o.Retry.Max = patience, patience })
	k := findSocket(t, r.socket(driverName))
	k.decide(t, false, "node is on fire")
	eventually(t, "the reason on /healthz", func() bool {
		code, body := r.get(t, "/healthz")
		return code == 500 && strings.Contains(body, "rejected: node is on fire")
	})
	if err := r.stop(); err != nil {
		t.Fatal(err)
	}

	again := withDriver(t, nil) // with a short pause
	first := findSocket(t, again.socket(driverName))
	first.decide(t, false, "not yet")
	second := findSocket(t, again.socket(driverName), first.file)
	second.decide(t, false, "not yet")
	third := findSocket(t, again.socket(driverName), second.file)
	third.decide(t, true, "")
	eventually(t, "registered by the third socket", func() bool {
		code, _ := again.get(t, "/readyz")
		return code == 200
	})
}

func TestRefusalThatTheKubeletTakesBackNeedsNoNewSocket(t *testing.T) {
	r := withDriver(t, func(o *Options) { o.Retry.Start, o.Retry.Max = patience, patience })
	k := findSocket(t, r.socket(driverName))
	k.decide(t, false, "not yet")
	k.decide(t, true, "")
	eventually(t, "registered through the first socket", func() bool {
		code, _ := r.get(t, "/readyz")
		return code == 200
	})
	if now, err := os.Lstat(r.socket(driverName)); err != nil || !same(now, k.file) {
		t.Errorf("the socket was created again (%v)", err)
	}
}

func TestRemovedSocketIsMadeAgain(t *testing.T) {
	r := withDriver(t, nil)
	k := findSocket(t, r.socket(driverName))
	k.decide(t, true, "")
	if err := os.Remove(r.socket(driverName)); err != nil {
		t.Fatal(err)
	}
	again := findSocket(t, r.socket(driverName))
	if info, err := again.GetInfo(t.Context(), &registerapi.InfoRequest{}); err != nil || info.GetName() != driverName {
		t.Errorf("GetInfo on the new socket: %v, %v", info, err)
	}
}

// Two registrars of one driver must not take the socket from each other in
// turns; the one that was replaced comes back when the other has gone.
func TestSocketOfAnotherRegistrarIsLeftAlone(t *testing.T) {
	r := withDriver(t, nil)
	findSocket(t, r.socket(driverName))
	other := withDriver(t, func(o *Options) { o.PluginRegistrationPath = r.dir })
	eventually(t, "the first registrar to step back", func() bool {
		code, body := r.get(t, "/healthz")
		return code == 500 && strings.Contains(body, "another registrar serves")
	})
	eventually(t, "the second registrar to be healthy", func() bool {
		code, _ := other.get(t, "/healthz")
		return code == 200
	})
	theirs, err := os.Lstat(r.socket(driverName))
	if err != nil {
		t.Fatal(err)
	}
	if err := other.stop(); err != nil {
		t.Fatal(err)
	}
	findSocket(t, r.socket(driverName), theirs)
	eventually(t, "the first registrar to be healthy again", func() bool {
		code, _ := r.get(t, "/healthz")
		return code == 200
	})
}

func TestStopLeavesTheSocketOfAnother(t *testing.T) {
	r := withDriver(t, nil)
	findSocket(t, r.socket(driverName))
	other := withDriver(t, func(o *Options) { o.PluginRegistrationPath = r.dir })
	eventually(t, "the second registrar to be in place", func() bool {
		_, body := r.get(t, "/healthz")
		return strings.Contains(body, "another registrar")
	})
	if err := r.stop(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Lstat(other.socket(driverName)); err != nil {
		t.Errorf("the socket of the second registrar is gone: %v", err)
	}
	if err := other.stop(); err != nil {
		t.Fatal(err)
	}
	if entries, err := os.ReadDir(r.dir); err != nil || len(entries) != 0 {
		t.Errorf("left behind: %v, %v", entries, err)
	}
}

func TestDriverThatComesBackUnderAnotherName(t *testing.T) {
	t.Parallel()
	address := filepath.Join(t.TempDir(), "csi.sock")
	r := start(t, func(o *Options) { o.CSI.Address = address })
	eventually(t, "waiting for the driver", func() bool {
		code, body := r.get(t, "/healthz")
		return code == 500 && strings.Contains(body, "waiting for driver")
	})
	stop := csitest.New(csitest.Options{Name: "one.csi.example"}).ServeAt(t, address)
	one := findSocket(t, r.socket("one.csi.example"))
	one.decide(t, true, "")
	stop()
	csitest.New(csitest.Options{Name: "two.csi.example"}).ServeAt(t, address)
	findSocket(t, r.socket("two.csi.example"))
	if _, err := os.Lstat(r.socket("one.csi.example")); err == nil {
		t.Error("the socket of the old name is still there")
	}
}

// A kubelet reads the node's ID and topology at a registration only.
func TestDriverThatComesBackOnAnotherNode(t *testing.T) {
	t.Parallel()
	address := filepath.Join(t.TempDir(), "csi.sock")
	r := start(t, func(o *Options) { o.CSI.Address = address })
	options := csitest.Options{Name: driverName, NodeID: "i-1"}
	changes := []struct {
		reason string
		change func(*csitest.Options)
	}{
		{reason: "another node ID", change: func(o *csitest.Options) { o.NodeID = "i-2" }},
		{reason: "a topology", change: func(o *csitest.Options) { o.Topology = map[string]string{"zone": "a"} }},
		{reason: "another zone", change: func(o *csitest.Options) { o.Topology = map[string]string{"zone": "b"} }},
		{reason: "no topology any more", change: func(o *csitest.Options) { o.Topology = nil }},
	}
	d := csitest.New(options)
	stop := d.ServeAt(t, address)
	k := findSocket(t, r.socket(driverName))
	for _, c := range changes {
		k.decide(t, true, "")
		eventually(t, "a call of NodeGetInfo", func() bool { return called(d, "NodeGetInfo") })
		stop()
		c.change(&options)
		d = csitest.New(options)
		stop = d.ServeAt(t, address)
		k = findSocket(t, r.socket(driverName), k.file)
		if info, err := k.GetInfo(t.Context(), &registerapi.InfoRequest{}); err != nil || info.GetName() != driverName {
			t.Errorf("%s: GetInfo on the new socket: %v, %v", c.reason, info, err)
		}
	}
	k.decide(t, true, "")
	eventually(t, "registered again", func() bool {
		code, _ := r.get(t, "/readyz")
		return code == 200
	})
	if entries, err := os.ReadDir(r.dir); err != nil || len(entries) != 1 {
		t.Errorf("one socket at the end: got %v, %v", entries, err)
	}
}

// Deregistration opens a window without a limit of volumes for the scheduler,
// so a restart alone is no reason for it, nor is a driver that does not answer.
func TestRestartsThatChangeNothingForTheKubelet(t *testing.T) {
	t.Parallel()
	cases := map[string]struct {
		reason string
		before csitest.Options
		after  csitest.Options
		fault  csitest.Fault
	}{
		"Unchanged": {reason: "it is as it was"},
		"Limit": {
			reason: "the limit of volumes is followed by the kubelet itself",
			before: csitest.Options{MaxVolumesPerNode: 8}, after: csitest.Options{MaxVolumesPerNode: 7},
		},
		"Version": {reason: "an update is a restart like any other", before: csitest.Options{Version: "v1"}, after: csitest.Options{Version: "v2"}},
		"Silent": {
			reason: "what is not known is not taken for a change",
			after:  csitest.Options{NodeID: "other"}, fault: csitest.Fault{Method: "NodeGetInfo", Code: codes.Unimplemented},
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			address := filepath.Join(t.TempDir(), "csi.sock")
			r := start(t, func(o *Options) { o.CSI.Address = address })
			tc.before.Name, tc.after.Name = driverName, driverName
			first := csitest.New(tc.before)
			stop := first.ServeAt(t, address)
			k := findSocket(t, r.socket(driverName))
			k.decide(t, true, "")
			eventually(t, "the first process to be asked", func() bool { return called(first, "NodeGetInfo") })
			stop()
			second := csitest.New(tc.after)
			if tc.fault.Method != "" {
				second.Inject(tc.fault)
			}
			stop = second.ServeAt(t, address)
			eventually(t, "the second process to be asked", func() bool { return called(second, "NodeGetInfo") })
			stop()
			third := csitest.New(tc.before) // when it is asked, what the second said has been judged
			third.ServeAt(t, address)
			eventually(t, "the third process to be asked", func() bool { return called(third, "NodeGetInfo") })
			k.decide(t, true, "")
			if now, err := os.Lstat(r.socket(driverName)); err != nil || !same(now, k.file) {
				t.Errorf("%s: the socket was created again (%v)", tc.reason, err)
			}
		})
	}
}

// called reports whether the driver has answered a call of the method.
func called(d *csitest.Driver, method string) bool {
	for _, call := range d.Calls() {
		if call.Method == method && call.Done {
			return true
		}
	}
	return false
}

// A directory that is not mounted yet is waited for.
func TestSocketThatCannotBeMadeIsTriedAgain(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "later")
	r := withDriver(t, func(o *Options) { o.PluginRegistrationPath = dir })
	eventually(t, "the failure on /healthz", func() bool {
		code, body := r.get(t, "/healthz")
		return code == 500 && strings.Contains(body, "failed: make registration socket")
	})
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	findSocket(t, r.socket(driverName))
}

func TestRunRefuses(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = taken.Close() }()
	cases := map[string]struct {
		reason string
		change func(*Options)
		want   string
	}{
		"TakenPort": {
			reason: "a health address that cannot be had ends the process with an error",
			change: func(o *Options) { o.HTTPEndpoint = taken.Addr().String() },
			want:   "serve health",
		},
		"BadOptions": {
			reason: "nothing is started with options that are wrong",
			change: func(o *Options) { o.CSI.Address = "" },
			want:   "--csi-address",
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			o := NewOptions()
			o.PluginRegistrationPath = t.TempDir()
			o.CSI.Address = filepath.Join(t.TempDir(), "csi.sock")
			tc.change(&o)
			if err := Run(t.Context(), o); err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("%s: got %v, want an error that says %q", tc.reason, err, tc.want)
			}
		})
	}
}

func TestProbeModeEndsAtOnce(t *testing.T) {
	o := NewOptions()
	o.Mode = ModeProbe
	if err := Run(t.Context(), o); err != nil {
		t.Errorf("got %v, want nil: the exec probe of old manifests must succeed", err)
	}
}
