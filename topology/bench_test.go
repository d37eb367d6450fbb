package topology

import (
	"fmt"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
)

const benchNodes = 5000

// benchCluster is one of the two shapes of clusters that matter: few segments
// with many nodes each, and one segment for each node.
type benchCluster struct {
	name, key string
	index     *Index
}

func benchClusters() []benchCluster {
	const zone, host = "topology.kubernetes.io/zone", "kubernetes.io/hostname"
	return []benchCluster{
		{"Zones", zone, bigIndex(benchNodes, zone, func(i int) string { return fmt.Sprintf("zone-%d", i%3) })},
		{"Hostname", host, bigIndex(benchNodes, host, func(i int) string { return fmt.Sprintf("node-%d", i) })},
	}
}

// BenchmarkRequire is one CreateVolume attempt at 5,000 nodes.
func BenchmarkRequire(b *testing.B) {
	requests := []struct {
		name    string
		request Request
	}{
		{"Late", Request{Policy: DefaultPolicy(), SelectedNode: "node-1234", ClaimName: "data-web-7"}},
		{"Immediate", Request{Policy: DefaultPolicy(), ClaimName: "data-web-7"}},
		{"Strict", Request{Policy: Policy{Strict: true}, SelectedNode: "node-1234", ClaimName: "data-web-7"}},
	}
	for _, cluster := range benchClusters() {
		for _, r := range requests {
			b.Run(cluster.name+"/"+r.name, func(b *testing.B) {
				b.ReportAllocs()
				for b.Loop() {
					benchRequire(b, cluster.index, r.request)
				}
			})
		}
	}
}

func benchRequire(b *testing.B, x *Index, request Request) *csi.TopologyRequirement {
	b.Helper()
	requirement, err := x.Require(request)
	if err != nil {
		b.Fatal(err)
	}
	return requirement
}

// BenchmarkAllowed is a class with allowedTopologies of 3 zones.
func BenchmarkAllowed(b *testing.B) {
	x := benchClusters()[0].index
	request := Request{
		Policy:            DefaultPolicy(),
		SelectedNode:      "node-1234",
		AllowedTopologies: allow(term(in("topology.kubernetes.io/zone", "zone-0", "zone-1", "zone-2"))),
	}
	b.ReportAllocs()
	for b.Loop() {
		benchRequire(b, x, request)
	}
}

// BenchmarkEvent is the cost of one event at 5,000 nodes.
func BenchmarkEvent(b *testing.B) {
	for _, cluster := range benchClusters() {
		shape, key, x := cluster.name, cluster.key, cluster.index
		b.Run(shape+"/Heartbeat", func(b *testing.B) {
			labels := [2]map[string]string{bigLabels(0, key, "zone-0"), bigLabels(0, key, "zone-0")}
			x.SetNode("node-0", labels[0])
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				x.SetNode("node-0", labels[i%2])
			}
		})
		b.Run(shape+"/Move", func(b *testing.B) {
			labels := [2]map[string]string{bigLabels(0, key, "zone-1"), bigLabels(0, key, "zone-x")}
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				x.SetNode("node-0", labels[i%2])
			}
		})
		b.Run(shape+"/MoveAndRequire", func(b *testing.B) {
			labels := [2]map[string]string{bigLabels(0, key, "zone-1"), bigLabels(0, key, "zone-x")}
			request := Request{Policy: DefaultPolicy(), SelectedNode: "node-0"}
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				x.SetNode("node-0", labels[i%2])
				benchRequire(b, x, request)
			}
		})
	}
}

// BenchmarkFill is the initial list of 5,000 nodes.
func BenchmarkFill(b *testing.B) {
	labels := make([]map[string]string, benchNodes)
	names := make([]string, benchNodes)
	for i := range labels {
		names[i] = fmt.Sprintf("node-%d", i)
		labels[i] = bigLabels(i, "kubernetes.io/hostname", names[i])
	}
	keys := []string{"kubernetes.io/hostname"}
	b.ReportAllocs()
	for b.Loop() {
		x := New(testDriver)
		for i, name := range names {
			x.SetNode(name, labels[i])
			x.SetCSINode(name, true, keys)
		}
		benchRequire(b, x, Request{Policy: DefaultPolicy(), SelectedNode: names[0]})
	}
}

// BenchmarkNodeAffinity is one volume that is accessible from 3 zones.
func BenchmarkNodeAffinity(b *testing.B) {
	accessible := messages(b, "topology.kubernetes.io/zone=zone-2", "topology.kubernetes.io/zone=zone-0", "topology.kubernetes.io/zone=zone-1")
	b.ReportAllocs()
	for b.Loop() {
		if _, err := NodeAffinity(accessible); err != nil {
			b.Fatal(err)
		}
	}
}
