package snapshotapitest_test

import (
	"testing"

	"github.com/longshore-csi/longshore/csikittest/kubetest"
	"github.com/longshore-csi/longshore/csikittest/kubetest/conformance"
	"github.com/longshore-csi/longshore/csikittest/snapshotapitest"
)

// Package devcluster's integration tests run the same against kube-apiserver.
func TestConformance(t *testing.T) {
	cluster := kubetest.New()
	snapshotapitest.Install(cluster)
	conformance.RunSnapshots(t, snapshotapitest.New(cluster), "ns")
}
