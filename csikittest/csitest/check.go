package csitest

import (
	"fmt"
	"slices"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
)

// firstError returns the first error that is not nil.
func firstError(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

func needField(name, value string) error {
	if value == "" {
		return status.Errorf(codes.InvalidArgument, "%s is missing", name)
	}
	return nil
}

func needController(d *Driver, c csi.ControllerServiceCapability_RPC_Type, method string) error {
	if !d.hasController(c) {
		return status.Errorf(codes.Unimplemented, "%s needs the capability %s, which is not announced", method, c)
	}
	return nil
}

func needNode(d *Driver, c csi.NodeServiceCapability_RPC_Type, method string) error {
	if !d.hasNode(c) {
		return status.Errorf(codes.Unimplemented, "%s needs the capability %s, which is not announced", method, c)
	}
	return nil
}

// find returns a volume by its ID.
func (d *Driver) find(id string) (*volume, error) {
	if err := needField("volume ID", id); err != nil {
		return nil, err
	}
	v := d.volumes[id]
	if v == nil {
		return nil, status.Errorf(codes.NotFound, "volume %q does not exist", id)
	}
	return v, nil
}

// violation records a call that violates the life cycle and returns the error
// for its caller.
func (d *Driver) violation(format string, args ...any) error {
	text := fmt.Sprintf(format, args...)
	d.violations = append(d.violations, text)
	return status.Error(codes.FailedPrecondition, text)
}

// Overlaps returns the calls that began to create or delete something while another such call for it was running, in order. CSI spec v1.13,
// "Concurrency": the CO should prevent that, and cannot when it has crashed; the driver serves them one after the other.
func (d *Driver) Overlaps() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Clone(d.overlaps)
}

// beginOn counts a call for a volume, snapshot or group snapshot, until endOn.
func (b *backend) beginOn(method, target string) {
	if target != "" && b.running[target] > 0 {
		b.overlaps = append(b.overlaps, fmt.Sprintf("%s of %q during another call for it", method, target))
	}
	b.running[target]++
}

func (b *backend) endOn(target string) {
	if b.running[target]--; b.running[target] == 0 {
		delete(b.running, target)
	}
}

// targetOf returns the ID of what a call creates or deletes, or "".
func targetOf(req proto.Message) string {
	switch req := req.(type) {
	case *csi.CreateVolumeRequest:
		return "vol-" + req.GetName()
	case *csi.CreateSnapshotRequest:
		return "snap-" + req.GetName()
	case *csi.CreateVolumeGroupSnapshotRequest:
		return "group-" + req.GetName()
	case *csi.DeleteVolumeRequest:
		return req.GetVolumeId()
	case *csi.DeleteSnapshotRequest:
		return req.GetSnapshotId()
	case *csi.DeleteVolumeGroupSnapshotRequest:
		return req.GetGroupSnapshotId()
	}
	return ""
}

func checkCapabilities(capabilities []*csi.VolumeCapability) error {
	if len(capabilities) == 0 {
		return status.Error(codes.InvalidArgument, "volume capabilities are missing")
	}
	for _, c := range capabilities {
		if err := checkCapability(c); err != nil {
			return err
		}
	}
	return nil
}

func checkCapability(c *csi.VolumeCapability) error {
	switch {
	case c == nil:
		return status.Error(codes.InvalidArgument, "volume capability is missing")
	case c.GetAccessType() == nil:
		return status.Error(codes.InvalidArgument, "volume capability has no access type: block or mount")
	case c.GetAccessMode().GetMode() == csi.VolumeCapability_AccessMode_UNKNOWN:
		return status.Error(codes.InvalidArgument, "volume capability has no access mode")
	}
	return nil
}

func checkRange(r *csi.CapacityRange) error {
	required, limit := r.GetRequiredBytes(), r.GetLimitBytes()
	switch {
	case required < 0 || limit < 0:
		return status.Errorf(codes.InvalidArgument, "capacity range from %d to %d bytes: must not be negative", required, limit)
	case limit > 0 && limit < required:
		return status.Errorf(codes.InvalidArgument, "capacity range from %d to %d bytes: the limit is below the required size", required, limit)
	}
	return nil
}

// pickSize returns a size in the range, not less than the parameter least (bytes).
func pickSize(r *csi.CapacityRange, least int64) (int64, error) {
	size := max(r.GetRequiredBytes(), least)
	limit := r.GetLimitBytes()
	if size == 0 {
		size = DefaultVolumeSize
		if limit > 0 {
			size = min(size, limit)
		}
	}
	if limit > 0 && size > limit || size > maxVolumeSize {
		return 0, status.Errorf(codes.OutOfRange, "no size fits: at least %d bytes are needed, at most %d allowed, and the driver makes at most %d", size, limit, maxVolumeSize)
	}
	return size, nil
}

func inRange(size int64, r *csi.CapacityRange) bool {
	return size >= r.GetRequiredBytes() && (r.GetLimitBytes() == 0 || size <= r.GetLimitBytes())
}

func (b *backend) checkMutable(parameters map[string]string) error {
	for key := range parameters {
		if b.o.MutableParameters != nil && !slices.Contains(b.o.MutableParameters, key) {
			return status.Errorf(codes.InvalidArgument, "mutable parameter %q is not supported: want one of %q", key, b.o.MutableParameters)
		}
	}
	return nil
}

// free returns the free capacity in bytes.
func (b *backend) free() int64 {
	free := b.o.Capacity
	for _, v := range b.volumes {
		if !v.Ephemeral {
			free -= v.Capacity
		}
	}
	return max(free, 0)
}

// singleNode reports whether a volume with this capability may be used on one
// node at a time only.
func singleNode(c *csi.VolumeCapability) bool {
	switch c.GetAccessMode().GetMode() {
	case csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER,
		csi.VolumeCapability_AccessMode_SINGLE_NODE_READER_ONLY,
		csi.VolumeCapability_AccessMode_SINGLE_NODE_SINGLE_WRITER,
		csi.VolumeCapability_AccessMode_SINGLE_NODE_MULTI_WRITER:
		return true
	default:
		return false
	}
}
