package registration

import (
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// makeSocket leaves a socket file.
func makeSocket(t *testing.T, path string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o750); err != nil {
		t.Fatal(err)
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	l.SetUnlinkOnClose(false)
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
}

func TestScan(t *testing.T) {
	root := t.TempDir()
	for _, name := range []string{"a.sock", "deep/er/b.sock", ".hidden.sock", ".dir/c.sock"} {
		makeSocket(t, filepath.Join(root, name))
	}
	if err := os.WriteFile(filepath.Join(root, "file.sock"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(filepath.Join(root, "a.sock"), filepath.Join(root, "link.sock")); err != nil {
		t.Fatal(err)
	}
	for name, target := range map[string]string{"broken.sock": "none", "loop.sock": "loop.sock", "through.sock": "file.sock/x"} {
		if err := os.Symlink(filepath.Join(root, target), filepath.Join(root, name)); err != nil {
			t.Fatal(err)
		}
	}
	seen := socketsFound{}
	dirs, err := scan(root, seen)
	if err != nil {
		t.Fatal(err)
	}
	relative := func(paths []string) []string {
		for i := range paths {
			paths[i] = strings.TrimPrefix(paths[i], root)
		}
		slices.Sort(paths)
		return paths
	}
	if diff := cmp.Diff([]string{"/a.sock", "/deep/er/b.sock", "/link.sock"}, relative(slices.Collect(maps.Keys(seen)))); diff != "" {
		t.Errorf("sockets, -want +got:\n%s", diff)
	}
	if diff := cmp.Diff([]string{"", "/deep", "/deep/er"}, relative(dirs)); diff != "" {
		t.Errorf("directories, -want +got:\n%s", diff)
	}
	for path, id := range seen {
		if id.Inode == 0 || id.Modified == 0 {
			t.Errorf("identity of %s: %+v", path, id)
		}
	}
}

// A directory that cannot be read says nothing about its sockets: taking them
// for gone would deregister all drivers.
func TestScanOfAMissingRootIsAnError(t *testing.T) {
	if _, err := scan(filepath.Join(t.TempDir(), "none"), socketsFound{}); err == nil {
		t.Error("got no error")
	}
}

func TestTracker(t *testing.T) {
	one, two := Identity{Inode: 1, Modified: 1}, Identity{Inode: 1, Modified: 2}
	var track tracker
	steps := []struct {
		reason       string
		seen         socketsFound
		removedPaths map[string]bool
		added, gone  []Generation
	}{
		{reason: "nothing is there"},
		{
			reason: "a new socket", seen: socketsFound{"/a": one},
			added: []Generation{{Path: "/a", Serial: 1, Identity: one}},
		},
		{reason: "the same socket", seen: socketsFound{"/a": one}},
		{
			reason: "the same inode, used again", seen: socketsFound{"/a": two},
			added: []Generation{{Path: "/a", Serial: 2, Identity: two}},
		},
		{
			reason: "the same in all, but an event says that it was removed meanwhile", seen: socketsFound{"/a": two},
			removedPaths: map[string]bool{"/a": true},
			added:        []Generation{{Path: "/a", Serial: 3, Identity: two}},
		},
		{
			reason: "one goes, another comes", seen: socketsFound{"/b": one},
			added: []Generation{{Path: "/b", Serial: 4, Identity: one}}, gone: []Generation{{Path: "/a", Serial: 3, Identity: two}},
		},
		{
			reason: "what comes back is new", seen: socketsFound{"/a": two, "/b": one},
			added: []Generation{{Path: "/a", Serial: 5, Identity: two}},
		},
	}
	for _, s := range steps {
		if diff := cmp.Diff(change{added: s.added, gone: s.gone}, track.update(s.seen, s.removedPaths), cmp.AllowUnexported(change{})); diff != "" {
			t.Errorf("%s, -want +got:\n%s", s.reason, diff)
		}
	}
}
