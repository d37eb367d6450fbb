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
	// ReasonFailedMap is the reason of an event about a raw block volume that a pod cannot get.
	ReasonFailedMap = "FailedMapVolume"
	// ReasonMapped is the reason of an event about a raw block volume that a pod has got.
	ReasonMapped = "SuccessfulMountVolume"
	// ReasonFailedUnmount is the reason of an event about a volume that cannot be unmounted.
	ReasonFailedUnmount = "FailedUnMount"
	// ReasonStale is the reason of an event about a mount whose volume was detached and attached again.
	ReasonStale = "StaleVolumeMount"
	// ReasonExpanded is the reason of an event about a file system that was expanded.
	ReasonExpanded = "FileSystemResizeSuccessful"
	// ReasonExpandFailed is the reason of an event about an expansion that has failed.
	ReasonExpandFailed = "VolumeResizeFailed"
	// ReasonExpandReadOnly is the reason of an event about an expansion that waits, because the pod mounts the volume
	// read-only.
	ReasonExpandReadOnly = "FileSystemResizeFailed"
	// ReasonGroupInProgress is the reason of an event about a change of the files' group that takes long.
	ReasonGroupInProgress = "VolumePermissionChangeInProgress"
	// ReasonGroupRefused is the reason of an event about files whose group cannot be changed.
	ReasonGroupRefused = "VolumePermissionChangeRefused"
	// ReasonAbnormal is the kubelet's reason of an event about a volume that has a problem.
	ReasonAbnormal = "VolumeConditionAbnormal"
	// ReasonNormal is the reason of an event about a volume that is well again.
	ReasonNormal = "VolumeConditionNormal"
	// ReasonUnsupported is the reason of an event about a feature without which a pod runs.
	ReasonUnsupported = "UnsupportedVolumeFeature"

	// quietFailures is how many failures that go away by themselves are not worth an event.
	quietFailures = 8
)

// report is an event to send.
type report struct {
	pod Pod
	// claim is set for an event about an expansion.
	claim           Claim
	reason, message string
}

// reports lists the events that a step causes; the caller holds the lock.
func (m *Manager) reports(a *actor, j job, r result) []report {
	if j.op == opExpand {
		return a.state.expansionReports(m.cfg.Node, j, r)
	}
	if r.group != nil {
		return a.state.groupReports(j, *r.group)
	}
	if _, what := describe(j.op, false); r.err == nil || errors.Is(r.err, ErrNotAttached) || what == "" {
		return nil
	}
	s := &a.state
	if errors.Is(r.err, ErrTransient) && s.failures(j) < quietFailures {
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
			reason, what := describe(j.op, k.Block)
			all = append(all, report{pod: pod, reason: reason, message: failed(what, k, r.err)})
		}
	}
	return all
}

// mapped is the event about a raw block volume that was published.
func (m *Manager) mapped(j job, r result) []report {
	if j.op != opPublish || !j.key.Block || r.err != nil {
		return nil
	}
	text := fmt.Sprintf("MapVolume.MapPodDevice succeeded for volume %q volumeMapPath %q", j.key.SpecName, m.cfg.Root.PodDevices(j.key.Pod))
	return []report{{pod: j.want.Pod, reason: ReasonMapped, message: text}}
}

// failed is the kubelet's wording of a failure.
func failed(what string, k Key, err error) string {
	return fmt.Sprintf("%s failed for volume %q : %v", what, k.SpecName, err)
}

// notices lists the reasons for which volumes wait that are not reported to their pods yet.
func (s *state) notices() []report {
	var all []report
	for _, k := range s.keys() {
		u := s.uses[k]
		reason, message := s.obstacle(k)
		if message != "" && message != u.notice {
			all = append(all, report{pod: u.want.Pod, reason: reason, message: message})
		}
		u.notice = message
	}
	return all
}

// obstacle is what keeps a wanted volume from being published although no call has failed; no message if nothing does.
func (s *state) obstacle(k Key) (reason, message string) {
	u, d := s.uses[k], &s.device
	switch {
	case u.want == nil:
		return "", ""
	case d.stale() && u.mayBeOpen():
		return ReasonStale, fmt.Sprintf(
			"volume %q was detached and attached again while the pod may use it: its mount belongs to the former attachment (UID %s, now %s), so reads may fail and writes may be lost; delete the pod",
			k.SpecName, d.stagedFor, d.attached.UID)
	case s.waitErr(k) != nil:
		reason, what := describe(opPublish, k.Block)
		return reason, failed(what, k, s.waitErr(k))
	case d.waiting && d.explained:
		reason, what := describe(opVerify, k.Block)
		return reason, failed(what, k, d.err)
	default:
		return "", ""
	}
}

// waitErr is why the volume waits for other pods before it is published for this one; nil if it does not.
func (s *state) waitErr(k Key) error {
	if other, blocked := s.blockedBy(k); blocked {
		return fmt.Errorf("volume uses the ReadWriteOncePod access mode and is already in use by pod %q", s.podName(other))
	}
	if s.uses[k].mayBeOpen() {
		return nil
	}
	if !s.device.stale() {
		return s.formErr(k)
	}
	open := s.openPods()
	if len(open) == 0 {
		return s.formErr(k)
	}
	return fmt.Errorf("volume was detached and attached again, but pods %q may still use its former attachment; it is mounted when they are deleted", open)
}

// openPods names the pods that may use the volume.
func (s *state) openPods() []string {
	var open []string
	for _, k := range s.keys() {
		if s.uses[k].mayBeOpen() {
			open = append(open, s.podName(k))
		}
	}
	if s.device.pinned {
		open = append(open, "unknown (see the events on the Node)")
	}
	return open
}

// podName names the pod of a use for a user.
func (s *state) podName(k Key) string {
	if w := s.uses[k].want; w != nil {
		return w.Pod.Namespace + "/" + w.Pod.Name
	}
	return string(k.Pod)
}

// failures is how often the step of a use, or of the device, has failed in a row.
func (s *state) failures(j job) int {
	u := s.uses[j.key]
	switch {
	case u == nil:
		return s.device.failures
	case j.op == opRepublish:
		return u.republish.failures
	default:
		return u.failures
	}
}

func (m *Manager) podOf(k Key, u *use) (Pod, bool) {
	if u.want != nil {
		return u.want.Pod, true
	}
	pod, ok := m.leaving[k.Pod]
	return pod, ok
}

// describe returns the event reason for a step that fails and the name of the operation, which differ for raw block volumes.
func describe(o op, block bool) (reason, what string) {
	if block {
		return describeBlock(o)
	}
	switch o {
	case opRaise, opVerify:
		return ReasonFailedMount, "MountVolume.WaitForAttach"
	case opStage:
		return ReasonFailedMount, "MountVolume.MountDevice"
	case opPublish, opChangeGroup, opRepublish:
		return ReasonFailedMount, "MountVolume.SetUp"
	case opUnstage: // for pods that wait for it to be staged again
		return ReasonFailedMount, "UnmountDevice"
	case opUnpublish:
		return ReasonFailedUnmount, "UnmountVolume.TearDown"
	default:
		return "", ""
	}
}

func describeBlock(o op) (reason, what string) {
	switch o {
	case opRaise, opVerify:
		return ReasonFailedMap, "MapVolume.WaitForAttach"
	case opStage:
		return ReasonFailedMap, "MapVolume.SetUpDevice"
	case opPublish, opRepublish:
		return ReasonFailedMap, "MapVolume.MapPodDevice"
	case opUnstage: // for pods that wait for it to be staged again
		return ReasonFailedMap, "UnmapDevice"
	case opUnpublish:
		return ReasonFailedUnmount, "UnmapVolume.UnmapPodDevice"
	default:
		return "", ""
	}
}

// expansionName is the name of the expansion in events.
func expansionName(k Key) string {
	if k.Block {
		return "MapVolume.NodeExpandVolume"
	}
	return "MountVolume.NodeExpandVolume"
}
