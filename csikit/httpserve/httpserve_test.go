package httpserve_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"go.uber.org/goleak"
	"k8s.io/klog/v2"
	"k8s.io/klog/v2/textlogger"

	"github.com/longshore-csi/longshore/csikit/httpserve"
	"github.com/longshore-csi/longshore/csikit/procmetrics"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience bounds what must happen soon; it is no measure of speed.
const patience = 3 * time.Minute

// lonely is an address of the loopback interface that nobody else uses: a port of it that was freed stays free.
const lonely = "127.86.71.3:0"

// serve runs a server until the test ends and returns its URL.
func serve(t *testing.T, cfg httpserve.Config) string {
	t.Helper()
	if cfg.Address == "" {
		cfg.Address = "127.0.0.1:0"
	}
	if cfg.Logger.GetSink() == nil {
		cfg.Logger = klog.Background()
	}
	server, err := httpserve.Listen(cfg)
	if err != nil {
		t.Fatalf("Listen: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- server.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("Run: %v", err)
		}
		http.DefaultClient.CloseIdleConnections()
	})
	return "http://" + server.Addr()
}

type answer struct {
	Code int
	Body string
}

func get(t *testing.T, url string) (answer, http.Header) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	if err != nil {
		t.Fatalf("request %s: %v", url, err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatalf("get %s: %v", url, err)
	}
	body, err := io.ReadAll(resp.Body)
	if err := errors.Join(err, resp.Body.Close()); err != nil {
		t.Fatalf("read %s: %v", url, err)
	}
	return answer{resp.StatusCode, string(body)}, resp.Header
}

func passes(context.Context) error { return nil }

func fails(context.Context) error { return errors.New("no driver") }

func TestHealth(t *testing.T) {
	type named = map[string]func(context.Context) error
	cases := map[string]struct {
		reason string
		cfg    httpserve.Config
		path   string
		want   answer
	}{
		"LiveWithoutChecks":  {reason: "a process that answers lives", path: "/livez", want: answer{200, "ok"}},
		"ReadyWithoutChecks": {reason: "nothing speaks against it", path: "/readyz", want: answer{200, "ok"}},
		"HealthzIsLivez":     {reason: "without a check of its own", cfg: httpserve.Config{Live: named{"loop": fails}}, path: "/healthz", want: answer{500, "[-]loop failed: no driver\nhealthz check failed\n"}},
		"Healthz":            {reason: "a check of its own", cfg: httpserve.Config{Health: passes, Live: named{"loop": fails}}, path: "/healthz", want: answer{200, "ok"}},
		"HealthzFails":       {reason: "the answer has the reason", cfg: httpserve.Config{Health: fails}, path: "/healthz", want: answer{500, "no driver\n"}},
		"Ready":              {reason: "all checks pass", cfg: httpserve.Config{Ready: named{"b": passes, "a": passes}}, path: "/readyz", want: answer{200, "ok"}},
		"ReadyVerbose":       {reason: "checks are listed in order", cfg: httpserve.Config{Ready: named{"b": passes, "a": passes}}, path: "/readyz?verbose", want: answer{200, "[+]a ok\n[+]b ok\nreadyz check passed\n"}},
		"ReadyFails":         {reason: "one failing check is enough", cfg: httpserve.Config{Ready: named{"b": fails, "a": passes}}, path: "/readyz", want: answer{500, "[+]a ok\n[-]b failed: no driver\nreadyz check failed\n"}},
		"ReadyExclude":       {reason: "a check can be left out", cfg: httpserve.Config{Ready: named{"b": fails, "a": passes}}, path: "/readyz?verbose&exclude=b", want: answer{200, "[+]a ok\n[+]b excluded: ok\nreadyz check passed\n"}},
		"ReadyPath":          {reason: "another name of /readyz", cfg: httpserve.Config{ReadyPath: "/health", Ready: named{"b": fails}}, path: "/health", want: answer{500, "[-]b failed: no driver\nreadyz check failed\n"}},
		"LiveIsNotReady":     {reason: "each path has its checks", cfg: httpserve.Config{Ready: named{"b": fails}}, path: "/livez", want: answer{200, "ok"}},
		"Panic": {
			reason: "a broken check is unhealthy", path: "/livez",
			cfg:  httpserve.Config{Live: named{"x": func(context.Context) error { panic("oops") }}},
			want: answer{500, "[-]x failed: check panicked: oops\nlivez check failed\n"},
		},
		"Slow": {
			reason: "a check has a deadline", path: "/healthz",
			cfg: httpserve.Config{CheckTimeout: time.Millisecond, Health: func(ctx context.Context) error {
				<-ctx.Done()
				return ctx.Err()
			}},
			want: answer{500, "context deadline exceeded\n"},
		},
		"Leader":      {reason: "leader election works", cfg: httpserve.Config{Leader: func() error { return nil }}, path: "/healthz/leader-election", want: answer{200, "ok"}},
		"LeaderFails": {reason: "leader election is stuck", cfg: httpserve.Config{Leader: func() error { return errors.New("lease expired") }}, path: "/healthz/leader-election", want: answer{500, "lease expired\n"}},
		"NoLeader":    {reason: "without leader election", path: "/healthz/leader-election", want: answer{404, "404 page not found\n"}},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			got, _ := get(t, serve(t, c.cfg)+c.path)
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Errorf("%s: answer (-want +got):\n%s", c.reason, diff)
			}
		})
	}
}

func TestMetrics(t *testing.T) {
	for name, path := range map[string]string{"Default": "", "Own": "/my/metrics"} {
		t.Run(name, func(t *testing.T) {
			url := serve(t, httpserve.Config{Gatherer: procmetrics.NewRegistry(), MetricsPath: path})
			if path == "" {
				path = httpserve.DefaultMetricsPath
			}
			got, _ := get(t, url+path)
			if got.Code != 200 || !strings.Contains(got.Body, "process_start_time_seconds") {
				t.Errorf("GET %s: %+v", path, got)
			}
		})
	}
}

// A gatherer that fails is reported to the log, not only to the scraper.
func TestMetricsFailureIsLogged(t *testing.T) {
	var log strings.Builder
	logger := textlogger.NewLogger(textlogger.NewConfig(textlogger.Output(&log), textlogger.Verbosity(2)))
	broken := prometheus.GathererFunc(func() ([]*dto.MetricFamily, error) { return nil, errors.New("collector is broken") })
	url := serve(t, httpserve.Config{Logger: logger, Gatherer: broken})
	if got, _ := get(t, url+"/metrics"); got.Code != 500 {
		t.Errorf("answer %+v, want 500", got)
	}
	if !strings.Contains(log.String(), "collector is broken") {
		t.Errorf("log lacks the reason:\n%s", log.String())
	}
}

func TestState(t *testing.T) {
	cases := map[string]struct {
		reason string
		state  func() any
		want   answer
	}{
		"JSON":    {reason: "indented for people", state: func() any { return map[string]int{"queue": 3} }, want: answer{200, "{\n  \"queue\": 3\n}\n"}},
		"NotJSON": {reason: "what cannot be encoded is an error", state: func() any { return func() {} }, want: answer{500, "encode the state: json: unsupported type: func()\n"}},
		"None":    {reason: "no state, no path", want: answer{404, "404 page not found\n"}},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			got, header := get(t, serve(t, httpserve.Config{State: c.state})+"/debug/state")
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Errorf("%s: answer (-want +got):\n%s", c.reason, diff)
			}
			if typ := header.Get("Content-Type"); got.Code == 200 && typ != "application/json" {
				t.Errorf("%s: content type %q", c.reason, typ)
			}
		})
	}
}

func TestPprof(t *testing.T) {
	with, without := serve(t, httpserve.Config{Pprof: true}), serve(t, httpserve.Config{})
	for _, path := range []string{"/debug/pprof/", "/debug/pprof/cmdline", "/debug/pprof/heap?debug=1", "/debug/pprof/symbol"} {
		if got, _ := get(t, with+path); got.Code != 200 {
			t.Errorf("with profiles, GET %s: %d", path, got.Code)
		}
		if got, _ := get(t, without+path); got.Code != 404 {
			t.Errorf("without profiles, GET %s: %d", path, got.Code)
		}
	}
}

func TestIndex(t *testing.T) {
	url := serve(t, httpserve.Config{Gatherer: procmetrics.NewRegistry(), Leader: func() error { return nil }, Pprof: true, State: func() any { return nil }})
	got, _ := get(t, url+"/")
	want := answer{200, "/debug/pprof/\n/debug/state\n/healthz\n/healthz/leader-election\n/livez\n/metrics\n/readyz\n"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("index (-want +got):\n%s", diff)
	}
	if got, _ := get(t, serve(t, httpserve.Config{ReadyPath: "/health"})+"/"); got.Body != "/health\n/healthz\n/livez\n/readyz\n" {
		t.Errorf("index with another path of readiness: %+v", got)
	}
	if got, _ := get(t, url+"/nothing"); got.Code != 404 {
		t.Errorf("a path that does not exist: %+v", got)
	}
}

func TestListenChecks(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatalf("listen: %v", err)
	}
	defer func() { _ = taken.Close() }()
	cases := map[string]struct {
		reason string
		cfg    httpserve.Config
		err    string
	}{
		"NoPort":          {reason: "a port is required", cfg: httpserve.Config{Address: "localhost"}, err: `HTTP address "localhost"`},
		"Taken":           {reason: "another process listens there", cfg: httpserve.Config{Address: taken.Addr().String()}, err: "listen for HTTP on"},
		"BadPort":         {reason: "no such port", cfg: httpserve.Config{Address: "127.0.0.1:99999"}, err: "99999"},
		"RelativeMetrics": {reason: "a path begins with /", cfg: httpserve.Config{MetricsPath: "metrics"}, err: `metrics path "metrics"`},
		"PatternMetrics":  {reason: "a path is no pattern", cfg: httpserve.Config{MetricsPath: "/{x}"}, err: "must not contain"},
		"DoubleSlash":     {reason: "no request would ever match", cfg: httpserve.Config{MetricsPath: "//metrics"}, err: "must not contain empty parts"},
		"DotsMetrics":     {reason: "no request would ever match", cfg: httpserve.Config{MetricsPath: "/a/../metrics"}, err: "must not contain empty parts"},
		"ReservedMetrics": {reason: "the path is taken", cfg: httpserve.Config{MetricsPath: "/healthz"}, err: "used for something else"},
		"PprofMetrics":    {reason: "the path is taken", cfg: httpserve.Config{MetricsPath: "/debug/pprof/x"}, err: "used for something else"},
		"RootMetrics":     {reason: "the path is taken", cfg: httpserve.Config{MetricsPath: "/"}, err: "used for something else"},
		"Timeout":         {reason: "negative", cfg: httpserve.Config{CheckTimeout: -1}, err: "check timeout -1ns"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			if c.cfg.Address == "" {
				c.cfg.Address = "127.0.0.1:0"
			}
			server, err := httpserve.Listen(c.cfg)
			if err == nil {
				_ = server.Close()
				t.Fatalf("%s: Listen accepted it", c.reason)
			}
			if !strings.Contains(err.Error(), c.err) {
				t.Errorf("%s: error %q, want %q", c.reason, err, c.err)
			}
		})
	}
}

// ":port" is reached by IPv4 and, where the machine has it, by IPv6.
func TestDualStack(t *testing.T) {
	url := serve(t, httpserve.Config{Address: ":0"})
	_, port, err := net.SplitHostPort(strings.TrimPrefix(url, "http://"))
	if err != nil {
		t.Fatalf("address %s: %v", url, err)
	}
	hosts := []string{"127.0.0.1"}
	if probe, err := net.Listen("tcp6", "[::1]:0"); err == nil {
		_ = probe.Close()
		hosts = append(hosts, "::1")
	}
	for _, host := range hosts {
		if got, _ := get(t, fmt.Sprintf("http://%s/livez", net.JoinHostPort(host, port))); got.Code != 200 {
			t.Errorf("GET over %s: %+v", host, got)
		}
	}
}

// A request that is running when the server stops is answered.
func TestRunFinishesRequests(t *testing.T) {
	entered, release := make(chan struct{}), make(chan struct{})
	server, err := httpserve.Listen(httpserve.Config{Address: lonely, Logger: klog.Background(), Health: func(context.Context) error {
		close(entered)
		<-release
		return nil
	}})
	if err != nil {
		t.Fatalf("Listen: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- server.Run(ctx) }()
	answered := make(chan answer, 1)
	go func() {
		got, _ := get(t, "http://"+server.Addr()+"/healthz")
		answered <- got
	}()
	<-entered
	cancel()
	close(release)
	if got := <-answered; got.Code != 200 {
		t.Errorf("the running request was answered by %+v", got)
	}
	if err := <-ended; err != nil {
		t.Errorf("Run: %v", err)
	}
	if _, err := net.DialTimeout("tcp", server.Addr(), patience); err == nil {
		t.Error("the address is still listened on")
	}
}

func TestRunReportsLostListener(t *testing.T) {
	server, err := httpserve.Listen(httpserve.Config{Address: "127.0.0.1:0", Logger: klog.Background()})
	if err != nil {
		t.Fatalf("Listen: %v", err)
	}
	if err := server.Close(); err != nil {
		t.Fatalf("Close: %v", err)
	}
	if err := server.Run(t.Context()); err == nil || !strings.Contains(err.Error(), server.Addr()) {
		t.Errorf("Run on a closed listener: %v", err)
	}
}
