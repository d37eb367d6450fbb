package hostpathdriver

import (
	"os/exec"
	"strings"
	"testing"
)

// TestDependencies keeps the driver small: it talks to no Kubernetes API, so
// it links no client, and nobody who copies it has to.
func TestDependencies(t *testing.T) {
	out, err := exec.CommandContext(t.Context(), "go", "list", "-deps", "./...").Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	packages := strings.Fields(string(out))
	if len(packages) < 100 {
		t.Fatalf("go list names %d packages only", len(packages))
	}
	forbidden := []string{
		"k8s.io/client-go", "k8s.io/api", "k8s.io/apimachinery", "k8s.io/kubernetes", "k8s.io/component-base",
		"github.com/kubernetes-csi/", "github.com/onsi/",
		"github.com/longshore-csi/longshore/topology", "github.com/longshore-csi/longshore/csikit/kube",
	}
	for _, name := range packages {
		for _, prefix := range forbidden {
			if name == prefix || strings.HasPrefix(name, strings.TrimSuffix(prefix, "/")+"/") {
				t.Errorf("%s is linked; %s must not be", name, prefix)
			}
		}
	}
}
