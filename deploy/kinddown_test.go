package deploy

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestKindDown releases the loop devices of volumes, whose nodes have gone, and no other, and removes the volumes.
func TestKindDown(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("loop devices need root")
	}
	home := t.TempDir()
	volume, other := filepath.Join(home, "longshore/kind/ci/volumes/v with spaces"), filepath.Join(home, "longshore/kind/other/volumes/v")
	devices := map[string]string{}
	for _, dir := range []string{volume, other} {
		disk := filepath.Join(dir, "disk")
		if err := errors.Join(os.MkdirAll(dir, 0o700), os.WriteFile(disk, make([]byte, 1<<20), 0o600)); err != nil {
			t.Fatal(err)
		}
		out, err := exec.CommandContext(t.Context(), "losetup", "--find", "--show", disk).Output()
		if err != nil {
			t.Fatalf("attach: %v", err)
		}
		devices[dir] = strings.TrimSpace(string(out))
		t.Cleanup(func() { _ = exec.CommandContext(context.Background(), "losetup", "--detach", devices[dir]).Run() }) // it may be released already
	}
	cmd := exec.CommandContext(t.Context(), "./kind-down", "ci")
	cmd.Env = append(os.Environ(), "XDG_STATE_HOME="+home, "KIND=true")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	bound := func(device string) bool {
		_, err := os.Stat(filepath.Join("/sys/block", filepath.Base(device), "loop/backing_file"))
		return err == nil
	}
	if bound(devices[volume]) {
		t.Errorf("%s is still bound", devices[volume])
	}
	if !bound(devices[other]) {
		t.Errorf("%s of another cluster was released", devices[other])
	}
	if _, err := os.Stat(filepath.Join(home, "longshore/kind/ci")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the volumes are still there: %v", err)
	}
	if _, err := os.Stat(filepath.Join(other, "disk")); err != nil {
		t.Errorf("the volumes of another cluster: %v", err)
	}
}
