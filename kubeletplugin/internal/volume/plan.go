package volume

import "time"

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
	opFinish    op = "finish"
)

// step is what to do next.
type step struct {
	op op
	// key is the use that is published or unpublished.
	key Key
	// until is when to look again without being woken; zero if only a change can help.
	until time.Time
}

// candidate is a step that makes sense now but may be held back by its slot.
type candidate struct {
	op   op
	key  Key
	slot *slot
}

// plan decides what to do next: the first sensible step that is not held back.
func plan(s *state, now time.Time) step {
	next := step{op: opWait}
	for _, c := range candidates(s) {
		if !c.slot.retryAt.After(now) {
			return step{op: c.op, key: c.key}
		}
		if next.until.IsZero() || c.slot.retryAt.Before(next.until) {
			next.until = c.slot.retryAt
		}
	}
	return next
}

// candidates lists the sensible steps, the most urgent first. Taking down comes before setting up.
func candidates(s *state) []candidate {
	var all []candidate
	for _, k := range s.keys() {
		if u := s.uses[k]; u.mount != absent && (u.unwanted() || u.undo) {
			all = append(all, candidate{opUnpublish, k, &u.slot})
		}
	}
	if s.wanted() {
		return append(all, setUp(s)...)
	}
	if s.mounted() || s.device.pinned {
		return all
	}
	return append(all, windDown(s))
}

// windDown is the way to nothing for a volume that no pod wants or has.
func windDown(s *state) candidate {
	d := &s.device
	switch {
	case d.stage != absent:
		return candidate{op: opUnstage, slot: &d.slot}
	case d.inUse != unclaimed:
		return candidate{op: opRelease, slot: &d.slot}
	default:
		return candidate{op: opFinish, slot: &slot{}}
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
		return []candidate{{op: opUnstage, slot: &d.slot}}
	case s.volume.Attachable && d.inUse != raised:
		return []candidate{{op: opRaise, slot: &d.slot}}
	case s.volume.Attachable && d.attached == nil:
		return []candidate{{op: opVerify, slot: &d.slot}}
	case d.stage != confirmed:
		return []candidate{{op: opStage, slot: &d.slot}}
	default:
		return missing
	}
}

func publishable(s *state) []candidate {
	var all []candidate
	for _, k := range s.keys() {
		u := s.uses[k]
		if u.want == nil || u.mount == confirmed || u.undo {
			continue
		}
		if _, blocked := s.blockedBy(k); !blocked {
			all = append(all, candidate{opPublish, k, &u.slot})
		}
	}
	return all
}
