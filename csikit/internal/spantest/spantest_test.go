package spantest_test

import (
	"slices"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.opentelemetry.io/otel"

	"github.com/longshore-csi/longshore/csikit/internal/spantest"
)

func TestRecord(t *testing.T) {
	before := otel.GetTracerProvider()
	t.Run("Records", func(t *testing.T) {
		r := spantest.Record(t)
		if got := r.Names(); len(got) != 0 {
			t.Errorf("spans %q before there was any", got)
		}
		ctx, outer := otel.Tracer("a").Start(t.Context(), "outer")
		_, inner := otel.Tracer("b").Start(ctx, "inner")
		inner.End()
		outer.End()
		if diff := cmp.Diff([]string{"outer", "inner"}, r.Names()); diff != "" {
			t.Errorf("spans (-want +got):\n%s", diff)
		}
		r.Names()[0] = "changed"
		if r.Names()[0] != "outer" {
			t.Error("what is handed out is not a copy")
		}
	})
	if otel.GetTracerProvider() != before {
		t.Error("the provider was not put back")
	}
}

func TestRecordConcurrently(t *testing.T) {
	r := spantest.Record(t)
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			_, span := otel.Tracer("").Start(t.Context(), "same")
			span.End()
		})
	}
	wg.Wait()
	if got := r.Names(); !slices.Equal(got, slices.Repeat([]string{"same"}, 8)) {
		t.Errorf("spans %q, want 8", got)
	}
}
