package copier

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/longshore-csi/longshore/csikittest/needs"
	"github.com/longshore-csi/longshore/csikittest/seeds"
	"github.com/longshore-csi/longshore/driverkit/mount"
)

// xfs mounts a new file system that shares blocks.
func xfs(t testing.TB, size int64) string {
	t.Helper()
	needRoot(t)
	needs.Programs(t, "mkfs.xfs", "mount")
	dir := t.TempDir()
	image, target := filepath.Join(dir, "image"), filepath.Join(dir, "mounted")
	must(t, os.WriteFile(image, nil, 0o600), os.Truncate(image, size), os.Mkdir(target, 0o700))
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for _, args := range [][]string{{"mkfs.xfs", "-q", image}, {"mount", "-o", "loop", image, target}} {
		if output, err := exec.CommandContext(ctx, args[0], args[1:]...).CombinedOutput(); err != nil {
			t.Fatalf("%v: %v: %s", args, err, output)
		}
	}
	t.Cleanup(func() { must(t, mount.Kernel{}.Unmount(context.Background(), target)) })
	return target
}

// tmpfs mounts a new file system in memory.
func tmpfs(t testing.TB, options string) string {
	t.Helper()
	needRoot(t)
	target := t.TempDir()
	mountFor(t, "tmpfs", target, "tmpfs", 0, options)
	return target
}

// TestShared shares blocks where the file system can.
func TestShared(t *testing.T) {
	dir := xfs(t, 320<<20)
	from, to := filepath.Join(dir, "from"), filepath.Join(dir, "to")
	writeSparse(t, from, imageSize, image()...)
	must(t, os.WriteFile(to, noise(1, 8<<20), 0o600)) // is emptied
	for range 2 {
		r, err := File(t.Context(), from, to)
		if err != nil || r != (Result{Shared: true}) {
			t.Errorf("%+v, %v", r, err)
		}
		wantSame(t, from, to)
	}
	writeAt(t, from, 0, noise(5, 4096)) // is not seen in the copy
	if got := contents(t, to)[:4096]; got != string(noise(0, 4096)) {
		t.Error("the copy changes with the source")
	}
	before, j := free(t, dir), newJob(filepath.Join(dir, "bytes"))
	j.noShare = true
	r, err := j.file(t.Context(), from)
	if err != nil || r.Shared || j.written < dataIn(image()...) || j.written > allocated(t, from) {
		t.Errorf("without sharing: %+v, %v", r, err)
	}
	if used := before - free(t, dir); used < j.written {
		t.Errorf("without sharing %d bytes were used for %d", used, j.written)
	}
}

// TestShare copies nothing where blocks cannot be shared.
func TestShare(t *testing.T) {
	for place, want := range map[string]bool{xfs(t, 320<<20): true, tmpfs(t, "size=64m"): false} {
		from, to := filepath.Join(place, "from"), filepath.Join(place, "to")
		writeSparse(t, from, imageSize, image()...)
		must(t, os.WriteFile(to, noise(9, 100), 0o600))
		shared, err := Share(t.Context(), from, to)
		if err != nil || shared != want {
			t.Errorf("%s: shared %t, %v, want %t", place, shared, err, want)
		}
		if shared {
			wantSame(t, from, to)
		} else if got := contents(t, to); got != "" {
			t.Errorf("%d bytes are in a file that shares nothing", len(got))
		}
		if _, err := Share(t.Context(), from, from); err == nil {
			t.Error("a file shares its blocks with itself")
		}
		if _, err := Share(t.Context(), from, filepath.Join(place, "no", "dir")); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("to nowhere: %v", err)
		}
	}
}

// free is the space of a file system.
func free(t testing.TB, path string) int64 {
	t.Helper()
	var st unix.Statfs_t
	must(t, unix.Statfs(path, &st))
	return int64(st.Bfree) * st.Bsize
}

// TestSharedTree shares the blocks of each file.
func TestSharedTree(t *testing.T) {
	dir := xfs(t, 320<<20)
	c := &copyOfTree{TB: t, from: filepath.Join(dir, "from"), to: filepath.Join(dir, "to")}
	must(t, os.Mkdir(c.from, 0o700), os.Mkdir(c.to, 0o700))
	grow(t, seeds.One(t), c.from, 40)
	c.write("large", 3<<20)
	j := c.job(nil)
	if r, err := j.tree(t.Context(), c.from); err != nil || r != (Result{Shared: true}) || j.written != 0 {
		t.Errorf("%+v, %v, %d bytes written", r, err, j.written)
	}
	wantSameTree(t, c.from, c.to)
}

// TestBetweenFileSystems: neither blocks can be shared nor does the kernel copy
// between file systems of different types.
func TestBetweenFileSystems(t *testing.T) {
	there := tmpfs(t, "size=64m")
	c := newCopyOfImage(t)
	c.to = filepath.Join(there, "to")
	r, err := File(t.Context(), c.from, c.to)
	if err != nil || r != (Result{}) {
		t.Errorf("%+v, %v", r, err)
	}
	wantSame(t, c.from, c.to)
	tree := newCopyOfTree(t)
	grow(t, seeds.One(t), tree.from, 100)
	tree.to = filepath.Join(there, "tree")
	must(t, os.Mkdir(tree.to, 0o700))
	tree.finish()
}

// TestNoSpace: the error is the kernel's.
func TestNoSpace(t *testing.T) {
	there := tmpfs(t, "size=1m")
	file, tree := newCopyOfImage(t), newCopyOfTree(t)
	writeSparse(t, file.from, 2<<20, block{0, 2 << 20})
	file.to = filepath.Join(there, "to")
	if _, err := File(t.Context(), file.from, file.to); !errors.Is(err, unix.ENOSPC) {
		t.Errorf("file: error %v, want ENOSPC", err)
	}
	must(t, os.Remove(file.to))
	tree.write("a/file", 2<<20)
	tree.to = there
	if _, err := Tree(t.Context(), tree.from, tree.to); !errors.Is(err, unix.ENOSPC) || !strings.Contains(err.Error(), `"a/file"`) {
		t.Errorf("tree: error %v, want ENOSPC that names the file", err)
	}
}

// TestSetgid: chmod(2) leaves out setgid without an error where the process may not set it. The copy is an error then.
func TestSetgid(t *testing.T) {
	needRoot(t)
	const group = 12345
	c := newCopyOfTree(t)
	c.write("file", 1)
	path := filepath.Join(c.from, "file")
	must(t, errors.Join(os.Chown(path, 0, group), os.Chmod(path, 0o755|os.ModeSetgid)))
	without := func(capability int, do func() error) error {
		done := make(chan error)
		go func() { // the thread ends with the goroutine, as it is not unlocked
			runtime.LockOSThread()
			header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
			var data [2]unix.CapUserData
			err := unix.Capget(&header, &data[0])
			data[0].Effective &^= 1 << capability
			if err == nil {
				err = unix.Capset(&header, &data[0])
			}
			if err == nil {
				err = do()
			}
			done <- err
		}()
		return <-done
	}
	copied := func() error { _, err := Tree(t.Context(), c.from, c.to); return err }
	if err := without(unix.CAP_FSETID, copied); !errors.Is(err, errMode) || !strings.Contains(err.Error(), "CAP_FSETID") {
		t.Errorf("without the capability: %v, want an error that names it", err)
	}
	must(t, errors.Join(os.RemoveAll(c.to), os.Mkdir(c.to, 0o700)))
	c.finish()
}

// TestMountPoint: what is mounted in a volume is not part of it, also if it is
// of the same file system, or a file.
func TestMountPoint(t *testing.T) {
	needRoot(t)
	cases := map[string]struct {
		reason string
		mount  func(c *copyOfTree, other string)
	}{
		"Other": {reason: "another file system", mount: func(c *copyOfTree, _ string) { mountFor(c, "tmpfs", c.path("a/here"), "tmpfs", 0, "") }},
		"Bind":  {reason: "the same file system", mount: func(c *copyOfTree, other string) { mountFor(c, other, c.path("a/here"), "", unix.MS_BIND, "") }},
		"File":  {reason: "a file", mount: func(c *copyOfTree, other string) { mountFor(c, other+"/file", c.path("a/file"), "", unix.MS_BIND, "") }},
	}
	for name, m := range cases {
		t.Run(name, func(t *testing.T) {
			c, other := newCopyOfTree(t), dirs(t, "other")[0]
			c.write("a/file", 1000)
			must(t, os.Mkdir(c.path("a/here"), 0o700), os.WriteFile(other+"/file", []byte("other"), 0o600))
			before, open := describe(t, other), descriptors(t)
			m.mount(c, other)
			_, err := Tree(t.Context(), c.from, c.to)
			if !errors.Is(err, unix.EXDEV) {
				t.Errorf("%s: error %v, want EXDEV", m.reason, err)
			}
			if err == nil || !strings.Contains(err.Error(), `"a/`) {
				t.Errorf("%s: error %v names no path", m.reason, err)
			}
			if diff := cmp.Diff(before, describe(t, other)); diff != "" {
				t.Errorf("%s: what is mounted changed (-want +got):\n%s", m.reason, diff)
			}
			wantClosed(t, open)
		})
	}
}

// TestMountedRoots: the two directories themselves may be mount points.
func TestMountedRoots(t *testing.T) {
	c := &copyOfTree{TB: t, from: tmpfs(t, ""), to: tmpfs(t, "")}
	grow(t, seeds.One(t), c.from, 30)
	c.finish()
}

// asNobody runs something without privileges: the thread that has given them
// up ends with it.
func asNobody(t testing.TB, call func()) {
	t.Helper()
	const nobody = 65534
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // and never unlock it
		var err error
		defer func() { done <- err }()
		for _, id := range []uintptr{syscall.SYS_SETRESGID, syscall.SYS_SETRESUID} {
			if _, _, errno := syscall.RawSyscall(id, nobody, nobody, nobody); errno != 0 {
				err = errno
				return
			}
		}
		call()
	}()
	must(t, <-done)
}

// TestUnprivileged: own files can be copied, and what takes a privilege is an
// error.
func TestUnprivileged(t *testing.T) {
	needRoot(t)
	const nobody = 65534
	cases := map[string]struct {
		reason  string
		prepare func(c *copyOfTree)
		want    error
	}{
		"Own": {reason: "its own files", prepare: func(*copyOfTree) {}},
		"Foreign": {reason: "the owner cannot be kept", want: unix.EPERM, prepare: func(c *copyOfTree) {
			must(c, os.WriteFile(c.path("foreign"), nil, 0o600), os.Chmod(c.path("foreign"), 0o644))
		}},
		"Unreadable": {reason: "the contents cannot be read", want: fs.ErrPermission, prepare: func(c *copyOfTree) {
			must(c, os.WriteFile(c.path("unreadable"), nil, 0o600))
		}},
		"Device": {reason: "devices are for root", want: unix.EPERM, prepare: func(c *copyOfTree) {
			must(c, unix.Mknod(c.path("device"), unix.S_IFBLK|0o600, int(unix.Mkdev(7, 300))), os.Chown(c.path("device"), nobody, nobody))
		}},
		"Capability": {reason: "capabilities are for root", want: unix.EPERM, prepare: func(c *copyOfTree) {
			must(c, unix.Setxattr(c.path("file"), "security.capability", capability(), 0))
		}},
	}
	for name, p := range cases {
		t.Run(name, func(t *testing.T) {
			c := newCopyOfTree(t)
			top := filepath.Dir(c.from)
			must(t, os.Chmod(filepath.Dir(top), 0o755), os.Chown(top, nobody, nobody))
			c.write("file", 1000)
			c.write("dir/readonly", 1000)
			must(t, os.Link(c.path("file"), c.path("name")), unix.Setxattr(c.path("dir/readonly"), "user.color", []byte("red"), 0),
				unix.Chmod(c.path("dir/readonly"), 0o400), os.Symlink("file", c.path("symlink")), unix.Mkfifo(c.path("pipe"), 0o600))
			for _, path := range []string{c.from, c.to, c.path("file"), c.path("dir"), c.path("dir/readonly"), c.path("symlink"), c.path("pipe")} {
				must(t, os.Lchown(path, nobody, nobody))
			}
			must(t, unix.Chmod(c.path("dir"), 0o500))
			p.prepare(c)
			var err error
			asNobody(t, func() { _, err = Tree(t.Context(), c.from, c.to) })
			if p.want != nil {
				if !errors.Is(err, p.want) {
					t.Errorf("%s: error %v, want %v", p.reason, err, p.want)
				}
				return
			}
			must(t, err)
			wantSameTree(t, c.from, c.to)
		})
	}
}
