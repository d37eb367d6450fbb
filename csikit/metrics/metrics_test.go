package metrics_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/longshore-csi/longshore/csikit/metrics"
)

const method = "/csi.v1.Controller/CreateVolume"

// exposition is the whole metric of one call that took three seconds.
func exposition(name, help, driver, code string) string {
	var out strings.Builder
	fmt.Fprintf(&out, "# HELP %s %s\n# TYPE %s histogram\n", name, help, name)
	labels := fmt.Sprintf(`driver_name=%q,grpc_status_code=%q,method_name=%q`, driver, code, method)
	for _, le := range []string{"0.1", "0.25", "0.5", "1", "2.5", "5", "10", "15", "25", "50", "120", "300", "600", "+Inf"} {
		n := 1
		if le == "0.1" || le == "0.25" || le == "0.5" || le == "1" || le == "2.5" {
			n = 0
		}
		fmt.Fprintf(&out, "%s_bucket{%s,le=%q} %d\n", name, labels, le, n)
	}
	fmt.Fprintf(&out, "%s_sum{%s} 3\n%s_count{%s} 1\n", name, labels, name, labels)
	return out.String()
}

const (
	sidecarHelp = "Time that calls to the CSI driver took, by method and gRPC status code."
	pluginHelp  = "Time that the CSI driver took to serve calls, by method and gRPC status code."
)

// newSidecar is what components use whose drivers replace no in-tree plugin.
func newSidecar(reg prometheus.Registerer) *metrics.CSI { return metrics.NewSidecarCSI(reg) }

// Names, labels and buckets are what dashboards and alerts are made of.
func TestExposition(t *testing.T) {
	cases := map[string]struct {
		reason string
		make   func(prometheus.Registerer) *metrics.CSI
		driver string
		err    error
		want   string
	}{
		"Sidecar": {
			reason: "a call to a driver",
			make:   newSidecar, driver: "d.example",
			want: exposition("csi_sidecar_operations_seconds", sidecarHelp, "d.example", "OK"),
		},
		"Plugin": {
			reason: "a call served by a driver",
			make:   metrics.NewPluginCSI, driver: "d.example",
			want: exposition("csi_plugin_operations_seconds", pluginHelp, "d.example", "OK"),
		},
		"UnknownDriver": {
			reason: "before the name is known",
			make:   newSidecar,
			want:   exposition("csi_sidecar_operations_seconds", sidecarHelp, "unknown-driver", "OK"),
		},
		"Status": {
			reason: "an error of the driver",
			make:   newSidecar, driver: "d.example", err: status.Error(codes.DeadlineExceeded, "x"),
			want: exposition("csi_sidecar_operations_seconds", sidecarHelp, "d.example", "DeadlineExceeded"),
		},
		"Wrapped": {
			reason: "an error of the driver with words around it",
			make:   newSidecar, driver: "d.example", err: fmt.Errorf("call: %w", status.Error(codes.Aborted, "x")),
			want: exposition("csi_sidecar_operations_seconds", sidecarHelp, "d.example", "Aborted"),
		},
		"NotGRPC": {
			reason: "an error of something else",
			make:   newSidecar, driver: "d.example", err: errors.New("x"),
			want: exposition("csi_sidecar_operations_seconds", sidecarHelp, "d.example", "unknown-non-grpc"),
		},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			reg := prometheus.NewPedanticRegistry()
			m := c.make(reg)
			m.SetDriverName(c.driver)
			m.Observe(method, 3*time.Second, c.err)
			if err := testutil.GatherAndCompare(reg, strings.NewReader(c.want)); err != nil {
				t.Errorf("%s: %v", c.reason, err)
			}
			problems, err := testutil.GatherAndLint(reg)
			if err != nil || len(problems) > 0 {
				t.Errorf("%s: lint: %v, %v", c.reason, problems, err)
			}
		})
	}
}

// count returns how many calls were measured with a status code.
func count(t *testing.T, reg *prometheus.Registry, code string) uint64 {
	t.Helper()
	families, err := reg.Gather()
	if err != nil {
		t.Fatalf("gather: %v", err)
	}
	var n uint64
	for _, f := range families {
		for _, m := range f.GetMetric() {
			for _, l := range m.GetLabel() {
				if l.GetName() == metrics.LabelCode && l.GetValue() == code {
					n += m.GetHistogram().GetSampleCount()
				}
			}
		}
	}
	return n
}

func TestInterceptors(t *testing.T) {
	failure := status.Error(codes.Aborted, "busy")
	cases := map[string]struct {
		reason string
		call   func(*metrics.CSI, error) error
	}{
		"UnaryClient": {reason: "calls made", call: func(m *metrics.CSI, err error) error {
			invoke := func(context.Context, string, any, any, *grpc.ClientConn, ...grpc.CallOption) error { return err }
			return m.UnaryClientInterceptor()(t.Context(), method, nil, nil, nil, invoke)
		}},
		"UnaryServer": {reason: "calls served", call: func(m *metrics.CSI, err error) error {
			reply, got := m.UnaryServerInterceptor()(t.Context(), nil, &grpc.UnaryServerInfo{FullMethod: method},
				func(context.Context, any) (any, error) { return "reply", err })
			if reply != "reply" {
				t.Errorf("the reply has become %v", reply)
			}
			return got
		}},
		"StreamServer": {reason: "streams served", call: func(m *metrics.CSI, err error) error {
			return m.StreamServerInterceptor()(nil, nil, &grpc.StreamServerInfo{FullMethod: method},
				func(any, grpc.ServerStream) error { return err })
		}},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			reg := prometheus.NewPedanticRegistry()
			m := metrics.NewSidecarCSI(reg)
			for _, want := range []error{nil, failure, failure} {
				if got := c.call(m, want); !errors.Is(got, want) {
					t.Errorf("%s: the error has become %v, want %v", c.reason, got, want)
				}
			}
			if ok, aborted := count(t, reg, "OK"), count(t, reg, "Aborted"); ok != 1 || aborted != 2 {
				t.Errorf("%s: %d OK and %d Aborted were measured, want 1 and 2", c.reason, ok, aborted)
			}
		})
	}
}

// Two drivers of one process share a registry and differ by their names.
func TestSharedRegistry(t *testing.T) {
	reg := prometheus.NewPedanticRegistry()
	for _, driver := range []string{"a.example", "b.example"} {
		m := metrics.NewSidecarCSI(reg)
		m.SetDriverName(driver)
		m.Observe(method, time.Second, nil)
	}
	if n, err := testutil.GatherAndCount(reg, metrics.SidecarOperations); err != nil || n != 2 {
		t.Errorf("%d series, %v; want one of each driver", n, err)
	}
}

func TestWithoutRegistry(t *testing.T) {
	m := metrics.NewPluginCSI(nil)
	m.Observe(method, time.Second, nil) // must not panic
}

func TestTakenNamePanics(t *testing.T) {
	reg := prometheus.NewRegistry()
	reg.MustRegister(prometheus.NewCounter(prometheus.CounterOpts{Name: metrics.SidecarOperations, Help: "Something else."}))
	defer func() {
		if p := recover(); p == nil || !strings.Contains(fmt.Sprint(p), metrics.SidecarOperations) {
			t.Errorf("recovered %v, want a panic that names the metric", p)
		}
	}()
	metrics.NewSidecarCSI(reg)
}

func TestBucketsAreNotShared(t *testing.T) {
	metrics.Buckets()[0] = 99
	if metrics.Buckets()[0] == 99 {
		t.Error("a caller can change the buckets")
	}
}

// series lists the labels of the calls that were measured, sorted.
func series(t *testing.T, reg *prometheus.Registry) []string {
	t.Helper()
	families, err := reg.Gather()
	if err != nil {
		t.Fatalf("gather: %v", err)
	}
	var found []string
	for _, f := range families {
		for _, m := range f.GetMetric() {
			var labels []string
			for _, l := range m.GetLabel() {
				labels = append(labels, l.GetName()+"="+l.GetValue())
			}
			found = append(found, fmt.Sprintf("%s %d", strings.Join(labels, ","), m.GetHistogram().GetSampleCount()))
		}
	}
	slices.Sort(found)
	return found
}

// The label migrated is present only for drivers that replace an in-tree plugin, and only once their name is known; each call
// decides about its value. The registry is one that verifies that metrics agree with their descriptions.
func TestMigrated(t *testing.T) {
	invoke := func(context.Context, string, any, any, *grpc.ClientConn, ...grpc.CallOption) error { return nil }
	replaces := metrics.ForMigration(func(driver string) bool { return driver == "new.example" })
	cases := map[string]struct {
		reason  string
		options []metrics.Option
		driver  string
		want    []string
	}{
		"ReplacesPlugin": {
			reason: "dashboards show migrated volumes on their own", options: []metrics.Option{replaces}, driver: "new.example",
			want: []string{
				"driver_name=new.example,grpc_status_code=OK,method_name=/csi.v1.Controller/CreateVolume,migrated=false 2",
				"driver_name=new.example,grpc_status_code=OK,method_name=/csi.v1.Controller/CreateVolume,migrated=true 1",
				"driver_name=unknown-driver,grpc_status_code=OK,method_name=/csi.v1.Controller/CreateVolume 1",
			},
		},
		"ReplacesNone": {
			reason: "a driver without a history", options: []metrics.Option{replaces}, driver: "other.example",
			want: []string{
				"driver_name=other.example,grpc_status_code=OK,method_name=/csi.v1.Controller/CreateVolume 3",
				"driver_name=unknown-driver,grpc_status_code=OK,method_name=/csi.v1.Controller/CreateVolume 1",
			},
		},
		"NoOption": {
			reason: "a component that knows no in-tree plugins", driver: "new.example",
			want: []string{
				"driver_name=new.example,grpc_status_code=OK,method_name=/csi.v1.Controller/CreateVolume 3",
				"driver_name=unknown-driver,grpc_status_code=OK,method_name=/csi.v1.Controller/CreateVolume 1",
			},
		},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			reg := prometheus.NewPedanticRegistry()
			m := metrics.NewSidecarCSI(reg, c.options...)
			call := func(ctx context.Context) {
				if err := m.UnaryClientInterceptor()(ctx, method, nil, nil, nil, invoke); err != nil {
					t.Fatal(err)
				}
			}
			call(metrics.WithMigrated(t.Context(), true)) // the name of the driver is not known yet
			m.SetDriverName(c.driver)
			call(t.Context())
			call(metrics.WithMigrated(t.Context(), false))
			call(metrics.WithMigrated(t.Context(), true))
			if diff := cmp.Diff(c.want, series(t, reg)); diff != "" {
				t.Errorf("%s (-want +got):\n%s", c.reason, diff)
			}
		})
	}
}

// Drivers of both kinds may share a registry.
func TestMigratedSharesRegistry(t *testing.T) {
	reg := prometheus.NewPedanticRegistry()
	for _, driver := range []string{"new.example", "other.example"} {
		m := metrics.NewSidecarCSI(reg, metrics.ForMigration(func(driver string) bool { return driver == "new.example" }))
		m.SetDriverName(driver)
		m.Observe(method, time.Second, nil)
	}
	want := []string{
		"driver_name=new.example,grpc_status_code=OK,method_name=/csi.v1.Controller/CreateVolume,migrated=false 1",
		"driver_name=other.example,grpc_status_code=OK,method_name=/csi.v1.Controller/CreateVolume 1",
	}
	if diff := cmp.Diff(want, series(t, reg)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
