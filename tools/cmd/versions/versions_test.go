package main

import (
	"io/fs"
	"maps"
	"os"
	"regexp"
	"strings"
	"testing"
	"testing/fstest"
)

const good = `
modules:
  kit: {next: v0.1.0}
  attacher: {next: v1.2.3, binary: csi-attacher, image: csi-attacher}
untagged: [tools]
`

func tree(versions string) fstest.MapFS {
	fs := fstest.MapFS{"versions.yaml": {Data: []byte(versions)}}
	for _, name := range []string{
		"kit/go.mod", "kit/README.md", "kit/CHANGELOG.md", "tools/go.mod", "devcluster/controlplane/go.mod", "e2e/k8s/go.mod", ".tools/x/go.mod",
		"attacher/go.mod", "attacher/README.md", "attacher/CHANGELOG.md", "attacher/cmd/csi-attacher/main.go", "attacher/Dockerfile",
	} {
		fs[name] = &fstest.MapFile{}
	}
	return fs
}

func TestCheck(t *testing.T) {
	tests := map[string]struct {
		reason   string
		versions string
		add      []string
		remove   []string
		want     string
	}{
		"Good":      {reason: "a tree that fits", versions: good},
		"Unlisted":  {reason: "a new module must be versioned", versions: good, add: []string{"new/go.mod"}, want: "module new: must be listed once"},
		"Twice":     {reason: "a module is tagged or it is not", versions: strings.Replace(good, "[tools]", "[tools, kit]", 1), want: "module kit: must be listed once"},
		"Gone":      {reason: "a module that was removed", versions: good, remove: []string{"tools/go.mod"}, want: "module tools: has no go.mod"},
		"NoBinary":  {reason: "the named binary exists", versions: good, remove: []string{"attacher/cmd/csi-attacher/main.go"}, want: "has no cmd/csi-attacher/main.go"},
		"NoChanges": {reason: "releases are made from changelogs", versions: good, remove: []string{"kit/CHANGELOG.md"}, want: "module kit: has no CHANGELOG.md"},
		"Version":   {reason: "versions are semantic", versions: strings.Replace(good, "v0.1.0", "0.1", 1), want: `next "0.1" is not vX.Y.Z`},
		"Unknown":   {reason: "a misspelt key is found", versions: strings.Replace(good, "binary", "binaries", 1), want: "unknown field"},
		"NoRecipe":  {reason: "an image has its recipe", versions: good, remove: []string{"attacher/Dockerfile"}, want: "module attacher: has no Dockerfile"},
		"Image":     {reason: "an image holds a binary", versions: strings.Replace(good, "binary: csi-attacher, ", "", 1), want: "without a binary"},
		"None":      {reason: "the file must be there", versions: good, remove: []string{"versions.yaml"}, want: "versions.yaml"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			fs := maps.Clone(tree(tc.versions))
			for _, path := range tc.add {
				fs[path] = &fstest.MapFile{}
			}
			for _, path := range tc.remove {
				delete(fs, path)
			}
			err := check(fs)
			if tc.want == "" && err != nil || tc.want != "" && (err == nil || !strings.Contains(err.Error(), tc.want)) {
				t.Fatalf("%s: got %v, want %q", tc.reason, err, tc.want)
			}
		})
	}
}

func TestModulesOfThisRepository(t *testing.T) {
	found, err := modules(os.DirFS("../../.."))
	if err != nil || len(found) < 10 {
		t.Fatalf("found %q, %v", found, err)
	}
}

// TestOutsideTheWorkspace: these modules are there, are not in the workspace, and run the same Kubernetes.
func TestOutsideTheWorkspace(t *testing.T) {
	root := os.DirFS("../../..")
	workspace, err := fs.ReadFile(root, "go.work")
	if err != nil {
		t.Fatal(err)
	}
	pin := regexp.MustCompile(`k8s\.io/kubernetes (v\S+)`)
	versions := map[string]bool{}
	for _, dir := range outside() {
		mod, err := fs.ReadFile(root, dir+"/go.mod")
		if err != nil {
			t.Error(err)
		}
		if strings.Contains(string(workspace), "./"+dir+"\n") {
			t.Errorf("%s is in go.work", dir)
		}
		versions[pin.FindString(string(mod))] = true
	}
	if len(versions) != 1 || versions[""] {
		t.Errorf("they pin %v, want one version of Kubernetes", versions)
	}
	if strings.Contains(string(workspace), "./"+apart+"\n") {
		t.Errorf("%s is in go.work, where the dependencies of linters raise those of released modules", apart)
	}
}

// TestMakeKnowsWhatIsOutside: make checks the modules outside of the workspace, too.
func TestMakeKnowsWhatIsOutside(t *testing.T) {
	want := "\nOUTSIDE := " + apart + " " + strings.Join(outside(), " $(OLDER) ") + " $(UPSTREAM)\n"
	text, err := os.ReadFile("../../../make/modules.mk")
	if err != nil || !strings.Contains(string(text), want) {
		t.Errorf("make/modules.mk: %v; want the line %q", err, want)
	}
}
