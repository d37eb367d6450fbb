package csiclient_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/longshore-csi/longshore/csikit/csiclient"
	"github.com/longshore-csi/longshore/csikit/csitest"
	"github.com/longshore-csi/longshore/csikit/internal/spantest"
)

func TestTracing(t *testing.T) {
	for name, c := range map[string]struct {
		reason  string
		tracing bool
		want    []string
	}{
		"On":  {reason: "a span for each call", tracing: true, want: []string{"csi.v1.Identity/Probe"}},
		"Off": {reason: "no span by default"},
	} {
		t.Run(name, func(t *testing.T) {
			spans := spantest.Record(t)
			d := csitest.New(csitest.Options{})
			client := connect(t, csiclient.Config{Address: d.Serve(t), Tracing: c.tracing})
			if _, err := client.Probe(t.Context()); err != nil {
				t.Fatalf("Probe: %v", err)
			}
			if diff := cmp.Diff(c.want, spans.Names()); diff != "" {
				t.Errorf("%s: spans (-want +got):\n%s", c.reason, diff)
			}
		})
	}
}
