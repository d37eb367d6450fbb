package topology

import (
	"os/exec"
	"slices"
	"strings"
	"testing"
)

// TestDependencies keeps the package pure: API types, the CSI messages and
// their helpers, but nothing that talks to an API server.
func TestDependencies(t *testing.T) {
	output, err := exec.Command("go", "list", "-deps", "-f", "{{if not .Standard}}{{.ImportPath}}{{end}}", ".").Output()
	if err != nil {
		t.Fatalf("list dependencies: %v", err)
	}
	forbidden := []string{
		"k8s.io/client-go",
		"k8s.io/component-base",
		"k8s.io/component-helpers",
		"sigs.k8s.io/controller-runtime",
		"github.com/longshore-csi/longshore/csikit",
	}
	paths := strings.Fields(string(output))
	for _, path := range paths {
		for _, prefix := range forbidden {
			if path == prefix || strings.HasPrefix(path, prefix+"/") {
				t.Errorf("the package depends on %s", path)
			}
		}
	}
	if !slices.Contains(paths, "k8s.io/api/core/v1") {
		t.Errorf("the list of dependencies lacks k8s.io/api/core/v1: %q", paths)
	}
}
