package devcluster

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/longshore-csi/longshore/devcluster/internal/clean"
)

func TestDownOfNothingIsToldAndNoError(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "c")
	for range 2 {
		var out strings.Builder
		if err := Down(t.Context(), dir, &out); err != nil || out.String() != "no cluster is up in "+dir+"\n" {
			t.Errorf("%q, %v", &out, err)
		}
	}
}

func TestDownTakesARelativePath(t *testing.T) {
	t.Chdir(t.TempDir())
	if err := clean.Mark("c"); err != nil {
		t.Fatal(err)
	}
	if err := Down(t.Context(), "c", &strings.Builder{}); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat("c"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("still there: %v", err)
	}
}

// TestDownFindsProcessesWithoutADirectory: somebody removed the directory by hand before.
func TestDownFindsProcessesWithoutADirectory(t *testing.T) {
	dir, supervisor := failedStart(t)
	if err := os.RemoveAll(string(dir)); err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	if err := Down(t.Context(), string(dir), &out); err != nil || !strings.Contains(out.String(), "down: 1 processes ended") {
		t.Errorf("%q, %v", &out, err)
	}
	supervisor.reap()
	if state := supervisor.cmd.ProcessState.String(); state != "signal: killed" {
		t.Errorf("the process: %s", state)
	}
}

func TestDownRefusesForeignDirectories(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "thesis")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	if err := Down(t.Context(), dir, &out); !errors.Is(err, clean.ErrForeign) || !strings.Contains(err.Error(), dir) {
		t.Errorf("got %v", err)
	}
	if _, err := os.Stat(file); err != nil || out.Len() > 0 {
		t.Errorf("%v, %q", err, &out)
	}
}

// TestDownThroughLink: the kernel lists mounts by paths without links, and --dir may have links in it. A volume that is mounted
// below the directory must lose its mount, not its files.
func TestDownThroughLink(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: makes a mount")
	}
	for name, dir := range map[string]string{"LinkAbove": "link/c", "LinkItself": "itself"} {
		t.Run(name, func(t *testing.T) {
			base := t.TempDir()
			cluster, precious := filepath.Join(base, "real", "c"), filepath.Join(base, "precious")
			target := filepath.Join(cluster, "nodes", "node-1", "pods", "x")
			for _, d := range []string{target, precious} {
				if err := os.MkdirAll(d, 0o755); err != nil {
					t.Fatal(err)
				}
			}
			for link, to := range map[string]string{"link": "real", "itself": "real/c"} {
				if err := os.Symlink(to, filepath.Join(base, link)); err != nil {
					t.Fatal(err)
				}
			}
			if err := os.WriteFile(filepath.Join(cluster, ".devcluster"), nil, 0o600); err != nil {
				t.Fatal(err)
			}
			file := filepath.Join(precious, "file")
			if err := os.WriteFile(file, nil, 0o600); err != nil {
				t.Fatal(err)
			}
			if err := unix.Mount(precious, target, "", unix.MS_BIND, ""); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = unix.Unmount(target, unix.MNT_DETACH) })
			var out strings.Builder
			if err := Down(t.Context(), filepath.Join(base, dir), &out); err != nil || !strings.Contains(out.String(), "1 mounts removed") {
				t.Errorf("%q, %v", &out, err)
			}
			if _, err := os.Stat(file); err != nil {
				t.Errorf("the file of the mounted volume is gone: %v", err)
			}
			if _, err := os.Stat(cluster); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("the directory of the cluster is still there: %v", err)
			}
		})
	}
}

func TestTurnsAreTakenOneByOne(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "above", "c")
	done, err := takeTurn(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	second := make(chan error, 1)
	go func() {
		_, err := takeTurn(ctx, dir)
		second <- err
	}()
	cancel()
	if err := <-second; !errors.Is(err, context.Canceled) || !strings.Contains(err.Error(), "wait for another up or down") {
		t.Errorf("while it is somebody else's turn: %v", err)
	}
	third := make(chan error, 1)
	go func() {
		release, err := takeTurn(t.Context(), dir)
		if err == nil {
			release()
		}
		third <- err
	}()
	select {
	case err := <-third:
		t.Fatalf("two turns at once: %v", err)
	default:
	}
	done()
	if err := <-third; err != nil {
		t.Errorf("after the first turn: %v", err)
	}
	if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a turn makes the cluster's directory: %v", err)
	}
}

func TestTurnBelowAFile(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := takeTurn(t.Context(), filepath.Join(file, "c")); err == nil || !strings.Contains(err.Error(), file) {
		t.Errorf("got %v", err)
	}
}
