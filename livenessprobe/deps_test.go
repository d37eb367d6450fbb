package livenessprobe

import (
	"os/exec"
	"strings"
	"testing"
)

// TestDependencies keeps the binary small: a probe runs in each pod of a
// driver, and needs no Kubernetes API.
func TestDependencies(t *testing.T) {
	forbidden := map[string]string{
		"k8s.io/client-go":       "there is no API server to talk to",
		"k8s.io/api":             "no API object is read or written",
		"k8s.io/apimachinery":    "no API object is read or written",
		"k8s.io/component-base":  "flags and logs come from csikit",
		"github.com/spf13/cobra": "the flag package of Go suffices",
		"github.com/longshore-csi/longshore/csikit/csitest": "it is for tests",
	}
	out, err := exec.CommandContext(t.Context(), "go", "list", "-deps", "./cmd/livenessprobe").Output()
	if err != nil {
		t.Fatalf("list the packages of the binary: %v", err)
	}
	packages := strings.Fields(string(out))
	if len(packages) < 100 {
		t.Fatalf("only %d packages were listed, this test is not looking at the binary", len(packages))
	}
	for _, name := range packages {
		for bad, why := range forbidden {
			if name == bad || strings.HasPrefix(name, bad+"/") {
				t.Errorf("the binary links %s: %s", name, why)
			}
		}
	}
}
