package contents

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/longshore-csi/longshore/driverkit"
	"github.com/longshore-csi/longshore/driverkit/mount"
	"github.com/longshore-csi/longshore/hostpathdriver/internal/volume"
)

const size = 1 << 20

var errTest = errors.New("error of the test")

var (
	directory = volume.Form{}
	device    = volume.Form{Disk: true}
	image     = volume.Form{Disk: true, FSType: "ext4"}
)

// anybody are the parameters of a volume for which nothing was asked.
func anybody() volume.Parameters { return volume.Parameters{Mode: 0o777, UID: -1, GID: -1} }

func open(t *testing.T) (s *Store, root string, mounts *mount.Fake) {
	t.Helper()
	root, mounts = t.TempDir(), &mount.Fake{}
	must(t, Prepare(root, Volumes, Snapshots))
	return At(root, Volumes, mounts), root, mounts
}

func must(t *testing.T, errs ...error) {
	t.Helper()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
}

func write(t *testing.T, path, content string) {
	t.Helper()
	must(t, os.WriteFile(path, []byte(content), 0o600))
}

// tree lists what is below a directory.
func tree(t *testing.T, dir string) []string {
	t.Helper()
	var found []string
	must(t, filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
		if rest, relErr := filepath.Rel(dir, path); relErr == nil && rest != "." {
			found = append(found, rest)
		}
		return err
	}))
	return found
}

func wantTree(t *testing.T, dir string, want ...string) {
	t.Helper()
	if diff := cmp.Diff(want, tree(t, dir)); diff != "" {
		t.Errorf("below %s (-want +got):\n%s", dir, diff)
	}
}

func TestPrepareMakesPrivateDirectories(t *testing.T) {
	_, root, _ := open(t)
	must(t, Prepare(root, Volumes, Snapshots)) // Again.
	wantTree(t, root, "copies", "snapshots", "trash", "volumes")
	for _, name := range tree(t, root) {
		info, err := os.Stat(filepath.Join(root, name))
		if err != nil || info.Mode().Perm() != 0o700 {
			t.Errorf("%s: %v, %v, want mode 0700: whatever the mode of a volume, only the driver gets to it this way", name, info.Mode(), err)
		}
	}
	file := filepath.Join(root, "file")
	write(t, file, "")
	if err := Prepare(file); err == nil {
		t.Error("no error below a file")
	}
}

func TestCreateDirectory(t *testing.T) {
	cases := map[string]struct {
		reason string
		in     volume.Parameters
		want   fs.FileMode
	}{
		"Default": {reason: "everybody, whatever the umask", in: anybody(), want: fs.ModeDir | 0o777},
		"Private": {reason: "the owner", in: volume.Parameters{Mode: 0o700, UID: -1, GID: -1}, want: fs.ModeDir | 0o700},
		"Special": {reason: "sticky and setgid outlive the change of owner",
			in: volume.Parameters{Mode: 0o775 | fs.ModeSticky | fs.ModeSetgid, UID: os.Getuid(), GID: os.Getgid()}, want: fs.ModeDir | fs.ModeSticky | fs.ModeSetgid | 0o775},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			s, _, _ := open(t)
			for range 2 { // The second call finds the directory of the first.
				must(t, s.Create("v", directory, 0, c.in))
			}
			info, err := os.Stat(s.Path("v"))
			if err != nil || info.Mode() != c.want {
				t.Errorf("%s: mode %v, %v, want %v", c.reason, info.Mode(), err, c.want)
			}
		})
	}
}

func TestCreateDisk(t *testing.T) {
	for name, c := range map[string]struct {
		reason string
		form   volume.Form
		want   []string
	}{
		"Device": {reason: "zeros are its contents", form: device, want: []string{"disk"}},
		"Image":  {reason: "a node makes its file system", form: image, want: []string{"disk", "unformatted"}},
	} {
		t.Run(name, func(t *testing.T) {
			s, root, _ := open(t)
			must(t, s.Create("v", c.form, size, anybody()))
			must(t, os.Truncate(s.Disk("v"), 5)) // As an interrupted call may leave it.
			must(t, s.Create("v", c.form, size, anybody()))
			wantTree(t, s.Path("v"), c.want...)
			info, err := os.Stat(s.Disk("v"))
			blank, blankErr := allHoles(s.Disk("v"))
			if err != nil || blankErr != nil || info.Size() != size || !blank {
				t.Errorf("%s: size %d, blank %t, %v, %v; want %d bytes that take no space", c.reason, info.Size(), blank, err, blankErr, size)
			}
			if s.Place("v", c.form) != s.Disk("v") || s.Place("v", directory) != s.Path("v") || s.Disk("v") != filepath.Join(root, "volumes", "v", "disk") {
				t.Errorf("places: %s, %s, %s", s.Place("v", c.form), s.Place("v", directory), s.Disk("v"))
			}
		})
	}
}

// TestCreateDoesNotFollowLinks: the directory of a disk is the driver's, but a link in there must not lead out of it.
func TestCreateDoesNotFollowLinks(t *testing.T) {
	s, root, _ := open(t)
	victim := filepath.Join(root, "victim")
	write(t, victim, "data")
	must(t, s.Begin("v"), os.Symlink(victim, s.Disk("v")))
	if err := s.Create("v", device, size, anybody()); err == nil {
		t.Error("no error")
	}
	if got, err := os.ReadFile(victim); string(got) != "data" {
		t.Errorf("the file that the link names: %d bytes, %v", len(got), err)
	}
}

func TestGrow(t *testing.T) {
	s, _, _ := open(t)
	must(t, s.Create("d", directory, 0, anybody()), s.Create("v", device, size, anybody()))
	must(t, s.Grow("d", directory, 0, 2*size)) // It has no size.
	for _, c := range []struct {
		to, want int64
		reason   string
	}{{2 * size, 2 * size, "larger"}, {2 * size, 2 * size, "again"}, {size, 2 * size, "volumes do not shrink"}} {
		must(t, s.Grow("v", device, 0, c.to))
		if info, err := os.Stat(s.Disk("v")); err != nil || info.Size() != c.want {
			t.Errorf("%s: %d bytes, %v, want %d", c.reason, info.Size(), err, c.want)
		}
	}
	if err := s.Grow("missing", device, 0, size); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("missing contents: %v, want fs.ErrNotExist", err)
	}
}

func TestWipe(t *testing.T) {
	s, _, _ := open(t)
	must(t, s.Create("v", device, size, anybody()))
	file, err := os.OpenFile(s.Disk("v"), os.O_WRONLY, 0)
	must(t, err)
	_, err = file.WriteAt([]byte("half a file system"), size/2)
	must(t, err, file.Close())
	for range 2 {
		must(t, s.Wipe("v", size))
		blank, err := allHoles(s.Disk("v"))
		info, statErr := os.Stat(s.Disk("v"))
		if !blank || err != nil || statErr != nil || info.Size() != size {
			t.Errorf("blank %t, %d bytes, %v, %v; want %d zeros", blank, info.Size(), err, statErr, size)
		}
		must(t, os.Truncate(s.Disk("v"), 0)) // As an interrupted call may leave it.
	}
	if err := s.Wipe("missing", size); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("missing contents: %v, want fs.ErrNotExist", err)
	}
}

func TestAdopt(t *testing.T) {
	s, root, _ := open(t)
	must(t, s.Copies().Begin("v"))
	write(t, filepath.Join(s.Copies().Path("v"), "file"), "data")
	if s.Exists("v") || !s.Copies().Exists("v") {
		t.Errorf("before: exists %t, copy %t", s.Exists("v"), s.Copies().Exists("v"))
	}
	err := s.Adopt("v", func() error { return errTest })
	if !errors.Is(err, errTest) || s.Exists("v") || !s.Copies().Exists("v") {
		t.Errorf("without a record: %v, exists %t, copy %t; want the copy where it is", err, s.Exists("v"), s.Copies().Exists("v"))
	}
	recorded := false
	must(t, s.Adopt("v", func() error { recorded = !s.Exists("v"); return nil }))
	if !recorded {
		t.Error("the record was not written before the copy was moved")
	}
	wantTree(t, root, "copies", "snapshots", "trash", "volumes", "volumes/v", "volumes/v/file")
	if err := s.Adopt("v", func() error { return nil }); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("there is no such copy: %v, want fs.ErrNotExist", err)
	}
}

func TestAbandon(t *testing.T) {
	cases := map[string]struct {
		reason string
		make   func(t *testing.T, s *Store)
		stays  bool
	}{
		"Missing":   {reason: "nothing to undo", make: func(*testing.T, *Store) {}},
		"Empty":     {reason: "an empty directory", make: func(t *testing.T, s *Store) { must(t, s.Create("v", directory, 0, anybody())) }},
		"Directory": {reason: "a file of its user", stays: true, make: func(t *testing.T, s *Store) { must(t, s.Begin("v")); write(t, filepath.Join(s.Path("v"), "file"), "") }},
		"Blank":     {reason: "a disk to which nothing was written", make: func(t *testing.T, s *Store) { must(t, s.Create("v", image, size, anybody())) }},
		"Written":   {reason: "a disk with data", stays: true, make: func(t *testing.T, s *Store) { must(t, s.Begin("v")); write(t, s.Disk("v"), "data") }},
		"OwnDisk": {reason: "a directory named as the file of a disk is its user's", stays: true,
			make: func(t *testing.T, s *Store) { must(t, s.Begin("v"), os.Mkdir(s.Disk("v"), 0o700)) }},
		"Link": {reason: "nothing is opened by a link", stays: true,
			make: func(t *testing.T, s *Store) { must(t, s.Begin("v"), os.Symlink("/dev/null", s.Disk("v"))) }},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			s, _, _ := open(t)
			c.make(t, s)
			before := tree(t, s.data)
			err := s.Abandon("v")
			if (err != nil) != c.stays {
				t.Errorf("%s: error %v, want one: %t", c.reason, err, c.stays)
			}
			if !c.stays {
				before = nil
			}
			wantTree(t, s.data, before...)
		})
	}
}

func TestDiscardAndPurge(t *testing.T) {
	s, root, _ := open(t)
	ctx := t.Context()
	must(t, s.Discard(ctx, "x"), s.Purge(ctx, "x"), s.Copies().Remove(ctx, "x")) // What does not exist.
	for _, content := range []string{"first", "second"} {                        // The second is discarded while the first is in the trash.
		must(t, s.Begin("v"))
		write(t, filepath.Join(s.Path("v"), "file"), content)
		must(t, s.Discard(ctx, "v"))
		if got, err := os.ReadFile(filepath.Join(root, "trash", "v", "file")); string(got) != content || err != nil || s.Exists("v") || !s.Discarded("v") {
			t.Errorf("in the trash: %q, %v, exists %t, discarded %t", got, err, s.Exists("v"), s.Discarded("v"))
		}
	}
	must(t, s.Purge(ctx, "v"), s.Purge(ctx, "v"))
	if s.Discarded("v") {
		t.Error("it is in the trash after Purge")
	}
	wantTree(t, root, "copies", "snapshots", "trash", "volumes")
}

// TestNothingIsRemovedThroughAMount: removing would delete the files of the mounted file system.
func TestNothingIsRemovedThroughAMount(t *testing.T) {
	s, _, mounts := open(t)
	ctx := t.Context()
	below := func(dir string) string {
		path := filepath.Join(dir, "sub")
		must(t, os.MkdirAll(path, 0o700), mounts.Bind(ctx, t.TempDir(), path, mount.Options{}))
		return path
	}
	must(t, s.Begin("v"), s.Begin("w"), s.Copies().Begin("c"))
	atVolume, atCopy := below(s.Path("v")), below(s.Copies().Path("c"))
	for name, err := range map[string]error{"Discard": s.Discard(ctx, "v"), "Remove": s.Copies().Remove(ctx, "c")} {
		if !errors.Is(err, driverkit.ErrInUse) {
			t.Errorf("%s: error %v, want ErrInUse", name, err)
		}
	}
	must(t, s.Discard(ctx, "w"))
	inTrash := below(s.Trashed("w"))
	if err := s.Purge(ctx, "w"); !errors.Is(err, driverkit.ErrInUse) {
		t.Errorf("Purge: error %v, want ErrInUse", err)
	}
	if !s.Exists("v") || !s.Discarded("w") || !s.Copies().Exists("c") {
		t.Errorf("exists %t, discarded %t, copy %t: all must stay", s.Exists("v"), s.Discarded("w"), s.Copies().Exists("c"))
	}
	for _, path := range []string{atVolume, atCopy, inTrash} {
		must(t, mounts.Unmount(ctx, path))
	}
	must(t, s.Discard(ctx, "v"), s.Purge(ctx, "v"), s.Purge(ctx, "w"), s.Copies().Remove(ctx, "c"))
}

// TestPurgeDoesNotFollowLinks: contents are whatever a pod made of them.
func TestPurgeDoesNotFollowLinks(t *testing.T) {
	s, _, _ := open(t)
	outside := t.TempDir()
	victim := filepath.Join(outside, "victim")
	write(t, victim, "")
	must(t, s.Create("v", directory, 0, anybody()))
	deep := filepath.Join(s.Path("v"), "deep")
	must(t, os.Mkdir(deep, 0o700), os.Symlink(outside, filepath.Join(s.Path("v"), "link")), os.Symlink(victim, filepath.Join(deep, "link")))
	must(t, s.Discard(t.Context(), "v"), s.Purge(t.Context(), "v"))
	if _, err := os.Stat(victim); err != nil {
		t.Errorf("a file outside of the volume: %v", err)
	}
}

// endAfter is a context that ends when it was asked a number of times.
type endAfter struct {
	context.Context

	left *int
}

func (e endAfter) Err() error {
	if *e.left--; *e.left < 0 {
		return context.Canceled
	}
	return nil
}

func TestPurgeEndsInTheMiddle(t *testing.T) {
	s, root, _ := open(t)
	must(t, s.Begin("v"))
	for _, name := range []string{"a", "b", "c"} {
		write(t, filepath.Join(s.Path("v"), name), "")
	}
	must(t, s.Discard(t.Context(), "v"))
	left := 2
	s.mounter = neverMounted{} // It does not ask the context.
	if err := s.Purge(endAfter{t.Context(), &left}, "v"); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v, want that of the context", err)
	}
	if rest, err := os.ReadDir(filepath.Join(root, "trash", "v")); err != nil || len(rest) != 1 {
		t.Errorf("%d files are left, error %v, want one", len(rest), err)
	}
	must(t, s.Purge(t.Context(), "v"))
	wantTree(t, filepath.Join(root, "trash"))
}

// neverMounted is a mount table without mounts.
type neverMounted struct{ mount.Mounter }

func (neverMounted) Below(context.Context, string) ([]string, error) { return nil, nil }

func TestMissingDisk(t *testing.T) {
	s, root, _ := open(t)
	must(t, s.CheckReachable(), os.RemoveAll(s.data))
	if err := s.CheckReachable(); !errors.Is(err, driverkit.ErrUnavailable) {
		t.Errorf("CheckReachable: %v, want ErrUnavailable", err)
	}
	if err := s.Discard(t.Context(), "v"); !errors.Is(err, driverkit.ErrUnavailable) {
		t.Errorf("Discard: %v, want ErrUnavailable: the contents may be on the missing disk", err)
	}
	write(t, filepath.Join(root, "volumes"), "")
	if err := s.CheckReachable(); !errors.Is(err, driverkit.ErrUnavailable) {
		t.Errorf("a file in its place: %v, want ErrUnavailable", err)
	}
}

func TestRecover(t *testing.T) {
	s, root, mounts := open(t)
	ctx := t.Context()
	must(t, s.Begin("known"), s.Begin("empty"), s.Begin("full"), s.Begin("old"), s.Begin("busy"), s.Begin("written"), s.Copies().Begin("copy"))
	must(t, s.Create("blank", image, size, anybody()))
	write(t, filepath.Join(s.Path("full"), "file"), "")
	write(t, s.Disk("written"), "data")
	write(t, s.Copies().Disk("copy"), "data")
	for _, id := range []string{"old", "busy"} {
		write(t, filepath.Join(s.Path(id), "file"), "")
		must(t, s.Discard(ctx, id))
	}
	busy := filepath.Join(s.Trashed("busy"), "sub")
	must(t, os.Mkdir(busy, 0o700), mounts.Bind(ctx, t.TempDir(), busy, mount.Options{}))

	left, err := s.Recover(func(id string) bool { return id == "known" })
	must(t, err)
	below := func(dir string, names ...string) (paths []string) {
		for _, name := range names {
			paths = append(paths, filepath.Join(root, dir, name))
		}
		return paths
	}
	want := Leftovers{Removed: below("volumes", "blank", "empty"), Discarded: below("copies", "copy"), Kept: below("volumes", "full", "written")}
	if diff := cmp.Diff(want, left); diff != "" {
		t.Errorf("leftovers (-want +got):\n%s", diff)
	}
	wantTree(t, root, "copies", "snapshots", "trash", "trash/.copy-copy-0", "trash/.copy-copy-0/disk", "trash/busy", "trash/busy/file", "trash/busy/sub", "trash/old", "trash/old/file", "volumes",
		"volumes/full", "volumes/full/file", "volumes/known", "volumes/written", "volumes/written/disk")

	// Another crash leaves a copy of the same name before the trash is empty.
	must(t, s.Copies().Begin("copy"))
	if _, err := s.Recover(func(string) bool { return true }); err != nil {
		t.Error(err)
	}
	var removed []string
	must(t, s.Empty(ctx, func(path string, err error) {
		if filepath.Base(path) == "busy" != errors.Is(err, driverkit.ErrInUse) || filepath.Base(path) != "busy" && err != nil {
			t.Errorf("%s: error %v", path, err)
		}
		removed = append(removed, path)
	}))
	if diff := cmp.Diff(below("trash", ".copy-copy-0", ".copy-copy-1", "busy", "old"), removed); diff != "" {
		t.Errorf("emptied (-want +got):\n%s", diff)
	}
	wantTree(t, root, "copies", "snapshots", "trash", "trash/busy", "trash/busy/file", "trash/busy/sub", "volumes", "volumes/full", "volumes/full/file", "volumes/known",
		"volumes/written", "volumes/written/disk")
}

func TestEmptyEnds(t *testing.T) {
	s, _, _ := open(t)
	must(t, s.Begin("v"))
	write(t, filepath.Join(s.Path("v"), "file"), "")
	must(t, s.Discard(t.Context(), "v"))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := s.Empty(ctx, func(string, error) { t.Error("it has ended") }); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v, want that of the context", err)
	}
	must(t, os.RemoveAll(s.data))
	if _, err := s.Recover(nil); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("without its directory: %v, want fs.ErrNotExist", err)
	}
}

func TestMarkers(t *testing.T) {
	s, _, _ := open(t)
	must(t, s.Create("v", image, size, anybody()))
	want := func(what string, wantBlank, wantPending bool) {
		t.Helper()
		blank, pending, err := s.Unprepared("v")
		unformatted, formatErr := s.Unformatted("v")
		if err != nil || formatErr != nil || blank != wantBlank || unformatted != wantBlank || pending != wantPending {
			t.Errorf("%s: blank %t and %t, pending %t, %v, %v; want %t and %t", what, blank, unformatted, pending, err, formatErr, wantBlank, wantPending)
		}
	}
	want("new", true, true)
	must(t, s.Prepared("v"), s.Prepared("v"))
	want("prepared", false, false)
	must(t, s.MarkUnreplayed("v"), s.MarkUnreplayed("v"))
	want("a copy", false, true)
	must(t, s.Prepared("v"))
	want("replayed", false, false)

	// What cannot be found out is no "no": the disk would be used as it is.
	must(t, os.RemoveAll(s.Path("v")))
	write(t, s.Path("v"), "")
	if _, _, err := s.Unprepared("v"); err == nil {
		t.Error("no error where the contents are no directory")
	}
}

func TestLockPreparation(t *testing.T) {
	s, root, mounts := open(t)
	other := At(root, Volumes, mounts) // As another process has it.
	must(t, s.Create("v", image, size, anybody()), s.Create("w", image, size, anybody()))
	unlock, err := s.LockPreparation("v")
	must(t, err)
	if _, err := other.LockPreparation("v"); !errors.Is(err, driverkit.ErrBusy) {
		t.Errorf("a second holder: %v, want ErrBusy", err)
	}
	unlockOther, err := other.LockPreparation("w")
	must(t, err, unlock(), unlockOther())
	if unlock, err = other.LockPreparation("v"); err != nil {
		t.Fatalf("after unlock: %v", err)
	}
	must(t, unlock())
	if _, err := s.LockPreparation("missing"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("missing contents: %v, want fs.ErrNotExist", err)
	}
}

func TestOwnerOf(t *testing.T) {
	cases := map[string]struct{ reason, in, want string }{
		"Volume":       {"of the state directory", "/state/volumes/v-1/disk", "v-1"},
		"Trash":        {"while it is deleted", "/state/trash/v-1/disk", "v-1"},
		"Inline":       {"of a node", "/state/nodes/n1/volumes/csi-1/disk", "csi-1"},
		"Relative":     {"the kernel cuts long paths", "volumes/v-1/disk", "v-1"},
		"Snapshot":     {"no node attaches it", "/state/snapshots/s-1/disk", ""},
		"Copy":         {"nor an incomplete copy", "/state/copies/v-1/disk", ""},
		"OtherFile":    {"a file of a user", "/state/volumes/v-1/image", ""},
		"Below":        {"a file in a volume that is a directory", "/state/volumes/v-1/sub/disk", ""},
		"NoDirectory":  {"no id", "disk", ""},
		"OneDirectory": {"no kind", "/v-1/disk", ""},
		"BadID":        {"no volume has it", "/state/volumes/../disk", ""},
		"OddID":        {"nor this one", "/state/volumes/a b/disk", ""},
		"Empty":        {"no file", "", ""},
	}
	for name, c := range cases {
		if got := OwnerOf(c.in); got != c.want {
			t.Errorf("%s: %s: OwnerOf(%q) = %q, want %q", name, c.reason, c.in, got, c.want)
		}
	}
}

func TestDisksOfAreOwned(t *testing.T) {
	s, root, _ := open(t)
	disks := DisksOf(root, "v")
	if diff := cmp.Diff([]string{s.Disk("v"), filepath.Join(s.Trashed("v"), "disk")}, disks); diff != "" {
		t.Errorf("disks (-want +got):\n%s", diff)
	}
	for _, disk := range disks {
		if OwnerOf(disk) != "v" {
			t.Errorf("OwnerOf(%q) = %q", disk, OwnerOf(disk))
		}
	}
}

func FuzzOwnerOf(f *testing.F) {
	for _, seed := range []string{"/state/volumes/v/disk", "/trash/../volumes/./disk", "volumes//disk", "/volumes/v//disk", "\x00/disk"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, in string) {
		id := OwnerOf(in)
		if id == "" {
			return
		}
		if err := volume.CheckID(id); err != nil {
			t.Errorf("OwnerOf(%q) = %q: %v", in, id, err)
		}
		if kind := filepath.Base(filepath.Dir(filepath.Dir(in))); kind != "volumes" && kind != "trash" {
			t.Errorf("OwnerOf(%q) = %q, and it is in %q", in, id, kind)
		}
	})
}
