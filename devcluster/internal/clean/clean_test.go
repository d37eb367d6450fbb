package clean_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/longshore-csi/longshore/devcluster/internal/clean"
)

const markerEnv = "LONGSHORE_CLEAN_TEST="

// needsRoot skips where mounts are impossible; everything else runs for every user.
func needsRoot(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root: makes mounts")
	}
}

func bind(t *testing.T, source, target string) {
	t.Helper()
	for _, dir := range []string{source, target} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := unix.Mount(source, target, "", unix.MS_BIND, ""); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Unmount(target, unix.MNT_DETACH) })
}

func TestProcessesEndsOnlyTheMarked(t *testing.T) {
	marker := markerEnv + t.TempDir()
	run := func(env ...string) *exec.Cmd {
		cmd := exec.Command("sleep", "1000")
		cmd.Env = append(os.Environ(), env...)
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = cmd.Process.Kill() })
		return cmd
	}
	ours, others := run(marker), run(marker+"x")
	ended := make(chan error, 1)
	go func() { ended <- ours.Wait() }()
	n, err := clean.Processes(marker)
	if err != nil || n != 1 {
		t.Fatalf("got %d, %v", n, err)
	}
	<-ended
	if err := unix.Kill(others.Process.Pid, 0); err != nil {
		t.Errorf("the other process: %v", err)
	}
	_ = others.Process.Kill()
	_ = others.Wait()
}

func TestMountsAreRemovedInnermostFirst(t *testing.T) {
	needsRoot(t)
	base := t.TempDir()
	dir, outside := filepath.Join(base, "cluster"), filepath.Join(base, "cluster-other")
	data := filepath.Join(dir, "data")
	bind(t, data, filepath.Join(dir, "a"))
	bind(t, data, filepath.Join(dir, "a")) // twice on the same point
	if err := os.MkdirAll(filepath.Join(data, "inner"), 0o755); err != nil {
		t.Fatal(err)
	}
	bind(t, data, filepath.Join(dir, "a", "inner"))
	bind(t, data, outside)
	n, err := clean.Mounts(dir)
	if err != nil || n != 3 {
		t.Fatalf("got %d, %v", n, err)
	}
	if left, err := clean.FindMounts(dir); err != nil || len(left) != 0 {
		t.Errorf("left %q, %v", left, err)
	}
	if kept, err := clean.FindMounts(base); err != nil || len(kept) != 1 {
		t.Errorf("the neighbour's mount is gone: %q, %v", kept, err)
	}
}

func TestFilesBelowAMountAreNeverRemoved(t *testing.T) {
	needsRoot(t)
	base := t.TempDir()
	precious := filepath.Join(base, "precious")
	dir := filepath.Join(base, "cluster")
	mark(t, dir)
	bind(t, precious, filepath.Join(dir, "mnt"))
	if err := os.WriteFile(filepath.Join(precious, "file"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := clean.Files(dir); err == nil || !strings.Contains(err.Error(), "still mounted") {
		t.Fatalf("got %v", err)
	}
	if _, err := clean.All(dir, markerEnv+dir); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(precious, "file")); err != nil {
		t.Errorf("the file below the mount is gone: %v", err)
	}
	if _, err := os.Stat(dir); !os.IsNotExist(err) {
		t.Errorf("the directory is still there: %v", err)
	}
}

// attach makes an image and attaches a loop device to it.
func attach(t *testing.T, image string) (device string) {
	t.Helper()
	losetup, err := exec.LookPath("losetup")
	if err != nil {
		t.Skip("needs losetup (package mount): `make test` installs it as root on Debian and Ubuntu")
	}
	if err := os.WriteFile(image, make([]byte, 1<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command(losetup, "--find", "--show", image).CombinedOutput()
	if err != nil {
		t.Fatalf("losetup: %v: %s", err, out)
	}
	device = strings.TrimSpace(string(out))
	// Not by its number, which may be that of another test's device by then.
	t.Cleanup(func() { _, _ = clean.Loops(filepath.Dir(image)) })
	return device
}

func TestLoopsOfTheDirectoryAreDetached(t *testing.T) {
	needsRoot(t)
	dir := t.TempDir()
	device := attach(t, filepath.Join(dir, "image"))
	if found, err := clean.FindLoops(dir); err != nil || len(found) != 1 || found[0] != device {
		t.Fatalf("found %q, %v; want %q", found, err, device)
	}
	if n, err := clean.Loops(dir); err != nil || n != 1 {
		t.Fatalf("detached %d, %v", n, err)
	}
	// A program that looks at new devices may still have it open; the kernel detaches it then when that one closes it.
	deadline := time.After(3 * time.Minute)
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for {
		left, err := clean.FindLoops(dir)
		if err != nil {
			t.Fatal(err)
		}
		if len(left) == 0 {
			return
		}
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("left %q", left)
		}
	}
}

func TestNothingToClean(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "never-made")
	r, err := clean.All(dir, markerEnv+dir)
	if err != nil || r != (clean.Report{}) {
		t.Fatalf("got %v, %v", r, err)
	}
	if r.String() != "0 processes ended, 0 mounts removed, 0 loop devices detached" {
		t.Errorf("got %q", r)
	}
}

// TestProcessInTheMiddleOfItsExecutionIsFound starts and ends many processes: one that has just been started shows an empty
// environment for a moment.
func TestProcessInTheMiddleOfItsExecutionIsFound(t *testing.T) {
	marker := markerEnv + t.TempDir()
	for i := range 200 {
		// Two executions after each other, and a marker that comes late in a long environment.
		cmd := exec.Command("/bin/sh", "-c", "exec sleep 1000")
		cmd.Env = append(os.Environ(), "LONG="+strings.Repeat("x", 4000), marker)
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		n, err := clean.Processes(marker)
		if err != nil || n != 1 {
			_ = cmd.Process.Kill()
			t.Errorf("process %d: found %d, %v", i, n, err)
		}
		_ = cmd.Wait()
	}
}

func TestProcessWithoutEnvironment(t *testing.T) {
	cmd := exec.Command("sleep", "1000")
	cmd.Env = []string{}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	if pids, err := clean.Marked(markerEnv + t.TempDir()); err != nil || len(pids) != 0 {
		t.Errorf("got %v, %v", pids, err)
	}
}
