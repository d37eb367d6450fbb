package healthmonitor

import (
	"testing"

	"github.com/longshore-csi/longshore/csikittest/commandtest"
)

// TestDependencies keeps out what would make the binary large or tie it to its siblings.
func TestDependencies(t *testing.T) {
	commandtest.Links(t, "./cmd/csi-external-health-monitor-controller", map[string]string{
		"k8s.io/client-go/kubernetes":                   "the whole clientset costs about 10 MiB of memory",
		"k8s.io/client-go/informers":                    "links the whole clientset",
		"k8s.io/client-go/tools/leaderelection":         "links the whole clientset",
		"k8s.io/apiserver":                              "the server is not needed to talk to it",
		"k8s.io/component-base":                         "flags, logs and metrics are csikit's",
		"sigs.k8s.io/controller-runtime":                "reconciling is csikit's",
		"testing":                                       "its flags would show up in --help",
		"github.com/longshore-csi/longshore/topology":   "the health monitor knows no topology",
		"github.com/longshore-csi/longshore/csikittest": "tests only",
	})
}
