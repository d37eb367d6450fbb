package copier

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

// describe says everything of a tree that a copy keeps, in words and by other
// means than the copy: paths, and no descriptors.
func describe(t testing.TB, root string) map[string]string {
	t.Helper()
	tree, first := map[string]string{}, map[uint64]string{}
	walk(t, root, ".", func(name, path string, st *unix.Stat_t) {
		text := fmt.Sprintf("mode %o, owner %d:%d, device %d, modified %d.%09d", st.Mode, st.Uid, st.Gid, st.Rdev, st.Mtim.Sec, st.Mtim.Nsec)
		if st.Mode&unix.S_IFMT != unix.S_IFLNK { // reading a link is an access that cannot be hidden
			text += fmt.Sprintf(", accessed %d.%09d", st.Atim.Sec, st.Atim.Nsec)
		}
		if st.Mode&unix.S_IFMT != unix.S_IFDIR {
			text += fmt.Sprintf(", size %d, %d names", st.Size, st.Nlink)
			if _, ok := first[st.Ino]; !ok {
				first[st.Ino] = name
			}
			text += ", first " + first[st.Ino]
		}
		tree[name] = text + describeContents(t, path, st) + describeAttributes(t, path)
	})
	return tree
}

// walk visits a tree and changes no time of an access.
func walk(t testing.TB, root, name string, visit func(name, path string, st *unix.Stat_t)) {
	t.Helper()
	path := filepath.Join(root, name)
	var st unix.Stat_t
	must(t, unix.Lstat(path, &st))
	visit(name, path, &st)
	if st.Mode&unix.S_IFMT != unix.S_IFDIR {
		return
	}
	dir := openQuietly(t, path)
	defer dir.Close()
	entries, err := dir.ReadDir(-1)
	must(t, err)
	slices.SortFunc(entries, func(a, b fs.DirEntry) int { return strings.Compare(a.Name(), b.Name()) })
	for _, entry := range entries {
		walk(t, root, filepath.Join(name, entry.Name()), visit)
	}
}

func openQuietly(t testing.TB, path string) *os.File {
	t.Helper()
	file, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOATIME, 0)
	must(t, err)
	return file
}

func describeContents(t testing.TB, path string, st *unix.Stat_t) string {
	t.Helper()
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFREG:
		file := openQuietly(t, path)
		defer file.Close()
		data, err := io.ReadAll(file)
		must(t, err)
		return fmt.Sprintf(", contents %x, data %s", sha256.Sum256(data), extents(t, path))
	case unix.S_IFLNK:
		target, err := os.Readlink(path)
		must(t, err)
		return ", to " + target
	}
	return ""
}

func describeAttributes(t testing.TB, path string) string {
	t.Helper()
	list, value := make([]byte, 4096), make([]byte, 4096)
	n, err := unix.Llistxattr(path, list)
	if errors.Is(err, unix.EOPNOTSUPP) || n == 0 {
		return ""
	}
	must(t, err)
	names := strings.Split(strings.TrimSuffix(string(list[:n]), "\x00"), "\x00")
	slices.Sort(names)
	var text strings.Builder
	for _, name := range names {
		n, err := unix.Lgetxattr(path, name, value)
		must(t, err)
		fmt.Fprintf(&text, ", %s=%x", name, value[:n])
	}
	return text.String()
}

// wantSameTree compares two trees.
func wantSameTree(t testing.TB, from, to string) {
	t.Helper()
	if diff := cmp.Diff(describe(t, from), describe(t, to)); diff != "" {
		t.Errorf("%s (-want +got):\n%s", to, diff)
	}
}

// grower makes trees of everything that a workload can leave in a volume.
type grower struct {
	testing.TB
	*rand.Rand
	root  string
	files []string // that may get more names
	dirs  []string
}

// grow makes a tree of about so many entries.
func grow(t testing.TB, seed uint64, root string, entries int) {
	t.Helper()
	g := &grower{TB: t, Rand: rand.New(rand.NewPCG(seed, 0)), root: root, dirs: []string{root}}
	for i := range entries {
		g.add(i)
	}
	for _, path := range slices.Backward(g.dirs) {
		g.attributes(path)
	}
}

func (g *grower) add(i int) {
	g.Helper()
	dir := g.dirs[g.IntN(len(g.dirs))]
	path := filepath.Join(dir, fmt.Sprintf("%s%d", []string{"a", "z", ".", "-", "ü ", "\xff\xfe", "\n", "A.", "a\x01"}[g.IntN(9)], i))
	switch g.IntN(10) {
	case 0, 1:
		must(g, os.Mkdir(path, 0o700))
		g.dirs = append(g.dirs, path)
		return // its attributes come last
	case 2:
		must(g, os.Symlink([]string{"a0", "/etc/passwd", "../../..", ".", "no such\xff"}[g.IntN(5)], path))
		g.files = append(g.files, path)
	case 3:
		must(g, unix.Mkfifo(path, 0o600))
	case 4:
		g.special(path)
	case 5:
		if len(g.files) > 0 {
			must(g, os.Link(g.files[g.IntN(len(g.files))], path))
			return
		}
		fallthrough
	default:
		g.file(path)
		g.files = append(g.files, path)
	}
	g.attributes(path)
}

func (g *grower) special(path string) {
	g.Helper()
	mode, device := uint32(unix.S_IFSOCK|0o600), 0
	if os.Geteuid() == 0 && g.IntN(2) == 0 {
		mode, device = unix.S_IFCHR|0o600, int(unix.Mkdev(1, uint32(3+g.IntN(5))))
	}
	must(g, unix.Mknod(path, mode, device))
}

func (g *grower) file(path string) {
	g.Helper()
	var blocks []block
	at := int64(0)
	for range g.IntN(4) {
		at += g.Int64N(3) * 4096
		b := block{at, 1 + g.Int64N(150_000)}
		blocks, at = append(blocks, b), b.at+b.size
	}
	writeSparse(g, path, at+g.Int64N(3)*5000, blocks...)
}

func (g *grower) attributes(path string) {
	g.Helper()
	info, err := os.Lstat(path)
	must(g, err)
	root, link := os.Geteuid() == 0, info.Mode()&fs.ModeSymlink != 0
	if root {
		must(g, os.Lchown(path, g.IntN(3)*1000, g.IntN(3)*1000))
	}
	if !link {
		must(g, unix.Chmod(path, uint32(g.IntN(0o10000))|0o700)) // so that it can be removed
	}
	if (info.Mode().IsRegular() || info.IsDir()) && g.IntN(3) == 0 {
		must(g, unix.Setxattr(path, "user.color", noise(g.Uint64(), g.IntN(100)), 0),
			unix.Setxattr(path, "system.posix_acl_access", acl(1000+g.Uint32N(5)), 0))
	}
	if root && g.IntN(4) == 0 {
		must(g, unix.Lsetxattr(path, "trusted.note", noise(g.Uint64(), g.IntN(100)), 0))
	}
	if root && info.Mode().IsRegular() && g.IntN(4) == 0 {
		must(g, unix.Setxattr(path, "security.capability", capability(), 0))
	}
	if info.IsDir() && g.IntN(4) == 0 {
		must(g, unix.Setxattr(path, "system.posix_acl_default", acl(1000), 0))
	}
	when := func() unix.Timespec { return unix.Timespec{Sec: g.Int64N(2e9), Nsec: g.Int64N(1e9)} }
	must(g, unix.UtimesNanoAt(unix.AT_FDCWD, path, []unix.Timespec{when(), when()}, unix.AT_SYMLINK_NOFOLLOW))
}
