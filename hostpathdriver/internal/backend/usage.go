package backend

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/longshore-csi/longshore/driverkit"
	"github.com/longshore-csi/longshore/driverkit/filesystem"
	"github.com/longshore-csi/longshore/hostpathdriver/internal/contents"
)

// Usage measures a volume. The files of a directory and the written blocks of a device are added up; the space available is the lesser of what
// is left of the size, and the free space of the disk that all volumes share. An image has a file system of its own, which driverkit asks.
func (n *Node) Usage(ctx context.Context, req *driverkit.UsageRequest) (*filesystem.Usage, error) {
	u := n.get(req.ID)
	if u == nil {
		return nil, fmt.Errorf("volume %q: is not staged on node %q: %w", req.ID, n.cfg.NodeID, driverkit.ErrNotFound)
	}
	if u.Form.FSType != "" {
		return nil, nil //nolint:nilnil // driverkit asks the file system.
	}
	size, err := n.size(u)
	if err != nil {
		return nil, err
	}
	place := n.contents(u).Place(u.ID, u.Form)
	used, err := n.meter.measure(ctx, u.ID, place)
	if err != nil {
		return nil, err
	}
	free, err := freeOf(place)
	if err != nil {
		return nil, err
	}
	answer := &filesystem.Usage{Bytes: filesystem.Space{Total: size, Used: used.Bytes, Available: max(0, min(size-used.Bytes, free.bytes))}}
	if !u.Form.Disk {
		answer.Inodes = filesystem.Space{Total: used.Inodes + free.inodes, Used: used.Inodes, Available: free.inodes}
	}
	return answer, nil
}

// usageRest is how many times longer than its measurement a result is good
// for: at most one part in this many of the time goes into walking.
const usageRest = 20

// meter measures how much a directory holds. statfs(2) would answer for the
// whole disk, which all volumes share, so it walks the directory. A large
// one is walked rarely: a walk that took a second is not repeated for twenty.
type meter struct {
	mu      sync.Mutex
	results map[string]measurement
}

type measurement struct {
	contents.Usage
	until time.Time
}

func (m *meter) measure(ctx context.Context, id string, root string) (measurement, error) {
	start := time.Now()
	m.mu.Lock()
	known, found := m.results[id]
	m.mu.Unlock()
	if found && start.Before(known.until) {
		return known, nil
	}
	usage, err := contents.UsageOf(ctx, root)
	if err != nil {
		return measurement{}, fmt.Errorf("measure volume %q: %w", id, err)
	}
	end := time.Now()
	result := measurement{usage, end.Add(usageRest * end.Sub(start))}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.results == nil {
		m.results = map[string]measurement{}
	}
	m.results[id] = result
	return result, nil
}

func (m *meter) forget(id string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.results, id)
}
