package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"time"
)

type options struct {
	packages            []string
	run, kernel, memory string
	short               bool
	timeout             time.Duration
	out, log            io.Writer
}

// modules of the kernel that the tests need.
func modules() []string { return []string{"ext4", "loop", "overlay", "quota_v2", "xfs"} }

// programs that the tests need. What this machine does not have, the other does not have either.
func programs() []string {
	return []string{
		"sh", "mount", "umount", "losetup", "blkid", "blockdev", "wipefs", "fsfreeze", "fsck",
		"mke2fs", "mkfs.ext2", "mkfs.ext3", "mkfs.ext4", "e2fsck", "fsck.ext2", "fsck.ext3", "fsck.ext4", "resize2fs", "tune2fs", "dumpe2fs",
		"mkfs.xfs", "fsck.xfs", "xfs_repair", "xfs_growfs", "xfs_io", "xfs_db",
	}
}

// runTests reports whether all packages passed.
func runTests(ctx context.Context, o options) (ok bool, err error) {
	if len(o.packages) == 0 {
		return false, errors.New("no packages are named")
	}
	paths, err := importPaths(ctx, o.packages)
	if err != nil {
		return false, err
	}
	ctx, cancel := context.WithTimeout(ctx, o.timeout)
	defer cancel()
	qemu, err := exec.LookPath("qemu-system-x86_64")
	if err != nil {
		return true, skipAll(o.out, paths, "needs qemu-system-x86_64: `make test` installs it, as root on Debian or Ubuntu")
	}
	linux, err := fetchKernel(ctx, o.kernel)
	if unknown, ok := errors.AsType[unknownPackageError](err); ok {
		return true, skipAll(o.out, paths, unknown.Error())
	}
	if err != nil {
		return false, err
	}
	scratch, err := os.MkdirTemp("", "vmtest-")
	if err != nil {
		return false, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(scratch)) }()
	m := machine{
		qemu: qemu, memory: o.memory, kernel: linux.image,
		initramfs: filepath.Join(scratch, "initramfs"), console: filepath.Join(scratch, "console"),
	}
	if err := fill(ctx, m.initramfs, scratch, linux, o, paths); err != nil {
		return false, fmt.Errorf("make the machine's files: %w", err)
	}
	return m.run(ctx, o)
}

// fill writes all files of the machine.
func fill(ctx context.Context, archive, scratch string, linux kernel, o options, paths []string) (err error) {
	file, err := os.Create(archive)
	if err != nil {
		return err
	}
	w := newArchive(file)
	defer func() { err = errors.Join(err, w.close(), file.Close()) }()

	self, err := os.Executable()
	if err != nil {
		return err
	}
	errs := []error{w.file("/init", self, 0o755), w.file("/etc/mke2fs.conf", "/etc/mke2fs.conf", 0o644)}
	errs = append(errs, w.contents("/etc/passwd", []byte("root:x:0:0::/root:/bin/sh\nnobody:x:65534:65534::/:/bin/sh\n"), 0o644))
	errs = append(errs, w.contents("/etc/group", []byte("root:x:0:\nnogroup:x:65534:\n"), 0o644))
	for _, name := range programs() {
		errs = append(errs, w.program(ctx, name))
	}
	todo := task{Run: o.run, Short: o.short}
	if todo.Modules, err = w.modules(ctx, linux, modules()); err != nil {
		return err
	}
	for i, path := range paths {
		s, err := w.suite(ctx, path, filepath.Join(scratch, fmt.Sprintf("%d.test", i)))
		if err != nil {
			return err
		}
		todo.Suites = append(todo.Suites, s)
	}
	return errors.Join(append(errs, w.task(todo))...)
}
