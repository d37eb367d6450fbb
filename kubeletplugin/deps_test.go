package kubeletplugin

import (
	"testing"

	"github.com/longshore-csi/longshore/csikittest/commandtest"
)

// TestDependencies keeps an embedder's program small: without an API server (package kubeapi) it links no client of one.
func TestDependencies(t *testing.T) {
	const project = "github.com/longshore-csi/longshore"
	commandtest.Links(t, ".", map[string]string{
		"k8s.io/kubernetes":        "the kubelet is what this module replaces",
		"k8s.io/client-go":         "only package kubeapi asks an API server",
		"k8s.io/component-base":    "flags, logs and metrics are csikit's",
		"testing":                  "its flags would show up in the program's",
		project:                    "modules do not import their siblings",
		project + "/kubeletplugin": commandtest.Allowed,
		project + "/csikit":        commandtest.Allowed,
		project + "/csikit/kube":   "only package kubeapi asks an API server",
		project + "/csikittest":    "it is for tests",
	})
}
