// Package testbed is what end-to-end tests and benchmarks share: a cluster to test on (Bed), what only a development cluster has (Dev), and the namespace of one
// test (Scene) with the objects that it creates, the states that it waits for, and the components and drivers that it starts beside those of the cluster.
//
// It is for the packages of module e2e alone. Tests of a module, which need no cluster, use the test beds of csikittest.
package testbed
