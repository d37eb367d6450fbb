package main

import (
	"bytes"
	"context"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"go.opentelemetry.io/otel"
	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
)

// receiver is a collector of traces that notes what runs.
type receiver struct {
	collector.UnimplementedTraceServiceServer

	mu    sync.Mutex
	spans []string
}

// Export implements collector.TraceServiceServer.
func (r *receiver) Export(_ context.Context, req *collector.ExportTraceServiceRequest) (*collector.ExportTraceServiceResponse, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, resource := range req.GetResourceSpans() {
		for _, scope := range resource.GetScopeSpans() {
			for _, span := range scope.GetSpans() {
				r.spans = append(r.spans, span.GetName())
			}
		}
	}
	return &collector.ExportTraceServiceResponse{}, nil
}

func (r *receiver) listen(t *testing.T) string {
	t.Helper()
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

// probe runs the driver for one call.
func probe(t *testing.T) {
	t.Helper()
	dir, err := os.MkdirTemp("", "hp") // t.TempDir has a path too long for a socket
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	endpoint := "unix://" + filepath.Join(dir, "csi.sock")
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	done := make(chan error, 1)
	var stdout, stderr bytes.Buffer
	go func() {
		defer stop()
		done <- newCommand().Execute(ctx, []string{"--mode=controller", "--endpoint=" + endpoint, "--statedir=" + filepath.Join(dir, "state")}, &stdout, &stderr)
	}()
	conn, err := grpc.NewClient(endpoint, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := csi.NewIdentityClient(conn).Probe(ctx, &csi.ProbeRequest{}, grpc.WaitForReady(true)); err != nil {
		t.Errorf("probe: %v", err)
	}
	stop()
	if err := <-done; err != nil {
		t.Errorf("end: %v\n%s", err, &stderr)
	}
}

// TestTracesByEnvironment: the span of a call has arrived when the process has
// ended, without a flag. Without the variables there is none.
func TestTracesByEnvironment(t *testing.T) {
	before := otel.GetTracerProvider()
	probe(t)
	if otel.GetTracerProvider() != before {
		t.Error("without the variables something is started")
	}
	r := &receiver{}
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", r.listen(t))
	t.Setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")
	probe(t)
	if !slices.Contains(r.spans, "csi.v1.Identity/Probe") {
		t.Errorf("spans %v, want that of the call", r.spans)
	}
}
