package quota

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// kind is a file system with project quotas.
type kind struct {
	name string
	mkfs []string
	// full is what ends a write to a directory that is full.
	full error
	// exceed says that CAP_SYS_RESOURCE may exceed limits.
	exceed bool
}

func kinds() []kind {
	return []kind{
		{name: "ext4", mkfs: []string{"mkfs.ext4", "-q", "-b", "4096", "-O", "quota,project"}, full: unix.EDQUOT, exceed: true},
		{name: "xfs", mkfs: []string{"mkfs.xfs", "-q"}, full: unix.ENOSPC},
	}
}

// needQuotas skips a test that this kernel cannot run. In a virtual machine of
// vmtest, each can be run.
func needQuotas(t *testing.T) {
	t.Helper()
	skip := t.Skipf
	if os.Getenv("VMTEST") != "" {
		skip = t.Fatalf
	}
	if os.Geteuid() != 0 {
		skip("mounts need root")
	}
	ext4 := kinds()[0]
	if err := tryMount(newImage(t, ext4.mkfs...), t.TempDir(), "prjquota"); err != nil {
		skip("this kernel has no project quotas: %v", err)
	}
}

// newImage makes a file system in a sparse file.
func newImage(t *testing.T, mkfs ...string) string {
	t.Helper()
	image := filepath.Join(t.TempDir(), "image")
	if err := errors.Join(os.WriteFile(image, nil, 0o600), os.Truncate(image, 300*mib)); err != nil {
		t.Fatal(err)
	}
	run(t, append(mkfs, image)...)
	return image
}

func run(t *testing.T, command ...string) {
	t.Helper()
	if out, err := exec.Command(command[0], command[1:]...).CombinedOutput(); err != nil {
		t.Fatalf("%q: %v\n%s", command, err, out)
	}
}

// tryMount mounts and unmounts.
func tryMount(image, dir, options string) error {
	if out, err := exec.Command("mount", "-o", "loop,"+options, image, dir).CombinedOutput(); err != nil {
		return fmt.Errorf("mount -o %s: %w: %s", options, err, strings.Join(strings.Fields(string(out)), " "))
	}
	return unix.Unmount(dir, 0)
}

// mount mounts an image until the end of the test.
func mount(t *testing.T, image, options string) string {
	t.Helper()
	dir := t.TempDir()
	run(t, "mount", "-o", "loop,"+options, image, dir)
	t.Cleanup(func() {
		if err := unix.Unmount(dir, 0); err != nil {
			t.Errorf("unmount %s: %v", dir, err)
		}
	})
	return dir
}

// without runs a function that lacks a capability, on a thread of its own.
func without(t *testing.T, capability int, do func()) {
	t.Helper()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	header := &unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var had [2]unix.CapUserData
	if err := unix.Capget(header, &had[0]); err != nil {
		t.Fatal(err)
	}
	has := had
	has[capability/32].Effective &^= 1 << (capability % 32)
	if err := unix.Capset(header, &has[0]); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := unix.Capset(header, &had[0]); err != nil {
			panic(err)
		}
	}()
	do()
}

// projectOf returns the project of a directory, and whether it is inherited.
func projectOf(t *testing.T, path string) (project uint32, inherited bool) {
	t.Helper()
	d, err := open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	a, err := d.attributes()
	if err != nil {
		t.Fatal(err)
	}
	return a.Project, a.inherits()
}

// setProject sets the project of a directory without Kernel.
func setProject(t *testing.T, path string, project uint32, inherited bool) {
	t.Helper()
	d, err := open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	a, err := d.attributes()
	if err == nil {
		err = d.setAttributes(a.with(project, inherited))
	}
	if err != nil {
		t.Fatal(err)
	}
}

// limitOf returns the limit of a project in bytes.
func limitOf(t *testing.T, path string, project uint32) int64 {
	t.Helper()
	d, err := open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	a, err := d.account(project)
	if err != nil {
		t.Fatal(err)
	}
	return int64(a.limit * sector)
}

// setLimitOf limits a project behind the back of Kernel.
func setLimitOf(t *testing.T, path string, project uint32, limit int64) {
	t.Helper()
	d, err := open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	if err := d.setAccount(project, uint64(limit/sector)); err != nil {
		t.Fatal(err)
	}
}

// waitUnused waits until nothing has a project that was removed: XFS removes
// inodes after it has answered.
func waitUnused(t *testing.T, root string, project uint32) {
	t.Helper()
	d, err := open(root)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	for t.Context().Err() == nil {
		a, err := d.account(project)
		if err != nil {
			t.Fatal(err)
		}
		if a.inodes == 0 {
			return
		}
		time.Sleep(time.Millisecond)
	}
}

// mounted does something on a file system, and unmounts it.
func mounted(t *testing.T, image, options string, do func(root string)) {
	t.Helper()
	dir := t.TempDir()
	run(t, "mount", "-o", "loop,"+options, image, dir)
	defer func() {
		if err := unix.Unmount(dir, 0); err != nil {
			t.Errorf("unmount %s: %v", dir, err)
		}
	}()
	do(dir)
}
