package loop

import (
	"context"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// needLoop skips a test that makes real devices.
func needLoop(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("loop devices need root")
	}
	if _, err := os.Stat("/dev/loop-control"); err != nil {
		t.Skipf("this machine has no loop devices: %v", err)
	}
}

func kernelRig(t *testing.T) rig {
	t.Helper()
	needLoop(t)
	k := Kernel{}
	return rig{Devices: k, hold: holdNode, size: sizeOfNode, readAhead: readAheadOfNode, refuses: true, reboot: func(t *testing.T, file string) {
		t.Helper()
		clearBehindOurBack(t, k, file)
	}}
}

func TestKernelContract(t *testing.T) {
	testContract(t, kernelRig)
}

// holdNode opens a device until release, or the end of the test.
func holdNode(t *testing.T, device string) func() {
	t.Helper()
	node, err := os.Open(device)
	if err != nil {
		t.Fatal(err)
	}
	var once sync.Once
	release := func() {
		once.Do(func() {
			if err := node.Close(); err != nil {
				t.Error(err)
			}
		})
	}
	t.Cleanup(release)
	return release
}

func readAheadOfNode(t *testing.T, device string) int64 {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("/sys/block", filepath.Base(device), "queue/read_ahead_kb"))
	if err != nil {
		t.Fatal(err)
	}
	got, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return got << 10
}

func sizeOfNode(t *testing.T, device string) int64 {
	t.Helper()
	node, err := os.Open(device)
	if err != nil {
		t.Error(err)
		return 0
	}
	defer node.Close()
	size, err := node.Seek(0, io.SeekEnd)
	if err != nil {
		t.Error(err)
	}
	return size
}

// clearBehindOurBack does what losetup -d does.
func clearBehindOurBack(t *testing.T, k Kernel, file string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	found, err := k.lookUp(ctx, file)
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range found {
		node, err := os.Open(k.node(d.number))
		if err != nil {
			t.Fatal(err)
		}
		if err := unix.IoctlSetInt(int(node.Fd()), unix.LOOP_CLR_FD, 0); err != nil {
			t.Error(err)
		}
		node.Close()
	}
	err = until(ctx, func() (bool, error) {
		found, err := k.lookUp(ctx, file)
		return len(found) == 0, err
	})
	if err != nil {
		t.Fatal(err)
	}
}
