package claim

import (
	"errors"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"

	"github.com/longshore-csi/longshore/csikit/outcome"
	"github.com/longshore-csi/longshore/provisioner/internal/backend"
	"github.com/longshore-csi/longshore/provisioner/internal/journal"
	"github.com/longshore-csi/longshore/provisioner/internal/view"
	"github.com/longshore-csi/longshore/provisioner/internal/volume"
)

// attemptVerb is what follows from one call of CreateVolume.
type attemptVerb int

const (
	// attemptRepeat: the outcome is unknown, repeat the same request. It is the zero value, so that a case
	// that was forgotten can cost time but no volume.
	attemptRepeat attemptVerb = iota
	// attemptSave: the volume exists and is wanted.
	attemptSave
	// attemptFound: the volume exists, requested by another process; see whether the claim asks for the same.
	attemptFound
	// attemptUndo: the volume exists and is unwanted.
	attemptUndo
	// attemptForget: there is no volume, and the claim is gone, or another process has made the request.
	attemptForget
	// attemptRetry: there is no volume; try again with a new request.
	attemptRetry
	// attemptInfeasible: there is no volume, and there will be none unless the request changes.
	attemptInfeasible
	// attemptReschedule: the selected node has no capacity left; let the scheduler choose another.
	attemptReschedule
)

// attemptState is the input of the decision about the end of one CreateVolume.
type attemptState struct {
	intent journal.Intent
	// now is the time, and settle how long the driver may be working on a call that has ended without an answer.
	now    time.Time
	settle time.Duration
	// unwanted says why the volume is not wanted any more, empty while the claim wants it.
	unwanted string
	// topology reports whether the request has a topology.
	topology bool
	// created and err are the answer of the driver.
	created *csi.Volume
	err     error
}

// attemptPlan is the decision about the end of CreateVolume.
type attemptPlan struct {
	verb attemptVerb
	// why says for what reason a volume is unwanted.
	why string
	// until is when a final answer will settle the request, for attemptRepeat.
	until time.Time
}

// planAttempt decides what follows from one call of CreateVolume. After an attempt that the driver may still be working on, no error ends the intent until
// no such attempt can be running any more: an error reports how its own attempt ended (CSI v1.13, "Error Scheme"). A final error then says that there is
// no volume: if there were one that fits the request, the answer would be OK ("CreateVolume", idempotency).
func planAttempt(s attemptState) attemptPlan {
	class, code := outcome.Of(s.err), outcome.Code(s.err)
	if class == outcome.Done {
		return planCreated(s)
	}
	if plan, ok := planDoubt(s, code); ok {
		return plan
	}
	switch {
	case s.unwanted != "" || s.intent.Recovered:
		return attemptPlan{verb: attemptForget}
	case code == codes.InvalidArgument:
		return attemptPlan{verb: attemptInfeasible}
	case class == outcome.Exhausted && s.topology && view.SelectedNode(s.intent.Spec.Claim) != "":
		return attemptPlan{verb: attemptReschedule}
	}
	return attemptPlan{verb: attemptRetry}
}

// planDoubt finds answers after which a volume may exist: the same request is to be repeated.
func planDoubt(s attemptState, code codes.Code) (attemptPlan, bool) {
	switch {
	case backend.IsUnsent(s.err) && !s.intent.Uncertain.IsZero(), s.now.Before(settles(s)) && !mayStillRun(s.err):
		return attemptPlan{verb: attemptRepeat, until: s.intent.Settles}, true
	case mayStillRun(s.err):
		return attemptPlan{verb: attemptRepeat, until: s.now.Add(s.settle)}, true
	case code == codes.Unknown && !backend.IsUnsent(s.err) && s.intent.Uncertain.IsZero():
		// Drivers answer so by mistake, also after they have made the volume. The handler has returned: the next answer is final.
		return attemptPlan{verb: attemptRepeat, until: s.now}, true
	}
	return attemptPlan{}, false
}

// settles returns when a final answer settles a request. While nobody waits for the volume, the driver is asked about one that may exist for the whole period.
func settles(s attemptState) time.Time {
	if asked := s.intent.Uncertain.Add(s.settle); s.unwanted != "" && !s.intent.Uncertain.IsZero() && asked.After(s.intent.Settles) {
		return asked
	}
	return s.intent.Settles
}

// mayStillRun reports whether the driver may still be working on a call that has ended with err.
func mayStillRun(err error) bool {
	return !backend.IsUnsent(err) && outcome.Of(err).MayStillRun()
}

// planCreated decides about a volume that was created.
func planCreated(s attemptState) attemptPlan {
	err := volume.Check(s.intent.Request, s.created)
	switch {
	case errors.Is(err, volume.ErrIncomplete):
		return attemptPlan{verb: attemptRepeat, why: err.Error(), until: s.now.Add(s.settle)}
	case s.intent.Recovered:
		return attemptPlan{verb: attemptFound}
	case err != nil:
		return attemptPlan{verb: attemptUndo, why: err.Error()}
	case s.unwanted != "":
		return attemptPlan{verb: attemptUndo, why: s.unwanted}
	}
	return attemptPlan{verb: attemptSave}
}
