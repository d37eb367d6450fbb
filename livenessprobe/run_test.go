package livenessprobe

import (
	"context"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc/codes"
	"k8s.io/klog/v2"
	"k8s.io/klog/v2/ktesting"

	"github.com/longshore-csi/longshore/csikittest/csitest"
)

// patience is how long a test waits for what must happen. It only matters
// when the test fails.
const patience = 3 * time.Minute

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// start runs a probe until the test ends, and returns where its listeners are.
func start(t *testing.T, change func(*Options)) []string {
	t.Helper()
	o := NewOptions()
	o.HTTP.Endpoint = "127.0.0.1:0"
	o.ResultMaxAge, o.CSI.Timeout = 0, 50*time.Second // the longest that is valid
	listening := make(chan string, 2)
	o.listening = func(address string) { listening <- address }
	change(&o)
	ctx, cancel := context.WithCancel(klog.NewContext(context.Background(), ktesting.NewLogger(t, ktesting.NewConfig())))
	done := make(chan error, 1)
	go func() { done <- Run(ctx, o) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	listeners := 1
	if o.HTTP.MetricsAddress != "" {
		listeners = 2
	}
	addresses := make([]string, 0, listeners)
	for range listeners {
		select {
		case address := <-listening:
			addresses = append(addresses, address)
		case err := <-done:
			done <- err
			t.Fatalf("Run ended before it listened: %v", err)
		}
	}
	return addresses
}

func get(t *testing.T, address, path string) (code int, body string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+address+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}).Do(req)
	if err != nil {
		t.Fatalf("GET %s: %v", path, err)
	}
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatalf("GET %s: %v", path, err)
	}
	return resp.StatusCode, string(text)
}

// eventually asks until /healthz answers with code.
func eventually(t *testing.T, address string, code int) {
	t.Helper()
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
		if got, _ := get(t, address, "/healthz"); got == code {
			return
		}
	}
	t.Fatalf("/healthz did not answer %d within %v", code, patience)
}

func TestDeniedSocketIsExplained(t *testing.T) {
	socket, ok := csitest.New(csitest.Options{}).ServeDenied(t)
	if !ok {
		return
	}
	address := start(t, func(o *Options) { o.CSI.Address = socket })[0]
	for _, path := range []string{"/healthz", "/readyz"} {
		code, body := get(t, address, path)
		if code != 500 || !strings.Contains(body, "permission denied: socket ") || !strings.Contains(body, "needs write permission") {
			t.Errorf("%s: got %d %s", path, code, body)
		}
	}
	if code, _ := get(t, address, "/livez"); code != 200 {
		t.Errorf("/livez: got %d", code)
	}
}

func TestHealth(t *testing.T) {
	cases := map[string]struct {
		reason  string
		driver  func(*csitest.Driver)
		timeout time.Duration // the longest if zero
		code    int
		body    string
	}{
		"Ready":    {reason: "a ready driver is healthy", driver: func(*csitest.Driver) {}, code: 200, body: "ok"},
		"NotReady": {reason: "ready=false is not healthy", driver: func(d *csitest.Driver) { d.SetReady(false) }, code: 500, body: "not ready"},
		"Refuses": {
			reason: "the driver's own words are in the answer",
			driver: func(d *csitest.Driver) {
				d.Inject(csitest.Fault{Method: "Probe", Code: codes.FailedPrecondition, Message: "no kernel module"})
			},
			code: 500, body: "no kernel module",
		},
		"Hangs": {
			reason: "a driver that does not answer is not healthy after --probe-timeout",
			driver: func(d *csitest.Driver) { d.Inject(csitest.Fault{Method: "Probe", Hang: true}) }, timeout: 50 * time.Millisecond,
			code: 500, body: "DeadlineExceeded",
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			d := csitest.New(csitest.Options{})
			tc.driver(d)
			address := start(t, func(o *Options) {
				o.CSI.Address = d.Serve(t)
				if tc.timeout != 0 {
					o.CSI.Timeout = tc.timeout
				}
			})[0]
			code, body := get(t, address, "/healthz")
			if code != tc.code || !strings.Contains(body, tc.body) {
				t.Errorf("%s: /healthz: got %d %q, want %d %q", tc.reason, code, body, tc.code, tc.body)
			}
			if code, _ := get(t, address, "/readyz"); code != tc.code {
				t.Errorf("%s: /readyz: got %d, want %d", tc.reason, code, tc.code)
			}
			if code, _ := get(t, address, "/livez"); code != 200 {
				t.Errorf("%s: /livez: got %d, want 200: it is about this process alone", tc.reason, code)
			}
		})
	}
}

// One connection is kept: it must find a driver that comes up late, and one
// that comes back.
func TestDriverThatComesAndGoes(t *testing.T) {
	path := filepath.Join(t.TempDir(), "csi.sock")
	address := start(t, func(o *Options) { o.CSI.Address = path })[0]
	if code, _ := get(t, address, "/healthz"); code != 500 {
		t.Errorf("without a driver: got %d, want 500", code)
	}
	for range 2 {
		stop := csitest.New(csitest.Options{}).ServeAt(t, path)
		eventually(t, address, 200)
		stop()
		eventually(t, address, 500)
	}
}

func TestMetrics(t *testing.T) {
	driver := csitest.New(csitest.Options{Name: "test.csi.example"})
	const operations = `csi_sidecar_operations_seconds_count{driver_name="test.csi.example",grpc_status_code="OK",method_name="/csi.v1.Identity/Probe"}`
	cases := map[string]struct {
		reason     string
		change     func(*Options)
		atHealth   int
		atMetrics  int
		metricPath string
	}{
		"Endpoint": {
			reason: "--http-endpoint serves both", change: func(*Options) {}, atHealth: 200, metricPath: "/metrics",
		},
		"OtherPath": {
			reason: "--metrics-path is obeyed", change: func(o *Options) { o.HTTP.MetricsPath = "/m" }, atHealth: 200, metricPath: "/m",
		},
		"Former": {
			reason: "--metrics-address serves metrics apart from health",
			change: func(o *Options) {
				o.HTTP.Endpoint, o.HTTP.MetricsAddress, o.HealthPort = "", "127.0.0.1:0", "0"
			},
			atHealth: 404, atMetrics: 200, metricPath: "/metrics",
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			addresses := start(t, func(o *Options) {
				o.CSI.Address = driver.Serve(t)
				tc.change(o)
			})
			for range 2 { // the name is known from the second on
				if code, body := get(t, addresses[0], "/healthz"); code != 200 {
					t.Fatalf("/healthz: %d %s", code, body)
				}
			}
			code, text := get(t, addresses[0], tc.metricPath)
			if code != tc.atHealth {
				t.Errorf("%s: metrics at the health address: got %d, want %d", tc.reason, code, tc.atHealth)
			}
			if tc.atMetrics != 0 {
				if code, text = get(t, addresses[1], tc.metricPath); code != tc.atMetrics {
					t.Errorf("%s: metrics at their own address: got %d, want %d", tc.reason, code, tc.atMetrics)
				}
			}
			for _, want := range []string{operations, "csi_liveness_probe_last_result 1", "process_start_time_seconds"} {
				if !strings.Contains(text, want) {
					t.Errorf("%s: metrics lack %q:\n%s", tc.reason, want, text)
				}
			}
		})
	}
}

func TestStateAndProfiles(t *testing.T) {
	address := start(t, func(o *Options) {
		o.CSI.Address, o.HTTP.Pprof = csitest.New(csitest.Options{Name: "test.csi.example"}).Serve(t), true
	})[0]
	get(t, address, "/healthz")
	if _, body := get(t, address, "/debug/state"); !strings.Contains(body, `"driver": "test.csi.example"`) {
		t.Errorf("/debug/state: got %s", body)
	}
	if code, _ := get(t, address, "/debug/pprof/cmdline"); code != 200 {
		t.Errorf("/debug/pprof/cmdline: got %d, want 200", code)
	}
}

// An address that cannot be had must end the process: a probe that nobody can
// reach looks like a dead driver.
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
		"TakenHealth": {
			reason: "the health address", change: func(o *Options) { o.HTTP.Endpoint = taken.Addr().String() }, want: "serve " + taken.Addr().String(),
		},
		"TakenMetrics": {
			reason: "the metrics address, after health was bound",
			change: func(o *Options) {
				o.HTTP.Endpoint, o.HTTP.MetricsAddress, o.HealthPort = "", taken.Addr().String(), "0"
			},
			want: "serve " + taken.Addr().String(),
		},
		"BadOptions": {reason: "an option", change: func(o *Options) { o.CSI.Address = "relative" }, want: "--csi-address"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			o := NewOptions()
			tc.change(&o)
			if err := Run(t.Context(), o); err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("%s: got %v, want an error that says %q", tc.reason, err, tc.want)
			}
		})
	}
}
