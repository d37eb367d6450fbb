package backend

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/longshore-csi/longshore/driverkit/mount"
	"github.com/longshore-csi/longshore/hostpathdriver/internal/quota"
	"github.com/longshore-csi/longshore/hostpathdriver/internal/volume"
)

func openDirectory(t *testing.T) (d *Contents, root string) {
	t.Helper()
	root = t.TempDir()
	if err := makeHome(root, []string{volumesDir}); err != nil {
		t.Fatal(err)
	}
	return contentsAt(root, volumesDir, &mount.Fake{}, &quota.Fake{}), root
}

func TestDirectoryAttributes(t *testing.T) {
	cases := map[string]struct {
		reason     string
		attributes volume.Attributes
		want       fs.FileMode
	}{
		"Default": {reason: "everybody, whatever the umask", attributes: volume.DefaultAttributes(), want: fs.ModeDir | 0o777},
		"Private": {reason: "the owner", attributes: volume.Attributes{Mode: 0o700, UID: -1, GID: -1}, want: fs.ModeDir | 0o700},
		"Special": {reason: "sticky and setgid outlive the change of owner", attributes: volume.Attributes{Mode: 0o775 | fs.ModeSticky | fs.ModeSetgid, UID: os.Getuid(), GID: os.Getgid()}, want: fs.ModeDir | fs.ModeSticky | fs.ModeSetgid | 0o775},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			d, _ := openDirectory(t)
			for range 2 { // the second call finds the directory of the first
				if err := d.Create("v", volume.Form{}, 0, c.attributes); err != nil {
					t.Fatal(err)
				}
			}
			info, err := os.Stat(d.Path("v"))
			if err != nil || info.Mode() != c.want {
				t.Errorf("%s: mode %v, %v, want %v", c.reason, info.Mode(), err, c.want)
			}
		})
	}
}

// TestDirectoryParentIsPrivate: whatever the mode of a volume, only the driver
// gets to it by this way.
func TestDirectoryParentIsPrivate(t *testing.T) {
	_, root := openDirectory(t)
	for _, name := range []string{volumesDir, trashDir} {
		info, err := os.Stat(filepath.Join(root, name))
		if err != nil || info.Mode().Perm() != 0o700 {
			t.Errorf("%s: %v, %v, want mode 0700", name, info, err)
		}
	}
}

func TestDirectoryEnds(t *testing.T) {
	d, root := openDirectory(t)
	ctx := t.Context()
	if err := errors.Join(d.Abandon("x"), d.Discard(ctx, "x"), d.Purge(ctx, "x")); err != nil {
		t.Errorf("what does not exist is gone already: %v", err)
	}
	if err := d.Create("v", volume.Form{}, 0, volume.DefaultAttributes()); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(d.Path("v"), "file"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := d.Abandon("v"); err == nil || !d.Exists("v") {
		t.Errorf("a volume with contents is abandoned: %v", err)
	}
	if err := d.Discard(ctx, "v"); err != nil || d.Exists("v") || !d.discarded("v") {
		t.Errorf("discard: %v, exists %t, discarded %t", err, d.Exists("v"), d.discarded("v"))
	}
	if _, err := os.Stat(filepath.Join(root, trashDir, "v", "file")); err != nil {
		t.Errorf("contents in the trash: %v", err)
	}
	if err := d.Purge(ctx, "v"); err != nil || d.discarded("v") {
		t.Errorf("purge: %v, discarded %t", err, d.discarded("v"))
	}
}

// TestPurgeDoesNotFollowLinks: contents are whatever a pod made of them.
func TestPurgeDoesNotFollowLinks(t *testing.T) {
	d, _ := openDirectory(t)
	outside := t.TempDir()
	victim := filepath.Join(outside, "victim")
	if err := errors.Join(os.WriteFile(victim, nil, 0o600), d.Create("v", volume.Form{}, 0, volume.DefaultAttributes())); err != nil {
		t.Fatal(err)
	}
	deep := filepath.Join(d.Path("v"), "deep")
	if err := errors.Join(os.Mkdir(deep, 0o750), os.Symlink(outside, filepath.Join(d.Path("v"), "link")), os.Symlink(victim, filepath.Join(deep, "link"))); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(d.Discard(t.Context(), "v"), d.Purge(t.Context(), "v")); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(victim); err != nil {
		t.Errorf("a file outside of the volume: %v", err)
	}
}

func TestDirectoryRecover(t *testing.T) {
	d, root := openDirectory(t)
	for _, id := range []volume.ID{"known", "empty", "full", "old"} {
		if err := d.Create(id, volume.Form{}, 0, volume.DefaultAttributes()); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(os.WriteFile(filepath.Join(d.Path("full"), "file"), nil, 0o600), d.Discard(t.Context(), "old")); err != nil {
		t.Fatal(err)
	}
	left, err := d.Recover(t.Context(), func(id volume.ID) bool { return id == "known" })
	if err != nil {
		t.Fatal(err)
	}
	want := Leftovers{
		Removed: []string{filepath.Join(root, trashDir, "old"), filepath.Join(root, volumesDir, "empty")},
		Kept:    []string{filepath.Join(root, volumesDir, "full")},
	}
	if diff := cmp.Diff(want, left); diff != "" {
		t.Errorf("leftovers (-want +got):\n%s", diff)
	}
	if !d.Exists("known") || !d.Exists("full") || d.Exists("empty") {
		t.Errorf("exists: known %t, full %t, empty %t", d.Exists("known"), d.Exists("full"), d.Exists("empty"))
	}
}

func TestPathsThatContainEachOther(t *testing.T) {
	cases := map[string]struct {
		path, dir string
		want      bool
	}{
		"Same": {path: "/a/b", dir: "/a/b", want: true}, "Below": {path: "/a/b/c", dir: "/a/b", want: true},
		"Sibling": {path: "/a/bc", dir: "/a/b"}, "Above": {path: "/a", dir: "/a/b"}, "Root": {path: "/a", dir: "/", want: true},
	}
	for name, c := range cases {
		if got := within(c.path, c.dir); got != c.want {
			t.Errorf("%s: within(%q, %q) = %t, want %t", name, c.path, c.dir, got, c.want)
		}
	}
}
