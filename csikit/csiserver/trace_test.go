package csiserver_test

import (
	"context"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/google/go-cmp/cmp"

	"github.com/longshore-csi/longshore/csikit/csiserver"
)

func TestTracing(t *testing.T) {
	for name, c := range map[string]struct {
		reason  string
		tracing bool
		want    []string
	}{
		"On":  {reason: "a span for each call", tracing: true, want: []string{"csi.v1.Controller/DeleteVolume"}},
		"Off": {reason: "no span by default"},
	} {
		t.Run(name, func(t *testing.T) {
			spans := recordSpans(t)
			r := start(t, csiserver.Config{Tracing: c.tracing}, 0, &handler{remove: func(context.Context, *csi.DeleteVolumeRequest) error { return nil }})
			if err := r.delete(t.Context()); err != nil {
				t.Fatalf("DeleteVolume: %v", err)
			}
			if diff := cmp.Diff(c.want, spans.recorded()); diff != "" {
				t.Errorf("%s: spans (-want +got):\n%s", c.reason, diff)
			}
		})
	}
}
