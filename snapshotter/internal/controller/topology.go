package controller

import (
	"context"
	"fmt"

	"github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/longshore-csi/longshore/csikit/snapshotapi"
	"github.com/longshore-csi/longshore/topology"
)

// requirement returns from where a class wants its snapshots to be accessible (CSI v1.13, "CreateSnapshot"); nil if it does not say so.
func requirement(c class, f Features, driver string) (*csi.TopologyRequirement, error) {
	terms, err := snapshotapi.AllowedTopologies(c.annotations)
	if err != nil || len(terms) == 0 {
		return nil, err
	}
	segments, err := topology.Flatten(terms)
	switch {
	case err != nil:
		return nil, fmt.Errorf("annotation %s: %w", snapshotapi.AnnAllowedTopologies, err)
	case len(segments) == 0:
		return nil, fmt.Errorf("annotation %s has no term with matchLabelExpressions, so that it allows no place", snapshotapi.AnnAllowedTopologies)
	case !f.Topology:
		return nil, fmt.Errorf("annotation %s restricts from where snapshots are accessible, which driver %q cannot: it does not announce "+
			"SNAPSHOT_ACCESSIBILITY_CONSTRAINTS; remove the annotation", snapshotapi.AnnAllowedTopologies, driver)
	}
	required := &csi.TopologyRequirement{}
	for _, s := range segments {
		required.Requisite = append(required.Requisite, s.Topology())
	}
	return required, nil
}

// recordPlace writes from where a snapshot is accessible, once: the first answer wins, and what the admin says of a snapshot that existed
// before. It comes before the status, from which on volumes are made of the snapshot.
func (l *loop) recordPlace(ctx context.Context, r record, s snapshot) error {
	if s.accessible == "" || r.has(snapshotapi.AnnAccessibleTopology) {
		return nil
	}
	annotations := map[string]any{snapshotapi.AnnAccessibleTopology: s.accessible}
	return l.write(ctx, r, map[string]any{"metadata": map[string]any{"uid": r.uid, "annotations": annotations}})
}
