package copier

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/longshore-csi/longshore/driverkit/mount"
)

// small are limits with which a few hundred KiB take several chunks.
func small() limits {
	return limits{chunk: 64 << 10, names: 3, open: 2}
}

// must ends a test at the first error.
func must(t testing.TB, errs ...error) {
	t.Helper()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
}

// needRoot skips a test that makes mounts, devices or files of others.
func needRoot(t testing.TB) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
}

// noise is data without zeros.
func noise(seed uint64, size int) []byte {
	data := make([]byte, size)
	r := rand.New(rand.NewPCG(seed, 0))
	for i := range data {
		data[i] = byte(1 + r.IntN(255))
	}
	return data
}

// block is some data in a sparse file.
type block struct{ at, size int64 }

// writeSparse makes a file of a size with data in some places.
func writeSparse(t testing.TB, path string, size int64, blocks ...block) {
	t.Helper()
	file, err := os.Create(path)
	must(t, err)
	defer file.Close()
	must(t, file.Truncate(size))
	for i, b := range blocks {
		_, err := file.WriteAt(noise(uint64(i), int(b.size)), b.at)
		must(t, err)
	}
	must(t, file.Sync())
}

// dataIn counts the bytes of blocks.
func dataIn(blocks ...block) (sum int64) {
	for _, b := range blocks {
		sum += b.size
	}
	return sum
}

// extents lists where a file has data.
func extents(t testing.TB, path string) string {
	t.Helper()
	file := openQuietly(t, path)
	defer file.Close()
	must(t, file.Sync())
	var s []string
	for at := int64(0); ; {
		start, err := unix.Seek(int(file.Fd()), at, unix.SEEK_DATA)
		if errors.Is(err, unix.ENXIO) {
			return strings.Join(s, " ")
		}
		must(t, err)
		at, err = unix.Seek(int(file.Fd()), start, unix.SEEK_HOLE)
		must(t, err)
		s = append(s, fmt.Sprintf("%d-%d", start, at))
	}
}

// allocated is what a file takes on disk.
func allocated(t testing.TB, path string) int64 {
	t.Helper()
	var st unix.Stat_t
	must(t, unix.Lstat(path, &st))
	return st.Blocks * 512
}

// wantSame compares contents, size and holes of two files.
func wantSame(t testing.TB, from, to string) {
	t.Helper()
	want, err := os.ReadFile(from)
	must(t, err)
	got, err := os.ReadFile(to)
	must(t, err)
	if !bytes.Equal(want, got) {
		t.Errorf("contents of %s: %d bytes, differ from the %d bytes of the source", to, len(got), len(want))
	}
	if diff := cmp.Diff(extents(t, from), extents(t, to)); diff != "" {
		t.Errorf("data in %s (-want +got):\n%s", to, diff)
	}
	const metadata = 64 << 10 // of a file in many pieces
	if want, got := allocated(t, from), allocated(t, to); got > want+metadata {
		t.Errorf("%s takes %d bytes on disk, the source %d", to, got, want)
	}
}

// cancelAt cancels a call before its step of that number.
func cancelAt(t testing.TB, number int, call func(ctx context.Context, step func(string))) (step string) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	call(ctx, func(name string) {
		if number--; number == 0 {
			step = name
			cancel()
		}
	})
	return step
}

// descriptors counts the open files of the process. A first pipe makes the runtime open those that it keeps.
func descriptors(t testing.TB) int {
	t.Helper()
	in, out, err := os.Pipe()
	must(t, err, in.Close(), out.Close())
	entries, err := os.ReadDir("/proc/self/fd")
	must(t, err)
	return len(entries)
}

// wantClosed fails if more files are open than before.
func wantClosed(t testing.TB, before int) {
	t.Helper()
	if now := descriptors(t); now > before {
		t.Errorf("%d descriptors are open, %d were before", now, before)
	}
}

// acl is an access control list as the kernel keeps it: the owner, a user, the
// group, the mask and others.
func acl(uid uint32) []byte {
	const none = ^uint32(0)
	data := binary.LittleEndian.AppendUint32(nil, 2)
	for _, e := range []struct {
		tag, perm uint16
		id        uint32
	}{{0x01, 7, none}, {0x02, 5, uid}, {0x04, 5, none}, {0x10, 5, none}, {0x20, 0, none}} {
		data = binary.LittleEndian.AppendUint16(data, e.tag)
		data = binary.LittleEndian.AppendUint16(data, e.perm)
		data = binary.LittleEndian.AppendUint32(data, e.id)
	}
	return data
}

// capability is that of ping: CAP_NET_RAW, effective.
func capability() []byte {
	data := binary.LittleEndian.AppendUint32(nil, 0x02000001)
	data = binary.LittleEndian.AppendUint32(data, 1<<13)
	return append(data, make([]byte, 12)...)
}

// dirs makes directories and returns their paths.
func dirs(t testing.TB, names ...string) []string {
	t.Helper()
	top := t.TempDir()
	paths := make([]string, 0, len(names))
	for _, name := range names {
		path := filepath.Join(top, name)
		must(t, os.Mkdir(path, 0o755))
		paths = append(paths, path)
	}
	return paths
}

// mountFor mounts something for one test.
func mountFor(t testing.TB, source, target, kind string, flags uintptr, data string) {
	t.Helper()
	must(t, unix.Mount(source, target, kind, flags, data))
	t.Cleanup(func() {
		if err := (mount.Kernel{}).Unmount(context.Background(), target); err != nil {
			t.Errorf("unmount %s: %v", target, err)
		}
	})
}
