package backend

import (
	"fmt"
	"maps"
	"slices"
	"sync"

	"github.com/longshore-csi/longshore/hostpathdriver/internal/volume"
)

// unfilled are the volumes and snapshots whose contents are not complete, with
// their sources. There are never many.
type unfilled struct {
	mu      sync.Mutex
	sources map[volume.ID]volume.Source
}

// note makes the memory say whether contents are complete.
func (u *unfilled) note(id volume.ID, source *volume.Source, filling bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if !filling || source == nil {
		delete(u.sources, id)
		return
	}
	if u.sources == nil {
		u.sources = map[volume.ID]volume.Source{}
	}
	u.sources[id] = *source
}

// replace makes the memory what was read from disk.
func (u *unfilled) replace(volumes map[volume.ID]*volume.Volume, snapshots map[volume.ID]*volume.Snapshot) {
	u.mu.Lock()
	u.sources = nil
	u.mu.Unlock()
	for id, v := range volumes {
		u.note(id, v.Source, v.Filling)
	}
	for id, s := range snapshots {
		u.note(id, &volume.Source{Volume: s.Source}, s.Filling)
	}
}

func (u *unfilled) ids() []volume.ID {
	u.mu.Lock()
	defer u.mu.Unlock()
	return slices.Sorted(maps.Keys(u.sources))
}

// checkSource reports whether nothing is being made of an origin. If not, the
// error is an ErrInUse.
func (u *unfilled) checkSource(o volume.Origin) error {
	u.mu.Lock()
	defer u.mu.Unlock()
	for _, id := range slices.Sorted(maps.Keys(u.sources)) {
		if u.sources[id] == o.Source {
			return fmt.Errorf("%v: its contents are being copied to %q: %w", o.Source, id, volume.ErrInUse)
		}
	}
	return nil
}
