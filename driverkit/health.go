package driverkit

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/container-storage-interface/spec/lib/go/csi"
)

// ControllerGetVolumeHealth reports the problems of a volume (CSI v1.13, "ControllerGetVolumeHealth").
func (c *controller) ControllerGetVolumeHealth(ctx context.Context, req *csi.ControllerGetVolumeHealthRequest) (*csi.ControllerGetVolumeHealthResponse, error) {
	reporter := optional[HealthReporter](c.kit)
	if reporter == nil {
		return nil, unimplemented("ControllerGetVolumeHealth")
	}
	op := operation{invalid: required("volume_id", req.GetVolumeId())}
	return perform(ctx, c.kit, op, func(ctx context.Context) (*csi.ControllerGetVolumeHealthResponse, error) {
		conditions, err := reporter.VolumeHealth(ctx, &HealthRequest{ID: req.GetVolumeId()})
		return &csi.ControllerGetVolumeHealthResponse{VolumeHealth: healthOf(req.GetVolumeId(), conditions)}, err
	})
}

// ControllerListVolumeHealth returns a page of the volumes that have problems (CSI v1.13, "ControllerListVolumeHealth").
func (c *controller) ControllerListVolumeHealth(ctx context.Context, req *csi.ControllerListVolumeHealthRequest) (*csi.ControllerListVolumeHealthResponse, error) {
	reporter, lister := optional[HealthReporter](c.kit), optional[Lister](c.kit)
	if reporter == nil || lister == nil {
		return nil, unimplemented("ControllerListVolumeHealth")
	}
	after, err := startOf(req)
	return perform(ctx, c.kit, operation{invalid: err}, func(ctx context.Context) (*csi.ControllerListVolumeHealthResponse, error) {
		sick, next, err := page(int(req.GetMaxEntries()), func(limit int) ([]*csi.VolumeHealth, error) {
			return listSick(ctx, lister, reporter, after, limit)
		}, func(h *csi.VolumeHealth) string { return h.GetVolumeId() })
		return &csi.ControllerListVolumeHealthResponse{Entries: sick, NextToken: next}, err
	})
}

// healthBatch is how many volumes are listed at a time: a page of a few that have problems does not list all volumes.
const healthBatch = 256

// listSick asks volume for volume, and returns at most limit of those that have problems; 0 means all.
func listSick(ctx context.Context, lister Lister, reporter HealthReporter, after string, limit int) (sick []*csi.VolumeHealth, err error) {
	for {
		volumes, err := lister.List(ctx, after, healthBatch)
		if err := errors.Join(err, ctx.Err()); err != nil || len(volumes) == 0 {
			return sick, err
		}
		for _, v := range volumes {
			conditions, err := reporter.VolumeHealth(ctx, &HealthRequest{ID: v.ID})
			if err != nil && !isNotFound(err) { // It may have been deleted since.
				return nil, err
			}
			if len(conditions) > 0 {
				sick = append(sick, healthOf(v.ID, conditions))
			}
			if limit > 0 && len(sick) == limit {
				return sick, nil
			}
			after = v.ID
		}
	}
}

// reportsHealth reports whether NodeGetVolumeHealth is served: by every Backend, since the kit knows the mounts.
func (n *node) reportsHealth() bool { return !slices.Contains(n.Without, "HealthReporter") }

// NodeGetVolumeHealth reports the problems of a volume on this node: those that the Backend knows if it is a HealthReporter, mounts that do not exist any
// more, and file systems that became read-only (CSI v1.13, "NodeGetVolumeHealth").
func (n *node) NodeGetVolumeHealth(ctx context.Context, req *csi.NodeGetVolumeHealthRequest) (*csi.NodeGetVolumeHealthResponse, error) {
	if !n.reportsHealth() {
		return nil, unimplemented("NodeGetVolumeHealth")
	}
	op := operation{invalid: required("volume_id", req.GetVolumeId())}
	return perform(ctx, n.kit, op, func(ctx context.Context) (*csi.NodeGetVolumeHealthResponse, error) {
		conditions, err := n.health(ctx, req.GetVolumeId())
		return &csi.NodeGetVolumeHealthResponse{VolumeHealth: healthOf(req.GetVolumeId(), conditions)}, err
	})
}

// health returns the problems of a volume on this node.
func (n *node) health(ctx context.Context, id string) ([]Condition, error) {
	known := n.journal.get(id)
	var conditions []Condition
	if reporter := optional[HealthReporter](n.kit); reporter != nil {
		reported, err := reporter.VolumeHealth(ctx, &HealthRequest{ID: id, OnNode: true})
		if err != nil {
			return nil, err
		}
		conditions = reported
	} else if known.Stage == nil && len(known.Targets) == 0 {
		return nil, fmt.Errorf("volume %q on this node: %w", id, ErrNotFound)
	}
	stages := []*stage{known.Stage}
	for _, t := range known.Targets {
		stages = append(stages, t.Stage)
	}
	for _, s := range stages {
		if s == nil || s.Staged == nil {
			continue
		}
		found, err := n.mountConditions(ctx, s)
		if err != nil {
			return nil, err
		}
		conditions = append(conditions, found...)
	}
	return conditions, nil
}

// mountConditions returns the problems of the mount of a stage.
func (n *node) mountConditions(ctx context.Context, s *stage) ([]Condition, error) {
	staged, err := n.stillStaged(ctx, s)
	if err != nil {
		return nil, err
	}
	if !staged {
		return []Condition{{Inaccessible, "NotMounted", "the volume is staged at " + s.Path + ", but is not mounted there any more"}}, nil
	}
	broken, err := n.becameReadOnly(ctx, s)
	if err != nil || !broken {
		return nil, err
	}
	return []Condition{{Degraded, "FileSystemReadOnly", s.readOnlyMessage() + "; writes fail"}}, nil
}

// NodeGetStorageHealth reports whether this node reaches the storage system (CSI v1.13, "NodeGetStorageHealth").
func (n *node) NodeGetStorageHealth(ctx context.Context, _ *csi.NodeGetStorageHealthRequest) (*csi.NodeGetStorageHealthResponse, error) {
	prober, reporter := optional[Prober](n.kit), optional[StorageHealthReporter](n.kit)
	answer := &csi.NodeGetStorageHealthResponse{}
	if reporter != nil {
		for _, c := range reporter.StorageHealth(ctx) {
			answer.BackendHealth = append(answer.BackendHealth, &csi.NodeGetStorageHealthResponse_StorageBackendHealth{Status: c.Severity, Reason: c.Reason, Message: c.Message})
		}
		return answer, nil
	}
	if prober == nil {
		return nil, unimplemented("NodeGetStorageHealth")
	}
	if err := prober.Probe(ctx); err != nil {
		answer.BackendHealth = []*csi.NodeGetStorageHealthResponse_StorageBackendHealth{{
			Status: csi.StorageHealthErrorType_STORAGE_UNREACHABLE, Reason: "ProbeFailed", Message: err.Error(),
		}}
	}
	return answer, nil
}

func healthOf(id string, conditions []Condition) *csi.VolumeHealth {
	answer := &csi.VolumeHealth{VolumeId: id}
	for _, c := range conditions {
		answer.HealthStatuses = append(answer.HealthStatuses, &csi.VolumeHealth_VolumeHealthEntry{Status: c.Severity, Reason: c.Reason, Message: c.Message})
	}
	return answer
}
