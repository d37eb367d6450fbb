package volume

import (
	"slices"
	"time"
)

// op is one thing that an actor can do.
type op string

const (
	opWait      op = "wait"
	opRaise     op = "raise"
	opVerify    op = "verify"
	opStage     op = "stage"
	opPublish   op = "publish"
	opUnpublish op = "unpublish"
	opUnstage   op = "unstage"
	opRelease   op = "release"
	opExpand    op = "expand"
	opFinish    op = "finish"

	opChangeGroup op = "change group"
	opRepublish   op = "republish"
)

// call names what a step waits for.
func (o op) call() string {
	switch o {
	case opStage:
		return "NodeStageVolume"
	case opPublish, opRepublish:
		return "NodePublishVolume"
	case opUnpublish:
		return "NodeUnpublishVolume"
	case opUnstage:
		return "NodeUnstageVolume"
	case opExpand:
		return "NodeExpandVolume"
	default:
		return string(o)
	}
}

// step is what to do next.
type step struct {
	op op
	// key is the use that is published (again), unpublished or expanded, or whose files get another group.
	key Key
	// until is when to look again without being woken; zero if only a change can help.
	until time.Time
}

// candidate is a step that makes sense now but may have to wait for its retry time.
type candidate struct {
	op    op
	key   Key
	retry *retryState
}

// plan decides what to do next: the first sensible step that does not have to wait.
func plan(s *state, now time.Time) step {
	next := step{op: opWait}
	for _, c := range candidates(s) {
		if !c.retry.retryAt.After(now) {
			return step{op: c.op, key: c.key}
		}
		if next.until.IsZero() || c.retry.retryAt.Before(next.until) {
			next.until = c.retry.retryAt
		}
	}
	return next
}

// candidates lists the sensible steps, the most urgent first. Taking down comes before setting up.
func candidates(s *state) []candidate {
	var all []candidate
	for _, k := range s.keys() {
		if u := s.uses[k]; u.mount != absent && (u.unwanted() || u.undo) {
			all = append(all, candidate{opUnpublish, k, &u.retryState})
		}
	}
	if s.wanted() {
		looks := expansions(s)
		awaited := func(c candidate) bool { return s.uses[c.key].unchecked }
		for _, c := range looks { // before the volume is published for the next pod, or those of many pods would all wait for the last one
			if awaited(c) {
				all = append(all, c)
			}
		}
		all = append(all, setUp(s)...)
		all = append(all, groupChanges(s)...)
		all = append(all, republications(s)...)
		all = append(all, slices.DeleteFunc(looks, awaited)...)
		if s.needlesslyInUse() {
			all = append(all, candidate{op: opRelease, retry: &s.device.retryState})
		}
		return all
	}
	if s.mounted() {
		return all
	}
	return append(all, windDown(s))
}

// windDown is the way to nothing for a volume that no pod wants or has.
func windDown(s *state) candidate {
	d := &s.device
	switch {
	case d.stage != absent:
		return candidate{op: opUnstage, retry: &d.retryState}
	case d.inUse != inUseNone:
		return candidate{op: opRelease, retry: &d.retryState}
	default:
		return candidate{op: opFinish, retry: &retryState{}}
	}
}

// setUp lists the steps toward the target paths that are wanted and missing.
func setUp(s *state) []candidate {
	missing := publishable(s)
	if len(missing) == 0 || s.volume.Ephemeral {
		return missing
	}
	d := &s.device
	switch {
	case d.undo && !s.mounted():
		return []candidate{{op: opUnstage, retry: &d.retryState}}
	case s.volume.Attachable && d.inUse != inUseConfirmed:
		return []candidate{{op: opRaise, retry: &d.retryState}}
	case s.volume.Attachable && d.attached == nil:
		return []candidate{{op: opVerify, retry: &d.retryState}}
	case d.stale() || s.reformed():
		return startOver(s)
	case d.stage != present:
		return []candidate{{op: opStage, retry: &d.retryState}}
	default:
		return missing
	}
}

// startOver lists the steps down from a stage that belongs to a former attachment or has another form. There is none while a pod may have
// files open on it: the pod has to be deleted first.
func startOver(s *state) []candidate {
	var all []candidate
	for _, k := range s.keys() {
		if u := s.uses[k]; u.mount != absent && !u.mayBeOpen() {
			all = append(all, candidate{opUnpublish, k, &u.retryState})
		}
	}
	if !s.mounted() {
		all = append(all, candidate{op: opUnstage, retry: &s.device.retryState})
	}
	return all
}

func publishable(s *state) []candidate {
	var all []candidate
	for _, k := range s.keys() {
		u := s.uses[k]
		if u.want == nil || u.mount == present || u.undo || s.otherForm(k) {
			continue
		}
		if _, blocked := s.blockedBy(k); !blocked {
			all = append(all, candidate{opPublish, k, &u.retryState})
		}
	}
	return all
}
