package volume

import (
	"errors"
	"fmt"
)

// Event reasons and the operation names in their messages, which are the kubelet's where it has
// them: people and tests look for these words.
const (
	// ReasonFailedMount is the reason of an event about a volume that cannot be mounted.
	ReasonFailedMount = "FailedMount"
	// ReasonFailedUnmount is the reason of an event about a volume that cannot be unmounted.
	ReasonFailedUnmount = "FailedUnMount"

	// quietFailures is how many failures that go away by themselves are not worth an event.
	quietFailures = 5
)

// report is an event to send.
type report struct {
	pod             Pod
	reason, message string
}

// reports lists the events that a step causes; the caller holds the lock.
func (m *Manager) reports(a *actor, j job, r result) []report {
	reason, what := describe(j.op)
	if r.err == nil || errors.Is(r.err, ErrNotAttached) || what == "" {
		return nil
	}
	s := &a.state
	if errors.Is(r.err, ErrLag) && s.failures(j.key) < quietFailures {
		return nil
	}
	var all []report
	for _, k := range s.keys() {
		u := s.uses[k]
		if j.key != (Key{}) && j.key != k {
			continue
		}
		pod, known := m.podOf(k, u)
		if known {
			message := fmt.Sprintf("%s failed for volume %q : %v", what, k.SpecName, r.err)
			all = append(all, report{pod: pod, reason: reason, message: message})
		}
	}
	return all
}

// failures is how often the step of a use, or of the device, has failed in a row.
func (s *state) failures(k Key) int {
	if u := s.uses[k]; u != nil {
		return u.failures
	}
	return s.device.failures
}

func (m *Manager) podOf(k Key, u *use) (Pod, bool) {
	if u.want != nil {
		return u.want.Pod, true
	}
	pod, ok := m.leaving[k.Pod]
	return pod, ok
}

func describe(o op) (reason, what string) {
	switch o {
	case opRaise, opVerify:
		return ReasonFailedMount, "MountVolume.WaitForAttach"
	case opStage:
		return ReasonFailedMount, "MountVolume.MountDevice"
	case opPublish:
		return ReasonFailedMount, "MountVolume.SetUp"
	case opUnpublish:
		return ReasonFailedUnmount, "UnmountVolume.TearDown"
	default:
		return "", ""
	}
}
