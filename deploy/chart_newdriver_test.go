package deploy

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"helm.sh/helm/v4/pkg/chart/v2/lint"
	"helm.sh/helm/v4/pkg/chart/v2/lint/support"
	"helm.sh/helm/v4/pkg/chart/v2/loader"
)

// TestNewDriverChart: the chart that `make new-driver` writes is complete, and its objects are valid; TestManifestsAreAcceptedWithoutWarning of e2e sends
// them to an API server.
func TestNewDriverChart(t *testing.T) {
	root, err := filepath.Abs("..")
	if err != nil {
		t.Fatal(err)
	}
	out := filepath.Join(t.TempDir(), "foo")
	cmd := exec.CommandContext(t.Context(), "go", "run", "./cmd/newdriver", "-root", root, "-name", "foo.example.com", "-module", "example.com/foo", "-out", out)
	cmd.Dir, cmd.Env = "../tools", append(os.Environ(), "GOFLAGS=", "GOWORK=off")
	if text, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("newdriver: %v\n%s", err, text)
	}
	dir := filepath.Join(out, "chart")
	for _, message := range lint.RunAll(dir, nil, "foo").Messages {
		if message.Severity >= support.WarningSev {
			t.Error(message)
		}
	}
	loaded, err := loader.Load(dir)
	if err != nil {
		t.Fatal(err)
	}
	files, err := templateChart(loaded, "foo", "foo", nil)
	if err != nil {
		t.Fatal(err)
	}
	got := []byte(strings.TrimPrefix(files["driver.yaml"], "---\n"))
	workloads(t, decodeStrictly(t, got))
	compareGolden(t, library+"/testdata/new-driver.golden.yaml", got)
}
