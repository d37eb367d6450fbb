package quota

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

// TestNoQuotas is what a machine without project quotas sees.
func TestNoQuotas(t *testing.T) {
	t.Run("Disk", func(t *testing.T) { testNoQuotas(t, t.TempDir()) })
	t.Run("Memory", func(t *testing.T) { testNoQuotas(t, "/dev/shm") })
	t.Run("Container", func(t *testing.T) {
		dir, err := os.MkdirTemp("/dev/shm", "quota-") // the usual place may be an overlay itself
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { os.RemoveAll(dir) })
		testNoQuotas(t, overlay(t, dir))
	})
}

// overlay mounts a directory as the root of a container is, until the end of
// the test.
func overlay(t *testing.T, dir string) string {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("mounts need root")
	}
	for _, name := range []string{"lower", "upper", "work", "merged"} {
		if err := os.Mkdir(filepath.Join(dir, name), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	merged := filepath.Join(dir, "merged")
	err := unix.Mount("overlay", merged, "overlay", 0, fmt.Sprintf("lowerdir=%s/lower,upperdir=%[1]s/upper,workdir=%[1]s/work", dir))
	if errors.Is(err, unix.EPERM) {
		t.Skip("mounts need CAP_SYS_ADMIN")
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(merged, 0); err != nil {
			t.Error(err)
		}
	})
	return merged
}

func testNoQuotas(t *testing.T, root string) {
	k := New()
	dir, err := os.MkdirTemp(root, "quota-")
	if err != nil {
		t.Fatal(err)
	}
	defer os.Remove(dir)
	if enforced, err := k.Enforced(root); err != nil || enforced {
		t.Errorf("enforced at %s: %t, %v", root, enforced, err)
	}
	if err := k.Limit(dir, mib); !errors.Is(err, ErrUnavailable) {
		t.Errorf("got %v, want %v", err, ErrUnavailable)
	}
	mustHaveNone(t, k, dir)
	if err := k.Release(dir); err != nil {
		t.Error(err)
	}
}

// TestKernelRefuses needs no quotas.
func TestKernelRefuses(t *testing.T) {
	contractMissing(t, New(), t.TempDir())
	contractNoDirectory(t, New(), t.TempDir())
	contractBadSizes(t, New(), t.TempDir())
	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(t.TempDir(), link); err != nil {
		t.Fatal(err)
	}
	refuses(t, New(), link)
}

func TestUnavailable(t *testing.T) {
	for err, want := range map[error]bool{
		unix.ENOSYS: true, unix.EPERM: true, unix.ESRCH: true, unix.ENOTTY: true,
		unix.EIO: false, unix.ENOENT: false, unix.EROFS: false, nil: false,
	} {
		if unavailable(err) != want {
			t.Errorf("%v: want %t", err, want)
		}
	}
}

func TestRoundUp(t *testing.T) {
	for range 1000 {
		bytes, block := 1+rand.Int64N(1<<62), uint64(512)<<rand.IntN(8)
		if got := roundUp(bytes, block); got < uint64(bytes) || got-uint64(bytes) >= block || got%block != 0 {
			t.Errorf("%d in blocks of %d: %d", bytes, block, got)
		}
	}
	for _, bytes := range []int64{1<<63 - 1, 1<<63 - 4096} {
		if got := roundUp(bytes, 4096); got != 1<<63-4096 {
			t.Errorf("%d: %d", bytes, got)
		}
	}
}

// TestLayout compares with the sizes that the kernel's C compiler gives the
// structures, of which it reads and writes all bytes.
func TestLayout(t *testing.T) {
	for what, got := range map[string][2]uintptr{
		"struct fsxattr":        {unsafe.Sizeof(attributes{}), 28},
		"struct fs_disk_quota":  {unsafe.Sizeof(diskQuota{}), 112},
		"struct fs_quota_statv": {unsafe.Sizeof(quotaState{}), 160},
	} {
		if got[0] != got[1] {
			t.Errorf("%s has %d bytes, want %d", what, got[0], got[1])
		}
	}
}
