package provisioner

import (
	"testing"

	"github.com/longshore-csi/longshore/csikittest/commandtest"
)

// TestDependencies keeps the binary small: what links all API groups of Kubernetes, or is a second
// framework for what csikit does, stays out.
func TestDependencies(t *testing.T) {
	commandtest.Links(t, "./cmd/csi-provisioner", map[string]string{
		"k8s.io/client-go/kubernetes":           "the whole clientset costs about 10 MiB of memory",
		"k8s.io/client-go/informers":            "links the whole clientset",
		"k8s.io/client-go/listers":              "lists are csikit's",
		"k8s.io/client-go/tools/leaderelection": "links the whole clientset",
		"k8s.io/client-go/tools/record":         "events are csikit's",
		"github.com/kubernetes-csi/external-snapshotter/client/v8/clientset/versioned": "links the fakes and more of client-go, 17 MiB",
		"k8s.io/apiserver":                              "the server is not needed to talk to it",
		"k8s.io/component-base":                         "flags, logs and metrics are csikit's",
		"k8s.io/kubernetes":                             "drags the whole of Kubernetes",
		"sigs.k8s.io/controller-runtime":                "reconciling is csikit's",
		"github.com/spf13/cobra":                        "the flag package of Go suffices",
		"testing":                                       "its flags would show up in --help",
		"github.com/longshore-csi/longshore/csikittest": "it is for tests",
	})
}
