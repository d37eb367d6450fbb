// Package clusters has the end-to-end tests that start a development cluster of their own each: one with other flags, another driver, or other sidecars than the
// shared cluster of package e2e. `go test ./...` runs the two packages beside each other. With E2E_KUBECONFIG, which names another cluster, these tests are skipped.
package clusters
