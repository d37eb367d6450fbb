package clean

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// TestRemovalStopsAtAMount: the list of mounts may be older than a mount. A bind mount of the same file system has the same device number.
func TestRemovalStopsAtAMount(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: makes a mount")
	}
	dir, precious := t.TempDir(), t.TempDir()
	target, file := filepath.Join(dir, "a", "b", "mnt"), filepath.Join(precious, "file")
	if err := os.MkdirAll(target, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount(precious, target, "", unix.MS_BIND, ""); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Unmount(target, unix.MNT_DETACH) })
	if err := removeIn(dir, nil); !errors.Is(err, errMount) || !strings.Contains(err.Error(), target) {
		t.Errorf("got %v", err)
	}
	if _, err := os.Stat(file); err != nil {
		t.Errorf("the file below the mount is gone: %v", err)
	}
	if err := unix.Unmount(target, 0); err != nil {
		t.Fatal(err)
	}
	if err := removeIn(dir, map[string]bool{"c": true}); err != nil {
		t.Errorf("without the mount: %v", err)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 0 {
		t.Errorf("left %v, %v", left, err)
	}
}
