package csiclient_test

import (
	"context"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"

	"github.com/longshore-csi/longshore/csikit/csiclient"
	"github.com/longshore-csi/longshore/csikit/csitest"
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
		"On":  {reason: "a span for each call", tracing: true, want: []string{"csi.v1.Identity/Probe"}},
		"Off": {reason: "no span by default"},
	} {
		t.Run(name, func(t *testing.T) {
			seen := &tracer{}
			otel.SetTracerProvider(provider{tracer: seen})
			d := csitest.New(csitest.Options{})
			client := connect(t, csiclient.Config{Address: d.Serve(t), Tracing: c.tracing})
			if _, err := client.Probe(t.Context()); err != nil {
				t.Fatalf("Probe: %v", err)
			}
			seen.mu.Lock()
			defer seen.mu.Unlock()
			if diff := cmp.Diff(c.want, seen.spans); diff != "" {
				t.Errorf("%s: spans (-want +got):\n%s", c.reason, diff)
			}
		})
	}
}
