// Package controller attaches and detaches volumes: it turns VolumeAttachment
// objects into ControllerPublishVolume and ControllerUnpublishVolume calls and
// writes the outcome back.
//
// Decisions are pure functions (plan.go, source.go, node.go, status.go, patch.go); they
// take objects and return a small plan. One file per step acts on the plans: attach.go,
// detach.go, pv.go and resync.go; publish.go is about drivers without ControllerPublishVolume. Only these use
// the API client and the driver.
//
// The package is the inside of the attacher component. Nothing else should use
// it: start the component with attacher.Run.
package controller
