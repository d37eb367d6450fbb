package driverkit_test

import (
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/longshore-csi/longshore/driverkit"

// banned are prefixes of packages that no package of this module links, with the
// reason.
func banned() map[string]string {
	return map[string]string{
		"k8s.io/client-go":      "a driver has no Kubernetes client: it costs 10 MiB of memory and a release with each of Kubernetes'",
		"k8s.io/api/":           "a driver knows no Kubernetes objects",
		"k8s.io/apimachinery":   "it comes with the client, or not at all",
		"k8s.io/component-base": "its flags bring cobra, and its metrics a second registry",
		"k8s.io/kubernetes":     "a driver is no part of Kubernetes",
		"github.com/spf13":      "flags are the standard library's",
		"github.com/stretchr":   "tests use the standard library and go-cmp",
		"testing":               "its flags would show up in --help",
		"github.com/longshore-csi/longshore/csikit/kube":    "it is the client",
		"github.com/longshore-csi/longshore/hostpathdriver": "drivers import this module, not the other way round",
	}
}

// linked returns what each package of this module links, by its import path.
func linked(t *testing.T) map[string][]string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "go", "list", "-f", `{{.ImportPath}} {{join .Deps " "}}`, "./...").Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	deps := map[string][]string{}
	for line := range strings.Lines(string(out)) {
		fields := strings.Fields(line)
		deps[fields[0]] = fields[1:]
	}
	return deps
}

// TestDependencies keeps drivers small that use this module. Packages below
// internal are only for its tests.
func TestDependencies(t *testing.T) {
	deps := linked(t)
	if len(deps[module+"/filesystem"]) == 0 {
		t.Errorf("package filesystem links nothing: %q", deps)
	}
	for pkg, links := range deps {
		if strings.HasPrefix(pkg, module+"/internal/") {
			continue
		}
		for prefix, reason := range banned() {
			if i := slices.IndexFunc(links, func(link string) bool { return strings.HasPrefix(link, prefix) }); i >= 0 {
				t.Errorf("package %s links %s: %s", pkg, links[i], reason)
			}
		}
	}
}

// TestIndependence: a driver that uses one package gets no other with it but those
// that the package is about, and no gRPC.
func TestIndependence(t *testing.T) {
	allowed := map[string][]string{"/filesystem": {"/internal/doing", "/mount"}, "/mount": nil, "/state": nil}
	deps := linked(t)
	for pkg, others := range allowed {
		for _, link := range deps[module+pkg] {
			own, ours := strings.CutPrefix(link, module)
			if ours && !slices.Contains(others, own) || strings.HasPrefix(link, "google.golang.org/grpc") {
				t.Errorf("package %s links %s", pkg, link)
			}
		}
	}
}

// TestOtherSystems: the controller's half of a driver is developed on other systems than Linux, too. It compiles all dependencies once more.
func TestOtherSystems(t *testing.T) {
	if os.Getenv("LONGSHORE_EXHAUSTIVE") == "" {
		t.Skip("takes minutes: set LONGSHORE_EXHAUSTIVE")
	}
	for _, system := range []string{"darwin", "windows"} {
		cmd := exec.CommandContext(t.Context(), "go", "build", ".", "./filesystem", "./mount", "./state")
		cmd.Env = append(os.Environ(), "GOOS="+system, "CGO_ENABLED=0")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("%s: %v: %s", system, err, out)
		}
	}
}
