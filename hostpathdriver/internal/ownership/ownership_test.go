package ownership

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"golang.org/x/sys/unix"
)

const group = 4321

func needRoot(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("giving files to any group needs root")
	}
}

func must(t *testing.T, errs ...error) {
	t.Helper()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
}

func stat(t *testing.T, path string) unix.Stat_t {
	t.Helper()
	var st unix.Stat_t
	must(t, unix.Lstat(path, &st))
	return st
}

func TestShare(t *testing.T) {
	needRoot(t)
	file := func(mode uint32) func(string) error {
		return func(path string) error { return errors.Join(os.WriteFile(path, nil, 0), unix.Chmod(path, mode)) }
	}
	directory := func(mode uint32) func(string) error {
		return func(path string) error { return errors.Join(os.Mkdir(path, 0o700), unix.Chmod(path, mode)) }
	}
	cases := map[string]struct {
		reason string
		make   func(path string) error
		want   uint32
	}{
		"Private":    {reason: "the group reads and writes", make: file(0o600), want: 0o660},
		"NoAccess":   {reason: "not even the owner could", make: file(0), want: 0o060},
		"ReadOnly":   {reason: "as for fsGroup", make: file(0o444), want: 0o464},
		"Program":    {reason: "who may execute it is joined by the group", make: file(0o700), want: 0o770},
		"Setuid":     {reason: "a change of group clears the bit", make: file(0o4755), want: 0o4775},
		"Directory":  {reason: "what is made in it belongs to the group", make: directory(0o700), want: 0o2770},
		"Sticky":     {reason: "other bits stay", make: directory(0o1777), want: 0o3777},
		"Pipe":       {reason: "it is never opened", make: func(path string) error { return unix.Mkfifo(path, 0o600) }, want: 0o660},
		"Link":       {reason: "the link is given, not what it names", make: func(path string) error { return os.Symlink("nowhere", path) }, want: 0o777},
		"OddName":    {reason: "any name", make: func(path string) error { return os.WriteFile(path+"\n-\xff", nil, 0o600) }},
		"LinkToRoot": {reason: "it would lead back", make: func(path string) error { return os.Symlink(".", path) }, want: 0o777},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			root := t.TempDir()
			deep := filepath.Join(root, "a", "b")
			path := filepath.Join(deep, name)
			must(t, os.MkdirAll(deep, 0o700), c.make(path))
			for range 2 {
				must(t, Share(t.Context(), root, group))
			}
			if c.want != 0 {
				if st := stat(t, path); st.Gid != group || st.Uid != 0 || st.Mode&permissions != c.want {
					t.Errorf("%s: uid %d, gid %d, mode %o, want 0, %d, %o", c.reason, st.Uid, st.Gid, st.Mode&permissions, group, c.want)
				}
			}
			for _, dir := range []string{root, filepath.Dir(deep), deep} {
				if st := stat(t, dir); st.Gid != group || st.Mode&0o2070 != 0o2070 {
					t.Errorf("%s: gid %d, mode %o", dir, st.Gid, st.Mode&permissions)
				}
			}
		})
	}
}

// TestShareTouchesNothingTwice: a volume with a million files is only looked at
// when it is used again.
func TestShareTouchesNothingTwice(t *testing.T) {
	needRoot(t)
	root := t.TempDir()
	for i := range 3 * batch {
		must(t, os.WriteFile(filepath.Join(root, strconv.Itoa(i)), nil, 0o600))
	}
	must(t, Share(t.Context(), root, group))
	before := map[string]unix.Timespec{}
	must(t, filepath.WalkDir(root, func(path string, _ fs.DirEntry, err error) error {
		st := stat(t, path)
		if st.Gid != group {
			t.Errorf("%s: gid %d", path, st.Gid)
		}
		before[path] = st.Ctim
		return err
	}))
	must(t, os.Chown(filepath.Join(root, "7"), 0, 0), Share(t.Context(), root, group))
	for path, changed := range before {
		if again := stat(t, path).Ctim; (again != changed) != (filepath.Base(path) == "7") {
			t.Errorf("%s: changed %v, then %v", path, changed, again)
		}
	}
}

// TestShareStaysInside: links lead to a victim, and a mount shows another one.
func TestShareStaysInside(t *testing.T) {
	needRoot(t)
	root, victim := t.TempDir(), t.TempDir()
	precious := filepath.Join(victim, "precious")
	must(t, os.WriteFile(precious, nil, 0o600), os.Symlink(victim, filepath.Join(root, "dir")), os.Symlink(precious, filepath.Join(root, "file")))
	for _, name := range []string{"mounted", "below/mounted"} {
		target := filepath.Join(root, name)
		must(t, os.MkdirAll(target, 0o700), unix.Mount(victim, target, "", unix.MS_BIND, ""))
		t.Cleanup(func() { unix.Unmount(target, unix.MNT_DETACH) })
	}
	before := []unix.Stat_t{stat(t, victim), stat(t, precious)}
	must(t, Share(t.Context(), root, group))
	for i, path := range []string{victim, precious} {
		if after := stat(t, path); after.Gid != before[i].Gid || after.Mode != before[i].Mode {
			t.Errorf("%s: gid %d, mode %o", path, after.Gid, after.Mode&permissions)
		}
	}
	if st := stat(t, filepath.Join(root, "below")); st.Gid != group {
		t.Errorf("what is beside the mount has gid %d", st.Gid)
	}
}

// TestShareWhileItChanges: the workload swaps a directory and a link to a victim
// all the time.
func TestShareWhileItChanges(t *testing.T) {
	needRoot(t)
	root, victim := t.TempDir(), t.TempDir()
	must(t, os.WriteFile(filepath.Join(victim, "precious"), nil, 0o600))
	dir, link := filepath.Join(root, "dir"), filepath.Join(root, "link")
	must(t, os.Mkdir(dir, 0o700), os.WriteFile(filepath.Join(dir, "precious"), nil, 0o600), os.Symlink(victim, link))
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		for ctx.Err() == nil {
			if err := unix.Renameat2(unix.AT_FDCWD, dir, unix.AT_FDCWD, link, unix.RENAME_EXCHANGE); err != nil {
				done <- err
				return
			}
		}
		done <- nil
	}()
	for i := range 300 {
		must(t, Share(t.Context(), root, group+i%2))
	}
	stop()
	must(t, <-done)
	for _, path := range []string{victim, filepath.Join(victim, "precious")} {
		if st := stat(t, path); st.Gid >= group {
			t.Errorf("%s: gid %d", path, st.Gid)
		}
	}
}

func TestShareEnds(t *testing.T) {
	ctx, stop := context.WithCancel(t.Context())
	stop()
	root := t.TempDir()
	must(t, os.WriteFile(filepath.Join(root, "file"), nil, 0o600))
	if err := Share(ctx, root, os.Getgid()); !errors.Is(err, context.Canceled) {
		t.Errorf("a call that has ended: %v", err)
	}
	if err := Share(t.Context(), filepath.Join(root, "missing"), 0); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no such directory: %v", err)
	}
	must(t, os.Symlink(root, filepath.Join(root, "link")))
	if err := Share(t.Context(), filepath.Join(root, "link"), 0); err == nil {
		t.Error("a link in place of the directory is followed")
	}
	must(t, Share(t.Context(), root, os.Getgid()))
	if st := stat(t, filepath.Join(root, "file")); st.Mode&permissions != 0o660 {
		t.Errorf("the owner gives it to a group of its own: mode %o", st.Mode&permissions)
	}
}
