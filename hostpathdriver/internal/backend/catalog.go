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

// object is what a catalog has: a pointer to a record.
type object[T any] interface {
	// Key is what the object is found by.
	Key() (id volume.ID, name string)
	Clone() T
}

// catalog is the index in memory over the records of one kind. All operations
// but page take constant time, page takes as long as its answer. Objects in it
// are never changed, only replaced.
type catalog[T object[T]] struct {
	// kind is what the objects are, for errors.
	kind string
	// instance marks the paging tokens of this process.
	instance string

	mu    sync.RWMutex
	byID  map[volume.ID]*entry[T]
	names map[string]*entry[T]
	// order has the entries by sequence number; deleted ones stay until they
	// are the majority.
	order   []*entry[T]
	deleted int
	next    uint64
}

type entry[T any] struct {
	object  T
	seq     uint64
	deleted bool
}

func newCatalog[T object[T]](kind string) *catalog[T] {
	return &catalog[T]{
		kind:     kind,
		instance: rand.Text(),
		byID:     map[volume.ID]*entry[T]{},
		names:    map[string]*entry[T]{},
	}
}

func (c *catalog[T]) get(id volume.ID) (found T, err error) {
	c.mu.RLock()
	defer c.mu.RUnlock()
	if e := c.byID[id]; e != nil {
		return e.object.Clone(), nil
	}
	return found, fmt.Errorf("%s %q: %w", c.kind, id, volume.ErrNotFound)
}

func (c *catalog[T]) find(name string) (found T, err error) {
	c.mu.RLock()
	defer c.mu.RUnlock()
	if e := c.names[name]; e != nil {
		return e.object.Clone(), nil
	}
	return found, fmt.Errorf("%s named %q: %w", c.kind, name, volume.ErrNotFound)
}

// put adds an object, or replaces the one with the same id.
func (c *catalog[T]) put(object T) {
	c.mu.Lock()
	defer c.mu.Unlock()
	id, name := object.Key()
	if e := c.byID[id]; e != nil {
		e.object = object
		return
	}
	c.next++
	e := &entry[T]{object: object, seq: c.next}
	c.byID[id], c.names[name] = e, e
	c.order = append(c.order, e)
}

// remove takes an object out.
func (c *catalog[T]) remove(object T) {
	c.mu.Lock()
	defer c.mu.Unlock()
	id, name := object.Key()
	e := c.byID[id]
	if e == nil {
		return
	}
	delete(c.byID, id)
	delete(c.names, name)
	e.deleted = true
	c.deleted++
	if c.deleted > len(c.order)/2 {
		c.order = slices.DeleteFunc(c.order, func(e *entry[T]) bool { return e.deleted })
		c.deleted = 0
	}
}

// replace makes the catalog say what was read from disk. Objects that stay
// keep their place in the order, so that paging goes on.
func (c *catalog[T]) replace(found map[volume.ID]T) {
	for _, known := range c.all() {
		id, _ := known.Key()
		if _, stays := found[id]; !stays {
			c.remove(known)
		}
	}
	for _, id := range slices.Sorted(maps.Keys(found)) {
		c.put(found[id])
	}
}

// all returns the objects themselves, oldest first.
func (c *catalog[T]) all() []T {
	c.mu.RLock()
	defer c.mu.RUnlock()
	objects := make([]T, 0, len(c.byID))
	for _, e := range c.order {
		if !e.deleted {
			objects = append(objects, e.object)
		}
	}
	return objects
}

// page returns the objects that match, existed when the first page was asked
// for and still exist: sequence numbers only grow, and the token carries the
// bound. next is empty after the last page.
func (c *catalog[T]) page(req volume.ListRequest, match func(T) bool) (objects []T, next string, err error) {
	at, err := c.start(req)
	if err != nil {
		return nil, "", err
	}
	most := 0
	if req.Max > 0 {
		most = req.Max + 1 // the extra object shows that there is another page
	}
	list := c.after(at, most, match)
	if req.Max > 0 && len(list) > req.Max {
		list = list[:req.Max]
		at.after = list[len(list)-1].seq
		next = c.encode(at)
	}
	objects = make([]T, 0, len(list))
	for _, one := range list {
		objects = append(objects, one.object.Clone())
	}
	return objects, next, nil
}

// start is where a request for a page begins: where its token points to, or at
// the beginning without one.
func (c *catalog[T]) start(req volume.ListRequest) (position, error) {
	if req.Max < 0 {
		return position{}, fmt.Errorf("max entries %d: must not be negative: %w", req.Max, volume.ErrInvalid)
	}
	c.mu.RLock()
	defer c.mu.RUnlock()
	if req.Token == "" {
		return position{bound: c.next}, nil
	}
	return c.decode(req.Token)
}

// listed is an object at its place in the list.
type listed[T any] struct {
	object T
	seq    uint64
}

// after returns the objects that follow a position and match, at most so many;
// zero is no limit.
func (c *catalog[T]) after(at position, most int, match func(T) bool) []listed[T] {
	c.mu.RLock()
	defer c.mu.RUnlock()
	start, _ := slices.BinarySearchFunc(c.order, at.after+1, func(e *entry[T], seq uint64) int { return cmp.Compare(e.seq, seq) })
	var list []listed[T]
	for _, e := range c.order[start:] {
		if e.seq > at.bound || (most > 0 && len(list) == most) {
			break
		}
		if !e.deleted && (match == nil || match(e.object)) {
			list = append(list, listed[T]{object: e.object, seq: e.seq})
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

func (c *catalog[T]) encode(p position) string {
	return base64.RawURLEncoding.EncodeToString(fmt.Appendf(nil, "%s %d %d", c.instance, p.bound, p.after))
}

func (c *catalog[T]) decode(token string) (position, error) {
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
