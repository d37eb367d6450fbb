package clean

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestDetachLoopOfSomebodyElse: a device that was found below the directory, and shows a file elsewhere by now, is left as it is.
func TestDetachLoopOfSomebodyElse(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("loop devices need root")
	}
	elsewhere, dir := t.TempDir(), t.TempDir()
	file := filepath.Join(elsewhere, "image")
	if err := os.WriteFile(file, make([]byte, 1<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	out, err := exec.CommandContext(t.Context(), "losetup", "--find", "--show", file).Output()
	if err != nil {
		t.Skipf("no loop device can be made here: %v", err)
	}
	device := strings.TrimSpace(string(out))
	t.Cleanup(func() { _, _ = Loops(elsewhere) })
	if err := detach(device, dir); err != nil {
		t.Error(err)
	}
	if found, err := FindLoops(elsewhere); err != nil || len(found) != 1 {
		t.Errorf("the device of a file elsewhere was detached: %q, %v", found, err)
	}
}
