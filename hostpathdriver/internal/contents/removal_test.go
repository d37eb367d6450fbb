package contents

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"golang.org/x/sys/unix"
)

// deep makes a directory in a directory, and so on, with a file in each.
func deep(t *testing.T, root string, levels int) {
	t.Helper()
	dir, err := unix.Open(root, unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	for level := 0; err == nil && level < levels; level++ {
		name := strconv.Itoa(level % 3)
		var file, below int
		if file, err = unix.Openat(dir, "file", unix.O_CREAT|unix.O_CLOEXEC, 0o600); err == nil {
			err = errors.Join(unix.Close(file), unix.Mkdirat(dir, name, 0o700))
		}
		if err == nil {
			below, err = unix.Openat(dir, name, unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
			err = errors.Join(err, unix.Close(dir))
			dir = below
		}
	}
	if err := errors.Join(err, unix.Close(dir)); err != nil {
		t.Fatal(err)
	}
}

// TestRemoveTree removes trees that a tenant has made to keep the driver from removing them: with a hundred descriptors and little memory.
func TestRemoveTree(t *testing.T) {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	few := limit
	few.Cur = 100
	cases := map[string]struct {
		reason string
		make   func(t *testing.T, root string)
	}{
		"Absent": {reason: "There is nothing to remove.", make: func(t *testing.T, root string) {
			t.Helper()
			if err := os.Remove(root); err != nil {
				t.Fatal(err)
			}
		}},
		"Deep": {reason: "Each level would cost a descriptor, or a path that grows.", make: func(t *testing.T, root string) { t.Helper(); deep(t, root, 20_000) }},
		"Nested": {reason: "Names are listed again after each directory that is not empty.", make: func(t *testing.T, root string) {
			t.Helper()
			for n := range 2000 {
				if err := os.MkdirAll(filepath.Join(root, fmt.Sprint(n%7), fmt.Sprint("a-name-that-is-not-short-", n), "full"), 0o700); err != nil {
					t.Fatal(err)
				}
			}
		}},
		"Wide": {reason: "A directory has more names than are read at a time.", make: func(t *testing.T, root string) {
			t.Helper()
			for n := range 3*entriesSize/24 + 1 {
				if err := os.Mkdir(filepath.Join(root, fmt.Sprint(n)), 0o700); err != nil {
					t.Fatal(err)
				}
			}
		}},
		"Links": {reason: "A link is removed, and what it names stays.", make: func(t *testing.T, root string) {
			t.Helper()
			if err := os.Symlink("..", filepath.Join(root, "link")); err != nil {
				t.Fatal(err)
			}
		}},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			outside := filepath.Join(t.TempDir(), "precious")
			root := filepath.Join(filepath.Dir(outside), "root")
			if err := errors.Join(os.WriteFile(outside, nil, 0o600), os.Mkdir(root, 0o700)); err != nil {
				t.Fatal(err)
			}
			tc.make(t, root)
			if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &few); err != nil {
				t.Fatal(err)
			}
			err := removeTree(t.Context(), root)
			if err := errors.Join(err, unix.Setrlimit(unix.RLIMIT_NOFILE, &limit)); err != nil {
				t.Fatalf("%s\n%v", tc.reason, err)
			}
			if _, err := os.Lstat(root); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("%s\nthe tree is still there: %v", tc.reason, err)
			}
			if _, err := os.Lstat(outside); err != nil {
				t.Errorf("%s\na file beside the tree: %v", tc.reason, err)
			}
		})
	}
}
