// Package k8s runs the storage suites of Kubernetes against our components in a cluster: k8s.io/kubernetes/test/e2e/storage/external with the
// driver that is installed, csimock and the csi-hostpath driver with Kubernetes' own manifests. README.md describes them. It holds nothing but that test.
//
// It is a module outside of go.work: a workspace would mix the suites' Kubernetes libraries with the newer ones that the
// components use. It takes minutes to compile, so a script, build, keeps the test binary in a cache.
package k8s
