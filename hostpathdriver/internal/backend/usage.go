package backend

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"github.com/longshore-csi/longshore/hostpathdriver/internal/volume"
)

// usageRest is how many times longer than its measurement a result is good
// for: at most one part in this many of the time goes into walking.
const usageRest = 20

// meter measures how much a directory holds. statfs(2) would answer for the
// whole disk, which all volumes share, so it walks the directory. A large
// one is walked rarely: a walk that took a second is not repeated for twenty.
type meter struct {
	mu      sync.Mutex
	results map[volume.ID]measurement
}

type measurement struct {
	bytes  int64
	inodes int64
	until  time.Time
}

func (m *meter) measure(ctx context.Context, id volume.ID, root string) (measurement, error) {
	start := time.Now()
	m.mu.Lock()
	known, found := m.results[id]
	m.mu.Unlock()
	if found && start.Before(known.until) {
		return known, nil
	}
	result, err := walk(ctx, root)
	if err != nil {
		return measurement{}, fmt.Errorf("measure volume %q: %w", id, err)
	}
	end := time.Now()
	result.until = end.Add(usageRest * end.Sub(start))
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.results == nil {
		m.results = map[volume.ID]measurement{}
	}
	m.results[id] = result
	return result, nil
}

func (m *meter) forget(id volume.ID) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.results, id)
}

// walk adds up the blocks of every file once, however many links it has.
// Files that vanish meanwhile do not count.
func walk(ctx context.Context, root string) (measurement, error) {
	type inode struct{ device, number uint64 }
	seen := map[inode]bool{}
	var total measurement
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if ctxErr := ctx.Err(); ctxErr != nil {
			return ctxErr
		}
		var info fs.FileInfo
		if err == nil {
			info, err = entry.Info()
		}
		if errors.Is(err, fs.ErrNotExist) && path != root {
			return nil
		}
		if err != nil {
			return err
		}
		stat, ok := info.Sys().(*syscall.Stat_t)
		if !ok {
			return fmt.Errorf("%s: no inode information", path)
		}
		if !entry.IsDir() && stat.Nlink > 1 {
			key := inode{device: stat.Dev, number: stat.Ino}
			if seen[key] {
				return nil
			}
			seen[key] = true
		}
		total.inodes++
		total.bytes += stat.Blocks * 512
		return nil
	})
	return total, err
}
