package csikittest_test

import (
	"os/exec"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/longshore-csi/longshore/csikittest/"

// bans are prefixes of packages that test beds must not link, with the reasons. Test beds of drivers must not link those of noClient either.
var (
	bans = map[string]string{
		"k8s.io/csi-translation-lib":            "in-tree plugins concern provisioner, attacher and resizer only",
		"k8s.io/client-go/kubernetes":           "the clientset links all 56 API groups, which take long to compile",
		"k8s.io/client-go/informers":            "it links the clientset",
		"k8s.io/client-go/tools/leaderelection": "it links the clientset",
		"sigs.k8s.io/controller-runtime":        "it links the clientset",
		"github.com/stretchr":                   "tests use the standard library and go-cmp",
	}
	noClient = map[string]string{
		"k8s.io/client-go":      "a driver has no Kubernetes client, and neither have its tests",
		"k8s.io/api/":           "CSI knows no Kubernetes objects",
		"k8s.io/apimachinery":   "it comes with the client, or not at all",
		"k8s.io/component-base": "its flags bring cobra, and its metrics a second registry",
		"github.com/spf13":      "flags are the standard library's",
	}
)

// components lists the packages for tests of components, which link the Kubernetes client. All others are for tests of drivers too.
func components() []string {
	return []string{"kubetest", "kubetest/conformance", "reconciletest", "sidecartest", "snapshotapitest"}
}

// linked returns what each package of this module links, by its name.
func linked(t *testing.T) map[string][]string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "go", "list", "-f", `{{.ImportPath}} {{join .Deps " "}}`, "./...").Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	deps := map[string][]string{}
	for line := range strings.Lines(string(out)) {
		fields := strings.Fields(line)
		if name, ok := strings.CutPrefix(fields[0], module); ok {
			deps[name] = fields[1:]
		}
	}
	return deps
}

func TestDependencies(t *testing.T) {
	deps := linked(t)
	check := func(pkg string, bans map[string]string) {
		for prefix, reason := range bans {
			if i := slices.IndexFunc(deps[pkg], func(dep string) bool { return strings.HasPrefix(dep, prefix) }); i >= 0 {
				t.Errorf("package %s links %s: %s", pkg, deps[pkg][i], reason)
			}
		}
	}
	for _, pkg := range components() {
		if len(deps[pkg]) == 0 {
			t.Errorf("package %s does not exist: take it off the list", pkg)
		}
	}
	for pkg := range deps {
		check(pkg, bans)
		if !slices.Contains(components(), pkg) {
			check(pkg, noClient)
		}
	}
}
