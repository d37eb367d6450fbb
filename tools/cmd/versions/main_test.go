package main

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

func TestExitCode(t *testing.T) {
	program := filepath.Join(t.TempDir(), "versions")
	if out, err := exec.Command("go", "build", "-o", program, ".").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	root := t.TempDir()
	for name, text := range map[string]string{
		"versions.yaml": "modules:\n  kit: {next: v0.1.0}\n", "kit/go.mod": "module kit\n", "kit/README.md": "", "kit/CHANGELOG.md": "",
	} {
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if out, err := exec.Command(program, "-root", root).CombinedOutput(); err != nil {
		t.Errorf("a tree that fits: %v\n%s", err, out)
	}
	if err := os.Remove(filepath.Join(root, "kit", "README.md")); err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command(program, "-root", root).CombinedOutput()
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.ExitCode() != 1 || !strings.Contains(string(out), "module kit: has no README.md") {
		t.Errorf("a module without a README: %v\n%s", err, out)
	}
}

func TestEverythingWrongIsToldAtOnce(t *testing.T) {
	err := check(tree(strings.Replace(strings.Replace(good, "v0.1.0", "x", 1), "[tools]", "[gone]", 1)))
	if err == nil {
		t.Fatal("no error")
	}
	for _, want := range []string{"module kit: next", "module tools: must be listed", "module gone: has no go.mod"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("lacks %q:\n%v", want, err)
		}
	}
}

func TestForeignDirectories(t *testing.T) {
	for path, want := range map[string]bool{
		".": false, "csikit": false, "csikit/kube": false, ".git": true, "csikit/.cache": true, "bin": true, "devcluster/controlplane": true, "e2e/k8s": true, "e2e/upstream": true,
		"devcluster": false, "e2e": false, "e2e/k8s/definition": false,
	} {
		if got := foreign(path); got != want {
			t.Errorf("%s: got %t, want %t", path, got, want)
		}
	}
}

func TestWhatAModuleNeeds(t *testing.T) {
	if got := len(module{}.needs()); got != 3 {
		t.Errorf("a library needs %d files, want 3", got)
	}
	if got := (module{Binary: "x"}).needs(); got[len(got)-1] != filepath.Join("cmd", "x", "main.go") {
		t.Errorf("a component needs %q", got)
	}
}
