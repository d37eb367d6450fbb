// Package e2e holds the end-to-end tests on one shared cluster: the whole stack against a real Kubernetes control plane, with real mounts.
//
// By default they start a development cluster, and stop it in the end. E2E_KUBECONFIG makes them use another cluster instead; tests that need to kill processes or
// look at the nodes' disks are skipped there and say so.
//
// TestKubeletDiff and TestTakeover look at a kubelet from its node: csi-node-agent on a development cluster, and the real one on a kind
// cluster if E2E_KUBELET_NODE names one of its nodes, as `make e2e SUITE=kubelet` does.
//
// Package clusters has the tests that start a development cluster of their own, package bench the benchmarks. All of them are written with package testbed.
//
// Tests with programs of others build them from pinned Go modules: those of kubernetes-csi by e2e/upstream/build, the mock driver of
// Kubernetes (TestForeignDriver) by e2e/k8s/build. The first time takes minutes; what is built stays in a cache.
package e2e
