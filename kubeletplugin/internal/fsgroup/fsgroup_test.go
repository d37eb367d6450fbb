package fsgroup

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

// other is a group that the test process does not have.
const other = 4711

// volume makes a directory with files of all kinds, and returns its path.
func volume(t *testing.T) string {
	t.Helper()
	root := filepath.Join(t.TempDir(), "mount")
	outside := filepath.Join(filepath.Dir(root), "outside")
	check(t,
		os.Mkdir(root, 0o750), os.Chmod(root, 0o750),
		os.WriteFile(outside, nil, 0o600),
		os.MkdirAll(filepath.Join(root, "dir/deep"), 0o700),
		os.WriteFile(filepath.Join(root, "dir/deep/private"), nil, 0o600),
		os.WriteFile(filepath.Join(root, "open"), nil, 0o666),
		os.Chmod(filepath.Join(root, "open"), 0o666),
		os.WriteFile(filepath.Join(root, "none"), nil, 0o000),
		os.Symlink(outside, filepath.Join(root, "link")),
		os.Symlink("/nowhere", filepath.Join(root, "dangling")),
		os.Symlink("..", filepath.Join(root, "dir/up")),
		unix.Mkfifo(filepath.Join(root, "pipe"), 0o600),
	)
	return root
}

func check(t *testing.T, errs ...error) {
	t.Helper()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
}

// recorder changes nothing, and notes what it was asked for.
type recorder struct {
	root    string
	order   []string
	changes map[string]string
	errs    map[string]error
}

func (r *recorder) note(f *file, what string) error {
	name, err := filepath.Rel(r.root, f.path)
	if err != nil {
		return err
	}
	if r.changes[name] == "" {
		r.order = append(r.order, name)
	}
	r.changes[name] = strings.TrimSpace(r.changes[name] + " " + what)
	return r.errs[what+" "+name]
}

// fake is a walk that changes nothing.
func fake(c Change) (*walk, *recorder) {
	r := &recorder{root: c.Path, changes: map[string]string{}, errs: map[string]error{}}
	return &walk{
		change: c, files: new(atomic.Int64),
		chown: func(f *file, _ int) error { return r.note(f, "chown") },
		chmod: func(f *file, mode uint32) error { return r.note(f, os.FileMode(mode&0o777).String()+setgid(mode)) },
	}, r
}

func setgid(mode uint32) string {
	if mode&unix.S_ISGID != 0 {
		return "+s"
	}
	return ""
}

// TestEachFile: files get the group and rw for it, directories also x and setgid, links only the group; children come before their
// directory and the root comes last.
func TestEachFile(t *testing.T) {
	root := volume(t)
	w, r := fake(Change{Path: root, Group: other})
	if got, err := w.run(t.Context()); err != nil || got != (Result{}) {
		t.Fatalf("got %+v, %v", got, err)
	}
	want := map[string]string{
		".": "chown -rwxrwx---+s", "dir": "chown -rwxrwx---+s", "dir/deep": "chown -rwxrwx---+s",
		"dir/deep/private": "chown -rw-rw----", "open": "chown -rw-rw-rw-", "none": "chown -rw-rw----",
		"link": "chown", "dangling": "chown", "dir/up": "chown", "pipe": "chown -rw-rw----",
	}
	if diff := cmp.Diff(want, r.changes); diff != "" {
		t.Errorf("changes (-want +got):\n%s", diff)
	}
	if n := w.files.Load(); int(n) != len(want) {
		t.Errorf("%d files counted, want %d", n, len(want))
	}
	if at := func(name string) int { return slices.Index(r.order, name) }; r.order[len(r.order)-1] != "." || at("dir") < at("dir/deep") {
		t.Errorf("the order is %q, want the root last and children first", r.order)
	}
}

// TestFilesThatAreRightStay: what has the group and the permissions is not touched, so its times stay.
func TestFilesThatAreRightStay(t *testing.T) {
	root := volume(t)
	change := Change{Path: root, Group: int64(os.Getgid())} // a group that needs no rights
	if got, err := Apply(t.Context(), change, new(atomic.Int64)); err != nil || got.Refused > 0 {
		t.Fatalf("got %+v, %v", got, err)
	}
	for name, want := range map[string]os.FileMode{
		".": 0o770 | os.ModeDir | os.ModeSetgid, "dir/deep": 0o770 | os.ModeDir | os.ModeSetgid,
		"dir/deep/private": 0o660, "open": 0o666, "none": 0o660, "../outside": 0o600,
	} {
		if info, err := os.Lstat(filepath.Join(root, name)); err != nil || info.Mode() != want {
			t.Errorf("%s: got %v, %v, want %v", name, info.Mode(), err, want)
		}
	}
	w, r := fake(change)
	if _, err := w.run(t.Context()); err != nil || len(r.changes) > 0 {
		t.Errorf("the second walk changes %v, error %v; want nothing", r.changes, err)
	}
}

// TestOnRootMismatch: only the root directory decides whether anything is changed.
func TestOnRootMismatch(t *testing.T) {
	cases := map[string]struct {
		reason string
		group  int64
		mode   os.FileMode
		want   bool
	}{
		"Right":      {reason: "group and permissions", group: int64(os.Getgid()), mode: 0o770 | os.ModeSetgid, want: true},
		"More":       {reason: "more permissions than needed", group: int64(os.Getgid()), mode: 0o777 | os.ModeSetgid, want: true},
		"OtherGroup": {reason: "another group", group: other, mode: 0o770 | os.ModeSetgid},
		"NoSetgid":   {reason: "new files would not get the group", group: int64(os.Getgid()), mode: 0o770},
		"NoWrite":    {reason: "the group may not write", group: int64(os.Getgid()), mode: 0o750 | os.ModeSetgid},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			root := volume(t)
			check(t, os.Chmod(root, tc.mode))
			w, r := fake(Change{Path: root, Group: tc.group, OnRootMismatch: true})
			got, err := w.run(t.Context())
			if err != nil || got.Skipped != tc.want || (len(r.changes) == 0) != tc.want {
				t.Errorf("%s: got %+v, %v with changes %v, want skipped %t", tc.reason, got, err, r.changes, tc.want)
			}
		})
	}
}

// TestRootIsAFile: a driver may publish a file, or a link, instead of a directory.
func TestRootIsAFile(t *testing.T) {
	for name, want := range map[string]string{"open": "chown -rw-rw-rw-", "link": "chown"} {
		w, r := fake(Change{Path: filepath.Join(volume(t), name), Group: other, OnRootMismatch: true})
		if _, err := w.run(t.Context()); err != nil || r.changes["."] != want || len(r.changes) != 1 {
			t.Errorf("%s: got %v, %v, want %q", name, r.changes, err, want)
		}
	}
}

// TestErrors: what the file system refuses is counted, everything else ends the walk; the error names the file.
func TestErrors(t *testing.T) {
	cases := map[string]struct {
		reason  string
		errs    map[string]error
		refused int64
		want    error
	}{
		"Immutable": {reason: "a file that cannot be changed", errs: map[string]error{"chown dir/deep/private": unix.EPERM}, refused: 1},
		"NoGroups": {reason: "a file system without groups", refused: 2, errs: map[string]error{
			"chown dir/deep/private": unix.EINVAL, "-rw-rw---- dir/deep/private": unix.EOPNOTSUPP,
		}},
		"ReadOnly": {reason: "a read-only file system", errs: map[string]error{"-rw-rw---- dir/deep/private": unix.EROFS}, refused: 1},
		"Broken":   {reason: "an error of the device", errs: map[string]error{"chown dir/deep/private": unix.EIO}, want: unix.EIO},
		"Full":     {reason: "no space for the change", errs: map[string]error{"-rw-rw---- dir/deep/private": unix.ENOSPC}, want: unix.ENOSPC},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			w, r := fake(Change{Path: volume(t), Group: other})
			r.errs = tc.errs
			got, err := w.run(t.Context())
			if !errors.Is(err, tc.want) || got.Refused != tc.refused || (got.Refusal != nil) != (tc.refused > 0) {
				t.Fatalf("%s: got %+v, %v, want %d refused and %v", tc.reason, got, err, tc.refused, tc.want)
			}
			if text := errors.Join(err, got.Refusal).Error(); !strings.Contains(text, "mount/dir/deep/private") {
				t.Errorf("%q does not name the file", text)
			}
			if _, root := r.changes["."]; root != (tc.want == nil) {
				t.Errorf("root changed: %t; it must be only if all else is done", root)
			}
		})
	}
}

// TestUnusableRequests: a path that does not exist, and what is no group.
func TestUnusableRequests(t *testing.T) {
	root := t.TempDir()
	for _, c := range []Change{{Path: filepath.Join(root, "gone")}, {Path: root, Group: -1}, {Path: root, Group: 1<<32 - 1}} {
		if _, err := Apply(t.Context(), c, new(atomic.Int64)); err == nil {
			t.Errorf("%+v is no error", c)
		}
	}
	if _, err := Apply(t.Context(), Change{Path: filepath.Join(root, "gone")}, new(atomic.Int64)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("got %v, want that there is no such file", err)
	}
}

// TestCancel: the end of the context ends the walk before the next file.
func TestCancel(t *testing.T) {
	root := volume(t)
	w, r := fake(Change{Path: root, Group: other})
	ctx, cancel := context.WithCancel(t.Context())
	note := w.chown
	w.chown = func(f *file, group int) error {
		cancel()
		return note(f, group)
	}
	if _, err := w.run(ctx); !errors.Is(err, context.Canceled) || len(r.order) != 1 {
		t.Errorf("got %v after changes of %q, want an end after one file", err, r.order)
	}
}

// TestFilesComeAndGo: the volume may be in use by other pods.
func TestFilesComeAndGo(t *testing.T) {
	root := volume(t)
	w, r := fake(Change{Path: root, Group: other})
	note := w.chown
	w.chown = func(f *file, group int) error {
		check(t, os.RemoveAll(root))
		return note(f, group)
	}
	if _, err := w.run(t.Context()); err != nil || r.changes["."] == "" {
		t.Errorf("got %v and %v, want what is left to be changed", err, r.changes)
	}
}

// TestReplacedByALink: a container replaces a file by a link to a file outside, between the look at it and the change.
func TestReplacedByALink(t *testing.T) {
	root := volume(t)
	outside := filepath.Join(filepath.Dir(root), "outside")
	w, _ := fake(Change{Path: root, Group: other})
	w.chmod = chmod
	w.chown = func(f *file, _ int) error {
		if filepath.Base(f.path) == "private" {
			check(t, os.Remove(f.path), os.Symlink(outside, f.path))
		}
		return nil
	}
	if _, err := w.run(t.Context()); err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(outside); err != nil || info.Mode() != 0o600 {
		t.Errorf("the file outside has mode %v, %v, want 0600", info.Mode(), err)
	}
}

// TestManyFiles: more files than are read at a time, and directories deeper than a path may be.
func TestManyFiles(t *testing.T) {
	root := t.TempDir()
	for i := range 3*batch + 1 {
		check(t, os.WriteFile(filepath.Join(root, strings.Repeat("f", 1+i%100)+string(rune('a'+i/100))), nil, 0o600))
	}
	w, _ := fake(Change{Path: root, Group: other})
	if _, err := w.run(t.Context()); err != nil || w.files.Load() != 3*batch+2 {
		t.Errorf("%d files, %v, want %d", w.files.Load(), err, 3*batch+2)
	}
	deep := filepath.Join(root, strings.Repeat("d/", (unix.PathMax-len(root)-10)/2))
	check(t, os.MkdirAll(deep, 0o700))
	at, err := os.OpenRoot(deep)
	check(t, err, at.MkdirAll(strings.Repeat("e/", 20), 0o700), at.Close())
	w, _ = fake(Change{Path: root, Group: other})
	if _, err := w.run(t.Context()); !errors.Is(err, unix.ENAMETOOLONG) {
		t.Errorf("got %v, want that the path is too long", err)
	}
}
