package csiclient_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"k8s.io/klog/v2"

	"github.com/longshore-csi/longshore/csikit/csiclient"
	"github.com/longshore-csi/longshore/csikit/logging"
	"github.com/longshore-csi/longshore/csikit/metrics"
	"github.com/longshore-csi/longshore/csikit/procmetrics"
	"github.com/longshore-csi/longshore/csikittest/csitest"
)

// connect returns a client and closes it at the end of the test.
func connect(tb testing.TB, cfg csiclient.Config) *csiclient.Client {
	tb.Helper()
	c, err := csiclient.New(cfg)
	if err != nil {
		tb.Fatalf("New: %v", err)
	}
	tb.Cleanup(func() {
		if err := c.Close(); err != nil {
			tb.Errorf("Close: %v", err)
		}
	})
	return c
}

// logTo returns a context whose logger writes to out at the given verbosity.
func logTo(ctx context.Context, tb testing.TB, out *strings.Builder, verbosity int) context.Context {
	tb.Helper()
	o := logging.NewOptions()
	o.Verbosity = verbosity
	logger, err := logging.New(o, out)
	if err != nil {
		tb.Fatalf("logging.New: %v", err)
	}
	return klog.NewContext(ctx, logger)
}

func TestWaitReadsInfo(t *testing.T) {
	all := csiclient.ControllerService | csiclient.GroupControllerService | csiclient.NodeService
	cases := map[string]struct {
		reason   string
		options  csitest.Options
		services csiclient.Service
		want     csiclient.Info
		calls    []string
	}{
		"Everything": {
			reason: "all services are read",
			options: csitest.Options{
				Controller: []csi.ControllerServiceCapability_RPC_Type{csi.ControllerServiceCapability_RPC_EXPAND_VOLUME},
				Node:       []csi.NodeServiceCapability_RPC_Type{csi.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME},
			},
			want: csiclient.Info{
				Plugin:     map[csi.PluginCapability_Service_Type]bool{csi.PluginCapability_Service_CONTROLLER_SERVICE: true},
				Expansion:  map[csi.PluginCapability_VolumeExpansion_Type]bool{csi.PluginCapability_VolumeExpansion_ONLINE: true},
				Controller: map[csi.ControllerServiceCapability_RPC_Type]bool{csi.ControllerServiceCapability_RPC_EXPAND_VOLUME: true},
				Node:       map[csi.NodeServiceCapability_RPC_Type]bool{csi.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME: true},
			},
			calls: []string{"Probe", "GetPluginInfo", "GetPluginCapabilities", "ControllerGetCapabilities", "NodeGetCapabilities"},
		},
		"IdentityOnly": {
			reason:   "nothing else is asked",
			options:  csitest.Options{Controller: []csi.ControllerServiceCapability_RPC_Type{}},
			services: csiclient.IdentityOnly,
			want:     csiclient.Info{Plugin: map[csi.PluginCapability_Service_Type]bool{csi.PluginCapability_Service_CONTROLLER_SERVICE: true}},
			calls:    []string{"Probe", "GetPluginInfo", "GetPluginCapabilities"},
		},
		"NodeDriver": {
			reason: "a driver without controller service is not asked for its capabilities",
			options: csitest.Options{
				Plugin: []csi.PluginCapability_Service_Type{}, Controller: []csi.ControllerServiceCapability_RPC_Type{},
				Node: []csi.NodeServiceCapability_RPC_Type{},
			},
			services: all,
			calls:    []string{"Probe", "GetPluginInfo", "GetPluginCapabilities", "NodeGetCapabilities"},
		},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			d := csitest.New(c.options)
			client := connect(t, csiclient.Config{Address: d.Serve(t), Services: c.services})
			if client.Info() != nil {
				t.Error("Info is there before Wait")
			}
			got, err := client.Wait(t.Context())
			if err != nil {
				t.Fatalf("Wait: %v", err)
			}
			fill(&c.want)
			if diff := cmp.Diff(&c.want, got); diff != "" {
				t.Errorf("%s: info (-want +got):\n%s", c.reason, diff)
			}
			if client.Info() != got {
				t.Error("Info is not what Wait has returned")
			}
			if diff := cmp.Diff(c.calls, methods(d)); diff != "" {
				t.Errorf("%s: calls (-want +got):\n%s", c.reason, diff)
			}
		})
	}
}

// fill sets what all drivers of these tests have in common.
func fill(info *csiclient.Info) {
	info.Name, info.Version = csitest.DefaultName, "v1"
	info.GroupController = map[csi.GroupControllerServiceCapability_RPC_Type]bool{}
	if info.Plugin == nil {
		info.Plugin = map[csi.PluginCapability_Service_Type]bool{}
	}
	if info.Expansion == nil {
		info.Expansion = map[csi.PluginCapability_VolumeExpansion_Type]bool{}
	}
	if info.Controller == nil {
		info.Controller = map[csi.ControllerServiceCapability_RPC_Type]bool{}
	}
	if info.Node == nil {
		info.Node = map[csi.NodeServiceCapability_RPC_Type]bool{}
	}
}

func methods(d *csitest.Driver) []string {
	var out []string
	for _, c := range d.Calls() {
		out = append(out, c.Method)
	}
	return out
}

// Wait under faults of the driver, in virtual time.
func TestWait(t *testing.T) {
	cases := map[string]struct {
		reason string
		fault  csitest.Fault
		driver csitest.Options
		took   time.Duration
		err    string
	}{
		"Healthy":        {reason: "nothing to wait for", fault: csitest.Fault{Method: "None"}},
		"Absent":         {reason: "a driver that comes up is waited for", fault: csitest.Fault{Method: "Probe", Code: codes.Unavailable, Times: 3}, took: 3 * time.Second},
		"Unhealthy":      {reason: "a driver may get healthy", fault: csitest.Fault{Method: "Probe", Code: codes.FailedPrecondition, Times: 2}, took: 2 * time.Second},
		"Slow":           {reason: "a probe is cut off by the timeout and repeated", fault: csitest.Fault{Method: "Probe", Hang: true, Times: 2}, took: 2 * (10 + 1) * time.Second},
		"LostMeanwhile":  {reason: "a driver that goes away while it is read is waited for", fault: csitest.Fault{Method: "NodeGetCapabilities", Code: codes.Unavailable, Times: 1}, took: time.Second},
		"Broken":         {reason: "an error that waiting cannot cure", fault: csitest.Fault{Method: "Probe", Code: codes.Internal, Message: "boom"}, err: "boom"},
		"NoIdentity":     {reason: "not a CSI driver", fault: csitest.Fault{Method: "GetPluginInfo", Code: codes.Unimplemented}, err: "get the name of the CSI driver"},
		"NoPluginCaps":   {reason: "the specification requires the call", fault: csitest.Fault{Method: "GetPluginCapabilities", Code: codes.Unimplemented}, err: "read capabilities of CSI driver"},
		"BadName":        {reason: "the name is not valid", fault: csitest.Fault{Method: "None"}, driver: csitest.Options{Name: "a_b"}, err: `CSI driver name "a_b"`},
		"NoNodeService":  {reason: "a controller plugin has no node service", fault: csitest.Fault{Method: "NodeGetCapabilities", Code: codes.Unimplemented}},
		"HalfStarted":    {reason: "a missing answer is no empty list", fault: csitest.Fault{Method: "ControllerGetCapabilities", Code: codes.Unimplemented, Times: 3}, took: 3 * time.Second},
		"HalfOfADriver":  {reason: "the controller service runs elsewhere", fault: csitest.Fault{Method: "ControllerGetCapabilities", Code: codes.Unimplemented}, took: time.Minute, err: "CONTROLLER_SERVICE is announced, and ControllerGetCapabilities not implemented"},
		"CapabilitiesNo": {reason: "a driver whose capabilities cannot be read is not used", fault: csitest.Fault{Method: "ControllerGetCapabilities", Code: codes.Internal}, err: "read capabilities"},
		"NeverReady":     {reason: "the end of the context ends the wait", fault: csitest.Fault{Method: "Probe", Code: codes.Unavailable, Message: "no socket"}, took: time.Minute, err: "no socket"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				d := csitest.New(c.driver)
				d.Inject(c.fault)
				client := connect(t, csiclient.Config{Conn: d.Conn()})
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				start := time.Now()
				_, err := client.Wait(ctx)
				if (err != nil) != (c.err != "") || err != nil && !strings.Contains(err.Error(), c.err) {
					t.Errorf("%s: error %v, want %q", c.reason, err, c.err)
				}
				if took := time.Since(start); took != c.took {
					t.Errorf("%s: took %v, want %v", c.reason, took, c.took)
				}
			})
		})
	}
}

// The end of the wait is no answer of the driver.
func TestWaitEndsDuringACall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := csitest.New(csitest.Options{})
		d.SetReady(false)
		client := connect(t, csiclient.Config{Conn: d.Conn(), Address: "/csi/csi.sock", Timeout: time.Hour})
		var out strings.Builder
		ctx, cancel := context.WithTimeout(logTo(t.Context(), t, &out, 0), 65*time.Second)
		defer cancel()
		time.AfterFunc(10*time.Second, func() { d.Inject(csitest.Fault{Method: "Probe", Hang: true}) })
		_, err := client.Wait(ctx)
		if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "last answer: driver answers that it is not ready yet") {
			t.Errorf("Wait: %v, want the context's error with the last answer", err)
		}
		if strings.Contains(out.String(), "deadline exceeded") {
			t.Errorf("the end of the wait is logged as a reason to wait:\n%s", out.String())
		}
	})
}

func TestWaitTellsWhatItWaitsFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := csitest.New(csitest.Options{})
		d.SetReady(false)
		client := connect(t, csiclient.Config{Conn: d.Conn(), Address: "/csi/csi.sock", LogEvery: 30 * time.Second})
		var out strings.Builder
		ctx, cancel := context.WithTimeout(logTo(t.Context(), t, &out, 0), 65*time.Second)
		defer cancel()
		_, err := client.Wait(ctx)
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Wait: %v, want the context's error", err)
		}
		if n := strings.Count(out.String(), "Waiting for the CSI driver"); n != 3 {
			t.Errorf("%d lines say that the client waits, want 3 (at 0 s, 30 s and 60 s):\n%s", n, out.String())
		}
		for _, part := range []string{`address="/csi/csi.sock"`, "not ready yet"} {
			if !strings.Contains(out.String(), part) {
				t.Errorf("log lacks %s:\n%s", part, out.String())
			}
		}
	})
}

func TestProbeAndDriverName(t *testing.T) {
	d := csitest.New(csitest.Options{Name: "probe.example"})
	client := connect(t, csiclient.Config{Address: strings.TrimPrefix(d.Serve(t), "unix://")})
	for _, want := range []bool{true, false} {
		d.SetReady(want)
		if got, err := client.Probe(t.Context()); err != nil || got != want {
			t.Errorf("Probe: %v, %v; want %v", got, err, want)
		}
		if err := client.Ready(t.Context()); (err == nil) != want || err != nil && !strings.Contains(err.Error(), "not ready") {
			t.Errorf("Ready: %v, want ready: %v", err, want)
		}
	}
	if got, err := client.DriverName(t.Context()); err != nil || got != "probe.example" {
		t.Errorf("DriverName: %q, %v", got, err)
	}
	d.Inject(csitest.Fault{Code: codes.Internal, Message: "boom"})
	if _, err := client.Probe(t.Context()); err == nil || !strings.Contains(err.Error(), "boom") {
		t.Errorf("Probe of a broken driver: %v", err)
	}
	if err := client.Ready(t.Context()); err == nil || !strings.Contains(err.Error(), "boom") {
		t.Errorf("Ready of a broken driver: %v", err)
	}
	if _, err := client.DriverName(t.Context()); err == nil || !strings.Contains(err.Error(), "boom") {
		t.Errorf("DriverName of a broken driver: %v", err)
	}
}

// A path may contain what would mean something in a URL.
func TestOddSocketPath(t *testing.T) {
	d := csitest.New(csitest.Options{})
	plain := strings.TrimPrefix(d.Serve(t), "unix://")
	odd := filepath.Join(filepath.Dir(plain), "50%?#.sock")
	if err := os.Symlink(plain, odd); err != nil {
		t.Fatalf("link: %v", err)
	}
	if _, err := connect(t, csiclient.Config{Address: odd}).DriverName(t.Context()); err != nil {
		t.Errorf("DriverName over %q: %v", odd, err)
	}
}

func TestCallsAreMeasured(t *testing.T) {
	for name, socket := range map[string]bool{"Socket": true, "InProcess": false} {
		t.Run(name, func(t *testing.T) {
			d := csitest.New(csitest.Options{Name: "measured.example"})
			reg := procmetrics.NewRegistry()
			cfg := csiclient.Config{Metrics: metrics.NewSidecarCSI(reg), Services: csiclient.IdentityOnly, Conn: d.Conn()}
			if socket {
				cfg.Conn, cfg.Address = nil, d.Serve(t)
			}
			client := connect(t, cfg)
			if _, err := client.Wait(t.Context()); err != nil {
				t.Fatalf("Wait: %v", err)
			}
			if _, err := client.Controller().DeleteVolume(t.Context(), &csi.DeleteVolumeRequest{}); err == nil {
				t.Error("DeleteVolume without ID succeeded")
			}
			// Probe and GetPluginInfo come before the name is known.
			n, err := testutil.GatherAndCount(reg, metrics.SidecarOperations)
			if err != nil || n != 4 {
				t.Errorf("%d series, %v; want Probe, GetPluginInfo, GetPluginCapabilities and DeleteVolume", n, err)
			}
		})
	}
}

func TestInterceptorsSeeCallsFirst(t *testing.T) {
	d := csitest.New(csitest.Options{})
	var order []string
	note := func(name string) grpc.UnaryClientInterceptor {
		return func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, call grpc.UnaryInvoker, opts ...grpc.CallOption) error {
			order = append(order, name)
			return call(ctx, method, req, reply, cc, opts...)
		}
	}
	client := connect(t, csiclient.Config{Conn: d.Conn(), Interceptors: []grpc.UnaryClientInterceptor{note("first"), note("second")}})
	if _, err := client.Node().NodeGetInfo(t.Context(), &csi.NodeGetInfoRequest{}); err != nil {
		t.Fatalf("NodeGetInfo: %v", err)
	}
	if diff := cmp.Diff([]string{"first", "second"}, order); diff != "" {
		t.Errorf("order (-want +got):\n%s", diff)
	}
	if _, err := client.Conn().NewStream(t.Context(), &grpc.StreamDesc{}, "/x/y"); err == nil {
		t.Error("the driver has no streams, but one was opened")
	}
}
