package driverkit

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
)

// controller serves csi.v1.Controller. Each part of a Driver has a file of its own.
type controller struct {
	csi.UnimplementedControllerServer
	*kit
}

// controllerRPC shortens the type of controller capabilities.
type controllerRPC = csi.ControllerServiceCapability_RPC_Type

// ControllerGetCapabilities announces what follows from the Driver.
func (c *controller) ControllerGetCapabilities(context.Context, *csi.ControllerGetCapabilitiesRequest) (*csi.ControllerGetCapabilitiesResponse, error) {
	answer := &csi.ControllerGetCapabilitiesResponse{}
	add := func(announced bool, rpcs ...controllerRPC) {
		for _, rpc := range rpcs {
			if announced {
				answer.Capabilities = append(answer.Capabilities, &csi.ControllerServiceCapability{
					Type: &csi.ControllerServiceCapability_Rpc{Rpc: &csi.ControllerServiceCapability_RPC{Type: rpc}},
				})
			}
		}
	}
	d := &c.driver
	add(true, csi.ControllerServiceCapability_RPC_SINGLE_NODE_MULTI_WRITER)
	add(d.Provisioner != nil, csi.ControllerServiceCapability_RPC_CREATE_DELETE_VOLUME, csi.ControllerServiceCapability_RPC_GET_VOLUME)
	add(d.Attacher != nil, csi.ControllerServiceCapability_RPC_PUBLISH_UNPUBLISH_VOLUME)
	add(d.Attacher != nil && !c.Support.NoReadOnlyAttach, csi.ControllerServiceCapability_RPC_PUBLISH_READONLY)
	add(d.List != nil, csi.ControllerServiceCapability_RPC_LIST_VOLUMES)
	add(d.List != nil && d.Attacher != nil, csi.ControllerServiceCapability_RPC_LIST_VOLUMES_PUBLISHED_NODES)
	add(d.Capacity != nil, csi.ControllerServiceCapability_RPC_GET_CAPACITY)
	add(d.Expand != nil && !c.Support.NoControllerExpansion, csi.ControllerServiceCapability_RPC_EXPAND_VOLUME)
	add(d.Modify != nil, csi.ControllerServiceCapability_RPC_MODIFY_VOLUME)
	add(c.Support.Clones, csi.ControllerServiceCapability_RPC_CLONE_VOLUME)
	add(d.Snapshotter != nil, csi.ControllerServiceCapability_RPC_CREATE_DELETE_SNAPSHOT, csi.ControllerServiceCapability_RPC_GET_SNAPSHOT)
	add(d.ListSnapshots != nil, csi.ControllerServiceCapability_RPC_LIST_SNAPSHOTS)
	add(d.VolumeHealth != nil, csi.ControllerServiceCapability_RPC_GET_VOLUME_HEALTH)
	add(d.VolumeHealth != nil && d.List != nil, csi.ControllerServiceCapability_RPC_LIST_VOLUME_HEALTH)
	add(c.conditions(), controllerCondition)
	return answer, nil
}

// CreateVolume makes a volume, or finds the one of that name (CSI v1.13, "CreateVolume").
func (c *controller) CreateVolume(ctx context.Context, req *csi.CreateVolumeRequest) (*csi.CreateVolumeResponse, error) {
	if c.driver.Provisioner == nil {
		return nil, unimplemented("CreateVolume")
	}
	wanted, err := c.createRequestOf(req)
	op := operation{name: "volume " + req.GetName(), secrets: req.GetSecrets(), invalid: err}
	if err == nil && wanted.Source != nil {
		op.sources = []string{copied(wanted.Source.String())}
	}
	return perform(ctx, c.kit, op, func(ctx context.Context) (*csi.CreateVolumeResponse, error) {
		created, err := c.create(ctx, wanted)
		if err != nil {
			return nil, err
		}
		return &csi.CreateVolumeResponse{Volume: created.message(wanted.Source)}, nil
	})
}

func (c *controller) createRequestOf(req *csi.CreateVolumeRequest) (*CreateRequest, error) {
	if err := checkName("name", req.GetName()); err != nil {
		return nil, err
	}
	size, err := rangeOf(req.GetCapacityRange())
	if err != nil {
		return nil, err
	}
	capabilities, err := c.capabilitiesOf(req.GetVolumeCapabilities())
	if err != nil {
		return nil, err
	}
	source, err := c.sourceOf(req.GetVolumeContentSource())
	if err != nil {
		return nil, err
	}
	if len(req.GetMutableParameters()) > 0 && c.driver.Modify == nil {
		return nil, fmt.Errorf("mutable_parameters: MODIFY_VOLUME is not announced: %w", ErrInvalid)
	}
	return &CreateRequest{
		Name: req.GetName(), Size: size, Capabilities: capabilities, Source: source,
		Parameters: req.GetParameters(), MutableParameters: req.GetMutableParameters(), Secrets: req.GetSecrets(),
		Topology: topologyOf(req.GetAccessibilityRequirements()),
	}, nil
}

// create asks the driver for the volume, once more where another call, such as a deletion, had the volume meanwhile.
func (c *controller) create(ctx context.Context, wanted *CreateRequest) (*Volume, error) {
	for range 2 {
		created, err := c.driver.Provisioner.Create(ctx, wanted)
		if err != nil {
			return nil, uncertain(err)
		}
		if err := wanted.check(created); err != nil {
			return nil, uncertain(err)
		}
		waited, err := c.locks.free(ctx, volumeKey(created.ID))
		if err != nil || !waited {
			return created, err
		}
		if _, err := c.driver.Provisioner.Get(ctx, &GetRequest{ID: created.ID, Secrets: wanted.Secrets}); !isNotFound(err) {
			return created, err
		}
	}
	return nil, fmt.Errorf("volume %q is deleted as often as it is created: %w", wanted.Name, ErrBusy)
}

// volumeKey is the key of a volume's lock; snapshots have ids of their own.
func volumeKey(id string) string { return Source{Volume: id}.String() }

// snapshotKey is the key of a snapshot's lock.
func snapshotKey(id string) string { return Source{Snapshot: id}.String() }

// copied is the key of a lock on an object as the source of a copy: nodes may use a source meanwhile, but it is neither deleted nor expanded.
func copied(key string) string { return "copy of " + key }

// onSource is onVolume for a call that no copy of the volume may be beside.
func onSource(id string, secrets Secrets, invalid ...error) operation {
	op := onVolume(id, secrets, invalid...)
	op.ids = append(op.ids, copied(volumeKey(id)))
	return op
}

// onVolume is the operation of a call that changes one volume.
func onVolume(id string, secrets Secrets, invalid ...error) operation {
	return operation{ids: []string{volumeKey(id)}, secrets: secrets, invalid: errors.Join(append([]error{required("volume_id", id)}, invalid...)...)}
}

// DeleteVolume deletes a volume; one that does not exist is deleted (CSI v1.13, "DeleteVolume").
func (c *controller) DeleteVolume(ctx context.Context, req *csi.DeleteVolumeRequest) (*csi.DeleteVolumeResponse, error) {
	if c.driver.Provisioner == nil {
		return nil, unimplemented("DeleteVolume")
	}
	return perform(ctx, c.kit, onSource(req.GetVolumeId(), req.GetSecrets()), func(ctx context.Context) (*csi.DeleteVolumeResponse, error) {
		return &csi.DeleteVolumeResponse{}, ignoreNotFound(c.driver.Provisioner.Delete(ctx, &DeleteRequest{ID: req.GetVolumeId(), Secrets: req.GetSecrets()}), req.GetVolumeId())
	})
}

// ControllerGetVolume returns one volume (CSI v1.13, "ControllerGetVolume").
func (c *controller) ControllerGetVolume(ctx context.Context, req *csi.ControllerGetVolumeRequest) (*csi.ControllerGetVolumeResponse, error) {
	if c.driver.Provisioner == nil {
		return nil, unimplemented("ControllerGetVolume")
	}
	op := operation{invalid: required("volume_id", req.GetVolumeId())}
	return perform(ctx, c.kit, op, func(ctx context.Context) (*csi.ControllerGetVolumeResponse, error) {
		found, err := c.driver.Provisioner.Get(ctx, &GetRequest{ID: req.GetVolumeId()})
		if err != nil {
			return nil, err
		}
		answer := &csi.ControllerGetVolumeResponse{
			Volume: found.message(nil), Status: &csi.ControllerGetVolumeResponse_VolumeStatus{PublishedNodeIds: found.Nodes},
		}
		return answer, c.addCondition(ctx, answer.GetStatus(), found.ID)
	})
}

// ValidateVolumeCapabilities confirms what a volume can do; an answer without confirmation says why not (CSI v1.13, "ValidateVolumeCapabilities").
func (c *controller) ValidateVolumeCapabilities(ctx context.Context, req *csi.ValidateVolumeCapabilitiesRequest) (*csi.ValidateVolumeCapabilitiesResponse, error) {
	op := operation{secrets: req.GetSecrets(), invalid: required("volume_id", req.GetVolumeId())}
	if len(req.GetVolumeCapabilities()) == 0 {
		op.invalid = errors.Join(op.invalid, fmt.Errorf("volume_capabilities: at least one is required: %w", ErrInvalid))
	}
	return perform(ctx, c.kit, op, func(ctx context.Context) (*csi.ValidateVolumeCapabilitiesResponse, error) {
		found, err := c.known(ctx, req.GetVolumeId(), req.GetSecrets())
		if err != nil {
			return nil, err
		}
		if err := c.validate(ctx, req); codeOf(err) == codes.InvalidArgument {
			return &csi.ValidateVolumeCapabilitiesResponse{Message: Secrets(req.GetSecrets()).remove(err.Error())}, nil // The answer is that it is not confirmed.
		} else if err != nil {
			return nil, err
		}
		if sent := ownContext(req.GetVolumeContext()); len(sent) > 0 && found.Context != nil && !maps.Equal(sent, found.Context) {
			return &csi.ValidateVolumeCapabilitiesResponse{Message: "volume_context: differs from that of the volume"}, nil
		}
		return &csi.ValidateVolumeCapabilitiesResponse{Confirmed: &csi.ValidateVolumeCapabilitiesResponse_Confirmed{
			VolumeContext: req.GetVolumeContext(), VolumeCapabilities: req.GetVolumeCapabilities(),
			Parameters: req.GetParameters(), MutableParameters: req.GetMutableParameters(),
		}}, nil
	})
}

// known returns a volume by its id, with nothing but that where the driver has no Provisioner that knows more.
func (c *controller) known(ctx context.Context, id string, secrets Secrets) (*Volume, error) {
	if c.driver.Provisioner == nil {
		return &Volume{ID: id}, nil
	}
	return c.driver.Provisioner.Get(ctx, &GetRequest{ID: id, Secrets: secrets})
}

// validate asks the driver, if it has a Validate, whether a volume can be used as a request says; Options.Support may exclude that.
func (c *controller) validate(ctx context.Context, req *csi.ValidateVolumeCapabilitiesRequest) error {
	capabilities, err := c.capabilitiesOf(req.GetVolumeCapabilities())
	if err != nil || c.driver.Validate == nil {
		return err
	}
	return c.driver.Validate(ctx, &ValidateRequest{
		ID: req.GetVolumeId(), Capabilities: capabilities, Parameters: req.GetParameters(), MutableParameters: req.GetMutableParameters(), Secrets: req.GetSecrets(),
	})
}

// ownContext is a volume context without what Kubernetes adds to it.
func ownContext(context map[string]string) map[string]string {
	own := maps.Clone(context)
	maps.DeleteFunc(own, func(key, _ string) bool {
		return strings.HasPrefix(key, "csi.storage.k8s.io/") || strings.HasPrefix(key, "storage.kubernetes.io/")
	})
	return own
}
