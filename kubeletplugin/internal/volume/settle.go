package volume

import (
	"time"

	"google.golang.org/grpc/codes"

	"github.com/longshore-csi/longshore/csikit/outcome"
)

// result is how a step ended.
type result struct {
	err error
	// sent is true if the step may have had an effect: a record was written or a call was made.
	sent bool
	// cleaned is true if everything the step made was removed again.
	cleaned bool
	// attachment is what opVerify found.
	attachment *Attachment
}

// begin changes the state before a step is done: what may come to exist is unsure from now on. It
// returns what was known of the staging or target path before.
func begin(s *state, st step) (prior stage) {
	switch st.op {
	case opRaise: // the name may be written although the answer does not come
		s.device.inUse = claimed
	case opStage, opUnstage:
		prior, s.device.stage = s.device.stage, unsure
	case opPublish, opUnpublish:
		u := s.uses[st.key]
		prior, u.mount = u.mount, unsure
	default: // no other step makes or removes anything
	}
	return prior
}

// settle records the result of a step.
func settle(s *state, st step, prior stage, r result, now time.Time, b backoff) {
	switch st.op {
	case opPublish, opUnpublish:
		settleUse(s, st, prior, r, now, b)
	default:
		settleDevice(s, st, prior, r, now, b)
	}
}

func settleDevice(s *state, st step, prior stage, r result, now time.Time, b backoff) {
	d := &s.device
	if st.op == opStage || st.op == opUnstage {
		d.stage, d.undo = afterCall(st.op == opStage, prior, r, d.undo)
	}
	if r.err != nil {
		d.fail(r.err, now, b)
		if st.op != opRaise {
			d.attached = nil
		}
		return
	}
	d.err, d.waiting = nil, false
	switch st.op {
	case opRaise:
		d.inUse = raised
	case opVerify:
		verified(s, r.attachment)
	case opStage:
		d.reset()
		d.stagedFor = d.attached
	case opUnstage:
		d.attached, d.stagedFor = nil, nil
		if !s.wanted() {
			d.reset()
		}
	case opRelease:
		d.inUse = unclaimed
	default: // the others are steps of a use, or no steps
	}
}

// verified takes note of the attachment. If it is another one than the volume was staged for, the
// volume was detached under us, and what is staged is worth nothing.
func verified(s *state, a *Attachment) {
	d := &s.device
	d.attached = a
	if d.stage == confirmed && d.stagedFor != nil && d.stagedFor.UID != a.UID {
		d.stage, d.undo = unsure, true
	}
}

func settleUse(s *state, st step, prior stage, r result, now time.Time, b backoff) {
	u := s.uses[st.key]
	undo := u.undo
	u.mount, u.undo = afterCall(st.op == opPublish, prior, r, undo)
	u.undo = u.undo && !u.recovered
	if r.err == nil {
		u.recovered = false
	}
	switch {
	case r.err != nil:
		u.fail(r.err, now, b)
		s.device.attached = nil // read it anew for the next try
	case st.op == opPublish || !undo:
		u.reset()
	default:
		u.err = nil
	}
	forget(s, st.key)
}

// forget drops a use that is neither wanted nor there.
func forget(s *state, k Key) {
	if u := s.uses[k]; u != nil && u.mount == absent && u.unwanted() {
		delete(s.uses, k)
	}
}

// afterCall says what is there after a call that makes (NodeStageVolume, NodePublishVolume) or
// removes something, and whether it has to be undone before the next try.
func afterCall(makes bool, prior stage, r result, undo bool) (stage, bool) {
	switch {
	case r.err == nil && makes:
		return confirmed, false
	case r.err == nil:
		return absent, false
	case !r.sent:
		return prior, undo
	case r.cleaned:
		return absent, false
	case makes && answered(r.err):
		return unsure, true
	default:
		return unsure, undo
	}
}

// answered reports whether the driver has answered that the call failed, so nothing is running any
// more. A lack of resources counts as no answer, as it does for the kubelet.
func answered(err error) bool {
	c := outcome.Of(err)
	return !c.MayStillRun() && c != outcome.Exhausted
}

// leavesNothing reports whether an error proves that a first call had no effect: the driver refused
// the request. Other final errors leave doubt about what had been done before they happened.
func leavesNothing(err error) bool {
	if !answered(err) {
		return false
	}
	switch outcome.Code(err) {
	case codes.Internal, codes.Unknown, codes.DataLoss:
		return false
	default:
		return true
	}
}
