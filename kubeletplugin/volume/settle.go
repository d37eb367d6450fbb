package volume

import (
	"time"

	"google.golang.org/grpc/codes"

	"github.com/longshore-csi/longshore/csikit/outcome"
	"github.com/longshore-csi/longshore/kubeletplugin/internal/fsgroup"
)

// result is how a step ended.
type result struct {
	err error
	// sent is true if the step may have had an effect: a record was written or a call was made.
	sent bool
	// cleaned is true if everything the step made was removed again.
	cleaned bool
	// attachment is what opVerify or opRepublish found.
	attachment *Attachment
	// attached is true if opRelease found the volume in volumesAttached while pods want it.
	attached bool
	// groupDelegated is true if opPublish or opRepublish has passed the fsGroup of the pod to a driver that mounts with it.
	groupDelegated bool
	// group is what opChangeGroup has done; nil if it has failed, or was interrupted.
	group *fsgroup.Result
	// look is what opExpand found and did.
	look look
}

// begin changes the state before a step is done: what may come to exist is uncertain from now on. It
// returns what was known of the staging or target path before.
func begin(s *state, st step) (prior presence) {
	switch st.op {
	case opRaise: // the name may be written although the answer does not come
		s.device.inUse = inUseSent
	case opStage:
		if s.device.attached != nil {
			s.device.stagedFor = s.device.attached.UID
		}
		s.device.stagedAs = s.volume.form()
		prior, s.device.stage = s.device.stage, uncertain
	case opUnstage:
		prior, s.device.stage = s.device.stage, uncertain
	case opPublish, opUnpublish:
		u := s.uses[st.key]
		prior, u.mount = u.mount, uncertain
		if st.op == opPublish && u.want != nil {
			u.seLinuxContext, u.readOnly = u.want.Volume.SELinuxContext, u.want.ReadOnly
		}
	default: // no other step makes or removes anything
	}
	return prior
}

// settle records the result of a step.
func settle(s *state, j job, r result, now time.Time, b backoff) {
	switch j.op {
	case opPublish, opUnpublish:
		settleUse(s, j, r, now, b)
	case opExpand:
		settleExpansion(s, j, r, now, b)
	case opChangeGroup:
		settleGroup(s, j, r, now, b)
	case opRepublish:
		settleRepublish(s, j, r, now, b)
	default:
		settleDevice(s, j, r, now, b)
	}
}

func settleDevice(s *state, j job, r result, now time.Time, b backoff) {
	d := &s.device
	if j.op == opStage || j.op == opUnstage {
		d.stage, d.undo = afterCall(j.op == opStage, j.prior, r, d.undo)
	}
	if r.err != nil {
		failDevice(d, j, r.err, now, b)
		return
	}
	d.err, d.waiting = nil, false
	switch j.op {
	case opRaise:
		d.inUse = inUseConfirmed
	case opVerify:
		d.attached = r.attachment
	case opStage:
		d.reset()
	case opUnstage:
		d.attached, d.stagedFor = nil, ""
		if !s.wanted() {
			d.reset()
		}
	case opRelease:
		if d.keepInUse = r.attached; !r.attached {
			d.inUse = inUseNone
		}
	default: // the others are steps of a use, or no steps
	}
}

func failDevice(d *device, j job, err error, now time.Time, b backoff) {
	d.fail(err, now, b)
	d.explained = d.waiting && j.explain
	if d.waiting && j.attachChanges != d.attachChanges {
		d.retryAt = time.Time{} // volumesAttached has changed since the look at it
	}
	if j.op != opRaise {
		d.attached = nil
	}
}

func settleUse(s *state, j job, r result, now time.Time, b backoff) {
	u := s.uses[j.key]
	undo := u.undo
	u.mount, u.undo = afterCall(j.op == opPublish, j.prior, r, undo)
	u.undo = u.undo && !u.recovered
	switch {
	case r.err != nil:
		u.fail(r.err, now, b)
		s.device.attached = nil // the next try reads the attachment again
	case j.op == opPublish:
		u.reset()
		u.scheduleRepublish(now, b)
		u.groupPending = u.want != nil && u.want.changesGroup() && !r.groupDelegated
		u.groupAwaited = u.groupPending
		u.recovered = u.recovered && u.groupPending // which may need another NodePublishVolume
		s.checkExpansion(j)
	case !undo:
		u.reset()
		u.recovered = false
	default:
		u.err, u.recovered = nil, false
	}
	forget(s, j.key)
}

// forget drops a use that is neither wanted nor there.
func forget(s *state, k Key) {
	if u := s.uses[k]; u != nil && u.mount == absent && u.unwanted() {
		delete(s.uses, k)
	}
}

// afterCall says what is there after a call that makes (NodeStageVolume, NodePublishVolume) or
// removes something, and whether it has to be undone before the next try.
func afterCall(makes bool, prior presence, r result, undo bool) (presence, bool) {
	switch {
	case r.err == nil && makes:
		return present, false
	case r.err == nil:
		return absent, false
	case !r.sent:
		return prior, undo
	case r.cleaned:
		return absent, false
	case makes && answered(r.err):
		return uncertain, true
	default:
		return uncertain, undo
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
