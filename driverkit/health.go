package driverkit

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/container-storage-interface/spec/lib/go/csi"
)

// HealthRequest asks for the problems of a volume.
type HealthRequest struct {
	// ID is Volume.ID of Create.
	ID string
	// OnNode says that the problems on this node are asked for: the connection, the device. Else they are those of the storage system.
	OnNode bool
	// TargetPath and StagingPath are where the CO has the volume on this node; empty where it does not say.
	TargetPath, StagingPath string
	// Secrets are those for the health of volumes. Nodes have none.
	Secrets Secrets
}

// StorageHealthRequest asks for the problems of the storage system.
type StorageHealthRequest struct {
	// Secrets are those for the health of the storage system.
	Secrets Secrets
}

// Health is what a volume or a storage system suffers from.
type Health struct {
	// Conditions are the present problems; none if it is well.
	Conditions []Condition
}

// Condition is a problem of a volume or of a storage system (CSI v1.13, "VolumeHealth", "StorageBackendHealth").
type Condition struct {
	// Severity is how bad it is.
	Severity Severity
	// Reason is one word in CamelCase for programs, Message a sentence for people.
	Reason, Message string
}

// Severity is how bad a Condition is (CSI v1.13, "VolumeHealthErrorType", "StorageHealthErrorType").
type Severity int

// The severities.
const (
	// Degraded is for what works, but not as it should: DEGRADED, or STORAGE_DEGRADED.
	Degraded Severity = iota + 1
	// Inaccessible is for what cannot be used at present: INACCESSIBLE, or STORAGE_UNREACHABLE.
	Inaccessible
	// DataLoss is for a volume whose data is lost in part or whole: DATA_LOSS. A storage system has no such condition.
	DataLoss
)

// ControllerGetVolumeHealth reports the problems of a volume (CSI v1.13, "ControllerGetVolumeHealth").
func (c *controller) ControllerGetVolumeHealth(ctx context.Context, req *csi.ControllerGetVolumeHealthRequest) (*csi.ControllerGetVolumeHealthResponse, error) {
	if c.driver.VolumeHealth == nil {
		return nil, unimplemented("ControllerGetVolumeHealth")
	}
	op := operation{secrets: req.GetSecrets(), invalid: required("volume_id", req.GetVolumeId())}
	return perform(ctx, c.kit, op, func(ctx context.Context) (*csi.ControllerGetVolumeHealthResponse, error) {
		found, err := c.driver.VolumeHealth(ctx, &HealthRequest{ID: req.GetVolumeId(), Secrets: req.GetSecrets()})
		if err != nil {
			return nil, err
		}
		return &csi.ControllerGetVolumeHealthResponse{VolumeHealth: healthOf(req.GetVolumeId(), valueOf(found).Conditions)}, nil
	})
}

// ControllerListVolumeHealth returns a page of the volumes that have problems (CSI v1.13, "ControllerListVolumeHealth").
func (c *controller) ControllerListVolumeHealth(ctx context.Context, req *csi.ControllerListVolumeHealthRequest) (*csi.ControllerListVolumeHealthResponse, error) {
	if c.driver.VolumeHealth == nil || c.driver.List == nil {
		return nil, unimplemented("ControllerListVolumeHealth")
	}
	after, err := startOf(req)
	return perform(ctx, c.kit, operation{secrets: req.GetSecrets(), invalid: err}, func(ctx context.Context) (*csi.ControllerListVolumeHealthResponse, error) {
		sick, next, err := page(int(req.GetMaxEntries()), func(limit int) (*Page[*csi.VolumeHealth], error) {
			return c.listSick(ctx, after, limit, req.GetSecrets())
		}, func(h *csi.VolumeHealth) string { return h.GetVolumeId() })
		return &csi.ControllerListVolumeHealthResponse{Entries: sick, NextToken: next}, err
	})
}

// healthBatch is how many volumes are listed at a time: a page of a few that have problems does not list all volumes.
const healthBatch = 256

// listSick asks volume for volume, and returns at most limit of those that have problems; 0 means all.
func (c *controller) listSick(ctx context.Context, after string, limit int, secrets Secrets) (*Page[*csi.VolumeHealth], error) {
	sick := &Page[*csi.VolumeHealth]{}
	for {
		volumes, err := c.driver.List(ctx, &ListRequest{After: after, Limit: healthBatch})
		if err := errors.Join(err, ctx.Err()); err != nil || len(valueOf(volumes).Entries) == 0 {
			return sick, err
		}
		for _, v := range volumes.Entries {
			found, err := c.driver.VolumeHealth(ctx, &HealthRequest{ID: v.ID, Secrets: secrets})
			if err != nil && !isNotFound(err) { // It may have been deleted since.
				return nil, err
			}
			if conditions := valueOf(found).Conditions; err == nil && len(conditions) > 0 {
				sick.Entries = append(sick.Entries, healthOf(v.ID, conditions))
			}
			if limit > 0 && len(sick.Entries) == limit {
				return sick, nil
			}
			after = v.ID
		}
	}
}

// NodeGetVolumeHealth reports the problems of a volume on this node: those that the driver knows if it has VolumeHealth, mounts that do not exist any
// more, and file systems that became read-only (CSI v1.13, "NodeGetVolumeHealth").
func (n *node) NodeGetVolumeHealth(ctx context.Context, req *csi.NodeGetVolumeHealthRequest) (*csi.NodeGetVolumeHealthResponse, error) {
	op := operation{invalid: required("volume_id", req.GetVolumeId())}
	return perform(ctx, n.kit, op, func(ctx context.Context) (*csi.NodeGetVolumeHealthResponse, error) {
		conditions, err := n.health(ctx, &HealthRequest{ID: req.GetVolumeId(), TargetPath: req.GetVolumePublishPath(), StagingPath: req.GetStagingTargetPath()})
		return &csi.NodeGetVolumeHealthResponse{VolumeHealth: healthOf(req.GetVolumeId(), conditions)}, err
	})
}

// health returns the problems of a volume on this node.
func (n *node) health(ctx context.Context, req *HealthRequest) ([]Condition, error) {
	known := n.journal.get(req.ID)
	var conditions []Condition
	if n.driver.VolumeHealth != nil {
		req.OnNode = true
		reported, err := n.driver.VolumeHealth(ctx, req)
		if err != nil {
			return nil, err
		}
		conditions = slices.Clone(valueOf(reported).Conditions)
	} else if known.Stage == nil && len(known.Targets) == 0 {
		return nil, fmt.Errorf("volume %q on this node: %w", req.ID, ErrNotFound)
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
func (n *node) NodeGetStorageHealth(ctx context.Context, req *csi.NodeGetStorageHealthRequest) (*csi.NodeGetStorageHealthResponse, error) {
	if !n.reportsStorage() {
		return nil, unimplemented("NodeGetStorageHealth")
	}
	return perform(ctx, n.kit, operation{secrets: req.GetSecrets()}, func(ctx context.Context) (*csi.NodeGetStorageHealthResponse, error) {
		found, err := n.storageHealth(ctx, &StorageHealthRequest{Secrets: req.GetSecrets()})
		if err != nil {
			return nil, err
		}
		answer := &csi.NodeGetStorageHealthResponse{}
		for _, c := range valueOf(found).Conditions {
			answer.BackendHealth = append(answer.BackendHealth, &csi.NodeGetStorageHealthResponse_StorageBackendHealth{
				Status: c.Severity.ofStorage(), Reason: c.Reason, Message: Secrets(req.GetSecrets()).remove(c.Message),
			})
		}
		return answer, nil
	})
}

// reportsStorage reports whether the driver knows the health of its storage system.
func (n *node) reportsStorage() bool { return n.driver.StorageHealth != nil || n.driver.Probe != nil }

// storageHealth asks the driver: StorageHealth knows more than Probe.
func (n *node) storageHealth(ctx context.Context, req *StorageHealthRequest) (*Health, error) {
	if n.driver.StorageHealth != nil {
		return n.driver.StorageHealth(ctx, req)
	}
	found := &Health{}
	if err := n.driver.Probe(ctx); err != nil {
		found.Conditions = []Condition{{Inaccessible, "ProbeFailed", err.Error()}}
	}
	return found, nil
}

// ofVolume is the severity in the terms of volumes.
func (s Severity) ofVolume() csi.VolumeHealthErrorType {
	switch s {
	case DataLoss:
		return csi.VolumeHealthErrorType_DATA_LOSS
	case Inaccessible:
		return csi.VolumeHealthErrorType_INACCESSIBLE
	case Degraded:
	}
	return csi.VolumeHealthErrorType_DEGRADED
}

// ofStorage is the severity in the terms of storage systems.
func (s Severity) ofStorage() csi.StorageHealthErrorType {
	if s == Inaccessible {
		return csi.StorageHealthErrorType_STORAGE_UNREACHABLE
	}
	return csi.StorageHealthErrorType_STORAGE_DEGRADED
}

func healthOf(id string, conditions []Condition) *csi.VolumeHealth {
	answer := &csi.VolumeHealth{VolumeId: id}
	for _, c := range conditions {
		answer.HealthStatuses = append(answer.HealthStatuses, &csi.VolumeHealth_VolumeHealthEntry{Status: c.Severity.ofVolume(), Reason: c.Reason, Message: c.Message})
	}
	return answer
}
