package fsgroup

import (
	"errors"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func needRoot(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("only root can give files to any group")
	}
}

func stat(t *testing.T, path string) unix.Stat_t {
	t.Helper()
	var st unix.Stat_t
	check(t, unix.Lstat(path, &st))
	return st
}

// TestForReal gives a volume to a group for which one has to be root.
func TestForReal(t *testing.T) {
	needRoot(t)
	root := volume(t)
	program := filepath.Join(root, "program")
	check(t, os.WriteFile(program, nil, 0o700), os.Chmod(program, 0o755|os.ModeSetuid|os.ModeSetgid))
	var files atomic.Int64
	got, err := Apply(t.Context(), Change{Path: root, Group: other}, &files)
	if err != nil || got != (Result{}) || files.Load() != 11 {
		t.Fatalf("got %+v, %v for %d files", got, err, files.Load())
	}
	for name, mode := range map[string]uint32{
		".": unix.S_IFDIR | 0o2770, "dir": unix.S_IFDIR | 0o2770, "dir/deep/private": unix.S_IFREG | 0o660, "pipe": unix.S_IFIFO | 0o660,
		"link": unix.S_IFLNK | 0o777, "dangling": unix.S_IFLNK | 0o777, "dir/up": unix.S_IFLNK | 0o777, "program": unix.S_IFREG | 0o6775,
	} {
		if st := stat(t, filepath.Join(root, name)); st.Gid != other || st.Mode != mode || st.Uid != 0 {
			t.Errorf("%s has owner %d, group %d and mode %o, want 0, %d and %o", name, st.Uid, st.Gid, st.Mode, other, mode)
		}
	}
	if st := stat(t, filepath.Join(filepath.Dir(root), "outside")); st.Gid == other || st.Mode != unix.S_IFREG|0o600 {
		t.Errorf("the target of a link has group %d and mode %o", st.Gid, st.Mode)
	}
	if got, err := Apply(t.Context(), Change{Path: root, Group: other, OnRootMismatch: true}, &files); err != nil || !got.Skipped {
		t.Errorf("again with OnRootMismatch: got %+v, %v, want it to be skipped", got, err)
	}
}

// TestOtherMountsStay: what is mounted inside the volume is not the volume, even if it is another part of the same file system.
func TestOtherMountsStay(t *testing.T) {
	needRoot(t)
	root := volume(t)
	bound, tmpfs, outside := filepath.Join(root, "bound"), filepath.Join(root, "tmpfs"), filepath.Join(filepath.Dir(root), "dir")
	check(t, os.Mkdir(bound, 0o700), os.Mkdir(tmpfs, 0o700), os.Mkdir(outside, 0o700))
	for _, m := range []struct {
		source, target, kind string
		flags                uintptr
	}{{outside, bound, "", unix.MS_BIND}, {"tmpfs", tmpfs, "tmpfs", 0}, {filepath.Join(filepath.Dir(root), "outside"), filepath.Join(root, "open"), "", unix.MS_BIND}} {
		if err := unix.Mount(m.source, m.target, m.kind, m.flags, ""); err != nil {
			t.Skipf("cannot mount: %v", err)
		}
		unmountAtEnd(t, m.target)
	}
	check(t, os.WriteFile(filepath.Join(tmpfs, "file"), nil, 0o600))
	if _, err := Apply(t.Context(), Change{Path: root, Group: other}, new(atomic.Int64)); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{bound, outside, tmpfs, filepath.Join(tmpfs, "file"), filepath.Join(root, "open")} {
		if st := stat(t, path); st.Gid == other || st.Mode&0o077 != 0 && path != tmpfs {
			t.Errorf("%s was changed: group %d, mode %o", path, st.Gid, st.Mode)
		}
	}
	if st := stat(t, root); st.Gid != other {
		t.Error("the volume itself was not changed")
	}
}

// TestMountedRoot: the path itself is a mount point, as that of a published volume is.
func TestMountedRoot(t *testing.T) {
	needRoot(t)
	root := filepath.Join(t.TempDir(), "mount")
	check(t, os.Mkdir(root, 0o700))
	if err := unix.Mount("tmpfs", root, "tmpfs", 0, "mode=0700"); err != nil {
		t.Skipf("cannot mount: %v", err)
	}
	unmountAtEnd(t, root)
	check(t, os.WriteFile(filepath.Join(root, "file"), nil, 0o600))
	if _, err := Apply(t.Context(), Change{Path: root, Group: other}, new(atomic.Int64)); err != nil {
		t.Fatal(err)
	}
	if st := stat(t, filepath.Join(root, "file")); st.Gid != other || st.Mode != unix.S_IFREG|0o660 {
		t.Errorf("group %d and mode %o", st.Gid, st.Mode)
	}
	check(t, unix.Mount("", root, "", unix.MS_REMOUNT|unix.MS_RDONLY, ""))
	got, err := Apply(t.Context(), Change{Path: root, Group: other + 1}, new(atomic.Int64))
	if err != nil || got.Refused == 0 {
		t.Errorf("a read-only mount: got %+v, %v, want refusals", got, err)
	}
}

// unmountAtEnd unmounts when the test has ended. A program that looks at all mounts keeps one busy for a moment.
func unmountAtEnd(t *testing.T, target string) {
	t.Helper()
	t.Cleanup(func() {
		err := unix.Unmount(target, 0)
		for deadline := time.Now().Add(time.Minute); errors.Is(err, unix.EBUSY) && time.Now().Before(deadline); err = unix.Unmount(target, 0) {
			time.Sleep(10 * time.Millisecond)
		}
		check(t, err)
	})
}
