package backend

import (
	"cmp"
	"crypto/rand"
	"encoding/base64"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/longshore-csi/longshore/hostpathdriver/internal/volume"
)

// catalog is the index in memory over the volume records. All operations but
// page take constant time, page takes as long as its answer. Volumes in it
// are never changed, only replaced.
type catalog struct {
	// instance marks the paging tokens of this process.
	instance string

	mu    sync.RWMutex
	byID  map[volume.ID]*entry
	names map[string]*entry
	// order has the entries by sequence number; deleted ones stay until they
	// are the majority.
	order   []*entry
	deleted int
	next    uint64
	slots   map[string]int
}

type entry struct {
	volume  *volume.Volume
	seq     uint64
	deleted bool
}

func newCatalog() *catalog {
	return &catalog{
		instance: rand.Text(),
		byID:     map[volume.ID]*entry{},
		names:    map[string]*entry{},
		slots:    map[string]int{},
	}
}

func (c *catalog) get(id volume.ID) (*volume.Volume, error) {
	c.mu.RLock()
	defer c.mu.RUnlock()
	if e := c.byID[id]; e != nil {
		return e.volume.Clone(), nil
	}
	return nil, fmt.Errorf("volume %q: %w", id, volume.ErrNotFound)
}

func (c *catalog) find(name string) (*volume.Volume, error) {
	c.mu.RLock()
	defer c.mu.RUnlock()
	if e := c.names[name]; e != nil {
		return e.volume.Clone(), nil
	}
	return nil, fmt.Errorf("volume named %q: %w", name, volume.ErrNotFound)
}

// put adds a volume, or replaces the one with the same id.
func (c *catalog) put(v *volume.Volume) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if e := c.byID[v.ID]; e != nil {
		e.volume = v
		return
	}
	c.next++
	e := &entry{volume: v, seq: c.next}
	c.byID[v.ID], c.names[v.Name] = e, e
	c.order = append(c.order, e)
}

// remove takes a volume out, and with it the slots of its attachments.
func (c *catalog) remove(v *volume.Volume) {
	c.mu.Lock()
	defer c.mu.Unlock()
	e := c.byID[v.ID]
	if e == nil {
		return
	}
	delete(c.byID, v.ID)
	delete(c.names, v.Name)
	for _, node := range e.volume.PublishedNodes() {
		c.freeSlot(node)
	}
	e.deleted = true
	c.deleted++
	if c.deleted > len(c.order)/2 {
		c.order = slices.DeleteFunc(c.order, func(e *entry) bool { return e.deleted })
		c.deleted = 0
	}
}

// replace makes the catalog say what was read from disk. Volumes that stay
// keep their place in the order, so that paging goes on.
func (c *catalog) replace(found map[volume.ID]*volume.Volume) {
	for _, v := range c.all() {
		if found[v.ID] == nil {
			c.remove(v)
		}
	}
	slots := map[string]int{}
	for _, id := range slices.Sorted(maps.Keys(found)) {
		c.put(found[id])
		for _, node := range found[id].PublishedNodes() {
			slots[node]++
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.slots = slots
}

// all returns the volumes themselves, oldest first.
func (c *catalog) all() []*volume.Volume {
	c.mu.RLock()
	defer c.mu.RUnlock()
	volumes := make([]*volume.Volume, 0, len(c.byID))
	for _, e := range c.order {
		if !e.deleted {
			volumes = append(volumes, e.volume)
		}
	}
	return volumes
}

// takeSlot counts one more attachment of a node, up to a limit; zero is no
// limit.
func (c *catalog) takeSlot(node string, limit int) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if limit > 0 && c.slots[node] >= limit {
		return false
	}
	c.slots[node]++
	return true
}

func (c *catalog) giveSlot(node string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.freeSlot(node)
}

// freeSlot needs the mutex.
func (c *catalog) freeSlot(node string) {
	c.slots[node]--
	if c.slots[node] <= 0 {
		delete(c.slots, node)
	}
}

// page returns the volumes that existed when the first page was asked for and
// still exist: sequence numbers only grow, and the token carries the bound.
func (c *catalog) page(req volume.ListRequest) (*volume.Page, error) {
	at, err := c.start(req.Token)
	if err != nil {
		return nil, err
	}
	most := 0
	if req.Max > 0 {
		most = req.Max + 1 // one more tells whether there is another page
	}
	list := c.after(at, most)
	page := &volume.Page{Volumes: []*volume.Volume{}}
	if req.Max > 0 && len(list) > req.Max {
		list = list[:req.Max]
		at.after = list[len(list)-1].seq
		page.Next = c.encode(at)
	}
	for _, one := range list {
		page.Volumes = append(page.Volumes, one.volume.Clone())
	}
	return page, nil
}

// start is where a token points to, the beginning without one.
func (c *catalog) start(token string) (position, error) {
	c.mu.RLock()
	defer c.mu.RUnlock()
	if token == "" {
		return position{bound: c.next}, nil
	}
	return c.decode(token)
}

// listed is a volume at its place in the list.
type listed struct {
	volume *volume.Volume
	seq    uint64
}

// after returns the volumes that follow a position, at most so many; zero is no
// limit.
func (c *catalog) after(at position, most int) []listed {
	c.mu.RLock()
	defer c.mu.RUnlock()
	start, _ := slices.BinarySearchFunc(c.order, at.after+1, func(e *entry, seq uint64) int { return cmp.Compare(e.seq, seq) })
	var list []listed
	for _, e := range c.order[start:] {
		if e.seq > at.bound || (most > 0 && len(list) == most) {
			break
		}
		if !e.deleted {
			list = append(list, listed{volume: e.volume, seq: e.seq})
		}
	}
	return list
}

// position is the content of a paging token.
type position struct {
	// bound is the last sequence number at the time of the first page.
	bound uint64
	// after is the last sequence number on the page before.
	after uint64
}

func (c *catalog) encode(p position) string {
	return base64.RawURLEncoding.EncodeToString(fmt.Appendf(nil, "%s %d %d", c.instance, p.bound, p.after))
}

func (c *catalog) decode(token string) (position, error) {
	invalid := fmt.Errorf("%w: %.64q was not issued by this process, start again without a token", volume.ErrBadToken, token)
	raw, err := base64.RawURLEncoding.DecodeString(token)
	if err != nil {
		return position{}, invalid
	}
	parts := strings.Split(string(raw), " ")
	if len(parts) != 3 || parts[0] != c.instance {
		return position{}, invalid
	}
	bound, boundErr := strconv.ParseUint(parts[1], 10, 64)
	after, afterErr := strconv.ParseUint(parts[2], 10, 64)
	if boundErr != nil || afterErr != nil || after > bound || bound > c.next {
		return position{}, invalid
	}
	return position{bound: bound, after: after}, nil
}
