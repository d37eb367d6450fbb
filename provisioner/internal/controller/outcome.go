package controller

import (
	"errors"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"

	"github.com/longshore-csi/longshore/csikit/outcome"
	"github.com/longshore-csi/longshore/provisioner/internal/intents"
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
	// attemptUndo: the volume exists and is unwanted.
	attemptUndo
	// attemptForget: there is no volume, and the claim is gone.
	attemptForget
	// attemptRetry: there is no volume; try again with a new request.
	attemptRetry
	// attemptRest: there is no volume, and there will be none unless the request changes.
	attemptRest
	// attemptReschedule: the selected node has no capacity left; let the scheduler choose another.
	attemptReschedule
)

// attemptState is the input of the decision about the end of one CreateVolume.
type attemptState struct {
	intent intents.Intent
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
}

// planAttempt decides what follows from one call of CreateVolume. While the outcome of an earlier attempt is unknown, no
// error ends the intent: the driver may still be working on that attempt, and CreateVolume has no error that says that
// there is no volume of the name. ALREADY_EXISTS says that there is one (CSI v1.13, "CreateVolume Errors").
func planAttempt(s attemptState) attemptPlan {
	class, code := outcome.Of(s.err), outcome.Code(s.err)
	switch {
	case class == outcome.Done:
		return planCreated(s)
	case mayStillRun(s.err) || code == codes.AlreadyExists || !s.intent.Uncertain.IsZero():
		return attemptPlan{verb: attemptRepeat}
	case s.unwanted != "":
		return attemptPlan{verb: attemptForget}
	case code == codes.InvalidArgument:
		return attemptPlan{verb: attemptRest}
	case class == outcome.Exhausted && s.topology && view.SelectedNode(s.intent.Spec.Claim) != "":
		return attemptPlan{verb: attemptReschedule}
	}
	return attemptPlan{verb: attemptRetry}
}

// mayStillRun reports whether the driver may still be working on a call that has ended with err. UNKNOWN is the code of
// errors that have none, such as that of a handler that panicked. A call that was not sent is not running.
func mayStillRun(err error) bool {
	var call callError
	if errors.As(err, &call) && call.unsent {
		return false
	}
	return outcome.Of(err).MayStillRun() || outcome.Code(err) == codes.Unknown
}

// uncertain returns the intent after an attempt that leaves unknown whether there is a volume.
func uncertain(intent intents.Intent, err error, now time.Time) intents.Intent {
	first := intent.Uncertain.IsZero()
	if first {
		intent.Uncertain = now
	}
	exists := first && outcome.Code(err) == codes.AlreadyExists
	intent.Renewable = exists || intent.Renewable && !mayStillRun(err)
	return intent
}

// pendingNote explains in an event why the request of a claim is repeated.
func pendingNote(intent intents.Intent) string {
	if intent.Renewable {
		return "a volume of this name exists already, made with another request: it is requested until the driver accepts a request for it"
	}
	return "outcome unknown: the volume may exist, the same request is repeated until the driver confirms it"
}

// planCreated decides about a volume that was created.
func planCreated(s attemptState) attemptPlan {
	err := volume.Check(s.intent.Request, s.created)
	switch {
	case errors.Is(err, volume.ErrIncomplete):
		return attemptPlan{verb: attemptRepeat, why: err.Error()}
	case err != nil:
		return attemptPlan{verb: attemptUndo, why: err.Error()}
	case s.unwanted != "":
		return attemptPlan{verb: attemptUndo, why: s.unwanted}
	case s.intent.Recovered:
		return attemptPlan{verb: attemptRepeat, why: "the claim, which was not known at first, is to have a request of its own"}
	}
	return attemptPlan{verb: attemptSave}
}

// problem returns the error of the call, or what is wrong with an answer that was no error.
func (p attemptPlan) problem(err error) error {
	if p.why == "" {
		return err
	}
	return errors.New(p.why)
}
