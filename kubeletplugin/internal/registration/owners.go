package registration

import (
	"errors"
	"fmt"
	"sync"

	"k8s.io/apimachinery/pkg/util/version"
)

// errTaken is returned for a driver name that another socket holds.
var errTaken = errors.New("already registered")

// nameOwners records which generation owns which driver name.
type nameOwners struct {
	mu      sync.Mutex
	owners  map[string]Plugin
	changed chan struct{}
}

func newNameOwners() *nameOwners {
	return &nameOwners{owners: map[string]Plugin{}, changed: make(chan struct{})}
}

// check refuses p while another socket holds its name with a version that is
// as high. The successor of the holder's own socket is always welcome.
func (c *nameOwners) check(p Plugin) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	holder, ok := c.owners[p.Name]
	if !ok || holder.Generation.Path == p.Generation.Path || higher(p.Version, holder.Version) {
		return nil
	}
	return fmt.Errorf("CSI driver %q version %s: %w with version %s through socket %q; remove one of the two drivers, or give it another name",
		p.Name, p.Version, errTaken, holder.Version, holder.Generation.Path)
}

func higher(a, b string) bool {
	va, errA := version.ParseGeneric(a)
	vb, errB := version.ParseGeneric(b)
	return errA == nil && errB == nil && vb.LessThan(va)
}

// hold gives the name to p.
func (c *nameOwners) hold(p Plugin) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.owners[p.Name] = p
	c.wake()
}

// drop frees the name if p holds it, and reports whether it did.
func (c *nameOwners) drop(p Plugin) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.owners[p.Name].Generation != p.Generation {
		return false
	}
	delete(c.owners, p.Name)
	c.wake()
	return true
}

// forget frees the name of p if another socket holds it. The predecessor of
// p's own socket keeps it: it is about to end, and lets go itself.
func (c *nameOwners) forget(p Plugin) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if holder, ok := c.owners[p.Name]; !ok || holder.Generation.Path == p.Generation.Path {
		return
	}
	delete(c.owners, p.Name)
	c.wake()
}

// holds reports whether p has its name, and a channel that is closed when any
// name changes hands.
func (c *nameOwners) holds(p Plugin) (bool, <-chan struct{}) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.owners[p.Name].Generation == p.Generation, c.changed
}

// change returns the channel that is closed when any name changes hands.
func (c *nameOwners) change() <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.changed
}

func (c *nameOwners) wake() {
	close(c.changed)
	c.changed = make(chan struct{})
}
