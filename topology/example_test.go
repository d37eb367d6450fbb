package topology_test

import (
	"errors"
	"fmt"

	"github.com/container-storage-interface/spec/lib/go/csi"
	corev1 "k8s.io/api/core/v1"

	"github.com/longshore-csi/longshore/topology"
)

// newIndex returns an index that has seen the events of three nodes.
func newIndex() *topology.Index {
	index := topology.New("hostpath.example.com")
	for node, zone := range map[string]string{"node-1": "a", "node-2": "b", "node-3": "c"} {
		index.SetNode(node, map[string]string{"zone": zone, "kubernetes.io/os": "linux"})
		index.SetCSINode(node, true, []string{"zone"})
	}
	return index
}

// show writes the segments of topologies in their order.
func show(title string, list []*csi.Topology) {
	fmt.Print(title + ":")
	for _, t := range list {
		segment, err := topology.FromTopology(t)
		if err != nil {
			panic(err)
		}
		fmt.Print(" ", segment)
	}
	fmt.Println()
}

// A claim of a class that binds late: the scheduler has selected a node.
func ExampleIndex_Require() {
	requirement, err := newIndex().Require(topology.Request{
		Policy:       topology.DefaultPolicy(),
		SelectedNode: "node-2",
		ClaimName:    "data-web-0",
	})
	if err != nil {
		panic(err)
	}
	show("requisite", requirement.GetRequisite())
	show("preferred", requirement.GetPreferred())
	// Output:
	// requisite: zone=a zone=b zone=c
	// preferred: zone=b zone=c zone=a
}

// The class of the error says what to do with the claim.
func ExampleIndex_Require_errors() {
	_, err := newIndex().Require(topology.Request{SelectedNode: "node-4"})
	if errors.Is(err, topology.ErrNodeNotFound) {
		fmt.Println("reschedule:", err)
	}
	// Output:
	// reschedule: look up topology of node "node-4" for driver "hostpath.example.com": neither its Node nor its CSINode object exists, select another node: node not found
}

// AllowedTopologies of the StorageClass are the requisite topologies.
func ExampleRequest_allowedTopologies() {
	requirement, err := newIndex().Require(topology.Request{
		Policy:       topology.DefaultPolicy(),
		SelectedNode: "node-3",
		AllowedTopologies: []corev1.TopologySelectorTerm{{
			MatchLabelExpressions: []corev1.TopologySelectorLabelRequirement{
				{Key: "zone", Values: []string{"c", "b"}},
			},
		}},
	})
	if err != nil {
		panic(err)
	}
	show("requisite", requirement.GetRequisite())
	show("preferred", requirement.GetPreferred())
	// Output:
	// requisite: zone=b zone=c
	// preferred: zone=c zone=b
}

// The accessible topology of a volume becomes the node affinity of its
// PersistentVolume.
func ExampleNodeAffinity() {
	affinity, err := topology.NodeAffinity([]*csi.Topology{
		{Segments: map[string]string{"zone": "b", "rack": "1"}},
		{Segments: map[string]string{"zone": "a", "rack": "1"}},
	})
	if err != nil {
		panic(err)
	}
	for _, term := range affinity.Required.NodeSelectorTerms {
		fmt.Println("term:")
		for _, e := range term.MatchExpressions {
			fmt.Println(" ", e.Key, e.Operator, e.Values)
		}
	}
	// Output:
	// term:
	//   rack In [1]
	//   zone In [a]
	// term:
	//   rack In [1]
	//   zone In [b]
}

// A provisioner that runs on each node deletes only what its node can reach.
func ExampleAccessible() {
	affinity, err := topology.NodeAffinity([]*csi.Topology{{Segments: map[string]string{"zone": "a"}}})
	if err != nil {
		panic(err)
	}
	for _, zone := range []string{"a", "b"} {
		ok, err := topology.Accessible(affinity, map[string]string{"zone": zone})
		fmt.Println("from zone", zone, ok, err)
	}
	// Output:
	// from zone a true <nil>
	// from zone b false <nil>
}

// Equal segments are equal by ==, so they are good keys.
func ExampleSegment() {
	one, err := topology.NewSegment(map[string]string{"zone": "a", "rack": "1"})
	if err != nil {
		panic(err)
	}
	other, err := topology.Parse("zone=a,rack=1")
	if err != nil {
		panic(err)
	}
	volumes := map[topology.Segment]int{one: 1}
	volumes[other]++
	fmt.Println(one, one == other, volumes[one])
	// Output: rack=1,zone=a true 2
}
