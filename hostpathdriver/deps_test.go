package hostpathdriver

import (
	"testing"

	"github.com/longshore-csi/longshore/csikit/commandtest"
)

// TestDependencies keeps the driver small: it talks to no Kubernetes API, so
// it links no client, and nobody who copies it has to.
func TestDependencies(t *testing.T) {
	const project = "github.com/longshore-csi/longshore"
	commandtest.Links(t, "./...", map[string]string{
		"k8s.io/client-go":          "there is no API server to talk to",
		"k8s.io/api":                "no API object is read or written",
		"k8s.io/apimachinery":       "no API object is read or written",
		"k8s.io/kubernetes":         "a driver is no part of Kubernetes",
		"k8s.io/component-base":     "flags and logs come from csikit",
		"github.com/kubernetes-csi": "the suite of csi-test has a module of its own",
		"github.com/onsi":           "tests use the standard library and go-cmp",
		"testing":                   "its flags would show up in --help",
		project:                     "modules do not import their siblings",
		project + "/hostpathdriver": commandtest.Allowed,
		project + "/csikit":         commandtest.Allowed,
		project + "/csikit/kube":    "it is the client",
		project + "/csikit/csitest": "it is for tests",
		project + "/topology":       "a driver announces segments and computes nothing with them",
	})
}
