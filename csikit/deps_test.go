package csikit_test

import (
	"os/exec"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/longshore-csi/longshore/csikit/"

// ban is what a group of packages must not link, and why.
type ban struct {
	prefix string
	reason string
}

var (
	noMigration = ban{"k8s.io/csi-translation-lib", "in-tree plugins concern provisioner, attacher and resizer only"}
	noClient    = []ban{
		noMigration,
		{"k8s.io/client-go", "a driver has no Kubernetes client: it costs 10 MiB of memory and a release with each of Kubernetes'"},
		{"k8s.io/api/", "CSI knows no Kubernetes objects"},
		{"k8s.io/apimachinery", "it comes with the client, or not at all"},
		{"k8s.io/component-base", "its flags bring cobra, and its metrics a second registry"},
		{"github.com/spf13", "flags are the standard library's, which accept one dash as well as two"},
		{"github.com/stretchr", "tests use the standard library and go-cmp"},
	}
	// pflag stays: client-go's tools/clientcmd links it, which reads kubeconfig files.
	lean = []ban{
		{"k8s.io/client-go/kubernetes", "the clientset links all 56 API groups: 10 MiB of memory"},
		{"k8s.io/client-go/informers", "it links the clientset"},
		{"k8s.io/client-go/tools/leaderelection", "it links the clientset"},
		{"sigs.k8s.io/controller-runtime", "it links the clientset"},
		{"k8s.io/client-go/testing", "fakes and OpenAPI, 85 packages, come with gentype"},
		{"k8s.io/client-go/gentype", "it links client-go/testing"},
		{"k8s.io/client-go/tools/record", "it links strategic patches and OpenAPI, for events that are written once"},
		{"k8s.io/apimachinery/pkg/util/strategicpatch", "the server applies patches, not we"},
		{"github.com/spf13/cobra", "flags are the standard library's"},
		{"github.com/go-openapi", "nobody reads schemas here"},
	}
)

// groups says what each package of this module may not link.
func groups() map[string]struct {
	reason   string
	bans     []ban
	packages []string
} {
	return map[string]struct {
		reason   string
		bans     []ban
		packages []string
	}{
		"Driver": {
			reason:   "drivers and vendors use these",
			bans:     noClient,
			packages: []string{"command", "concurrency", "csiclient", "csiregistration", "csiserver", "drivername", "flagset", "httpserve", "keymutex", "logging", "metrics", "outcome", "procmetrics", "redact", "tracing", "version"},
		},
		"Component": {
			reason:   "components use these",
			bans:     append([]ban{noMigration}, lean...),
			packages: []string{"capability", "component", "events", "kube", "kubemetrics", "leader", "poll", "reconcile", "secretref", "sidecar", "snapshotapi"},
		},
		"Migration": {
			reason:   "provisioner, attacher and resizer use it",
			bans:     lean,
			packages: []string{"migration"},
		},
	}
}

// linked returns what each package of this module links, by its name.
func linked(t *testing.T) map[string][]string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "go", "list", "-f", "{{.ImportPath}} {{join .Deps \" \"}}", "./...").Output()
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
	for name, group := range groups() {
		t.Run(name, func(t *testing.T) {
			for _, pkg := range group.packages {
				if _, exists := deps[pkg]; !exists {
					t.Errorf("package %s does not exist: take it off the list", pkg)
				}
				for _, ban := range group.bans {
					i := slices.IndexFunc(deps[pkg], func(dep string) bool { return strings.HasPrefix(dep, ban.prefix) })
					if i >= 0 {
						t.Errorf("package %s links %s, but %s: %s", pkg, deps[pkg][i], group.reason, ban.reason)
					}
				}
			}
		})
	}
}

// A new package must be put into a group, so that nothing goes unwatched.
func TestEveryPackageHasAGroup(t *testing.T) {
	seen := map[string]string{}
	for name, group := range groups() {
		for _, pkg := range group.packages {
			if other, twice := seen[pkg]; twice {
				t.Errorf("package %s is in the groups %s and %s", pkg, name, other)
			}
			seen[pkg] = name
		}
	}
	for pkg := range linked(t) {
		if seen[pkg] == "" {
			t.Errorf("package %s is in no group", pkg)
		}
	}
}

// Nothing here is for tests: those who import this module must not link the testing package, whose flags would show up in --help. Test beds are in
// the module csikittest.
func TestNothingLinksTesting(t *testing.T) {
	for pkg, deps := range linked(t) {
		if slices.Contains(deps, "testing") {
			t.Errorf("package %s links testing", pkg)
		}
	}
}
