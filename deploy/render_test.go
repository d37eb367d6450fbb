package deploy

import (
	"bytes"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/kyaml/filesys"
)

var rewrite = flag.Bool("rewrite", false, "write rendered/ again") //nolint:gochecknoglobals // a flag of the test binary

// overlays lists the directories that a user can apply.
func overlays(t *testing.T) []string {
	t.Helper()
	dirs, err := filepath.Glob("overlays/*/kustomization.yaml")
	if err != nil || len(dirs) == 0 {
		t.Fatalf("found %q: %v", dirs, err)
	}
	names := make([]string, len(dirs))
	for i, dir := range dirs {
		names[i] = filepath.Base(filepath.Dir(dir))
	}
	return names
}

// snapshotControllers are the directories of the snapshot-controller, as seen from the overlays.
func snapshotControllers() []string {
	return []string{"../snapshot-controller/standard", "../snapshot-controller/distributed"}
}

// directories are all that a user can apply, those of the driver and of the snapshot-controller.
func directories(t *testing.T) []string {
	t.Helper()
	return append(overlays(t), snapshotControllers()...)
}

func render(t *testing.T, overlay string) []byte {
	t.Helper()
	result, err := krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(filesys.MakeFsOnDisk(), filepath.Join("overlays", overlay))
	if err != nil {
		t.Fatal(err)
	}
	text, err := result.AsYaml()
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// TestRendered shows in a change what it means for a cluster.
func TestRendered(t *testing.T) {
	for _, overlay := range directories(t) {
		t.Run(overlay, func(t *testing.T) {
			path := filepath.Join("rendered", strings.ReplaceAll(strings.TrimPrefix(overlay, "../"), "/", "-")+".yaml")
			got := render(t, overlay)
			if *rewrite {
				if err := os.WriteFile(path, got, 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(got, want) {
				t.Errorf("%s is not what kustomize makes of the overlay (go test -rewrite . writes it): -committed +rendered\n%s", path, cmp.Diff(string(want), string(got)))
			}
		})
	}
	files, err := filepath.Glob("rendered/*.yaml")
	if err != nil || len(files) != len(directories(t)) {
		t.Errorf("rendered/ has %d files for %d directories: %v", len(files), len(directories(t)), err)
	}
}

// splitDocuments cuts YAML text at its separators.
func splitDocuments(text []byte) [][]byte {
	return bytes.Split(text, []byte("\n---\n"))
}
