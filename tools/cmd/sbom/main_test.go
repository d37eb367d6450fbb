package main

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"
	"testing"

	cdx "github.com/CycloneDX/cyclonedx-go"
)

func TestBOM(t *testing.T) {
	info := &debug.BuildInfo{
		GoVersion: "go1.26.8",
		Main:      debug.Module{Path: "example.com/repo/attacher", Version: "(devel)"},
		Deps: []*debug.Module{
			{Path: "example.com/plain", Version: "v1.2.3"},
			{Path: "example.com/forked", Version: "v1.0.0", Replace: &debug.Module{Path: "example.com/fork", Version: "v1.0.1"}},
			{Path: "example.com/repo/kit", Version: "v0.0.0", Replace: &debug.Module{Path: "../kit"}},
		},
	}
	got := bom("csi-attacher", "v0.2.0", info)
	if c := got.Metadata.Component; c.Name != "csi-attacher" || c.Version != "v0.2.0" || c.Type != cdx.ComponentTypeApplication || c.PackageURL != "pkg:golang/example.com/repo/attacher@v0.2.0" {
		t.Errorf("the bill is about %+v", c)
	}
	var urls []string
	for _, c := range *got.Components {
		urls = append(urls, c.PackageURL)
	}
	want := []string{"pkg:golang/stdlib@go1.26.8", "pkg:golang/example.com/plain@v1.2.3", "pkg:golang/example.com/fork@v1.0.1", "pkg:golang/example.com/repo/kit@v0.2.0"}
	if !slices.Equal(urls, want) {
		t.Errorf("got  %q\nwant %q", urls, want)
	}
}

// TestOwnBinary reads a real binary, the one of this test, twice.
func TestOwnBinary(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	var first, second bytes.Buffer
	for _, out := range []*bytes.Buffer{&first, &second} {
		if err := run(out, "v1.0.0", []string{self}); err != nil {
			t.Fatal(err)
		}
	}
	if !bytes.Equal(first.Bytes(), second.Bytes()) {
		t.Error("the same binary gave two texts")
	}
	var read cdx.BOM
	if err := cdx.NewBOMDecoder(&first, cdx.BOMFileFormatJSON).Decode(&read); err != nil {
		t.Fatal(err)
	}
	if !slices.ContainsFunc(*read.Components, func(c cdx.Component) bool { return c.Name == "github.com/CycloneDX/cyclonedx-go" }) {
		t.Errorf("a module that is linked is missing: %+v", read.Components)
	}
}

func TestErrors(t *testing.T) {
	text := filepath.Join(t.TempDir(), "text")
	if err := os.WriteFile(text, []byte("no binary"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct {
		version string
		args    []string
		want    string
	}{
		"NoVersion": {"", []string{text}, "usage"},
		"NoBinary":  {"v1.0.0", nil, "usage"},
		"NoGo":      {"v1.0.0", []string{text}, text},
	} {
		t.Run(name, func(t *testing.T) {
			if err := run(&bytes.Buffer{}, tc.version, tc.args); err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("got %v, want %q", err, tc.want)
			}
		})
	}
}

func TestExitCode(t *testing.T) {
	program := filepath.Join(t.TempDir(), "sbom")
	if out, err := exec.Command("go", "build", "-o", program, ".").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for name, tc := range map[string]struct {
		reason string
		args   []string
		code   int
		want   string
	}{
		"Itself":  {reason: "the program can tell what went into it", args: []string{"-version", "v1.0.0", program}, want: `"bomFormat": "CycloneDX"`},
		"Missing": {reason: "an image must not be built without", args: []string{"-version", "v1.0.0", "/nonexistent"}, code: 1, want: "sbom: read what went into /nonexistent"},
		"Usage":   {reason: "a version is needed", args: []string{program}, code: 1, want: "usage: sbom -version VERSION BINARY"},
	} {
		t.Run(name, func(t *testing.T) {
			cmd := exec.Command(program, tc.args...)
			out, _ := cmd.CombinedOutput()
			if code := cmd.ProcessState.ExitCode(); code != tc.code || !strings.Contains(string(out), tc.want) {
				t.Errorf("%s: exit code %d\n%s", tc.reason, code, out)
			}
		})
	}
}
