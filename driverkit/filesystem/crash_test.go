package filesystem

import (
	"errors"
	"math"
	"os"
	"os/exec"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/longshore-csi/longshore/csikittest/needs"
)

// TestKernelCrashInFormat kills mkfs at many of its system calls. What it
// leaves is neither taken for a file system nor for something foreign.
func TestKernelCrashInFormat(t *testing.T) {
	needs.Time(t)
	r := kernelRig(t)
	eachType(t, r, func(t *testing.T, fsType string) {
		all := killAtCall(t, r, fsType, math.MaxInt)
		for _, n := range crashPoints(all) {
			killAtCall(t, r, fsType, n)
		}
	})
}

// crashPoints are some calls all over the run, and every one of its end.
func crashPoints(all int) []int {
	const spread, end = 12, 12
	var points []int
	for i := 1; i <= spread; i++ {
		points = append(points, (all-end)*i/spread)
	}
	for n := all - end + 1; n <= all; n++ {
		points = append(points, n)
	}
	return points
}

// killAtCall kills mkfs after n stops, before and after system calls, mounts
// what it has left, and returns how many stops there were.
func killAtCall(t *testing.T, r rig, fsType string, n int) int {
	t.Helper()
	_, device := newDevice(t, r, MinSize(fsType))
	stops := traceUntil(t, n, exec.Command("mkfs."+fsType, "-q", device))
	target := newTarget(t, r)
	if err := r.Mount(withTestDeadline(t), device, target, Options{Type: fsType}); err != nil {
		t.Fatalf("killed at stop %d: %v", n, err)
	}
	writeFile(t, target, "kept")
	unmount(t, r, target)
	mountAt(t, r, device, target, Options{Type: fsType})
	wantFile(t, target, "kept")
	unmount(t, r, target)
	return stops
}

// traceUntil runs a program until it ends or has stopped n times.
func traceUntil(t *testing.T, n int, cmd *exec.Cmd) (stops int) {
	t.Helper()
	runtime.LockOSThread() // which is the tracer
	defer runtime.UnlockOSThread()
	cmd.SysProcAttr = &unix.SysProcAttr{Ptrace: true}
	if err := cmd.Start(); err != nil {
		if errors.Is(err, unix.EPERM) {
			t.Skipf("this machine allows no tracing: %v", err)
		}
		t.Fatal(err)
	}
	defer cmd.Process.Release()
	var status unix.WaitStatus
	for ; ; stops++ {
		if _, err := unix.Wait4(cmd.Process.Pid, &status, 0, nil); err != nil {
			t.Fatal(err)
		}
		if status.Exited() || status.Signaled() {
			return stops
		}
		err := unix.PtraceSyscall(cmd.Process.Pid, 0)
		if stops >= n {
			err = unix.Kill(cmd.Process.Pid, unix.SIGKILL)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

// TestKernelHalfMade: what an interrupted mkfs.xfs has left stays as it is when
// it is to be read, and is wiped as a whole.
func TestKernelHalfMade(t *testing.T) {
	needs.Time(t)
	r := kernelRig(t)
	needType(t, r, "xfs")
	device, d := halfMade(t, r)
	before := start(t, device)
	refused(t, r, device, newTarget(t, r), Options{Type: "xfs", ReadOnly: true})
	if err := refused(t, r, device, newTarget(t, r), Options{Type: "ext4"}); !errors.Is(err, ErrForeign) {
		t.Errorf("%v, want ErrForeign", err)
	}
	if start(t, device) != before {
		t.Error("the device was written to")
	}
	held, err := os.OpenFile(device, os.O_RDONLY|unix.O_EXCL, 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := d.wipe(); !errors.Is(err, unix.EBUSY) {
		t.Errorf("wipe what somebody has: %v, want EBUSY", err)
	}
	held.Close()
	if err := d.wipe(); err != nil {
		t.Fatal(err)
	}
	d, err = look(newPrograms(withTestDeadline(t)), device)
	if err != nil || d.found != "" || !allZero(d.head) {
		t.Errorf("wiped, it is %+v, %v", d, err)
	}
}

// halfMade kills mkfs.xfs shortly before it is done.
func halfMade(t *testing.T, r rig) (string, *disk) {
	t.Helper()
	image, device := newDevice(t, r, MinSize("xfs"))
	for n := traceUntil(t, math.MaxInt, exec.Command("mkfs.xfs", "-q", device)); n > 0; n -= 4 {
		if err := errors.Join(os.Truncate(image, 0), os.Truncate(image, MinSize("xfs"))); err != nil {
			t.Fatal(err)
		}
		traceUntil(t, n, exec.Command("mkfs.xfs", "-q", "-f", device))
		d, err := look(newPrograms(withTestDeadline(t)), device)
		if err != nil {
			t.Fatal(err)
		}
		if d.halfMade() {
			return device, d
		}
	}
	t.Fatal("mkfs.xfs is never half done")
	return "", nil
}
