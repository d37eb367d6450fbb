package driverkit_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/longshore-csi/longshore/driverkit"
	"github.com/longshore-csi/longshore/driverkit/internal/testarray"
)

// erring is a driver whose calls that make or delete something fail.
type erring struct {
	*testarray.Array
	err error
}

func (f erring) Create(ctx context.Context, req *driverkit.CreateRequest) (*driverkit.Volume, error) {
	v, err := f.Array.Create(ctx, req)
	if f.err == nil && err == nil {
		v.ID = "" // which CSI does not allow
	}
	return v, firstOf(f.err, err)
}

func (f erring) CreateSnapshot(ctx context.Context, req *driverkit.CreateSnapshotRequest) (*driverkit.Snapshot, error) {
	s, err := f.Array.CreateSnapshot(ctx, req)
	return s, firstOf(f.err, err)
}

func (f erring) CreateGroupSnapshot(ctx context.Context, req *driverkit.CreateGroupSnapshotRequest) (*driverkit.GroupSnapshot, error) {
	g, err := f.Array.CreateGroupSnapshot(ctx, req)
	return g, firstOf(f.err, err)
}

func (f erring) Attach(ctx context.Context, req *driverkit.AttachRequest) (*driverkit.Attached, error) {
	attached, err := f.Array.Attach(ctx, req)
	return attached, firstOf(f.err, err)
}

func (f erring) Delete(context.Context, *driverkit.DeleteRequest) error { return f.err }

func (f erring) Detach(context.Context, *driverkit.DetachRequest) error { return f.err }

func (f erring) DeleteSnapshot(context.Context, *driverkit.DeleteSnapshotRequest) error {
	return f.err
}

func (f erring) DeleteGroupSnapshot(context.Context, *driverkit.DeleteGroupSnapshotRequest) error {
	return f.err
}

func firstOf(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// TestUncertainErrors: an error that says nothing of what was made is not final, as a CO forgets the request then, and what was made with it.
func TestUncertainErrors(t *testing.T) {
	cases := map[string]struct {
		reason string
		err    error
		code   codes.Code
	}{
		"Plain":     {reason: "the answer of the storage system may have been lost", err: errTest, code: codes.Aborted},
		"Final":     {reason: "the driver knows", err: fmt.Errorf("make it: %w", driverkit.Final(errTest)), code: codes.Internal},
		"OfTheKit":  {reason: "no space, so nothing was made", err: fmt.Errorf("%w: %w", errTest, driverkit.ErrExhausted), code: codes.ResourceExhausted},
		"OwnStatus": {reason: "the driver's own word", err: status.Error(codes.Internal, "no controller"), code: codes.Internal},
		"OfAWait":   {reason: "it may go on", err: context.DeadlineExceeded, code: codes.DeadlineExceeded},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, nil)
			v := b.create("pvc-1")
			b.stop()
			b.start(erring{b.array, c.err})
			_, err := b.CreateVolume(ctxOf(t), createRequest("pvc-2"))
			wantCode(t, "create a volume: "+c.reason, err, c.code)
			_, err = b.CreateSnapshot(ctxOf(t), &csi.CreateSnapshotRequest{Name: "snapshot", SourceVolumeId: v.GetVolumeId()})
			wantCode(t, "create a snapshot: "+c.reason, err, c.code)
			_, err = b.CreateVolumeGroupSnapshot(ctxOf(t), &csi.CreateVolumeGroupSnapshotRequest{Name: "group", SourceVolumeIds: []string{v.GetVolumeId()}})
			wantCode(t, "create a group snapshot: "+c.reason, err, c.code)
			_, err = b.ControllerPublishVolume(ctxOf(t), &csi.ControllerPublishVolumeRequest{VolumeId: v.GetVolumeId(), NodeId: "node-1", VolumeCapability: mountCapability()})
			wantCode(t, "attach: "+c.reason, err, c.code)
		})
	}
	t.Run("BadID", func(t *testing.T) {
		b := prepareBench(t, nil)
		b.start(erring{b.array, nil})
		_, err := b.CreateVolume(ctxOf(t), createRequest("pvc-1"))
		wantCode(t, "a volume was made, with an id that is not allowed", err, codes.Aborted)
	})
}

// TestNotFound: a deletion succeeds if that object does not exist, and not if anything else was not found.
func TestNotFound(t *testing.T) {
	const id, node = "an-id", "node-1"
	cases := map[string]struct {
		reason         string
		err            error
		delete, detach codes.Code
	}{
		"Object":  {reason: "it does not exist", err: fmt.Errorf("delete: %w", driverkit.NotFound("volume", id))},
		"Node":    {reason: "nothing is attached to a node that does not exist", err: driverkit.NotFound("node", node), delete: codes.Internal},
		"Another": {reason: "another object does not exist", err: driverkit.NotFound("pool", "a-pool"), delete: codes.Internal, detach: codes.Internal},
		"Plain":   {reason: "a wrong address has status 404, too", err: fmt.Errorf("404: %w", driverkit.ErrNotFound), delete: codes.Internal, detach: codes.Internal},
		"Status":  {reason: "so has a proxy", err: status.Error(codes.NotFound, "no such service"), delete: codes.Internal, detach: codes.Internal},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			b := prepareBench(t, nil)
			b.start(erring{b.array, c.err})
			_, err := b.DeleteVolume(ctxOf(t), &csi.DeleteVolumeRequest{VolumeId: id})
			wantCode(t, "delete a volume: "+c.reason, err, c.delete)
			_, err = b.DeleteSnapshot(ctxOf(t), &csi.DeleteSnapshotRequest{SnapshotId: id})
			wantCode(t, "delete a snapshot: "+c.reason, err, c.delete)
			_, err = b.ControllerUnpublishVolume(ctxOf(t), &csi.ControllerUnpublishVolumeRequest{VolumeId: id, NodeId: node})
			wantCode(t, "detach: "+c.reason, err, c.detach)
		})
	}
}
