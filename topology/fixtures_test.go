package topology

import (
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	corev1 "k8s.io/api/core/v1"
)

const testDriver = "hostpath.example.com"

// mustParse returns the segment of a text that is known to be good.
func mustParse(tb testing.TB, text string) Segment {
	tb.Helper()
	s, err := Parse(text)
	if err != nil {
		tb.Fatal(err)
	}
	return s
}

// messages returns the CSI messages of segment texts.
func messages(tb testing.TB, texts ...string) []*csi.Topology {
	tb.Helper()
	list := make([]*csi.Topology, 0, len(texts))
	for _, text := range texts {
		list = append(list, mustParse(tb, text).Topology())
	}
	return list
}

// texts returns the segment texts of CSI messages; nil for an empty list.
func texts(tb testing.TB, list []*csi.Topology) []string {
	tb.Helper()
	var result []string
	for _, m := range list {
		s, err := FromTopology(m)
		if err != nil {
			tb.Fatal(err)
		}
		result = append(result, s.String())
	}
	return result
}

// in makes an expression of allowedTopologies.
func in(key string, values ...string) corev1.TopologySelectorLabelRequirement {
	return corev1.TopologySelectorLabelRequirement{Key: key, Values: values}
}

// term makes a term of allowedTopologies.
func term(expressions ...corev1.TopologySelectorLabelRequirement) corev1.TopologySelectorTerm {
	return corev1.TopologySelectorTerm{MatchLabelExpressions: expressions}
}

// allow makes allowedTopologies.
func allow(terms ...corev1.TopologySelectorTerm) []corev1.TopologySelectorTerm {
	return terms
}

// testNode is a node as the test tables write it: the name, the labels as the
// text of a segment, and the topology keys that the driver reports.
type testNode struct {
	name   string
	labels string
	keys   []string
}

// indexOf returns an index that has seen the nodes.
func indexOf(tb testing.TB, nodes ...testNode) *Index {
	tb.Helper()
	x := New(testDriver)
	for _, n := range nodes {
		x.SetNode(n.name, mustParse(tb, n.labels).Map())
		x.SetCSINode(n.name, true, n.keys)
	}
	return x
}

// bigIndex returns an index of n nodes with 20 labels each, of which the given
// key is the topology key; value returns its value on node i.
func bigIndex(n int, key string, value func(i int) string) *Index {
	x := New(testDriver)
	for i := range n {
		name := "node-" + strconv.Itoa(i)
		x.SetNode(name, bigLabels(i, key, value(i)))
		x.SetCSINode(name, true, []string{key})
	}
	return x
}

// bigLabels returns 20 labels.
func bigLabels(i int, key, value string) map[string]string {
	labels := map[string]string{key: value}
	for j := range 19 {
		labels[fmt.Sprintf("example.com/label-%d", j)] = fmt.Sprintf("value-%d-%d", j, i)
	}
	return labels
}

// newRand returns a random source whose seed is printed when the test fails. The seed is the same each time, as with csikittest/seeds, which this module
// does not depend on: another one is that of the environment variable SEED, or a new one if LONGSHORE_EXHAUSTIVE is not empty.
func newRand(t *testing.T) *rand.Rand {
	t.Helper()
	seed := uint64(1)
	if text := os.Getenv("SEED"); text != "" {
		var err error
		if seed, err = strconv.ParseUint(text, 10, 64); err != nil {
			t.Fatalf("parse SEED %q: %v", text, err)
		}
	} else if os.Getenv("LONGSHORE_EXHAUSTIVE") != "" {
		seed = rand.Uint64N(1e9)
	}
	t.Logf("seed: SEED=%d", seed)
	return rand.New(rand.NewPCG(seed, 0))
}
