// Package spantest notes which spans are started, for tests of what is traced. It is not for what spans say:
// those that it hands out do nothing.
package spantest

import (
	"context"
	"slices"
	"sync"
	"testing"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"
)

// Recorder is a provider of tracers that notes the names of their spans.
type Recorder struct {
	noop.TracerProvider
	mu    sync.Mutex
	names []string
}

// Record makes a Recorder the provider of this process until the test ends.
func Record(t testing.TB) *Recorder {
	t.Helper()
	before := otel.GetTracerProvider()
	t.Cleanup(func() { otel.SetTracerProvider(before) })
	r := &Recorder{}
	otel.SetTracerProvider(r)
	return r
}

// Names returns the names of the spans, in the order in which they were started.
func (r *Recorder) Names() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.names)
}

// Tracer implements trace.TracerProvider.
func (r *Recorder) Tracer(string, ...trace.TracerOption) trace.Tracer { return tracer{recorder: r} }

type tracer struct {
	noop.Tracer
	recorder *Recorder
}

// Start implements trace.Tracer.
func (t tracer) Start(ctx context.Context, name string, opts ...trace.SpanStartOption) (context.Context, trace.Span) {
	t.recorder.mu.Lock()
	t.recorder.names = append(t.recorder.names, name)
	t.recorder.mu.Unlock()
	return t.Tracer.Start(ctx, name, opts...)
}
