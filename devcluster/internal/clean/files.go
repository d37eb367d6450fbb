package clean

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/longshore-csi/longshore/devcluster/internal/layout"
)

// ErrForeign is the error for a directory that has files and no mark of a cluster.
var ErrForeign = errors.New("not empty, and not the directory of a development cluster; choose another one")

const markText = "A development cluster lives here. `devcluster down` removes this directory.\n"

// Mark creates dir and marks it as a cluster's. It refuses a directory that holds other files.
func Mark(dir string) error {
	if err := Owned(dir); err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("make the directory of the cluster: %w", err)
	}
	if err := os.WriteFile(layout.Dir(dir).Mark(), []byte(markText), 0o644); err != nil {
		return fmt.Errorf("mark the directory of the cluster: %w", err)
	}
	return nil
}

// Owned is nil when dir may be removed with everything in it: it is marked, empty or absent. Otherwise it is an ErrForeign, or
// says why the directory cannot be read.
func Owned(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("look into the directory of the cluster: %w", err)
	}
	mark := filepath.Base(layout.Dir(dir).Mark())
	if len(entries) == 0 || slices.ContainsFunc(entries, func(e os.DirEntry) bool { return e.Name() == mark }) {
		return nil
	}
	return fmt.Errorf("directory %q: %w", dir, ErrForeign)
}

// Files removes dir, or everything in it but the entries to keep, unless something is still mounted below it. The mark goes
// last, so that a removal that was cut off can be repeated. A dir that is itself a mount point is emptied and stays.
func Files(dir string, keep ...string) error {
	mounts, err := FindMounts(dir)
	if err != nil {
		return err
	}
	if len(mounts) > 0 {
		return fmt.Errorf("remove %q: still mounted: %q", dir, mounts)
	}
	if err := removeFiles(dir, keep); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("remove the directory of the cluster: %w", err)
	}
	return nil
}

func removeFiles(dir string, keep []string) error {
	kept := map[string]bool{filepath.Base(layout.Dir(dir).Mark()): true}
	for _, path := range keep {
		kept[filepath.Base(path)] = true
	}
	if err := removeIn(dir, kept); err != nil || len(keep) > 0 {
		return err
	}
	if err := removeIn(dir, nil); err != nil {
		return err
	}
	if err := os.Remove(dir); !errors.Is(err, unix.EBUSY) {
		return err
	}
	return nil
}
