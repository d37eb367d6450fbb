// Package k8s runs the storage suite of Kubernetes (k8s.io/kubernetes/test/e2e/storage/external) against the driver in a
// cluster: `make e2e SUITE=k8s`. It holds nothing but that test.
//
// It is a module outside of go.work: a workspace would mix the suite's Kubernetes libraries with the newer ones that the
// components use. It takes minutes to compile, so a script, build, keeps the test binary in a cache.
package k8s
