package nodeagent

import (
	"testing"

	"github.com/prometheus/client_golang/prometheus"
)

// TestAgentsShareARegistry: several agents in one process can be measured through one registry.
func TestAgentsShareARegistry(t *testing.T) {
	reg := prometheus.NewRegistry()
	for _, node := range []string{"node-1", "node-2"} {
		o := NewOptions()
		o.NodeName, o.RootDir, o.NodeIP = node, t.TempDir(), "10.0.0.1"
		o.Kube.Master = "http://127.0.0.1:1"
		o.Registerer = reg
		if _, err := newAgent(&o, o.registerer(nil), nil); err != nil {
			t.Fatalf("agent of %s: %v", node, err)
		}
	}
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	if len(families) == 0 {
		t.Error("the registry has no metrics")
	}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			found := ""
			for _, l := range m.GetLabel() {
				if l.GetName() == "node" {
					found = l.GetValue()
				}
			}
			if found == "" {
				t.Errorf("%s has no label node: %v", f.GetName(), m)
			}
		}
	}
}
