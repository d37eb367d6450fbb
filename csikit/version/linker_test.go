package version_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// Releases are built with these flags; a variable that is renamed or moved would be ignored by the linker in silence.
func TestLinkerFlags(t *testing.T) {
	const pkg = "github.com/longshore-csi/longshore/csikit/version"
	binary := filepath.Join(t.TempDir(), "version.test")
	build := exec.CommandContext(t.Context(), "go", "test", "-c", "-o", binary,
		"-ldflags", "-X "+pkg+".version=v9.8.7 -X "+pkg+".commit=0123456789abcdef-dirty", ".")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build: %v\n%s", err, out)
	}
	show := exec.CommandContext(t.Context(), binary, "-test.run=^TestShow$", "-test.v")
	show.Env = append(os.Environ(), "VERSION_TEST_SHOW=1")
	out, err := show.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "version is v9.8.7 (go1.") || !strings.Contains(string(out), ", 0123456-dirty)") {
		t.Errorf("a release build says %v\n%s", err, out)
	}
}
