package clean_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/longshore-csi/longshore/devcluster/internal/clean"
	"github.com/longshore-csi/longshore/devcluster/internal/layout"
)

func mark(t *testing.T, dir string) {
	t.Helper()
	if err := clean.Mark(dir); err != nil {
		t.Fatal(err)
	}
}

func touch(t *testing.T, paths ...string) {
	t.Helper()
	for _, path := range paths {
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(path), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

func names(t *testing.T, dir string) []string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	found := make([]string, 0, len(entries))
	for _, e := range entries {
		found = append(found, e.Name())
	}
	return found
}

func TestOwned(t *testing.T) {
	tests := map[string]struct {
		reason  string
		prepare func(t *testing.T, dir string)
		want    error
	}{
		"Absent": {reason: "what is not there harms nobody", prepare: func(*testing.T, string) {}},
		"Empty": {reason: "an empty directory may be used", prepare: func(t *testing.T, dir string) {
			if err := os.Mkdir(dir, 0o755); err != nil {
				t.Fatal(err)
			}
		}},
		"Claimed": {reason: "a cluster's directory is full of files", prepare: func(t *testing.T, dir string) {
			mark(t, dir)
			touch(t, filepath.Join(dir, "logs", "etcd.log"))
		}},
		"Foreign": {reason: "somebody else's files are never removed", want: clean.ErrForeign, prepare: func(t *testing.T, dir string) {
			touch(t, filepath.Join(dir, "thesis"))
		}},
		"ForeignLogs": {reason: "names alone prove nothing", want: clean.ErrForeign, prepare: func(t *testing.T, dir string) {
			touch(t, filepath.Join(dir, "logs", "etcd.log"), filepath.Join(dir, "kubeconfig"))
		}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "c")
			tc.prepare(t, dir)
			if err := clean.Owned(dir); !errors.Is(err, tc.want) {
				t.Errorf("%s: got %v, want %v", tc.reason, err, tc.want)
			}
			if err := clean.Mark(dir); !errors.Is(err, tc.want) {
				t.Errorf("%s: claim: got %v, want %v", tc.reason, err, tc.want)
			}
			if _, err := clean.All(dir, markerEnv+dir); !errors.Is(err, tc.want) {
				t.Errorf("%s: removal: got %v, want %v", tc.reason, err, tc.want)
			}
			if _, err := os.Stat(dir); errors.Is(err, os.ErrNotExist) != (tc.want == nil) {
				t.Errorf("%s: after the removal: %v", tc.reason, err)
			}
		})
	}
}

func TestNotADirectory(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	touch(t, file)
	for what, err := range map[string]error{
		"Owned": clean.Owned(file), "Claim": clean.Mark(file), "Files": clean.Files(file), "Below": clean.Mark(filepath.Join(file, "c")),
	} {
		if err == nil || !strings.Contains(err.Error(), file) {
			t.Errorf("%s: got %v", what, err)
		}
	}
	if _, err := os.Stat(file); err != nil {
		t.Errorf("the file is gone: %v", err)
	}
}

func TestMarkTellsAReaderWhatItIs(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "c")
	mark(t, dir)
	mark(t, dir) // again: a supervisor claims what `up` has claimed
	data, err := os.ReadFile(layout.Dir(dir).Mark())
	if err != nil || !strings.Contains(string(data), "devcluster down") {
		t.Errorf("%q, %v", data, err)
	}
}

func TestKeptFilesStayAndTheDirectoryStaysOwned(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "c")
	mark(t, dir)
	touch(t, filepath.Join(dir, "logs", "etcd.log"), filepath.Join(dir, "pki", "ca.crt"), filepath.Join(dir, "kubeconfig"))
	if _, err := clean.All(dir, markerEnv+dir, filepath.Join(dir, "logs")); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{".devcluster", "logs"}, names(t, dir)); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]string{"etcd.log"}, names(t, filepath.Join(dir, "logs"))); diff != "" {
		t.Error(diff)
	}
	if _, err := clean.All(dir, markerEnv+dir); err != nil {
		t.Errorf("the next removal is refused: %v", err)
	}
	if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the directory is still there: %v", err)
	}
}

func TestRemovalFollowsNoLink(t *testing.T) {
	base := t.TempDir()
	dir, precious := filepath.Join(base, "c"), filepath.Join(base, "precious", "file")
	mark(t, dir)
	touch(t, precious)
	if err := os.Symlink(filepath.Dir(precious), filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
	if err := clean.Files(dir); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(precious); err != nil {
		t.Errorf("the file behind the link is gone: %v", err)
	}
}

// TestMountOfTheDirectoryItselfStays: a cluster makes mounts below its directory; the file system that is mounted on it is the user's.
func TestMountOfTheDirectoryItselfStays(t *testing.T) {
	needsRoot(t)
	dir := filepath.Join(t.TempDir(), "c")
	bind(t, t.TempDir(), dir)
	mark(t, dir)
	touch(t, filepath.Join(dir, "etcd", "wal"))
	bind(t, t.TempDir(), filepath.Join(dir, "nodes"))
	if r, err := clean.All(dir, markerEnv+dir); err != nil || r.Mounts != 1 {
		t.Fatalf("got %v, %v", r, err)
	}
	if left := names(t, dir); len(left) != 0 {
		t.Errorf("left %q", left)
	}
	if found, err := clean.FindMounts(filepath.Dir(dir)); err != nil || len(found) != 1 {
		t.Errorf("mounts above: %q, %v", found, err)
	}
}

func TestMountsAndLoopsAreFoundThroughLinks(t *testing.T) {
	needsRoot(t)
	base := t.TempDir()
	cluster, link := filepath.Join(base, "real"), filepath.Join(base, "link")
	bind(t, filepath.Join(base, "source"), filepath.Join(cluster, "mnt"))
	if err := os.Symlink("real", link); err != nil {
		t.Fatal(err)
	}
	if found, err := clean.FindMounts(link); err != nil || len(found) != 1 {
		t.Errorf("mounts: %q, %v", found, err)
	}
	device := attach(t, filepath.Join(cluster, "image"))
	if found, err := clean.FindLoops(link); err != nil || len(found) != 1 || found[0] != device {
		t.Errorf("loop devices: %q, %v; want %q", found, err, device)
	}
}
