package claim

import (
	"time"

	"github.com/longshore-csi/longshore/csikit/reconcile"
	"github.com/longshore-csi/longshore/provisioner/internal/view"
	"github.com/longshore-csi/longshore/topology"
)

// State is what /debug/state shows of a controller.
type State struct {
	// Driver is the name of the driver.
	Driver string `json:"driver"`
	// Synced reports whether the caches are complete.
	Synced bool `json:"synced"`
	// UnderWay lists the volumes with an operation in progress.
	UnderWay []VolumeState `json:"underWay"`
	// Competing is the number of claims that nodes compete for, with those that other nodes have taken and not
	// provisioned yet.
	Competing int `json:"competing"`
	// CallLimit is the number of calls that create or delete volumes which may run at a time now. It is less than two for
	// each of --worker-threads while the driver answers UNAVAILABLE.
	CallLimit int `json:"callLimit"`
	// Queues describes the queues of work.
	Queues []reconcile.State `json:"queues"`
	// Topology has the topology keys that the driver reports, with the number of nodes in each segment.
	Topology []topology.KeySetState `json:"topology,omitempty"`
}

// VolumeState is one volume with an operation in progress.
type VolumeState struct {
	// Volume is the name of the volume.
	Volume string `json:"volume"`
	// Claim is the namespace and name of its claim.
	Claim string `json:"claim"`
	// Stage says how far it has come.
	Stage string `json:"stage"`
	// VolumeID is its handle, if it is known.
	VolumeID string `json:"volumeID,omitempty"`
	// Reason says why it is unwanted.
	Reason string `json:"reason,omitempty"`
	// Since is the time of the first CreateVolume.
	Since time.Time `json:"since"`
	// OutcomeUnknownSince is the time since when the volume may exist without the driver having confirmed it.
	OutcomeUnknownSince *time.Time `json:"outcomeUnknownSince,omitempty"`
}

// State returns a snapshot of the controller.
func (c *Controller) State() State {
	s := State{Driver: c.driver, Synced: c.view.Synced() == nil, UnderWay: []VolumeState{}, CallLimit: c.backend.Bound(),
		Queues: []reconcile.State{c.claims.State(), c.release.State(), c.unsaved.State(), c.sources.State()},
	}
	if c.cfg.Competition != nil {
		for claim := range c.view.Claims.All() {
			if view.Pending(claim, c.driver) && !c.node().Mine(claim) && c.isContested(claim) {
				s.Competing++
			}
		}
	}
	if c.view.Index != nil {
		s.Topology = c.view.Index.State()
	}
	for _, intent := range c.cfg.Journal.List() {
		volume := VolumeState{
			Volume: intent.Spec.Name, Claim: intent.Spec.Claim.Namespace + "/" + intent.Spec.Claim.Name, Stage: string(intent.Stage),
			VolumeID: intent.VolumeID, Reason: intent.Reason, Since: intent.Opened,
		}
		if intent.Unknown() {
			volume.OutcomeUnknownSince = &intent.Uncertain
		}
		s.UnderWay = append(s.UnderWay, volume)
	}
	return s
}
