package main

import (
	"bytes"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// smallRoot is a repository with the least of everything; files replace or add to what is there.
func smallRoot(t *testing.T, files map[string]string) string {
	t.Helper()
	root := t.TempDir()
	all := map[string]string{
		"LICENSE":                        "a license\n",
		"hostpathdriver/go.mod":          "module " + driverPath + "\n\ngo 1.26.0\n\nrequire (\n\t" + kitPath("csikit") + " v0.0.0\n\t" + kitPath("driverkit") + " v0.0.0\n)\n\nreplace (\n\t" + kitPath("csikit") + " => ../csikit\n\t" + kitPath("driverkit") + " => ../driverkit\n)\n",
		"hostpathdriver/run.go":          "// Package hostpathdriver is a driver.\npackage hostpathdriver\n\nimport (\n\t\"" + kitPath("csikit") + "/one\"\n\t_ \"" + kitPath("driverkit") + "/four\"\n)\n\n// Name is of the driver.\nconst Name = \"hostpath.csi.k8s.io\" + one.Name\n",
		"hostpathdriver/README.md":       "hostpathdriver of Longshore\n",
		"hostpathdriver/.hidden/file":    "longshore\n",
		"hostpathdriver/driver.test":     "longshore\n",
		"hostpathdriver/CHANGELOG.md":    "longshore\n",
		"csikit/go.mod":                  "module " + kitPath("csikit") + "\n\ngo 1.26.0\n",
		"csikit/one/one.go":              "// Package one is needed.\npackage one\n\n// Name is empty.\nconst Name = \"\"\n",
		"csikit/one/one_test.go":         "package one\n\nimport _ \"" + kitPath("csikit") + "/two\"\n",
		"csikit/one/testdata/a/b.txt":    "hostpathplugin\n",
		"csikit/one/below/below.go":      "// Package below is not needed.\npackage below\n",
		"csikit/two/two.go":              "// Package two is needed by a test.\npackage two\n",
		"csikit/three/three.go":          "// Package three is not needed.\npackage three\n",
		"driverkit/go.mod":               "module " + kitPath("driverkit") + "\n\ngo 1.26.0\n\nrequire " + kitPath("csikit") + " v0.0.0\n\nreplace " + kitPath("csikit") + " => ../csikit\n",
		"driverkit/driverkit.go":         "// Package driverkit is not needed.\npackage driverkit\n",
		"driverkit/four/four.go":         "// Package four is needed, and needs one of the other kit.\npackage four\n\nimport _ \"" + kitPath("csikit") + "/five\"\n",
		"csikit/five/five.go":            "// Package five is needed by the other kit.\npackage five\n",
		"deploy/test-driver.yaml":        "Name: hostpath.csi.k8s.io\n",
		"deploy/base/b/a.yaml":           "name: csi-hostpath\n",
		"deploy/base/b/not-named.yaml":   "name: csi-hostpath\n",
		"deploy/base/b/patch.yaml":       "name: longshore:csi-hostpath:attacher\n",
		"deploy/base/component/rbac.yml": "name: longshore:csi-attacher\n",
	}
	all["deploy/"+overlay+"/kustomization.yaml"] = "resources: [../../base/b]\ncomponents: [../../base/component]\n"
	all["deploy/base/b/kustomization.yaml"] = "resources: [a.yaml]\npatches:\n- path: patch.yaml\n- patch: 'inline'\n"
	all["deploy/base/component/kustomization.yaml"] = "resources: [rbac.yml]\n"
	for name, text := range files {
		all[name] = text
	}
	for name, text := range all {
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return root
}

// The files of a copy, by hand: what is needed comes along, what is not stays away, and no list names any of it.
func TestCreate(t *testing.T) {
	root := smallRoot(t, nil)
	dir := filepath.Join(t.TempDir(), "foo")
	if err := os.Mkdir(dir, 0o755); err != nil { // an empty directory is as good as none
		t.Fatal(err)
	}
	var out bytes.Buffer
	if err := run(t.Context(), &out, []string{"-root", root, "-name", "foo.example.com", "-module", "example.com/foo", "-out", dir}); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(out.String(), "driver foo.example.com, module example.com/foo, binary foo") {
		t.Errorf("it says %q", &out)
	}
	want := map[string]string{
		"run.go":                                         "// Package foo is a driver.\npackage foo\n\nimport (\n\t\"example.com/foo/internal/csikit/one\"\n\t_ \"example.com/foo/internal/driverkit/four\"\n)\n\n// Name is of the driver.\nconst Name = \"foo.example.com\" + one.Name\n",
		"go.mod":                                         "module example.com/foo\n\ngo 1.26.0\n",
		"internal/csikit/one/one.go":                     "",
		"internal/csikit/one/one_test.go":                "package one\n\nimport _ \"example.com/foo/internal/csikit/two\"\n",
		"internal/csikit/one/testdata/a/b.txt":           "foo\n",
		"internal/csikit/two/two.go":                     "",
		"internal/csikit/five/five.go":                   "",
		"internal/driverkit/four/four.go":                "// Package four is needed, and needs one of the other kit.\npackage four\n\nimport _ \"example.com/foo/internal/csikit/five\"\n",
		"deploy/test-driver.yaml":                        "Name: foo.example.com\n",
		"deploy/overlays/statefulset/kustomization.yaml": "",
		"deploy/base/b/kustomization.yaml":               "",
		"deploy/base/b/a.yaml":                           "name: csi-foo\n",
		"deploy/base/b/patch.yaml":                       "name: csi-foo:attacher\n",
		"deploy/base/component/kustomization.yaml":       "",
		"deploy/base/component/rbac.yml":                 "name: csi-foo:csi-attacher\n",
		"LICENSE":                                        "a license\n",
		"NOTICE":                                         "", "README.md": "", "CHANGELOG.md": "", "Makefile": "", "Dockerfile": "", ".gitignore": "", ".dockerignore": "",
	}
	for name, text := range want {
		got, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Error(err)
		} else if text != "" && string(got) != text {
			t.Errorf("%s is %q, want %q", name, got, text)
		}
	}
	for _, name := range filesBelow(t, dir) {
		if _, wanted := want[name]; !wanted && name != "go.sum" {
			t.Errorf("there is a file %s, too", name)
		}
	}
}

func filesBelow(t *testing.T, dir string) (files []string) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			path, err = filepath.Rel(dir, path)
			files = append(files, path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

// Whatever is wrong: there is an error, and nothing is written.
func TestNothingIsWritten(t *testing.T) {
	good := []string{"-name", "foo.example.com", "-module", "example.com/foo", "-out", "new"}
	cases := map[string]struct {
		reason string
		files  map[string]string
		args   []string
		want   string
	}{
		"Name":     {reason: "no name of a driver", args: []string{"-name", "Foo"}, want: "NAME=Foo"},
		"Module":   {reason: "no path of a module", args: []string{"-module", "foo"}, want: "MODULE=foo"},
		"NoOut":    {reason: "no directory", args: []string{"-out", ""}, want: "OUT is missing"},
		"Full":     {reason: "what is there stays", args: []string{"-out", "full"}, want: "OUT=full: must not exist, or be empty: has file"},
		"File":     {reason: "what is there stays", args: []string{"-out", "full/file"}, want: "OUT=full/file"},
		"NoParent": {reason: "a directory for the copy, not a path of them", args: []string{"-out", "a/b"}, want: "beside OUT"},
		"Words":    {reason: "make with spaces in a name", args: []string{"two"}, want: "unexpected arguments"},
		"Flag":     {reason: "a flag that is not there", args: []string{"-nme"}, want: "-nme"},
		"Leftover": {
			reason: "a name in a spelling that no rule knows", want: `notes.txt:2: "LongShore" is left`,
			files: map[string]string{"hostpathdriver/notes.txt": "foo\nof LongShore\n"},
		},
		"Sibling": {
			reason: "a package that is no part of the copy", want: "topology",
			files: map[string]string{"hostpathdriver/more.go": "package hostpathdriver\n\nimport _ \"" + project + "/topology\"\n"},
		},
		"Syntax": {
			reason: "a file that is half written", want: "more.go",
			files: map[string]string{"hostpathdriver/more.go": "package hostpathdriver\n\nfunc\n"},
		},
		"Manifest": {
			reason: "a kustomization names what is not there", want: "names absent.yaml",
			files: map[string]string{"deploy/base/b/kustomization.yaml": "resources: [absent.yaml]\n"},
		},
		"Kustomization": {
			reason: "no kustomization", want: "read deploy/base/b/kustomization.yaml",
			files: map[string]string{"deploy/base/b/kustomization.yaml": "resources: {}\n"},
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			root := smallRoot(t, tc.files)
			t.Chdir(t.TempDir())
			if err := os.Mkdir("full", 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile("full/file", nil, 0o600); err != nil {
				t.Fatal(err)
			}
			err := run(t.Context(), io.Discard, append(append([]string{"-root", root}, good...), tc.args...))
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("%s: got the error %v, want %q in it", tc.reason, err, tc.want)
			}
			if files := filesBelow(t, "."); !slices.Equal(files, []string{"full/file"}) {
				t.Errorf("%s: there is %q", tc.reason, files)
			}
		})
	}
}

func TestInsideOfTheRepository(t *testing.T) {
	root := smallRoot(t, nil)
	for _, dir := range []string{root, filepath.Join(root, "copy")} {
		if _, err := checkOut(root, dir); err == nil || !strings.Contains(err.Error(), "must be outside") {
			t.Errorf("%s: got %v, want an error", dir, err)
		}
	}
	if _, err := checkOut(root, root+"-copy"); err != nil {
		t.Errorf("beside the repository: %v", err)
	}
}

func TestPackageTakesAnotherName(t *testing.T) {
	root := smallRoot(t, map[string]string{
		"hostpathdriver/cmd/x/main.go": "package main\n\nimport \"" + driverPath + "\"\n\nfunc main() { options := hostpathdriver.Name; _ = options }\n",
	})
	dir := filepath.Join(t.TempDir(), "options")
	if err := run(t.Context(), io.Discard, []string{"-root", root, "-name", "a.example.com", "-module", "example.com/options", "-out", dir}); err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile(filepath.Join(dir, "cmd/x/main.go"))
	if want := "import optionsdriver \"example.com/options\"\n\nfunc main() { options := optionsdriver.Name; _ = options }\n"; err != nil || !strings.Contains(string(got), want) {
		t.Errorf("got %s (%v), want %s in it", got, err, want)
	}
}
