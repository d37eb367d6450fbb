package filesystem

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/longshore-csi/longshore/driverkit/mount"
)

// TestKernelDirtyJournal: a copy of a mounted file system has changes in its
// journal. A writable device takes them, also for reading alone; what a
// read-only device shows without them is no file system of any moment.
func TestKernelDirtyJournal(t *testing.T) {
	r := kernelRig(t)
	eachType(t, r, func(t *testing.T, fsType string) {
		image, device := newDevice(t, r, roomy)
		target := newTarget(t, r)
		mountAt(t, r, device, target, Options{Type: fsType})
		writeFile(t, target, "kept")
		duplicate := copySynced(t, r, image, target)
		at := newTarget(t, r)
		o := Options{Type: fsType, ReadOnly: true}
		locked := attach(t, r, duplicate, true)
		if err := refused(t, r, locked, at, o); !strings.Contains(err.Error(), "journal") {
			t.Errorf("%v does not say why", err)
		}
		if err := r.loops.Detach(withTestDeadline(t), duplicate, true); err != nil {
			t.Fatal(err)
		}
		mountAt(t, r, attach(t, r, duplicate, false), at, o)
		wantFile(t, at, "kept")
		unmount(t, r, at)
		if err := r.loops.Detach(withTestDeadline(t), duplicate, false); err != nil {
			t.Fatal(err)
		}
		mountAt(t, r, attach(t, r, duplicate, true), at, o)
		wantFile(t, at, "kept")
	})
}

// TestKernelReadOnlyAfterError: a file system that the kernel made read-only after an error is checked and writable with the next mount.
func TestKernelReadOnlyAfterError(t *testing.T) {
	r := kernelRig(t)
	needType(t, r, "ext4")
	_, device := newDevice(t, r, roomy)
	target := newTarget(t, r)
	o := Options{Type: "ext4", Flags: []string{"errors=remount-ro"}}
	mountAt(t, r, device, target, o)
	writeFile(t, target, "kept")
	flush(t, target)
	wantReadOnly := func(want bool) {
		t.Helper()
		if got, err := (mount.Kernel{}).ReadOnly(withTestDeadline(t), target); err != nil || got != want {
			t.Errorf("read-only %t, %v, want %t", got, err, want)
		}
	}
	wantReadOnly(false)
	if err := os.WriteFile(filepath.Join("/sys/fs/ext4", filepath.Base(device), "trigger_fs_error"), []byte("test"), 0); err != nil {
		t.Skipf("the kernel makes no errors: %v", err)
	}
	if err := os.WriteFile(filepath.Join(target, "more"), nil, 0o600); !errors.Is(err, unix.EROFS) {
		t.Skipf("write after an error: %v; this kernel (Linux 6.6 to 6.14) does not make the file system read-only", err)
	}
	wantReadOnly(true)
	unmount(t, r, target)
	mountAt(t, r, device, target, o)
	wantReadOnly(false)
	wantFile(t, target, "kept")
	writeFile(t, target, "kept")
}

// TestKernelForeign: what blkid knows, half knows, or knows twice is never
// formatted. For the last blkid has an exit status of its own, and a broken
// superblock is to it as good as none.
func TestKernelForeign(t *testing.T) {
	r := kernelRig(t)
	needType(t, r, "ext4")
	swap := make([]byte, 4096)
	swap[1024], swap[1028] = 1, 1 // version, last page
	copy(swap[4086:], "SWAPSPACE2")
	partitions := make([]byte, 512)
	copy(partitions[446:], []byte{0, 0, 2, 0, 0x83, 0, 3, 0, 1, 0, 0, 0, 100, 0, 0, 0})
	copy(partitions[510:], []byte{0x55, 0xaa})
	cases := map[string]struct {
		reason string
		make   string
		at     int64
		data   []byte
		want   string
	}{
		"Swap":         {reason: "it is another use of a device", data: swap, want: "swap"},
		"Partitions":   {reason: "there may be file systems in them", data: partitions, want: "partitions"},
		"BrokenExt":    {reason: "files can still be saved", make: "ext4", at: 1024 + 0x38, data: []byte{0, 0}, want: "data"},
		"BrokenXFS":    {reason: "files can still be saved", make: "xfs", data: []byte{0, 0, 0, 0}, want: "data"},
		"SeveralThere": {reason: "either may be in use", make: "xfs", at: 1024, data: extHead(t), want: "ambivalent"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			_, device := newDevice(t, r, roomy)
			if c.make != "" {
				needType(t, r, c.make)
				command(t, "mkfs."+c.make, "-q", device)
			}
			writeDevice(t, device, c.data, c.at)
			before := start(t, device)
			for _, fsType := range r.Types() {
				err := refused(t, r, device, newTarget(t, r), Options{Type: fsType})
				if !errors.Is(err, ErrForeign) || !strings.Contains(err.Error(), c.want) {
					t.Errorf("%s: %v, want ErrForeign, and the word %s", c.reason, err, c.want)
				}
			}
			if start(t, device) != before {
				t.Error("the device was written to")
			}
		})
	}
}

// extHead is a superblock of ext.
func extHead(t *testing.T) []byte {
	t.Helper()
	image := filepath.Join(t.TempDir(), "image")
	command(t, "mkfs.ext4", "-q", image, "64M")
	return []byte(start(t, image)[1024:2048])
}

// command runs a program that a test needs.
func command(t *testing.T, name string, args ...string) {
	t.Helper()
	if output, err := exec.CommandContext(withTestDeadline(t), name, args...).CombinedOutput(); err != nil {
		t.Fatalf("%s %v: %v: %s", name, args, err, output)
	}
}

// TestKernelNoDevice: mount(8) would make a loop device of a file.
func TestKernelNoDevice(t *testing.T) {
	r := kernelRig(t)
	pipe := filepath.Join(t.TempDir(), "pipe")
	if err := unix.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{newImage(t, r, roomy), t.TempDir(), pipe, "/dev/null"} {
		err := refused(t, r, path, newTarget(t, r), Options{Type: "ext4"})
		if !strings.Contains(err.Error(), "block device") {
			t.Errorf("%s: %v", path, err)
		}
	}
}

// TestKernelBeyondRepair: what fsck finds and cannot repair is an error that
// quotes it, and nothing is mounted.
func TestKernelBeyondRepair(t *testing.T) {
	r := kernelRig(t)
	_, device := newDevice(t, r, roomy)
	command(t, "mkfs.ext4", "-q", device)
	command(t, "debugfs", "-w", "-R", "clri <2>", device) // the root directory
	command(t, "debugfs", "-w", "-R", "ssv state 2", device)
	err := refused(t, r, device, newTarget(t, r), Options{Type: "ext4"})
	if text := err.Error(); !strings.Contains(text, "fsck -a "+device) || !strings.Contains(text, "MANUALLY") {
		t.Errorf("%v does not say what fsck says", err)
	}
}

// TestKernelStaysSparse: what a file system of 1 GiB takes of the disk when
// it is made. A journal of zeros is not written, where mkfs can be told.
func TestKernelStaysSparse(t *testing.T) {
	r := kernelRig(t)
	most := map[string]int64{"ext3": 64 * mib, "ext4": 2 * mib, "xfs": 72 * mib}
	eachType(t, r, func(t *testing.T, fsType string) {
		image, device := newDevice(t, r, 1<<30)
		target := newTarget(t, r)
		mountAt(t, r, device, target, Options{Type: fsType})
		unmount(t, r, target)
		var about unix.Stat_t
		if err := unix.Stat(image, &about); err != nil {
			t.Fatal(err)
		}
		got := about.Blocks * 512
		t.Logf("%s: %d KiB", fsType, got>>10)
		if got > most[fsType] {
			t.Errorf("%s takes %d bytes, want at most %d", fsType, got, most[fsType])
		}
	})
}

// TestKernelNoReservedBlocks: root has no more of a volume than others.
func TestKernelNoReservedBlocks(t *testing.T) {
	r := kernelRig(t)
	for _, fsType := range []string{"ext3", "ext4"} {
		_, device := newDevice(t, r, roomy)
		target := newTarget(t, r)
		mountAt(t, r, device, target, Options{Type: fsType})
		var about unix.Statfs_t
		if err := unix.Statfs(target, &about); err != nil {
			t.Fatal(err)
		}
		// The kernel keeps some clusters of ext4 for itself, at most 2%.
		if kept := about.Bfree - about.Bavail; kept > about.Blocks/50 {
			t.Errorf("%s: %d of %d blocks are kept", fsType, kept, about.Blocks)
		}
	}
}

// TestKernelGrowSaysWhatItLacks: resize2fs says "Permission denied", and root
// does not see why.
func TestKernelGrowSaysWhatItLacks(t *testing.T) {
	r := kernelRig(t)
	if GrowsMounted() {
		t.Skip("this process has CAP_SYS_RESOURCE")
	}
	image, device := newDevice(t, r, roomy)
	target := newTarget(t, r)
	mountAt(t, r, device, target, Options{Type: "ext4"})
	if err := errors.Join(os.Truncate(image, 2*roomy), r.loops.Resize(withTestDeadline(t), image)); err != nil {
		t.Fatal(err)
	}
	err := r.Grow(withTestDeadline(t), device, target)
	if err == nil || !strings.Contains(err.Error(), "CAP_SYS_RESOURCE") {
		t.Errorf("Grow: %v", err)
	}
}

// TestKernelProgramsEnd: the end of a request cuts no program short, as the next one would begin at the start again. After it no other program begins.
func TestKernelProgramsEnd(t *testing.T) {
	r := kernelRig(t)
	for _, name := range []string{"blkid", "mkfs.ext4", "fsck", "mount"} {
		t.Run(name, func(t *testing.T) {
			_, device := newDevice(t, r, roomy)
			target := newTarget(t, r)
			if name == "fsck" {
				command(t, "mkfs.ext4", "-q", device)
			}
			slow := slowProgram(t, name)
			ctx, cancel := context.WithCancel(withTestDeadline(t))
			done := make(chan error)
			go func() { done <- r.Mount(ctx, device, target, Options{Type: "ext4"}) }()
			slow.wait("began")
			cancel()
			slow.wait("go-on")
			err := <-done
			if _, endErr := os.Stat(filepath.Join(slow.dir, "ended")); endErr != nil {
				t.Errorf("%s was cut short: %v, %v", name, endErr, err)
			}
			last := name == "mount"
			if last == (err != nil) || !last && !errors.Is(err, context.Canceled) {
				t.Errorf("%v after the end of the request in %s, want context.Canceled from the next program", err, name)
			}
			wantMounted(t, r, target, last)
		})
	}
}

// slow is a program first in PATH that opens two pipes before and one after it does what the program of its name does.
type slow struct {
	t   *testing.T
	dir string
}

func slowProgram(t *testing.T, name string) slow {
	t.Helper()
	s := slow{t, t.TempDir()}
	program, err := exec.LookPath(name)
	script := fmt.Sprintf("#!/bin/sh\n: >%s/began\n: >%[1]s/go-on\n%s \"$@\"\nrc=$?\n: >%[1]s/ended\nexit $rc\n", s.dir, program)
	err = errors.Join(err, os.WriteFile(filepath.Join(s.dir, name), []byte(script), 0o700))
	for _, pipe := range []string{"began", "go-on"} {
		err = errors.Join(err, unix.Mkfifo(filepath.Join(s.dir, pipe), 0o600))
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", s.dir+":"+os.Getenv("PATH"))
	return s
}

// wait waits until the program opens a pipe.
func (s slow) wait(pipe string) {
	s.t.Helper()
	f, err := os.Open(filepath.Join(s.dir, pipe))
	if err != nil {
		s.t.Error(err)
		return
	}
	f.Close()
}

// TestKernelTypes: a type needs its own programs, and those that all need.
func TestKernelTypes(t *testing.T) {
	common := []string{"blkid", "fsck", "mount"}
	ext4 := []string{"mkfs.ext4", "fsck.ext4", "resize2fs"}
	cases := map[string]struct {
		reason   string
		programs [][]string
		want     []string
	}{
		"None":      {reason: "a machine without programs"},
		"NoCommon":  {reason: "mkfs alone does not mount", programs: [][]string{ext4}},
		"Ext4":      {reason: "all are there", programs: [][]string{common, ext4}, want: []string{"ext4"}},
		"NoResize":  {reason: "it could not grow", programs: [][]string{common, ext4[:2]}},
		"ExtAndXFS": {reason: "sorted", programs: [][]string{common, ext4, {"mkfs.xfs", "fsck.xfs", "xfs_growfs"}}, want: []string{"ext4", "xfs"}},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			for _, programs := range c.programs {
				for _, program := range programs {
					if err := os.WriteFile(filepath.Join(dir, program), []byte("#!/bin/sh\n"), 0o700); err != nil {
						t.Fatal(err)
					}
				}
			}
			t.Setenv("PATH", dir)
			if diff := cmp.Diff(c.want, NewKernel().Types()); diff != "" {
				t.Errorf("%s (-want +got):\n%s", c.reason, diff)
			}
		})
	}
}
