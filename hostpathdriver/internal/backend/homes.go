package backend

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"

	"k8s.io/klog/v2"

	"github.com/longshore-csi/longshore/csikit/logging"
	"github.com/longshore-csi/longshore/driverkit/mount"
	"github.com/longshore-csi/longshore/driverkit/state"
	"github.com/longshore-csi/longshore/hostpathdriver/internal/quota"
	"github.com/longshore-csi/longshore/hostpathdriver/internal/volume"
)

// home is the record of a directory of a pool. In there, contents have a
// directory of their own, so that several drivers can use the same disk.
type home struct {
	ID volume.ID `json:"id"`
	// Dir is the directory of the pool.
	Dir string `json:"dir"`
	// Made says that the home was made. If it is missing then, it is not made again:
	// the disk that is mounted there is missing.
	Made bool `json:"made,omitempty"`
}

// RecordID is the name of the record.
func (h home) RecordID() string { return string(h.ID) }

func (h home) path() string { return filepath.Join(h.Dir, string(h.ID)) }

// homes finds the directories that contents are kept in: of pools with a
// directory a home in there, and else the root.
type homes struct {
	root    string
	names   []string // of the directories with contents
	mounter mount.Mounter
	quotas  quota.Quotas
	pools   map[string]string
	step    Step
	records *state.Records[home]

	// free are the homes in which nothing limited volumes at the start.
	free map[string]bool

	mu    sync.Mutex
	known map[string]home // by directory of the pool
}

// openHomes prepares the root. A pool whose disk is missing stops nobody from
// starting.
func openHomes(ctx context.Context, h *homes) (*homes, error) {
	err := makeHome(h.root, h.names)
	if err == nil {
		h.records, err = state.Open[home](filepath.Join(h.root, homesDir), homeKind)
	}
	if err == nil {
		err = h.load(ctx)
	}
	if err != nil {
		return nil, err
	}
	for _, pool := range slices.Sorted(maps.Keys(h.pools)) {
		if _, err := h.of(ctx, pool); err != nil {
			klog.FromContext(ctx).Error(err, "A pool cannot be used", logging.KeyPath, h.pools[pool])
		}
	}
	h.tellQuotas(ctx)
	return h, nil
}

// tellQuotas reports whether sizes of directories mean something.
func (h *homes) tellQuotas(ctx context.Context) {
	h.free = map[string]bool{}
	for _, path := range h.all() {
		path = cmp.Or(path, h.root)
		logger := klog.FromContext(ctx).WithValues(logging.KeyPath, path)
		enforced, err := h.quotas.Enforced(filepath.Join(path, volumesDir)) // which may be a mount of its own
		switch {
		case err != nil:
			logger.Error(err, "Could not look for project quotas")
		case enforced:
			logger.Info("Volumes that are directories are kept to their size by project quotas")
		default:
			h.free[path] = true
			logger.Info("Volumes that are directories are not kept to their size: there are no project quotas")
		}
	}
}

func makeHome(path string, names []string) error {
	for _, name := range append([]string{trashDir}, names...) {
		if err := os.MkdirAll(filepath.Join(path, name), 0o700); err != nil {
			return fmt.Errorf("create directory for contents: %w", err)
		}
	}
	return nil
}

func (h *homes) load(ctx context.Context) error {
	loaded, damaged, err := h.records.Load()
	if err != nil {
		return err
	}
	for _, d := range damaged {
		klog.FromContext(ctx).Error(d.Err, "Moved the unreadable record of a home aside; what is in it stays there, what is new goes to another one", logging.KeyPath, d.Path)
	}
	h.known = map[string]home{}
	for _, found := range loaded {
		h.known[found.Dir] = found
	}
	return nil
}

// of returns the home of a pool, which is made where needed; empty for the
// root.
func (h *homes) of(ctx context.Context, pool string) (string, error) {
	dir := h.pools[pool]
	if dir == "" {
		return "", nil
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	found, err := h.settle(ctx, dir)
	if err != nil {
		return "", fmt.Errorf("directory of pool %q: %w", pool, err)
	}
	return found.path(), nil
}

// settle needs the mutex.
func (h *homes) settle(ctx context.Context, dir string) (home, error) {
	if !h.known[dir].Made { // by this process; maybe by another
		if err := h.load(ctx); err != nil {
			return home{}, err
		}
	}
	found := h.known[dir]
	if found.Made {
		return found, checkDir(found.path())
	}
	if err := checkDir(dir); err != nil {
		return home{}, err
	}
	if found.ID == "" {
		found = home{ID: newID(), Dir: dir}
		h.step.at("home:record")
		if err := h.records.Put(string(found.ID), found); err != nil {
			return home{}, err
		}
	}
	h.step.at("home:make")
	if err := errors.Join(makeHome(found.path(), h.names), state.SyncDir(found.path()), state.SyncDir(dir)); err != nil {
		return home{}, err
	}
	found.Made = true
	h.step.at("home:made")
	if err := h.records.Put(string(found.ID), found); err != nil {
		return home{}, err
	}
	h.known[dir] = found
	return found, nil
}

// checkDir reports whether a directory of a pool is there. If not, the error is
// an ErrPrecondition.
func checkDir(path string) error {
	info, err := os.Stat(path)
	if err == nil && !info.IsDir() {
		err = errors.New("is no directory")
	}
	if err != nil {
		return fmt.Errorf("%s is missing: is its disk mounted, and does the driver's container have it? %w: %w", path, err, volume.ErrPrecondition)
	}
	return nil
}

// all returns the root, as the empty home, and the homes of all pools that there
// are or were, if their disks are there.
func (h *homes) all() []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	list := []string{""}
	for _, dir := range slices.Sorted(maps.Keys(h.known)) {
		if found := h.known[dir]; checkDir(found.path()) == nil {
			list = append(list, found.path())
		}
	}
	return list
}

// contents are those of one kind in a home.
func (h *homes) contents(path, name string) *Contents {
	if path == "" {
		path = h.root
	}
	return contentsAt(path, name, h.mounter, h.quotas)
}

// everywhere are those of one kind in all homes.
func (h *homes) everywhere(name string) []*Contents {
	paths := h.all()
	list := make([]*Contents, 0, len(paths))
	for _, path := range paths {
		list = append(list, h.contents(path, name))
	}
	return list
}

// purge removes what is left of something that has no record any more.
func (h *homes) purge(ctx context.Context, name string, id volume.ID) error {
	for _, contents := range h.everywhere(name) {
		if err := contents.Purge(ctx, id); err != nil {
			return err
		}
	}
	return nil
}
