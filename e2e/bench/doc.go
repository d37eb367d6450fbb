// Package bench has the benchmarks of the whole stack, which `make bench` runs; docs/testing.md describes each of them. `make test` does not compile it.
//
// Benchmarks share a development cluster, or start one of their own. Most run a program of kubernetes-csi and ours in turn, and print both figures and their ratio.
package bench
