package volume

import (
	"fmt"

	"k8s.io/apimachinery/pkg/types"
)

// Status is how far one volume of a pod is.
type Status struct {
	// Key says which use it is.
	Key Key `json:"key"`
	// Volume is the unique volume name.
	Volume string `json:"volume"`
	// Published is true once the driver has confirmed it.
	Published bool `json:"published"`
	// Err is why it is not; nil if nothing has failed yet.
	Err error `json:"-"`
	// Reason is Err as text, for JSON.
	Reason string `json:"reason,omitempty"`
}

// Status tells how far a volume of a pod is; ok is false if the volume is not known.
func (m *Manager) Status(volume string, k Key) (Status, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	a := m.actors[volume]
	if a == nil || a.state.uses[k] == nil {
		return Status{}, false
	}
	return a.state.status(k), true
}

func (s *state) status(k Key) Status {
	u := s.uses[k]
	st := Status{Key: k, Volume: s.volume.Name, Published: u.want != nil && u.mount == confirmed}
	other, blocked := s.blockedBy(k)
	switch {
	case st.Published:
	case u.err != nil:
		st.Err = u.err
	case s.device.err != nil:
		st.Err = s.device.err
	case blocked:
		st.Err = fmt.Errorf("volume uses the ReadWriteOncePod access mode and is already in use by pod %q", other.Pod)
	}
	if st.Err != nil {
		st.Reason = st.Err.Error()
	}
	return st
}

// Dump tells the state of every volume, for a debug page.
type Dump struct {
	// Volume is the unique volume name.
	Volume string `json:"volume"`
	// Device is absent, unsure or staged.
	Device string `json:"device"`
	// InUse is true if the name is, or may be, in volumesInUse.
	InUse bool `json:"inUse"`
	// Error is the last error of the device; empty if it is well.
	Error string `json:"error,omitempty"`
	// Uses are the pods' uses.
	Uses []UseDump `json:"uses"`
}

// UseDump tells the state of one target path.
type UseDump struct {
	// Pod is the UID of the pod.
	Pod types.UID `json:"pod"`
	// SpecName is the name of the PersistentVolume or pod volume.
	SpecName string `json:"specName"`
	// Wanted is false while it is being taken down.
	Wanted bool `json:"wanted"`
	// Mount is absent, unsure or published.
	Mount string `json:"mount"`
	// Error is the last error; empty if it is well.
	Error string `json:"error,omitempty"`
}

// Dump lists the state of every volume, sorted by name.
func (m *Manager) Dump() []Dump {
	m.mu.Lock()
	defer m.mu.Unlock()
	all := make([]Dump, 0, len(m.actors))
	for _, name := range sortedKeys(m.actors) {
		all = append(all, m.actors[name].state.dump())
	}
	return all
}

func (s *state) dump() Dump {
	d := Dump{
		Volume: s.volume.Name, Device: s.device.stage.word("staged"),
		InUse: s.device.inUse != unclaimed, Error: text(s.device.err), Uses: []UseDump{},
	}
	for _, k := range s.keys() {
		u := s.uses[k]
		d.Uses = append(d.Uses, UseDump{
			Pod: k.Pod, SpecName: k.SpecName, Wanted: !u.unwanted(),
			Mount: u.mount.word("published"), Error: text(u.err),
		})
	}
	return d
}

func (st stage) word(confirmed string) string {
	switch st {
	case absent:
		return "absent"
	case unsure:
		return "unsure"
	default:
		return confirmed
	}
}

func text(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}
