package tracing_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.opentelemetry.io/otel"
	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"k8s.io/klog/v2"

	"github.com/longshore-csi/longshore/csikit/logging"
	"github.com/longshore-csi/longshore/csikit/tracing"
)

// receiver is a collector.
type receiver struct {
	collector.UnimplementedTraceServiceServer

	mu       sync.Mutex
	names    []string
	resource map[string]string
}

// Export implements collector.TraceServiceServer.
func (r *receiver) Export(_ context.Context, req *collector.ExportTraceServiceRequest) (*collector.ExportTraceServiceResponse, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.resource = map[string]string{}
	for _, spans := range req.GetResourceSpans() {
		for _, a := range spans.GetResource().GetAttributes() {
			r.resource[a.GetKey()] = a.GetValue().GetStringValue()
		}
		for _, scope := range spans.GetScopeSpans() {
			for _, span := range scope.GetSpans() {
				r.names = append(r.names, span.GetName())
			}
		}
	}
	return &collector.ExportTraceServiceResponse{}, nil
}

// ServeHTTP is the same by the other protocol.
func (r *receiver) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	body, err := io.ReadAll(req.Body)
	parsed := &collector.ExportTraceServiceRequest{}
	if err := errors.Join(err, proto.Unmarshal(body, parsed)); err != nil || req.URL.Path != "/v1/traces" {
		http.Error(w, req.URL.Path, http.StatusBadRequest)
		return
	}
	_, _ = r.Export(req.Context(), parsed)
	w.Header().Set("Content-Type", "application/x-protobuf")
}

// listen serves the protocol and returns the URL.
func (r *receiver) listen(t *testing.T, protocol string) string {
	t.Helper()
	if protocol != "grpc" {
		server := httptest.NewServer(r)
		t.Cleanup(server.Close)
		return server.URL
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	collector.RegisterTraceServiceServer(server, r)
	done := make(chan error, 1)
	go func() { done <- server.Serve(l) }()
	t.Cleanup(func() {
		server.Stop()
		<-done
	})
	return "http://" + l.Addr().String()
}

// keep restores what is global at the end of the test.
func keep(t *testing.T) {
	t.Helper()
	provider, propagator := otel.GetTracerProvider(), otel.GetTextMapPropagator()
	t.Cleanup(func() {
		if otel.GetTracerProvider() != provider {
			otel.SetTracerProvider(provider)
			otel.SetTextMapPropagator(propagator)
		}
	})
}

func span(ctx context.Context, name string) {
	_, span := otel.Tracer("test").Start(ctx, name)
	span.End()
}

func TestRun(t *testing.T) {
	broken := errors.New("broken")
	for _, protocol := range []string{"grpc", "http/protobuf"} {
		t.Run(strings.ReplaceAll(protocol, "/", "-"), func(t *testing.T) {
			keep(t)
			r := &receiver{}
			t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", r.listen(t, protocol))
			t.Setenv("OTEL_EXPORTER_OTLP_PROTOCOL", protocol)
			t.Setenv("OTEL_RESOURCE_ATTRIBUTES", "k8s.node.name=n1")
			ctx, cancel := context.WithCancel(t.Context())
			err := tracing.Run(ctx, "csi-thing", func(ctx context.Context, on bool) error {
				span(ctx, "first")
				span(ctx, "second")
				cancel() // as a signal does: the last spans are exported all the same
				if !on {
					t.Error("spans are not exported")
				}
				return broken
			})
			if !errors.Is(err, broken) {
				t.Errorf("error %v, want that of run", err)
			}
			if diff := cmp.Diff([]string{"first", "second"}, r.names); diff != "" {
				t.Errorf("spans (-want +got):\n%s", diff)
			}
			if r.resource["service.name"] != "csi-thing" || r.resource["k8s.node.name"] != "n1" || r.resource["service.version"] == "" {
				t.Errorf("resource %v", r.resource)
			}
		})
	}
}

// TestServiceName: the environment knows better which of several this is.
func TestServiceName(t *testing.T) {
	keep(t)
	r := &receiver{}
	t.Setenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", r.listen(t, "http/protobuf")+"/v1/traces")
	t.Setenv("OTEL_SERVICE_NAME", "csi-thing-blue")
	err := tracing.Run(t.Context(), "csi-thing", func(ctx context.Context, _ bool) error {
		span(ctx, "first")
		return nil
	})
	if err != nil || r.resource["service.name"] != "csi-thing-blue" {
		t.Errorf("%v, resource %v", err, r.resource)
	}
}

// TestNothingIsStarted without the variables: the provider stays what it is, and the test for leaks finds no goroutine.
func TestNothingIsStarted(t *testing.T) {
	for name, env := range map[string]map[string]string{
		"Nothing":  {},
		"None":     {"OTEL_TRACES_EXPORTER": "none", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1"},
		"Disabled": {"OTEL_SDK_DISABLED": "true", "OTEL_TRACES_EXPORTER": "otlp"},
	} {
		t.Run(name, func(t *testing.T) {
			keep(t)
			for _, key := range slices.Sorted(maps.Keys(env)) {
				t.Setenv(key, env[key])
			}
			before, ran := otel.GetTracerProvider(), false
			err := tracing.Run(t.Context(), "csi-thing", func(_ context.Context, on bool) error {
				ran = true
				if on || otel.GetTracerProvider() != before {
					t.Errorf("on %t, provider %v, want %v", on, otel.GetTracerProvider(), before)
				}
				return nil
			})
			if err != nil || !ran {
				t.Errorf("ran %t, %v", ran, err)
			}
		})
	}
}

func TestBadEnvironment(t *testing.T) {
	for key, value := range map[string]string{"OTEL_TRACES_EXPORTER": "zipkin", "OTEL_EXPORTER_OTLP_ENDPOINT": "collector:4317"} {
		t.Run(key, func(t *testing.T) {
			keep(t)
			t.Setenv(key, value)
			err := tracing.Run(t.Context(), "csi-thing", func(context.Context, bool) error {
				t.Error("it runs")
				return nil
			})
			if err == nil || !strings.Contains(err.Error(), key) || !strings.Contains(err.Error(), value) {
				t.Errorf("error %v, want the variable and its value", err)
			}
		})
	}
}

// TestLostSpans: nobody listens. The process ends without an error, and the log says what is lost; so it does about a variable
// that is not fatal.
func TestLostSpans(t *testing.T) {
	keep(t)
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://"+deaf(t))
	t.Setenv("OTEL_TRACES_SAMPLER", "perhaps")
	var text bytes.Buffer
	logger, err := logging.New(logging.NewOptions(), &text)
	if err != nil {
		t.Fatal(err)
	}
	err = tracing.Run(klog.NewContext(t.Context(), logger), "csi-thing", func(ctx context.Context, _ bool) error {
		span(ctx, "lost")
		return nil
	})
	if err != nil {
		t.Error(err)
	}
	for _, part := range []string{"connection refused", "perhaps"} {
		if !strings.Contains(text.String(), part) {
			t.Errorf("the log lacks %q:\n%s", part, &text)
		}
	}
}

// deaf returns an address that refuses connections, and that nobody else is given until the test ends.
func deaf(t *testing.T) string {
	t.Helper()
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = syscall.Close(fd) })
	err = syscall.Bind(fd, &syscall.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}})
	bound, err2 := syscall.Getsockname(fd)
	at, ok := bound.(*syscall.SockaddrInet4)
	if err := errors.Join(err, err2); err != nil || !ok {
		t.Fatalf("bind to a free port: %v, %v", bound, err)
	}
	return fmt.Sprintf("127.0.0.1:%d", at.Port)
}
