package httpserve_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/klog/v2"
	"k8s.io/klog/v2/ktesting"

	"github.com/longshore-csi/longshore/csikit/httpserve"
	"github.com/longshore-csi/longshore/csikit/procmetrics"
)

func TestEveryPath(t *testing.T) {
	full := httpserve.Config{
		Gatherer: procmetrics.NewRegistry(), Leader: func() error { return nil }, Health: passes, Pprof: true,
		State: func() any { return map[string]int{"queue": 1} },
		Live:  map[string]func(context.Context) error{"driver": passes},
		Ready: map[string]func(context.Context) error{"leader": passes, "driver": fails},
	}
	moved := full
	moved.MetricsPath = "/internal/metrics"
	cases := map[string]struct {
		reason string
		cfg    httpserve.Config
		want   map[string]int
	}{
		"Everything": {
			reason: "What was configured is served, and nothing below it.", cfg: full,
			want: map[string]int{
				"/": 200, "/metrics": 200, "/healthz": 200, "/livez": 200, "/readyz": 500, "/healthz/leader-election": 200, "/debug/state": 200,
				"/debug/pprof/": 200, "/debug/pprof/cmdline": 200, "/debug/pprof/goroutine": 200, "/debug/pprof/none": 404,
				"/metrics/": 404, "/healthz/other": 404, "/livez/driver": 404, "/none": 404, "/debug/": 404,
			},
		},
		"Nothing": {
			reason: "Health is always there: a process that answers lives.", cfg: httpserve.Config{},
			want: map[string]int{
				"/": 200, "/healthz": 200, "/livez": 200, "/readyz": 200,
				"/metrics": 404, "/healthz/leader-election": 404, "/debug/state": 404, "/debug/pprof/": 404,
			},
		},
		"Moved": {
			reason: "Metrics are where they were asked for, and nowhere else.", cfg: moved,
			want: map[string]int{"/internal/metrics": 200, "/metrics": 404},
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			base := serve(t, tc.cfg)
			got := map[string]int{}
			for path := range tc.want {
				reply, _ := get(t, base+path)
				got[path] = reply.Code
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("%s (-want +got):\n%s", tc.reason, diff)
			}
		})
	}
}

// A check that hangs must not hang the probe of the kubelet, nor the other checks.
func TestCheckTimeout(t *testing.T) {
	hangs := func(ctx context.Context) error {
		<-ctx.Done()
		return context.Cause(ctx)
	}
	cases := map[string]struct {
		reason string
		path   string
		want   answer
	}{
		"Live": {
			reason: "The failing check is named, and those that pass.", path: "/livez",
			want: answer{500, "[+]fine ok\n[-]stuck failed: context deadline exceeded\nlivez check failed\n"},
		},
		"Excluded": {reason: "What is excluded is not run.", path: "/livez?exclude=stuck&exclude=none", want: answer{200, "ok"}},
		"Health":   {reason: "One check has the whole answer.", path: "/healthz", want: answer{500, "context deadline exceeded\n"}},
	}
	base := serve(t, httpserve.Config{
		CheckTimeout: 20 * time.Millisecond, Health: hangs,
		Live: map[string]func(context.Context) error{"stuck": hangs, "fine": passes},
	})
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			got, _ := get(t, base+tc.path)
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("%s (-want +got):\n%s", tc.reason, diff)
			}
		})
	}
}

// A caller that gives up ends the check that runs for it.
func TestCheckEndsWithItsRequest(t *testing.T) {
	started, ended := make(chan struct{}), make(chan struct{})
	base := serve(t, httpserve.Config{CheckTimeout: patience, Health: func(ctx context.Context) error {
		close(started)
		<-ctx.Done()
		close(ended)
		return ctx.Err()
	}})
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		<-started
		cancel()
	}()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, base+"/healthz", nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err == nil {
		_ = resp.Body.Close()
		t.Errorf("got %s, want the end that was asked for", resp.Status)
	}
	select {
	case <-ended:
	case <-time.After(patience):
		t.Error("the check goes on without anybody waiting for it")
	}
}

func TestPanicsAreFailures(t *testing.T) {
	base := serve(t, httpserve.Config{
		Health: func(context.Context) error { panic("nil driver") },
		Ready:  map[string]func(context.Context) error{"a": func(context.Context) error { panic("nil leader") }, "b": passes},
	})
	for path, want := range map[string]answer{
		"/healthz": {500, "check panicked: nil driver\n"},
		"/readyz":  {500, "[-]a failed: check panicked: nil leader\n[+]b ok\nreadyz check failed\n"},
		"/livez":   {200, "ok"}, // the process lives
	} {
		if got, _ := get(t, base+path); got != want {
			t.Errorf("%s: got %+v, want %+v", path, got, want)
		}
	}
}

func TestBindErrors(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = taken.Close() }()
	_, port, err := net.SplitHostPort(taken.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	cases := map[string]struct {
		reason  string
		address string
	}{
		"Taken":       {reason: "Another process listens there.", address: taken.Addr().String()},
		"TakenByFour": {reason: "All addresses include the one that is taken.", address: ":" + port},
		"Foreign":     {reason: "The address is not one of this machine (TEST-NET-1).", address: "192.0.2.1:0"},
		"LargePort":   {reason: "There is no such port.", address: "127.0.0.1:70000"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			server, err := httpserve.Listen(httpserve.Config{Address: tc.address})
			if err == nil {
				_ = server.Close()
			}
			if err == nil || !strings.Contains(err.Error(), fmt.Sprintf("%q", tc.address)) {
				t.Errorf("%s: got %v, want an error with the address", tc.reason, err)
			}
		})
	}
}

// The address is free again for the next process when Run has returned.
func TestAddressIsFreeAfterwards(t *testing.T) {
	address := lonely
	for range 3 {
		server, err := httpserve.Listen(httpserve.Config{Address: address, Logger: klog.Background()})
		if err != nil {
			t.Fatal(err)
		}
		address = server.Addr()
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if err := server.Run(ctx); err != nil {
			t.Errorf("Run: %v", err)
		}
	}
}

func TestCloseWithoutRun(t *testing.T) {
	server, err := httpserve.Listen(httpserve.Config{Address: "127.0.0.1:0"})
	if err != nil {
		t.Fatal(err)
	}
	if err := server.Close(); err != nil {
		t.Errorf("Close: %v", err)
	}
	if err := server.Close(); !errors.Is(err, net.ErrClosed) {
		t.Errorf("a second Close: %v, want net.ErrClosed", err)
	}
}

// Requests that do not end are cut off: a process that should end must end.
func TestRunDoesNotWaitForEver(t *testing.T) {
	var log ktesting.BufferTL
	entered, release := make(chan struct{}), make(chan struct{})
	server, err := httpserve.Listen(httpserve.Config{
		Address: "127.0.0.1:0", Logger: ktesting.NewLogger(&log, ktesting.NewConfig()),
		State: func() any { close(entered); <-release; return nil },
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- server.Run(ctx) }()
	var caller sync.WaitGroup
	caller.Go(func() {
		req, _ := http.NewRequestWithContext(context.Background(), http.MethodGet, "http://"+server.Addr()+"/debug/state", nil)
		if resp, err := http.DefaultClient.Do(req); err == nil {
			_ = resp.Body.Close()
			t.Error("the request was answered, want its connection cut")
		}
	})
	<-entered
	cancel()
	select {
	case err := <-ended:
		if err != nil {
			t.Errorf("Run: %v", err)
		}
	case <-time.After(patience):
		t.Error("Run waits for a request that does not end")
	}
	close(release)
	caller.Wait()
	if !strings.Contains(log.String(), "still busy") {
		t.Errorf("nothing is said about the cut connection:\n%s", log.String())
	}
}

func TestStateThatCannotBeEncoded(t *testing.T) {
	base := serve(t, httpserve.Config{State: func() any { return make(chan int) }})
	got, header := get(t, base+"/debug/state")
	if got.Code != 500 || !strings.Contains(got.Body, "encode the state") || !strings.HasPrefix(header.Get("Content-Type"), "text/plain") {
		t.Errorf("got %+v, %v", got, header)
	}
}

// Somebody who connects and sends no HTTP harms nobody, and leaves a trace for those who look for it.
func TestGarbage(t *testing.T) {
	base := serve(t, httpserve.Config{})
	conn, err := net.Dial("tcp", strings.TrimPrefix(base, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	if _, err := io.WriteString(conn, "\x16\x03\x01 not HTTP\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	reply, err := io.ReadAll(conn)
	if err != nil || !strings.HasPrefix(string(reply), "HTTP/1.1 400") {
		t.Errorf("got %q, %v; want 400", reply, err)
	}
	if got, _ := get(t, base+"/healthz"); got.Code != 200 {
		t.Errorf("afterwards: %+v", got)
	}
}

func TestHeaders(t *testing.T) {
	base := serve(t, httpserve.Config{Gatherer: procmetrics.NewRegistry(), State: func() any { return 1 }})
	cases := map[string]struct {
		reason string
		path   string
		want   map[string]string
	}{
		"Text":  {reason: "Text is not sniffed, nor kept.", path: "/livez", want: map[string]string{"Content-Type": "text/plain; charset=utf-8", "X-Content-Type-Options": "nosniff", "Cache-Control": "no-cache"}},
		"State": {reason: "State is JSON and not kept.", path: "/debug/state", want: map[string]string{"Content-Type": "application/json", "Cache-Control": "no-cache"}},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			_, header := get(t, base+tc.path)
			got := map[string]string{}
			for key := range tc.want {
				got[key] = header.Get(key)
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("%s (-want +got):\n%s", tc.reason, diff)
			}
		})
	}
}
