// Package topology turns what Kubernetes knows about nodes into what the
// Container Storage Interface wants to know about accessibility, and back.
//
// It answers three questions:
//
//   - Which topologies may, and which should, a new volume be made in?
//     [Index.Require] makes the TopologyRequirement of a CreateVolume call.
//   - On which nodes can a volume be used? [NodeAffinity] makes the node
//     affinity of a PersistentVolume from the accessible topology that the
//     driver returned; [Accessible] evaluates it against a node's labels.
//   - Which segments are there? [Index.Segments] lists them, for instance to
//     publish one CSIStorageCapacity object for each.
//
// The package is pure: it knows no client, no informer, no clock and no
// goroutine. The owner of the informers feeds an [Index] with one call for
// each Node and CSINode event, and any number of goroutines may ask it at the
// same time.
//
// Do not use it for the topology of Services (topology aware routing) or for
// pod topology spread constraints: they share the word and the labels, but
// not the rules.
//
// The rules come from the CSI specification v1.13, messages Topology and
// TopologyRequirement, and from the design document "CSI Volume Plugins in
// Kubernetes" (seed 001), sections "Provisioning and Deleting", "Topology
// Representation in Node Objects" and "Topology Representation in
// PersistentVolume Objects".
package topology
