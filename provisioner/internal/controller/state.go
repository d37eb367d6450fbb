package controller

import (
	"time"
)

// State is what /debug/state shows of a controller.
type State struct {
	// Driver is the name of the driver.
	Driver string `json:"driver"`
	// Synced says whether the caches are complete.
	Synced bool `json:"synced"`
	// UnderWay lists the volumes whose fate is open.
	UnderWay []VolumeState `json:"underWay"`
	// Resting is the number of claims that rest after an infeasible request.
	Resting int `json:"resting"`
	// Competing is the number of claims that nodes compete for, with those that other nodes have taken and not
	// provisioned yet.
	Competing int `json:"competing"`
}

// VolumeState is one volume whose fate is open.
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
	// Since is when it was first asked for.
	Since time.Time `json:"since"`
}

// State returns what the controller is at.
func (c *Controller) State() State {
	s := State{Driver: c.driver, Synced: c.Synced(), UnderWay: []VolumeState{}, Resting: c.resting.len(), Competing: c.turns.len()}
	for _, intent := range c.cfg.Intents.List() {
		s.UnderWay = append(s.UnderWay, VolumeState{
			Volume:   intent.Spec.Name,
			Claim:    intent.Spec.Claim.Namespace + "/" + intent.Spec.Claim.Name,
			Stage:    intent.Stage.String(),
			VolumeID: intent.VolumeID,
			Reason:   intent.Reason,
			Since:    intent.Opened,
		})
	}
	return s
}
