package volume

import (
	"fmt"

	"k8s.io/apimachinery/pkg/util/sets"
)

// owners says which volume is, or may be, at a path. A raw block volume has the name of its PersistentVolume in its paths, and a target path that of the volume in the
// pod: another volume may have had the name before, and may still be there. It is changed only under the Manager's lock.
type owners struct {
	volumes map[string]string
	// waiting has, by path, the volumes that wait until it is free.
	waiting map[string]sets.Set[string]
}

// take makes a volume the owner of a path. It is an error while another volume is.
func (o *owners) take(path, volume string) error {
	if other, taken := o.volumes[path]; taken && other != volume {
		if o.waiting[path] == nil {
			o.waiting[path] = sets.Set[string]{}
		}
		o.waiting[path].Insert(volume)
		return fmt.Errorf("%w: volume %q is, or may be, at %s, and goes first", ErrTransient, other, path)
	}
	o.volumes[path] = volume
	return nil
}

// leave gives a path free, and returns the volumes that have waited for it.
func (o *owners) leave(path, volume string) []string {
	if o.volumes[path] != volume {
		return nil
	}
	waiting := sets.List(o.waiting[path])
	delete(o.volumes, path)
	delete(o.waiting, path)
	return waiting
}

// made is the path that a step makes or removes; empty for none.
func (m *Manager) made(j job) string {
	switch j.op {
	case opStage:
		return m.staging(&j.volume)
	case opUnstage:
		v := j.volume
		v.Device = j.stagedAs.device
		return m.staging(&v)
	case opPublish, opUnpublish:
		return m.target(j.key)
	default:
		return ""
	}
}

// leave gives the path of a step free if nothing is there any more, and lets volumes go on that wait for it.
func (m *Manager) leave(a *actor, j job) {
	there := a.state.device.stage
	if j.op == opPublish || j.op == opUnpublish {
		there = absent
		if u := a.state.uses[j.key]; u != nil {
			there = u.mount
		}
	}
	path := m.made(j)
	if path == "" || there != absent {
		return
	}
	for _, name := range m.owners.leave(path, a.name) {
		if other := m.actors[name]; other != nil {
			other.state.device.reset()
			for _, u := range other.state.uses {
				u.reset()
			}
			other.poke()
		}
	}
}
