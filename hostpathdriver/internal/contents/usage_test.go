package contents

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// TestUsageOf compares with what the kernel says of each file.
func TestUsageOf(t *testing.T) {
	root := t.TempDir()
	write := func(name string, size int) {
		if err := os.WriteFile(filepath.Join(root, name), make([]byte, size), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	var want Usage
	for i := range 3 {
		if err := os.MkdirAll(filepath.Join(root, fmt.Sprint("d", i), "e"), 0o700); err != nil {
			t.Fatal(err)
		}
		for j := range 2000 { // more than are read at a time
			write(fmt.Sprintf("d%d/e/a-name-that-is-not-short-%d", i, j), j%3*5000)
		}
		write(fmt.Sprintf("d%d/after", i), 1<<20)
	}
	for i := range 7 { // names in several directories
		if err := os.Link(filepath.Join(root, "d0/after"), filepath.Join(root, fmt.Sprintf("d%d/e/link-%d", i%3, i))); err != nil {
			t.Fatal(err)
		}
	}
	outside := t.TempDir()
	if err := os.WriteFile(filepath.Join(outside, "large"), make([]byte, 1<<22), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(outside, filepath.Join(root, "link")); err != nil {
		t.Fatal(err)
	}
	seen := map[uint64]bool{}
	err := filepath.Walk(root, func(path string, _ os.FileInfo, err error) error {
		var stat unix.Stat_t
		if err := errors.Join(err, unix.Lstat(path, &stat)); err != nil {
			return err
		}
		if !seen[stat.Ino] {
			want.Bytes, want.Inodes = want.Bytes+stat.Blocks*512, want.Inodes+1
		}
		seen[stat.Ino] = true
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	got, err := UsageOf(t.Context(), root)
	if err != nil || got != want {
		t.Errorf("%+v, %v, want %+v", got, err, want)
	}
	if got, err := UsageOf(t.Context(), filepath.Join(root, "d0/after")); err != nil || got.Inodes != 0 || got.Bytes == 0 { // an eighth of a file
		t.Errorf("a file: %+v, %v", got, err)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := UsageOf(ended, root); !errors.Is(err, context.Canceled) {
		t.Errorf("with a context that has ended: %v", err)
	}
	if _, err := UsageOf(t.Context(), filepath.Join(root, "link")); err == nil {
		t.Error("a link was followed")
	}
}

// TestUsageOfDeepTree measures a tree that is deeper than a path can say, with few descriptors.
func TestUsageOfDeepTree(t *testing.T) {
	root := t.TempDir()
	const levels = 3000
	deep(t, root, levels)
	got, err := UsageOf(t.Context(), root)
	if err != nil || got.Inodes != 2*levels+1 {
		t.Errorf("%+v, %v, want %d inodes", got, err, 2*levels+1)
	}
	if err := removeTree(t.Context(), root); err != nil {
		t.Error(err)
	}
}

// TestUsageOfMovedDirectory has a directory moved while the walk is below it: it is an error, and nothing outside is measured.
func TestUsageOfMovedDirectory(t *testing.T) {
	root, outside := t.TempDir(), t.TempDir()
	if err := os.MkdirAll(filepath.Join(root, "a/b"), 0o700); err != nil {
		t.Fatal(err)
	}
	w, err := newWalk(root)
	if err != nil {
		t.Fatal(err)
	}
	defer w.close()
	var total totals
	for len(w.above) < 2 {
		if _, err := total.step(w); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Rename(filepath.Join(root, "a/b"), filepath.Join(outside, "b")); err != nil {
		t.Fatal(err)
	}
	for err == nil {
		_, err = total.step(w)
	}
	if !errors.Is(err, errMoved) {
		t.Errorf("error %v, want %v", err, errMoved)
	}
}
