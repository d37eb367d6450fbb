package volume

import (
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// Status is the progress of one volume of a pod.
type Status struct {
	// Key identifies the use.
	Key Key
	// Volume is the unique volume name.
	Volume string
	// Published is true once the driver has confirmed it, and neither an expansion nor a change of the group has to be waited for.
	Published bool
	// ReadOnly is true if it was published read-only.
	ReadOnly bool
	// Err is why it is not published; nil if nothing has failed yet. It is ErrNotAttached while the volume is not attached.
	Err error
	// Running is the call about the volume that has not ended, and for how long; empty if there is none that lasts.
	Running string
}

// Status returns the progress of a volume of a pod; ok is false if the volume is not known.
func (m *Manager) Status(volume string, k Key) (Status, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	a := m.actors[volume]
	if a == nil || a.state.uses[k] == nil {
		return Status{}, false
	}
	st := a.state.status(k)
	st.Running = a.state.running(m.cfg.Clock.Now())
	return st, true
}

func (s *state) status(k Key) Status {
	u := s.uses[k]
	st := Status{Key: k, Volume: s.volume.Name, Published: u.want != nil && u.mount == present && !u.unchecked && !u.groupAwaited, ReadOnly: u.readOnly}
	switch {
	case st.Published:
	case u.err != nil:
		st.Err = u.err
	case u.unchecked && s.expansions[k.SpecName] != nil:
		st.Err = s.expansions[k.SpecName].err
	case s.device.err != nil:
		st.Err = s.device.err
	default:
		st.Err = s.waitErr(k)
	}
	return st
}

// slow is how long a call may take before Dump says since when it does.
const slow = time.Second

// running says since when a call lasts, if that is for long; empty if none does.
func (s *state) running(now time.Time) string {
	if lasts := now.Sub(s.since); s.call != "" && lasts >= slow {
		return fmt.Sprintf("%s has not ended for %v", s.call, lasts.Round(slow))
	}
	return ""
}

// Dump is the state of one volume, for a debug page.
type Dump struct {
	// Volume is the unique volume name.
	Volume string `json:"volume"`
	// Driver is the name of the CSI driver.
	Driver string `json:"driver"`
	// Device is absent, uncertain or staged.
	Device string `json:"device"`
	// InUse is true if the name is, or may be, in volumesInUse.
	InUse bool `json:"inUse"`
	// Error is the last error of the device; empty if there is none.
	Error string `json:"error,omitempty"`
	// Running is the call that has not ended, and for how long; empty if there is none that lasts.
	Running string `json:"running,omitempty"`
	// Uses are the pods' uses.
	Uses []UseDump `json:"uses"`
}

// MountPublished is UseDump.Mount of a volume that the driver has confirmed to be published.
const MountPublished = "published"

// UseDump is the state of one target path.
type UseDump struct {
	// Pod is the UID of the pod.
	Pod types.UID `json:"pod"`
	// SpecName is the name of the PersistentVolume or pod volume.
	SpecName string `json:"specName"`
	// Block is true for a raw block volume.
	Block bool `json:"block,omitempty"`
	// Wanted is false while it is being taken down.
	Wanted bool `json:"wanted"`
	// Mount is absent, uncertain or MountPublished.
	Mount string `json:"mount"`
	// GroupPending is true until the files of a published volume have the fsGroup of the pod.
	GroupPending bool `json:"groupPending,omitempty"`
	// Error is the last error; empty if there is none.
	Error string `json:"error,omitempty"`
	// RepublishError is the error of the last repeated NodePublishVolume; empty if it succeeded.
	RepublishError string `json:"republishError,omitempty"`
	// Capacity is the size in bytes that the claim had at the last look at it; 0 before the first one.
	Capacity int64 `json:"capacity,omitempty"`
	// ExpansionError is the last error of the expansion; empty if there is none.
	ExpansionError string `json:"expansionError,omitempty"`
}

// Dump lists the state of every volume, sorted by name.
func (m *Manager) Dump() []Dump {
	m.mu.Lock()
	defer m.mu.Unlock()
	all := make([]Dump, 0, len(m.actors))
	for _, name := range sortedKeys(m.actors) {
		all = append(all, m.actors[name].state.dump(m.cfg.Clock.Now()))
	}
	return all
}

func (s *state) dump(now time.Time) Dump {
	d := Dump{
		Volume: s.volume.Name, Driver: s.volume.Driver, Device: s.device.stage.word("staged"),
		InUse: s.device.inUse != inUseNone, Error: text(s.device.err), Running: s.running(now), Uses: []UseDump{},
	}
	for _, k := range s.keys() {
		u, ud := s.uses[k], UseDump{Pod: k.Pod, SpecName: k.SpecName, Block: k.Block}
		ud.Wanted, ud.Mount, ud.GroupPending, ud.Error = !u.unwanted(), u.mount.word(MountPublished), u.groupPending, text(u.err)
		ud.RepublishError = text(u.republish.err)
		if e := s.expansions[k.SpecName]; e != nil {
			ud.Capacity, ud.ExpansionError = e.known.Bytes, text(e.err)
		}
		d.Uses = append(d.Uses, ud)
	}
	return d
}

func (p presence) word(present string) string {
	switch p {
	case absent:
		return "absent"
	case uncertain:
		return "uncertain"
	default:
		return present
	}
}

func text(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}
