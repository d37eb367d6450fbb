package csiserver_test

import (
	"context"
	"sync"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/google/go-cmp/cmp"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"

	"github.com/longshore-csi/longshore/csikit/csiserver"
)

// tracer notes the names of the spans that are started.
type tracer struct {
	noop.Tracer
	mu    sync.Mutex
	spans []string
}

func (r *tracer) Start(ctx context.Context, name string, opts ...trace.SpanStartOption) (context.Context, trace.Span) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.spans = append(r.spans, name)
	return r.Tracer.Start(ctx, name, opts...)
}

// provider gives out one tracer.
type provider struct {
	noop.TracerProvider
	tracer *tracer
}

func (p provider) Tracer(string, ...trace.TracerOption) trace.Tracer { return p.tracer }

func TestTracing(t *testing.T) {
	before := otel.GetTracerProvider()
	t.Cleanup(func() { otel.SetTracerProvider(before) })
	for name, c := range map[string]struct {
		reason  string
		tracing bool
		want    []string
	}{
		"On":  {reason: "a span for each call", tracing: true, want: []string{"csi.v1.Controller/DeleteVolume"}},
		"Off": {reason: "no span by default"},
	} {
		t.Run(name, func(t *testing.T) {
			seen := &tracer{}
			otel.SetTracerProvider(provider{tracer: seen})
			r := start(t, csiserver.Config{Tracing: c.tracing}, 0, &handler{remove: func(context.Context, *csi.DeleteVolumeRequest) error { return nil }})
			if err := r.delete(t.Context()); err != nil {
				t.Fatalf("DeleteVolume: %v", err)
			}
			seen.mu.Lock()
			defer seen.mu.Unlock()
			if diff := cmp.Diff(c.want, seen.spans); diff != "" {
				t.Errorf("%s: spans (-want +got):\n%s", c.reason, diff)
			}
		})
	}
}
