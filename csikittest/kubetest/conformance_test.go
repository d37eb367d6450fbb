package kubetest_test

import (
	"testing"

	"github.com/longshore-csi/longshore/csikittest/kubetest"
	"github.com/longshore-csi/longshore/csikittest/kubetest/conformance"
)

// Package devcluster's integration tests run the same against kube-apiserver.
func TestConformance(t *testing.T) {
	conformance.Run(t, conformance.Server{Client: kubetest.New().Client(), Namespace: "ns", ServiceAccounts: [2]string{"sa-1", "sa-2"}})
}
