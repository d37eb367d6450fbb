package csiserver_test

import (
	"context"
	"slices"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"
)

// spanRecorder is a provider of tracers that notes the names of their spans. The spans themselves do nothing.
type spanRecorder struct {
	noop.TracerProvider
	mu    sync.Mutex
	names []string
}

// recordSpans makes a spanRecorder the provider of this process until the test ends.
func recordSpans(tb testing.TB) *spanRecorder {
	tb.Helper()
	before := otel.GetTracerProvider()
	tb.Cleanup(func() { otel.SetTracerProvider(before) })
	r := &spanRecorder{}
	otel.SetTracerProvider(r)
	return r
}

// recorded returns the names of the spans, in the order in which they were started.
func (r *spanRecorder) recorded() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.names)
}

func (r *spanRecorder) Tracer(string, ...trace.TracerOption) trace.Tracer { return tracer{recorder: r} }

type tracer struct {
	noop.Tracer
	recorder *spanRecorder
}

func (t tracer) Start(ctx context.Context, name string, opts ...trace.SpanStartOption) (context.Context, trace.Span) {
	t.recorder.mu.Lock()
	t.recorder.names = append(t.recorder.names, name)
	t.recorder.mu.Unlock()
	return t.Tracer.Start(ctx, name, opts...)
}

func TestSpansAreRecorded(t *testing.T) {
	before := otel.GetTracerProvider()
	t.Run("Records", func(t *testing.T) {
		r := recordSpans(t)
		if got := r.recorded(); len(got) != 0 {
			t.Errorf("spans %q before there was any", got)
		}
		ctx, outer := otel.Tracer("a").Start(t.Context(), "outer")
		_, inner := otel.Tracer("b").Start(ctx, "inner")
		inner.End()
		outer.End()
		if diff := cmp.Diff([]string{"outer", "inner"}, r.recorded()); diff != "" {
			t.Errorf("spans (-want +got):\n%s", diff)
		}
	})
	if otel.GetTracerProvider() != before {
		t.Error("the provider was not put back")
	}
}

func TestSpansAreRecordedConcurrently(t *testing.T) {
	r := recordSpans(t)
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			_, span := otel.Tracer("").Start(t.Context(), "same")
			span.End()
		})
	}
	wg.Wait()
	if got := r.recorded(); !slices.Equal(got, slices.Repeat([]string{"same"}, 8)) {
		t.Errorf("spans %q, want 8", got)
	}
}
