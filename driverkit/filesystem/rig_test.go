package filesystem

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/longshore-csi/longshore/csikittest/needs"
	"github.com/longshore-csi/longshore/driverkit/mount"
)

// rig is one implementation, with the loop devices and mounts that go with it.
type rig struct {
	Filesystems
	loops  devices
	mounts mount.Mounter
	// grows says that file systems of a type can grow here.
	grows func(fsType string) bool
	// reboot forgets mounts and devices.
	reboot func(t *testing.T, image, target string)
	// real says that there is something behind the mounts.
	real bool
}

func fakeRig(t *testing.T) rig {
	t.Helper()
	loops, mounts := &fakeDevices{dir: t.TempDir()}, &mount.Fake{}
	return rig{
		Filesystems: &Fake{Mounts: mounts, Look: loops.look}, loops: loops, mounts: mounts,
		grows: func(string) bool { return true },
		reboot: func(t *testing.T, _, _ string) {
			t.Helper()
			mounts.Reboot()
			for _, d := range loops.table {
				if err := os.Remove(d.path); err != nil {
					t.Fatal(err)
				}
			}
			loops.table = nil
		},
	}
}

func kernelRig(t *testing.T) rig {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("mounts need root")
	}
	if _, err := os.Stat("/dev/loop-control"); err != nil {
		t.Skipf("this machine has no loop devices: %v", err)
	}
	k := NewKernel()
	r := rig{
		Filesystems: k, loops: loopDevices{}, mounts: mount.Kernel{}, real: true,
		grows: func(fsType string) bool { return fsType == "xfs" || GrowsMounted() },
	}
	r.reboot = func(t *testing.T, image, target string) {
		t.Helper()
		unmount(t, r, target)
		if err := r.loops.Detach(withTestDeadline(t), image, false); err != nil {
			t.Fatal(err)
		}
	}
	return r
}

// needType skips a test of a type whose programs are missing.
func needType(t *testing.T, r rig, fsType string) {
	t.Helper()
	if slices.Contains(r.Types(), fsType) {
		return
	}
	needs.Programs(t, "blkid", "fsck", "mount")
	for _, k := range kinds() {
		if k.name == fsType {
			needs.Programs(t, k.programs...)
		}
	}
	t.Fatalf("%s is missing from the types %q", fsType, r.Types())
}

// eachType runs a test for each type, and skips it for those whose programs are
// missing.
func eachType(t *testing.T, r rig, test func(t *testing.T, fsType string)) {
	t.Helper()
	for _, k := range kinds() {
		t.Run(k.name, func(t *testing.T) {
			needType(t, r, k.name)
			test(t, k.name)
		})
	}
}

// withTestDeadline bounds a call that hangs. A successful call takes far less.
func withTestDeadline(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	t.Cleanup(cancel)
	return ctx
}

// newImage makes a sparse file whose devices are detached at the end.
func newImage(t *testing.T, r rig, size int64) string {
	t.Helper()
	image := filepath.Join(t.TempDir(), "image")
	f, err := os.OpenFile(image, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(f.Truncate(size), f.Close()); err != nil {
		t.Fatal(err)
	}
	detachAtEnd(t, r, image)
	return image
}

func detachAtEnd(t *testing.T, r rig, image string) {
	t.Helper()
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if err := errors.Join(r.loops.Detach(ctx, image, false), r.loops.Detach(ctx, image, true)); err != nil {
			t.Errorf("clean up: %v", err)
		}
	})
}

func attach(t *testing.T, r rig, image string, readOnly bool) string {
	t.Helper()
	device, err := r.loops.Attach(withTestDeadline(t), image, readOnly)
	if err != nil {
		t.Fatal(err)
	}
	return device
}

// newDevice makes a blank device.
func newDevice(t *testing.T, r rig, size int64) (image, device string) {
	t.Helper()
	image = newImage(t, r, size)
	return image, attach(t, r, image, false)
}

// newTarget makes a directory where nothing is mounted at the end.
func newTarget(t *testing.T, r rig) string {
	t.Helper()
	target := t.TempDir()
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		for {
			mounted, err := r.mounts.Mounted(ctx, target)
			if err == nil && mounted {
				err = r.mounts.Unmount(ctx, target)
			}
			if err != nil {
				t.Errorf("clean up: %v", err)
			}
			if err != nil || !mounted {
				return
			}
		}
	})
	return target
}

func mountAt(t *testing.T, r rig, device, target string, o Options) {
	t.Helper()
	if err := r.Mount(withTestDeadline(t), device, target, o); err != nil {
		t.Fatal(err)
	}
}

// refused is the error of a Mount that must leave nothing mounted.
func refused(t *testing.T, r rig, device, target string, o Options) error {
	t.Helper()
	err := r.Mount(withTestDeadline(t), device, target, o)
	if err == nil {
		t.Fatalf("Mount(%s, %+v) is accepted", device, o)
	}
	wantMounted(t, r, target, false)
	return err
}

func unmount(t *testing.T, r rig, target string) {
	t.Helper()
	if err := r.mounts.Unmount(withTestDeadline(t), target); err != nil {
		t.Fatal(err)
	}
}

func wantMounted(t *testing.T, r rig, target string, want bool) {
	t.Helper()
	if got, err := r.mounts.Mounted(withTestDeadline(t), target); got != want || err != nil {
		t.Errorf("Mounted(%s) = %t, %v, want %t", target, got, err, want)
	}
}

func wantShows(t *testing.T, r rig, device, target string, want, wantReadOnly bool) {
	t.Helper()
	shown, readOnly, err := r.IsMountOf(withTestDeadline(t), device, target)
	if shown != want || readOnly != wantReadOnly || err != nil {
		t.Errorf("IsMountOf(%s, %s) = %t, %t, %v, want %t, %t", device, target, shown, readOnly, err, want, wantReadOnly)
	}
}

func usage(t *testing.T, r rig, target string) Usage {
	t.Helper()
	got, err := r.Usage(withTestDeadline(t), target)
	if err != nil {
		t.Fatal(err)
	}
	return got
}

func writeFile(t *testing.T, target, text string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(target, "file"), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func wantFile(t *testing.T, target, want string) {
	t.Helper()
	if got, err := os.ReadFile(filepath.Join(target, "file")); string(got) != want || err != nil {
		t.Errorf("read below %s: %q, %v, want %q", target, got, err, want)
	}
}

// flush makes what was written below a target last: it is in the image then.
func flush(t *testing.T, target string) {
	t.Helper()
	f, err := os.Open(target)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := unix.Syncfs(int(f.Fd())); err != nil {
		t.Fatal(err)
	}
}

// writeDevice writes where no file system is, and makes it last.
func writeDevice(t *testing.T, device string, text []byte, at int64) {
	t.Helper()
	f, err := os.OpenFile(device, os.O_WRONLY|os.O_SYNC, 0)
	if err != nil {
		t.Fatal(err)
	}
	_, err = f.WriteAt(text, at)
	if err := errors.Join(err, f.Close()); err != nil {
		t.Fatal(err)
	}
}

// start is the beginning of a device.
func start(t *testing.T, device string) string {
	t.Helper()
	f, err := os.Open(device)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	head := make([]byte, 64<<10)
	if _, err := io.ReadFull(f, head); err != nil {
		t.Fatal(err)
	}
	return string(head)
}

// copyImage makes a sparse copy, and a device of it.
func copyImage(t *testing.T, r rig, image string, size int64) string {
	t.Helper()
	duplicate := newImage(t, r, size)
	from, err := os.Open(image)
	if err != nil {
		t.Fatal(err)
	}
	defer from.Close()
	to, err := os.OpenFile(duplicate, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	for at := int64(0); err == nil; {
		var end int64
		if at, err = unix.Seek(int(from.Fd()), at, unix.SEEK_DATA); err != nil {
			break
		}
		if end, err = unix.Seek(int(from.Fd()), at, unix.SEEK_HOLE); err == nil {
			_, err = io.Copy(io.NewOffsetWriter(to, at), io.NewSectionReader(from, at, end-at))
			at = end
		}
	}
	if err := errors.Join(to.Sync(), to.Close()); err != nil {
		t.Fatal(err)
	}
	if !errors.Is(err, unix.ENXIO) { // no more data
		t.Fatal(err)
	}
	return duplicate
}
