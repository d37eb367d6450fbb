package kubeletplugin_test

import (
	"os/exec"
	"strings"
	"testing"
)

// TestDependencies keeps out what would make the binary large or tie it to its siblings.
func TestDependencies(t *testing.T) {
	forbidden := map[string]string{
		"k8s.io/kubernetes":                     "the kubelet is what this module replaces",
		"k8s.io/client-go/kubernetes":           "the whole clientset costs about 10 MiB of memory",
		"k8s.io/client-go/informers":            "links the whole clientset",
		"k8s.io/client-go/tools/leaderelection": "links the whole clientset, and there is one agent per node",
		"k8s.io/apiserver":                      "the server is not needed to talk to it",
		"k8s.io/component-base":                 "flags, logs and metrics are csikit's",
		"sigs.k8s.io/controller-runtime":        "reconciling is csikit's",
	}
	const siblings, own, shared = "github.com/longshore-csi/longshore/", "kubeletplugin", "csikit"
	out, err := exec.CommandContext(t.Context(), "go", "list", "-deps", "./cmd/csi-node-agent").Output()
	if err != nil {
		t.Fatalf("list the dependencies: %v", err)
	}
	for _, dep := range strings.Fields(string(out)) {
		for path, why := range forbidden {
			if dep == path || strings.HasPrefix(dep, path+"/") {
				t.Errorf("%s is linked: %s", dep, why)
			}
		}
		module, _, _ := strings.Cut(strings.TrimPrefix(dep, siblings), "/")
		if strings.HasPrefix(dep, siblings) && module != own && module != shared {
			t.Errorf("%s is linked: modules do not import their siblings", dep)
		}
		if strings.HasSuffix(dep, "/csitest") || strings.HasSuffix(dep, "/kubetest") {
			t.Errorf("%s is linked: it is for tests", dep)
		}
	}
}
