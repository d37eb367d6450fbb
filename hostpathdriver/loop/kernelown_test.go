package loop

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
)

// statusOf asks the kernel for the device of a file, and its number.
func statusOf(t *testing.T, device string) *unix.LoopInfo64 {
	t.Helper()
	number, ok := parseName(filepath.Base(device))
	if !ok {
		t.Fatalf("%s is no loop device", device)
	}
	info, err := Kernel{}.status(number)
	if err != nil || info == nil {
		t.Fatalf("status of %s: %v, %v", device, info, err)
	}
	return info
}

// TestKernelConfigures looks at what the kernel says of a device.
func TestKernelConfigures(t *testing.T) {
	r := kernelRig(t)
	file := newFile(t, r, 3*SectorSize)
	for _, readOnly := range []bool{false, true} {
		device := attach(t, r, file, readOnly)
		info := statusOf(t, device)
		want := uint32(0)
		if readOnly {
			want = unix.LO_FLAGS_READ_ONLY
		}
		if info.Flags != want {
			t.Errorf("read-only %t: flags %#x, want %#x", readOnly, info.Flags, want)
		}
		if got := unix.ByteSliceToString(info.File_name[:]); !strings.HasPrefix(file, got) || got == "" {
			t.Errorf("name %q, want the beginning of %q", got, file)
		}
		got, err := os.ReadFile(filepath.Join("/sys/block", filepath.Base(device), "queue/logical_block_size"))
		if err != nil || strings.TrimSpace(string(got)) != "512" {
			t.Errorf("block size %q, %v", got, err)
		}
		if got := r.size(t, device); got != 3*SectorSize {
			t.Errorf("%d bytes, want %d", got, 3*SectorSize)
		}
	}
}

// TestKernelProcesses attaches one file from four processes at a time. Their
// device outlives them, as that of a driver that was killed.
func TestKernelProcesses(t *testing.T) {
	r := kernelRig(t)
	file := newFile(t, r, mib)
	devices := make([]string, 4)
	var wait sync.WaitGroup
	for i := range devices {
		wait.Go(func() {
			cmd := exec.CommandContext(withTestDeadline(t), os.Args[0])
			cmd.Env = append(os.Environ(), attachEnv+"="+file)
			cmd.Stderr = os.Stderr
			out, err := cmd.Output()
			if err != nil {
				t.Errorf("process %d: %v", i, err)
			}
			devices[i] = string(out)
		})
	}
	wait.Wait()
	for _, device := range devices {
		wantDevice(t, r, file, false, device)
	}
	found, err := Kernel{}.lookUp(withTestDeadline(t), file)
	if err != nil || len(found) != 1 {
		t.Errorf("devices %v, %v, want one", found, err)
	}
}

// TestKernelWaitsForTheLock of somebody who is just attaching the file. The
// lock must not stay with the device, or it would be the last one.
func TestKernelWaitsForTheLock(t *testing.T) {
	r := kernelRig(t)
	file := newFile(t, r, mib)
	lock, err := openBacking(file, os.O_RDONLY)
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Close()
	if locked, err := lock.tryLock(); !locked || err != nil {
		t.Fatalf("tryLock = %t, %v", locked, err)
	}
	wantBusy(t, func(ctx context.Context) error {
		_, err := r.Attach(ctx, file, false)
		return err
	})
	wantDevice(t, r, file, false, "")
	if err := lock.unlock(); err != nil {
		t.Fatal(err)
	}
	device := attach(t, r, file, false)
	if locked, err := lock.tryLock(); !locked || err != nil {
		t.Errorf("tryLock beside the device = %t, %v", locked, err)
	}
	wantBusy(t, func(ctx context.Context) error { return r.Detach(ctx, file, false) })
	wantDevice(t, r, file, false, device)
}

// TestKernelKeepsUnsyncedWrites that were in the cache of the device when it
// was detached.
func TestKernelKeepsUnsyncedWrites(t *testing.T) {
	r := kernelRig(t)
	file := newFile(t, r, mib)
	node, err := os.OpenFile(attach(t, r, file, false), os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	_, err = node.Write([]byte("not synced"))
	if err := errors.Join(err, node.Close()); err != nil {
		t.Fatal(err)
	}
	detach(t, r, file, false)
	if got := readStart(t, file, 10); string(got) != "not synced" {
		t.Errorf("the file begins with %q", got)
	}
}

// TestKernelDeletedFile has no other name left: the device is nobody's.
func TestKernelDeletedFile(t *testing.T) {
	r := kernelRig(t)
	file := filepath.Join(t.TempDir(), "disk")
	createFile(t, file, mib)
	old := attach(t, r, file, false)
	info := statusOf(t, old)
	t.Cleanup(func() { clearNumber(t, info) })
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	createFile(t, file, mib)
	detachAtEnd(t, r, file)
	wantDevice(t, r, file, false, "")
	detach(t, r, file, false)
	if device := attach(t, r, file, false); device == old {
		t.Errorf("the new file has got the device %s of the deleted one", old)
	}
	if now := statusOf(t, old); now.Inode != info.Inode {
		t.Errorf("the device of the deleted file shows inode %d, was %d", now.Inode, info.Inode)
	}
}

// clearNumber clears a device that still shows the same file.
func clearNumber(t *testing.T, info *unix.LoopInfo64) {
	t.Helper()
	node, err := os.Open(Kernel{}.node(int(info.Number)))
	if err != nil {
		t.Error(err)
		return
	}
	defer node.Close()
	now, err := unix.IoctlLoopGetStatus64(int(node.Fd()))
	if err == nil && now.Inode == info.Inode {
		err = unix.IoctlSetInt(int(node.Fd()), unix.LOOP_CLR_FD, 0)
	}
	if err != nil && !errors.Is(err, unix.ENXIO) {
		t.Error(err)
	}
}

// TestKernelLeavesOthersAlone has somebody show a part of the same file.
func TestKernelLeavesOthersAlone(t *testing.T) {
	r := kernelRig(t)
	file := newFile(t, r, mib)
	f, err := os.OpenFile(file, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	control, err := Kernel{}.openControl()
	if err != nil {
		t.Fatal(err)
	}
	defer control.Close()
	config := unix.LoopConfig{Fd: uint32(f.Fd()), Info: unix.LoopInfo64{Offset: mib / 2}}
	part, err := Kernel{}.configureFree(withTestDeadline(t), control, &config)
	if err != nil {
		t.Fatal(err)
	}
	info := statusOf(t, part)
	t.Cleanup(func() { clearNumber(t, info) })
	wantDevice(t, r, file, false, "")
	if device := attach(t, r, file, false); device == part {
		t.Errorf("got %s, which shows the second half only", part)
	}
	detach(t, r, file, false)
	if now := statusOf(t, part); now.Inode != info.Inode || now.Flags != info.Flags {
		t.Errorf("the device of somebody else is %+v, was %+v", now, info)
	}
}

// TestKernelSkipsClaimedDevices: one that is free, and that somebody has
// claimed, stays the first free one.
func TestKernelSkipsClaimedDevices(t *testing.T) {
	r := kernelRig(t)
	file := newFile(t, r, mib)
	control, err := Kernel{}.openControl()
	if err != nil {
		t.Fatal(err)
	}
	defer control.Close()
	var claim *os.File
	err = until(withTestDeadline(t), func() (bool, error) {
		number, err := unix.IoctlRetInt(int(control.Fd()), unix.LOOP_CTL_GET_FREE)
		if err != nil {
			return false, err
		}
		claim, err = os.OpenFile(Kernel{}.node(number), os.O_RDONLY|os.O_EXCL, 0)
		if errors.Is(err, unix.EBUSY) || errors.Is(err, unix.ENXIO) {
			return false, nil // somebody else was faster
		}
		return err == nil, err
	})
	if err != nil {
		t.Fatal(err)
	}
	defer claim.Close()
	if device := attach(t, r, file, false); device == claim.Name() {
		t.Errorf("got %s in spite of the claim", device)
	}
}

// hostless makes a /dev of a container that is not the host's.
func hostless(t *testing.T, nodes map[string]string) Kernel {
	t.Helper()
	k := Kernel{dev: t.TempDir()}
	for name, target := range nodes {
		if err := os.Symlink(target, filepath.Join(k.dev, name)); err != nil {
			t.Fatal(err)
		}
	}
	return k
}

// TestKernelMissingNodes says what to mount.
func TestKernelMissingNodes(t *testing.T) {
	r := kernelRig(t)
	shown, other := newFile(t, r, mib), newFile(t, r, mib)
	first := filepath.Base(attach(t, r, shown, false))
	second := filepath.Base(attach(t, r, other, false))
	control := map[string]string{"loop-control": "/dev/loop-control"}
	cases := map[string]struct {
		reason  string
		kernel  Kernel
		canMake bool // there is no device to be asked, only one to be made
	}{
		"OtherNode": {reason: "the node has the wrong number", kernel: hostless(t, map[string]string{first: "/dev/" + second, second: "/dev/" + first})},
		"NewNode":   {reason: "/dev was filled when the container started", kernel: hostlessSys(t, control), canMake: true},
		"NoControl": {reason: "no device can be made", kernel: hostlessSys(t, nil), canMake: true},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			for call, err := range everyCall(t, c.kernel, shown) {
				if c.canMake && call != "Attach" {
					continue
				}
				if !errors.Is(err, ErrUnavailable) || !strings.Contains(err.Error(), "mount the host's /dev") {
					t.Errorf("%s: %s: %v", c.reason, call, err)
				}
			}
		})
	}
}

// TestKernelMakesNodes: devices that were bound by others since the container was started have no nodes in its /dev, and each has to be asked whether it shows the file.
func TestKernelMakesNodes(t *testing.T) {
	r := kernelRig(t)
	shown, other := newFile(t, r, mib), newFile(t, r, mib)
	first, second := filepath.Base(attach(t, r, shown, false)), filepath.Base(attach(t, r, other, false))
	k := hostless(t, map[string]string{"loop-control": "/dev/loop-control"})
	device, err := k.Device(withTestDeadline(t), shown, false)
	if err != nil || device != filepath.Join(k.dev, first) {
		t.Errorf("device %q, %v, want that of %s", device, err, first)
	}
	for _, name := range []string{first, second} {
		var made, host unix.Stat_t
		if err := errors.Join(unix.Stat(filepath.Join(k.dev, name), &made), unix.Stat("/dev/"+name, &host)); err != nil || made.Rdev != host.Rdev {
			t.Errorf("node of %s: number %d, want %d, %v", name, made.Rdev, host.Rdev, err)
		}
	}
}

// hostlessSys knows of no bound device.
func hostlessSys(t *testing.T, nodes map[string]string) Kernel {
	t.Helper()
	k := hostless(t, nodes)
	k.sys = t.TempDir()
	return k
}

// everyCall returns the errors of all methods. No error may be taken for the
// one of a missing file, which two of them answer with success.
func everyCall(t *testing.T, k Kernel, file string) map[string]error {
	t.Helper()
	_, attachErr := k.Attach(withTestDeadline(t), file, false)
	_, deviceErr := k.Device(withTestDeadline(t), file, false)
	calls := map[string]error{"Attach": attachErr, "Device": deviceErr, "Detach": k.Detach(withTestDeadline(t), file, false), "Resize": k.Resize(withTestDeadline(t), file)}
	for call, err := range calls {
		if errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s says that the file is missing: %v", call, err)
		}
	}
	return calls
}

// TestKernelWithoutSys cannot know what there is, and must not make a second
// device.
func TestKernelWithoutSys(t *testing.T) {
	k := Kernel{sys: filepath.Join(t.TempDir(), "missing")}
	file := filepath.Join(t.TempDir(), "disk")
	createFile(t, file, mib)
	for call, err := range everyCall(t, k, file) {
		if !errors.Is(err, ErrUnavailable) || !strings.Contains(err.Error(), "mount sysfs") {
			t.Errorf("%s: %v", call, err)
		}
	}
}

// TestBoundListsByNumber ignores what is no loop device, or shows nothing.
func TestBoundListsByNumber(t *testing.T) {
	k := Kernel{sys: t.TempDir()}
	for _, dir := range []string{"loop10/loop", "loop9/loop", "loop1", "vda/loop", "loop2p1/loop", "loop0/loop"} {
		if err := os.MkdirAll(filepath.Join(k.sys, dir), 0o750); err != nil {
			t.Fatal(err)
		}
	}
	got, err := k.bound()
	if err != nil || fmt.Sprint(got) != "[0 9 10]" {
		t.Errorf("bound = %v, %v, want 0, 9 and 10", got, err)
	}
}
