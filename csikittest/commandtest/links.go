package commandtest

import (
	"maps"
	"os/exec"
	"strings"
	"testing"
)

// Allowed stands in place of a reason for import paths that Links lets pass.
const Allowed = ""

// fewestPackages is less than any binary with gRPC links. A shorter list is not that of a binary.
const fewestPackages = 100

// Links tests the packages that a binary links, as the go command lists them: pattern names its package, such as
// "./cmd/csi-attacher". rules maps import paths to the reason why they must not be linked, or to Allowed.
// A path stands for everything below it as well; the longest path that fits a package decides, and what
// none fits may be linked. The binary is that of releases, which has the build tag grpcnotrace.
func Links(t testing.TB, pattern string, rules map[string]string) {
	t.Helper()
	var stderr strings.Builder
	cmd := exec.CommandContext(t.Context(), "go", "list", "-deps", "-tags=grpcnotrace", pattern)
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("list the packages of %s: %v: %s", pattern, err, &stderr)
	}
	packages := strings.Fields(string(out))
	if len(packages) < fewestPackages {
		t.Fatalf("%s links %d packages only: this test is not looking at a binary", pattern, len(packages))
	}
	all := map[string]string{"text/template": "it calls methods by name, so that the linker keeps every method there is: a sixth of the binary"}
	maps.Copy(all, rules)
	for _, name := range packages {
		if path, reason := decide(all, name); reason != Allowed {
			t.Errorf("%s links %s, but not %s: %s", pattern, name, path, reason)
		}
	}
}

// decide returns the longest path of the rules that fits a package, and what it says.
func decide(rules map[string]string, name string) (path, reason string) {
	for candidate, why := range rules {
		fits := name == candidate || strings.HasPrefix(name, candidate+"/")
		if fits && len(candidate) > len(path) {
			path, reason = candidate, why
		}
	}
	return path, reason
}
