package hostpathdriver

import (
	"testing"

	"github.com/longshore-csi/longshore/csikittest/commandtest"
)

// TestDependencies keeps the driver small: it talks to no Kubernetes API, so
// it links no client, and nobody who copies it has to.
func TestDependencies(t *testing.T) {
	commandtest.Links(t, "./cmd/...", map[string]string{
		"k8s.io/client-go":          "there is no API server to talk to",
		"k8s.io/api":                "no API object is read or written",
		"k8s.io/apimachinery":       "no API object is read or written",
		"k8s.io/kubernetes":         "a driver is no part of Kubernetes",
		"k8s.io/component-base":     "flags and logs come from csikit",
		"github.com/kubernetes-csi": "the suite of csi-test has a module of its own",
		"github.com/onsi":           "tests use the standard library and go-cmp",
		"testing":                   "its flags would show up in --help",
		"github.com/longshore-csi/longshore/csikit/kube": "it is the client",
		"github.com/longshore-csi/longshore/csikittest":  "it is for tests",
	})
}
