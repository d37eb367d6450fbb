package provisioner

import (
	"github.com/longshore-csi/longshore/csikit/csiclient"
	"github.com/longshore-csi/longshore/csikit/migration"
	"github.com/longshore-csi/longshore/provisioner/internal/capabilities"
	"github.com/longshore-csi/longshore/provisioner/internal/claim"
	"github.com/longshore-csi/longshore/provisioner/internal/view"
)

// This file turns options, and what was found out about driver and API server, into what view and controller act on.

// features returns the features that are on. p.mu must be held.
func (p *provisioner) features() capabilities.Features {
	return capabilities.Features{
		Topology:        p.options.Features.Enabled(GateTopology),
		AttributesClass: p.options.Features.Enabled(GateVolumeAttributesClass) && !p.noAttributes,
		SkipAttach:      p.skipAttach,
		CrossNamespace:  p.options.Features.Enabled(GateCrossNamespace),
	}
}

// settings returns the options that the controller acts on. p.mu must be held.
func (p *provisioner) settings(driver string) claim.Settings {
	o := p.options
	return claim.Settings{
		Naming:              o.naming(),
		Timeout:             o.CSI.Timeout,
		KubeTimeout:         o.KubeTimeout,
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
		Drain:               o.Drain(),
	}
}

// identityFor returns what volumes of the driver say about their maker.
func (p *provisioner) identityFor(driver string) string {
	if p.options.Node.Enabled {
		return p.identity + "-" + driver + "-" + p.options.Node.Name
	}
	return p.identity + "-" + driver
}

// viewConfig returns what is watched for a driver, and what is kept of it. p.mu must be held.
func (p *provisioner) viewConfig(info *csiclient.Info) view.Config {
	o := p.options
	return view.Config{
		Kube:          p.kube,
		Driver:        info.Name,
		Plugin:        migration.Of(info.Name),
		Shape:         capabilities.ShapeOf(info, p.features()),
		Node:          o.Node.node(p.segment),
		Naming:        o.naming(),
		SnapshotSweep: o.SnapshotSweepInterval,
		Timeout:       o.KubeTimeout,
	}
}
