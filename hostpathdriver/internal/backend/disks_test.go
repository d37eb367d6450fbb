package backend

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/longshore-csi/longshore/driverkit/filesystem"
	"github.com/longshore-csi/longshore/hostpathdriver/internal/copier"
	"github.com/longshore-csi/longshore/hostpathdriver/internal/needs"
)

// newFileSystem mounts one, for state directories.
func newFileSystem(t *testing.T, fsType string) string {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("mounts need root")
	}
	dir := t.TempDir()
	image, target := filepath.Join(dir, "image"), filepath.Join(dir, "mounted")
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := errors.Join(os.WriteFile(image, nil, 0o600), os.Truncate(image, 640<<20), os.Mkdir(target, 0o700)); err != nil {
		t.Fatal(err)
	}
	commands := [][]string{{"mkfs." + fsType, "-q", image}, {"mount", "-o", "loop", image, target}}
	if fsType == "tmpfs" {
		commands = [][]string{{"mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", target}}
	}
	for _, args := range commands {
		needs.Programs(t, args[0])
		if output, err := exec.CommandContext(ctx, args[0], args[1:]...).CombinedOutput(); err != nil {
			t.Fatalf("%v: %v: %s", args, err, output)
		}
	}
	t.Cleanup(func() {
		if err := unix.Unmount(target, 0); err != nil {
			t.Error(err)
		}
	})
	return target
}

// needType skips a test of a file system whose programs are missing.
func needType(t *testing.T, systems filesystem.Filesystems, fsType string) {
	t.Helper()
	if !slices.Contains(systems.Types(), fsType) {
		needs.Programs(t, "blkid", "fsck", "mount", "mkfs."+fsType, "fsck."+fsType)
		t.Skipf("needs all programs of %s: `make test` installs them, as root on Debian or Ubuntu", fsType)
	}
}

// moveTo makes a world be on a disk: the fake of a device is a link to its file.
func (w *world) moveTo(dir string) {
	w.t.Helper()
	w.stateDir, w.fakeLoop.Dir = filepath.Join(dir, "state"), filepath.Join(dir, "dev")
	w.must(os.Mkdir(w.fakeLoop.Dir, 0o700))
}

// eachDisk runs a test where bytes are copied, and where blocks are shared;
// without privileges where it is.
func eachDisk(t *testing.T, test func(t *testing.T, w *world)) {
	t.Helper()
	if os.Geteuid() != 0 {
		w := newWorld(t)
		if _, err := copier.Look(t.Context(), t.TempDir()); err != nil {
			t.Skipf("mounts need root, and here is nothing to test with: %v", err)
		}
		test(t, w)
		return
	}
	for _, fsType := range []string{"ext4", "xfs"} {
		t.Run(fsType, func(t *testing.T) {
			w := newWorld(t)
			w.moveTo(newFileSystem(t, fsType))
			test(t, w)
		})
	}
}
