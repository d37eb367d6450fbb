package controller

import (
	"errors"

	"github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/longshore-csi/longshore/csikit/outcome"
	"github.com/longshore-csi/longshore/provisioner/internal/intents"
	"github.com/longshore-csi/longshore/provisioner/internal/volume"
)

// attemptVerb is what follows from one call of CreateVolume.
type attemptVerb int

const (
	// attemptRepeat: the outcome is open, repeat the same request. It is the zero value, so that a case
	// that was forgotten can cost time but no volume.
	attemptRepeat attemptVerb = iota
	// attemptSave: the volume is there and wanted.
	attemptSave
	// attemptUndo: the volume is there and unwanted.
	attemptUndo
	// attemptForget: there is no volume, and nobody wants one any more.
	attemptForget
	// attemptRetry: there is no volume; try anew, with what is then known.
	attemptRetry
	// attemptRest: there is no volume, and there will be none unless the request changes.
	attemptRest
	// attemptReschedule: there is no room at the selected node; let the scheduler choose another.
	attemptReschedule
)

// attemptState is all that the decision about the end of CreateVolume depends on.
type attemptState struct {
	intent intents.Intent
	// unwanted says why nobody wants the volume any more, empty while the claim does.
	unwanted string
	// topology says whether the node of the claim took part in the request.
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

// planAttempt decides what follows from one call of CreateVolume.
func planAttempt(s attemptState) attemptPlan {
	class := outcome.Of(s.err)
	switch {
	case class == outcome.Done:
		return planCreated(s)
	case class.MayStillRun():
		return attemptPlan{verb: attemptRepeat}
	case s.unwanted != "":
		return attemptPlan{verb: attemptForget}
	case class == outcome.Infeasible:
		return attemptPlan{verb: attemptRest}
	case class == outcome.Exhausted && s.topology && selectedNode(s.intent.Spec.Claim) != "":
		return attemptPlan{verb: attemptReschedule}
	}
	return attemptPlan{verb: attemptRetry}
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
	}
	return attemptPlan{verb: attemptSave}
}

// problem returns what was wrong with an answer that was no error.
func (p attemptPlan) problem() error {
	if p.why == "" {
		return nil
	}
	return errors.New(p.why)
}
