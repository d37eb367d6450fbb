package provisioner

import (
	"github.com/longshore-csi/longshore/provisioner/internal/controller"
)

// This file turns options, and what was found out about driver and API server, into what the controller acts on.

// features returns the features that are on. p.mu must be held.
func (p *instance) features() controller.Features {
	return controller.Features{
		Topology:        p.options.Features.Enabled(GateTopology),
		AttributesClass: p.options.Features.Enabled(GateVolumeAttributesClass) && !p.noAttributes,
		SkipAttach:      p.skipAttach,
		CrossNamespace:  p.options.Features.Enabled(GateCrossNamespace),
	}
}

// settings returns the options that the controller acts on. p.mu must be held.
func (p *instance) settings(driver string) controller.Settings {
	o := p.options
	return controller.Settings{
		Naming:              o.naming(),
		Timeout:             o.CSI.Timeout,
		Workers:             o.Workers,
		Retry:               o.Retry,
		Topology:            o.Topology,
		ExtraCreateMetadata: o.ExtraCreateMetadata,
		DefaultFSType:       o.DefaultFSType,
		PublishReadOnly:     o.ControllerPublishReadOnly,
		Identity:            p.identityFor(driver),
		Features:            p.features(),
		SourceWorkers:       o.CloningProtectionWorkers,
		ModeConversion:      !o.PreventVolumeModeConversion,
		Node:                o.Node.node(p.segment),
		Shutdown:            p.options.shutdown(),
	}
}

// identityFor returns what volumes of the driver say about their maker.
func (p *instance) identityFor(driver string) string {
	if p.options.Node.Enabled {
		return p.identity + "-" + driver + "-" + p.options.Node.Name
	}
	return p.identity + "-" + driver
}
