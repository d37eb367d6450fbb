package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"golang.org/x/mod/modfile"
	"sigs.k8s.io/yaml"
)

// root is this repository.
const root = "../../.."

// guide is where the commands are that are tested here.
const guide = root + "/hostpathdriver/COPYING.md"

// elsewhere are commands of the guide that need what no test here has.
func elsewhere() map[string]string {
	return map[string]string{
		"make image":  "needs docker",
		"make deploy": "needs a cluster; its manifests are looked at",
		"e2e.test -provider=skeleton -kubeconfig=$KUBECONFIG -storage.testdriver=deploy/test-driver.yaml -ginkgo.focus='External.Storage.*foo.example.com'": "needs a cluster",
	}
}

// TestGuide does what COPYING.md says, as it says it. Of the copy that it gets it tests all that the guide promises.
func TestGuide(t *testing.T) {
	const driver, module = "foo.example.com", "example.com/foo"
	first, rest := commands(t)
	dir := filepath.Join(t.TempDir(), "foo")
	in(t, root, strings.ReplaceAll(first, "../foo", dir))
	t.Run("Leftovers", func(t *testing.T) { checkNames(t, dir) })
	t.Run("Alone", func(t *testing.T) { checkAlone(t, dir, module) })
	t.Run("Manifests", func(t *testing.T) { checkManifests(t, dir) })
	t.Run("Format", func(t *testing.T) {
		if out := in(t, dir, "gofmt -l ."); out != "" {
			t.Errorf("not formatted:\n%s", out)
		}
	})
	t.Run("Commands", func(t *testing.T) {
		out := ""
		for _, command := range rest {
			out += in(t, dir, command)
		}
		for _, want := range []string{
			"ok  \t" + module + "\t", "ok  \t" + module + "/internal/grpcapi\t", "ok  \t" + module + "/internal/csikit/csiserver\t",
			"ok  \t" + module + "/test/sanity\t", "// driver must be sure that the node can no longer write",
		} {
			if !strings.Contains(out, want) {
				t.Errorf("the commands of the guide do not print %q:\n%s", want, out)
			}
		}
	})
	t.Run("Binary", func(t *testing.T) {
		if out := in(t, dir, "bin/foo --version"); !strings.HasPrefix(out, "foo v0.1.0") {
			t.Errorf("the version is %q", out)
		}
		if out := in(t, dir, "bin/foo --help"); !strings.Contains(out, driver) {
			t.Errorf("the name of the driver is not the default of a flag:\n%s", out)
		}
	})
	t.Run("Parts", func(t *testing.T) { testParts(t, dir) })
}

// commands returns the commands of the guide: the one that makes the copy, and those to run there.
func commands(t *testing.T) (first string, rest []string) {
	t.Helper()
	text, err := os.ReadFile(guide)
	if err != nil {
		t.Fatal(err)
	}
	skipped := 0
	for _, line := range regexp.MustCompile(`(?m)^    \S.*$`).FindAllString(string(text), -1) {
		command := strings.TrimSpace(line)
		switch {
		case elsewhere()[command] != "":
			skipped++
		case strings.HasPrefix(command, "make new-driver "):
			first = command
		case command != "cd ../foo":
			rest = append(rest, command)
		}
	}
	if first == "" || len(rest) == 0 || skipped != len(elsewhere()) {
		t.Fatalf("COPYING.md makes a copy by %q, runs %q there, and has %d commands that need more, want %d", first, rest, skipped, len(elsewhere()))
	}
	return first, rest
}

// TestGuideLinks looks for the files that the guide names.
func TestGuideLinks(t *testing.T) {
	text, err := os.ReadFile(guide)
	if err != nil {
		t.Fatal(err)
	}
	found := regexp.MustCompile(`\]\(([^)]+)\)`).FindAllStringSubmatch(string(text), -1)
	for _, link := range found {
		if _, err := os.Stat(filepath.Join(filepath.Dir(guide), link[1])); err != nil {
			t.Error(err)
		}
	}
	if len(found) == 0 {
		t.Error("the guide leads nowhere")
	}
}

// named are the packages of the copy whose tests see names of the driver, and one of csikit. `make vet` compiles the tests of all.
const named = ". ./cmd/... ./internal/grpcapi ./internal/volume ./internal/csikit/csiserver"

// in runs a command in a directory, and returns what it prints. The compiler does not write the directory into what it makes, so that
// everything but the first copy is in its cache. The copy's tests run without the race detector and vet, and those that take long may
// skip themselves (testing.Short), as may packages without names, unless LONGSHORE_EXHAUSTIVE is set: all of them run under their old names.
func in(t *testing.T, dir, command string) string {
	t.Helper()
	packages := named
	if os.Getenv("LONGSHORE_EXHAUSTIVE") != "" {
		packages = "./..."
	}
	cmd := exec.CommandContext(t.Context(), "bash", "-ec", command)
	cmd.Dir = dir
	// MAKEFLAGS would be those of the make that runs this test.
	cmd.Env = append(os.Environ(), "GOWORK=off", "GOFLAGS=-trimpath -tags=grpcnotrace", "CGO_ENABLED=0", "TESTFLAGS=-short -vet=off", "TESTPACKAGES="+packages, "MAKEFLAGS=")
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v\n%s", command, err, out)
	}
	return string(out)
}

// checkNames does by itself what the tool does before it ends. Allowed are the file that says where the copy is from, a field of Kubernetes
// and the sidecars, which have the images that they have.
func checkNames(t *testing.T, dir string) {
	old := regexp.MustCompile(`(?i)hostpath|longshore`)
	allowed := regexp.MustCompile(`hostPath: |image: longshore/(csi-|livenessprobe:)`)
	for _, name := range filesBelow(t, dir) {
		data, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		if name == "NOTICE" {
			continue
		}
		for line := range strings.Lines(name + "\n" + string(data)) {
			if old.MatchString(allowed.ReplaceAllString(line, "")) {
				t.Errorf("%s: %s", name, line)
			}
		}
	}
}

// checkAlone looks where the copy's packages come from: itself, the standard library, and the module cache.
func checkAlone(t *testing.T, dir, module string) {
	modules := map[string][]*modfile.Replace{}
	for _, name := range filesBelow(t, dir) {
		if filepath.Base(name) != "go.mod" {
			continue
		}
		data, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		mod, err := modfile.Parse(name, data, nil)
		if err != nil {
			t.Fatal(err)
		}
		modules[filepath.Dir(name)] = mod.Replace
	}
	for name, replaced := range modules {
		for _, r := range replaced {
			if r.Old.Path != module || filepath.Join(name, r.New.Path) != "." {
				t.Errorf("module %s: replaces %s by %s", name, r.Old.Path, r.New.Path)
			}
		}
		sources := strings.Fields(in(t, dir, "go env GOROOT GOMODCACHE"))
		for _, from := range strings.Fields(in(t, filepath.Join(dir, name), "go list -deps -test -f '{{.Dir}}' ./...")) {
			if !slices.ContainsFunc(append(sources, dir), func(s string) bool { return from == s || strings.HasPrefix(from, s+"/") }) {
				t.Errorf("module %s: has a package from %s", name, from)
			}
		}
		in(t, filepath.Join(dir, name), "go mod tidy -diff")
	}
	if len(modules) != 2 || len(modules["."]) > 0 {
		t.Errorf("the modules and what they replace are %v, want two, of which the one in the root replaces nothing", modules)
	}
}

// checkManifests reads every manifest, and looks for the workloads and what must go with the driver's name.
func checkManifests(t *testing.T, dir string) {
	var all strings.Builder
	for _, name := range filesBelow(t, filepath.Join(dir, "deploy")) {
		data, err := os.ReadFile(filepath.Join(dir, "deploy", name))
		if err != nil {
			t.Fatal(err)
		}
		for document := range strings.SplitSeq(string(data), "\n---\n") {
			var parsed any
			if err := yaml.Unmarshal([]byte(document), &parsed); err != nil || parsed == nil {
				t.Errorf("deploy/%s: is %v (%v)", name, parsed, err)
			}
		}
		all.Write(data)
	}
	for _, want := range []string{
		"kind: CSIDriver\nmetadata:\n  name: foo.example.com\n",
		"provisioner: foo.example.com\n",
		"kind: DaemonSet\nmetadata:\n  name: csi-foo-node\n",
		"kind: StatefulSet\nmetadata:\n  name: csi-foo-controller\n",
		"image: foo:v0.1.0\n",
		"path: /var/lib/kubelet/plugins/foo.example.com,",
		"--kubelet-registration-path=/var/lib/kubelet/plugins/foo.example.com/csi.sock\n",
		"labels: {foo.example.com/node: \"true\"}",
		"target: {labelSelector: foo.example.com/node}",
		"name: csi-foo:csi-provisioner\n",
		"TopologyKeys: [topology.foo.example.com/node]\n",
	} {
		if !strings.Contains(all.String(), want) {
			t.Errorf("no manifest has\n%s", want)
		}
	}
}
