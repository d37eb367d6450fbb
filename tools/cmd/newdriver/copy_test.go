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

// makeCopy is `make new-driver`, in a directory that has nothing to do with this one.
func makeCopy(t *testing.T, driver, module string) (dir string) {
	t.Helper()
	dir = filepath.Join(t.TempDir(), "foo")
	in(t, root, "make", "new-driver", "NAME="+driver, "MODULE="+module, "OUT="+dir)
	return dir
}

// in runs a command in a directory, and returns what it prints. The compiler does not write the directory into what it makes, so that
// everything but the first copy is in its cache.
func in(t *testing.T, dir, name string, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), name, args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "GOWORK=off", "GOFLAGS=-trimpath", "MAKEFLAGS=") // not the options of the make that runs this test
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
	}
	return string(out)
}

// TestCopy does what COPYING.md says, as far as it needs no cluster.
func TestCopy(t *testing.T) {
	const driver, module = "foo.example.com", "example.com/foo"
	dir := makeCopy(t, driver, module)
	t.Run("Leftovers", func(t *testing.T) { checkNames(t, dir) })
	t.Run("Alone", func(t *testing.T) { checkAlone(t, dir, module) })
	t.Run("Manifests", func(t *testing.T) { checkManifests(t, dir) })
	t.Run("Format", func(t *testing.T) {
		if out := in(t, dir, "gofmt", "-l", "."); out != "" {
			t.Errorf("not formatted:\n%s", out)
		}
	})
	t.Run("Build", func(t *testing.T) {
		in(t, dir, "make", "build", "VERSION=v1.2.3")
		if out := in(t, dir, "bin/foo", "--version"); !strings.HasPrefix(out, "foo v1.2.3") {
			t.Errorf("the version is %q", out)
		}
		if out := in(t, dir, "bin/foo", "--help"); !strings.Contains(out, driver) {
			t.Errorf("the name of the driver is not the default of a flag:\n%s", out)
		}
	})
	t.Run("Test", func(t *testing.T) {
		out := in(t, dir, "make", "test", "TESTFLAGS=")
		for _, name := range []string{module, module + "/internal/grpcapi", module + "/internal/csikit/csiserver", module + "/test/sanity"} {
			if !strings.Contains(out, "ok  \t"+name+"\t") {
				t.Errorf("no test of %s has run:\n%s", name, out)
			}
		}
	})
	t.Run("Parts", func(t *testing.T) { testParts(t, dir) })
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
		sources := strings.Fields(in(t, dir, "go", "env", "GOROOT", "GOMODCACHE"))
		for _, from := range strings.Fields(in(t, filepath.Join(dir, name), "go", "list", "-deps", "-test", "-f", "{{.Dir}}", "./...")) {
			if !slices.ContainsFunc(append(sources, dir), func(s string) bool { return from == s || strings.HasPrefix(from, s+"/") }) {
				t.Errorf("module %s: has a package from %s", name, from)
			}
		}
		in(t, filepath.Join(dir, name), "go", "mod", "tidy", "-diff")
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
