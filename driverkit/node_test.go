package driverkit_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"k8s.io/klog/v2"

	"github.com/longshore-csi/longshore/driverkit"
	"github.com/longshore-csi/longshore/driverkit/filesystem"
	"github.com/longshore-csi/longshore/driverkit/internal/testarray"
	"github.com/longshore-csi/longshore/driverkit/mount"
	"github.com/longshore-csi/longshore/driverkit/state"
)

var errBroken = errors.New("broken")

// stage stages a volume, and publish publishes it; both return the error.
func (b *bench) stage(v *csi.Volume) error {
	_, err := b.NodeStageVolume(ctxOf(b.t), b.stageRequest(v))
	return err
}

func (b *bench) publish(v *csi.Volume, target string) error {
	_, err := b.NodePublishVolume(ctxOf(b.t), b.publishRequest(v, target))
	return err
}

func (b *bench) unpublish(v *csi.Volume, target string) error {
	_, err := b.NodeUnpublishVolume(ctxOf(b.t), &csi.NodeUnpublishVolumeRequest{VolumeId: v.GetVolumeId(), TargetPath: b.path(target)})
	return err
}

func (b *bench) unstage(v *csi.Volume) error {
	return b.unstageAt(v, "staging")
}

func (b *bench) unstageAt(v *csi.Volume, staging string) error {
	_, err := b.NodeUnstageVolume(ctxOf(b.t), &csi.NodeUnstageVolumeRequest{VolumeId: v.GetVolumeId(), StagingTargetPath: b.path(staging)})
	return err
}

func (b *bench) delete(v *csi.Volume) error {
	_, err := b.DeleteVolume(ctxOf(b.t), &csi.DeleteVolumeRequest{VolumeId: v.GetVolumeId()})
	return err
}

// place mounts something that is not of the driver.
func (b *bench) place(name string) {
	b.t.Helper()
	if err := errors.Join(os.MkdirAll(b.path(name), 0o700), b.mounts.Place(b.t.Context(), "other", b.path(name), mount.Options{})); err != nil {
		b.t.Fatal(err)
	}
}

// records is how many volumes the journal has.
func (b *bench) records() int {
	b.t.Helper()
	found, err := filepath.Glob(b.path("state/journal/*.json"))
	if err != nil {
		b.t.Fatal(err)
	}
	return len(found)
}

// TestLifeOnNode makes each call of a node twice, with a restart of the driver between all calls.
func TestLifeOnNode(t *testing.T) {
	b := newBench(t, nil)
	v := b.create("pvc-1")
	for _, call := range []func() error{
		func() error { return b.stage(v) },
		func() error { return b.publish(v, "pod-1") },
		func() error { return b.unpublish(v, "pod-1") },
		func() error { return b.unstage(v) },
		func() error { return b.delete(v) },
	} {
		for range 2 {
			if err := call(); err != nil {
				t.Fatal(err)
			}
			b.restart()
		}
	}
	if left := b.mounts.Targets(); len(left) > 0 || b.records() > 0 {
		t.Errorf("left behind: mounts %q, %d records", left, b.records())
	}
}

// TestContradictions sends calls that contradict earlier ones.
func TestContradictions(t *testing.T) {
	b := newBench(t, nil)
	v := b.create("pvc-1")
	wantCode(t, "publish before stage", b.publish(v, "pod-1"), codes.FailedPrecondition)
	wantCode(t, "stage", b.stage(v), codes.OK)
	elsewhere, other := b.stageRequest(v), b.stageRequest(v)
	elsewhere.StagingTargetPath = b.path("elsewhere")
	_, err := b.NodeStageVolume(ctxOf(t), elsewhere)
	wantCode(t, "stage at another path", err, codes.FailedPrecondition)
	other.VolumeCapability.GetMount().MountFlags = []string{"noatime"}
	_, err = b.NodeStageVolume(ctxOf(t), other)
	wantCode(t, "stage with another capability", err, codes.AlreadyExists)
	wantCode(t, "publish", b.publish(v, "pod-1"), codes.OK)
	readOnly := b.publishRequest(v, "pod-1")
	readOnly.Readonly = true
	_, err = b.NodePublishVolume(ctxOf(t), readOnly)
	wantCode(t, "publish at the same path in another way", err, codes.AlreadyExists)
	block := b.publishRequest(v, "pod-3")
	block.VolumeCapability = blockCapability()
	_, err = b.NodePublishVolume(ctxOf(t), block)
	wantCode(t, "publish as a device", err, codes.FailedPrecondition)
	for mode, want := range map[driverkit.AccessMode]codes.Code{driverkit.SingleNodeSingleWriter: codes.FailedPrecondition, driverkit.SingleNodeWriter: codes.FailedPrecondition} {
		second := b.publishRequest(v, "pod-2")
		second.VolumeCapability.AccessMode.Mode = csi.VolumeCapability_AccessMode_Mode(mode)
		_, err = b.NodePublishVolume(ctxOf(t), second)
		wantCode(t, "publish at another path in mode "+mode.String(), err, want)
	}
	wantCode(t, "unstage while published", b.unstage(v), codes.FailedPrecondition)
	wantCode(t, "unpublish", b.unpublish(v, "pod-1"), codes.OK)
	multi := func(target string) error {
		req := b.publishRequest(v, target)
		req.VolumeCapability.AccessMode.Mode = csi.VolumeCapability_AccessMode_Mode(driverkit.SingleNodeMultiWriter)
		_, err := b.NodePublishVolume(ctxOf(t), req)
		return err
	}
	wantCode(t, "publish for one of many", multi("pod-1"), codes.OK)
	wantCode(t, "publish for another of many", multi("pod-2"), codes.OK)
}

// TestMountsComeBack repeats calls after mounts were lost, as a kubelet does after a restart of the machine.
func TestMountsComeBack(t *testing.T) {
	b := newBench(t, nil)
	v := b.create("pvc-1")
	wantCode(t, "stage", b.stage(v), codes.OK)
	wantCode(t, "publish", b.publish(v, "pod-1"), codes.OK)
	b.mounts.Reboot()
	b.restart()
	wantCode(t, "publish while the staging mount is gone, which the CO does not see", b.publish(v, "pod-1"), codes.OK)
	wantCode(t, "stage again", b.stage(v), codes.OK)
	if b.mounts.At(b.path("staging")) == nil || b.mounts.At(b.path("pod-1")) == nil {
		t.Errorf("mounted are %q", b.mounts.Targets())
	}
	b.mounts.Reboot()
	wantCode(t, "unpublish what is not mounted any more", b.unpublish(v, "pod-1"), codes.OK)
	wantCode(t, "unstage what is not mounted any more", b.unstage(v), codes.OK)
	wantCode(t, "delete", b.delete(v), codes.OK)
}

// TestFailedStageIsUndone lets a stage fail at each step: the array must not think that the volume is staged, or the journal must know it.
func TestFailedStageIsUndone(t *testing.T) {
	for _, step := range []filesystem.Step{filesystem.StepFormat, filesystem.StepMount} {
		b := newBench(t, nil)
		v := b.create("pvc-1")
		b.files.Fail(step, errBroken)
		wantCode(t, "stage", b.stage(v), codes.Internal)
		if b.records() > 0 {
			t.Errorf("%s: the journal has the volume", step)
		}
		wantCode(t, "delete", b.delete(v), codes.OK) // ErrInUse if it is staged.
	}
}

// stuck is a driver that cannot unstage at first.
type stuck struct {
	backend

	failures *int
}

func (s stuck) Unstage(ctx context.Context, req *driverkit.UnstageRequest) error {
	if *s.failures > 0 {
		*s.failures--
		return errBroken
	}
	return s.backend.Unstage(ctx, req)
}

// TestUndoFails keeps the record of a stage that failed and could not be undone, so that NodeUnstageVolume of a later process undoes it.
func TestUndoFails(t *testing.T) {
	b := prepareBench(t, nil)
	failures := 1
	b.start(stuck{b.array, &failures})
	v := b.create("pvc-1")
	b.files.Fail(filesystem.StepMount, errBroken)
	err := b.stage(v)
	wantCode(t, "stage", err, codes.Aborted)
	if !strings.Contains(err.Error(), "undo the stage of volume") || b.records() != 1 {
		t.Errorf("got %v and %d records, want both reasons and the record", err, b.records())
	}
	b.files.Fail(filesystem.StepMount, nil)
	b.stop()
	b.start(stuck{b.array, &failures})
	wantCode(t, "unstage", b.unstage(v), codes.OK)
	wantCode(t, "delete", b.delete(v), codes.OK)
}

// TestUnknownVolume undoes what an earlier driver without this journal has mounted.
func TestUnknownVolume(t *testing.T) {
	b := newBench(t, nil)
	v := b.create("pvc-1")
	b.place("staging")
	b.place("pod-1")
	wantCode(t, "unpublish", b.unpublish(v, "pod-1"), codes.OK)
	wantCode(t, "unstage", b.unstage(v), codes.OK)
	if left := b.mounts.Targets(); len(left) > 0 {
		t.Errorf("left mounted: %q", left)
	}
}

// failing is a driver whose nodes cannot ask the storage system.
type failing struct{ backend }

// Get implements driverkit.Provisioner.
func (failing) Get(context.Context, *driverkit.GetRequest) (*driverkit.Volume, error) {
	return nil, errBroken
}

// TestPublishUnstaged tells a volume that does not exist from one that is not staged.
func TestPublishUnstaged(t *testing.T) {
	b := newBench(t, nil)
	v := b.create("pvc-1")
	unknown := &csi.Volume{VolumeId: "unknown"}
	wantCode(t, "publish a volume that is not staged", b.publish(v, "pod-1"), codes.FailedPrecondition)
	wantCode(t, "publish a volume that does not exist", b.publish(unknown, "pod-1"), codes.NotFound)
	b.stop()
	b.start(failing{b.array})
	wantCode(t, "publish where nodes cannot ask", b.publish(unknown, "pod-1"), codes.FailedPrecondition)
}

// owning is a driver that knows the one path at which its volume is mounted.
type owning struct {
	backend

	path string
}

// OwnsMount is a part of a driverkit.Driver.
func (o owning) OwnsMount(_ context.Context, req *driverkit.MountRequest) (bool, error) {
	if req.ID != "vol-000001" && req.ID != "unknown" {
		return false, fmt.Errorf("asked for volume %q", req.ID)
	}
	return req.Path == o.path, nil
}

// TestMountOwner keeps what others have mounted at paths that the journal does not know, and unmounts what the driver says is its own.
func TestMountOwner(t *testing.T) {
	tests := map[string]struct {
		own  string
		call func(b *bench, v *csi.Volume) error
		want codes.Code
	}{
		"UnpublishForeign": {call: func(b *bench, v *csi.Volume) error { return b.unpublish(v, "there") }, want: codes.FailedPrecondition},
		"UnpublishOwn":     {own: "there", call: func(b *bench, v *csi.Volume) error { return b.unpublish(v, "there") }},
		"UnstageForeign":   {call: func(b *bench, v *csi.Volume) error { return b.unstageAt(v, "there") }, want: codes.FailedPrecondition},
		"UnstageOwn":       {own: "there", call: func(b *bench, v *csi.Volume) error { return b.unstageAt(v, "there") }},
		"UnstageForeignMeanwhile": {
			call: func(b *bench, v *csi.Volume) error { return errors.Join(b.stage(v), b.unstageAt(v, "there")) }, want: codes.FailedPrecondition,
		},
		"UnstageOwnMeanwhile": {own: "there", call: func(b *bench, v *csi.Volume) error { return errors.Join(b.stage(v), b.unstageAt(v, "there")) }},
		"NothingMounted":      {call: func(b *bench, v *csi.Volume) error { return b.unpublish(v, "elsewhere") }},
		"UnknownVolume": {
			call: func(b *bench, _ *csi.Volume) error { return b.unpublish(&csi.Volume{VolumeId: "unknown"}, "there") }, want: codes.FailedPrecondition,
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			b := prepareBench(t, nil)
			b.start(owning{b.array, b.path(tc.own)})
			v := b.create("pvc-1")
			b.place("there")
			wantCode(t, name, tc.call(b, v), tc.want)
			mounted, err := b.mounts.Mounted(t.Context(), b.path("there"))
			if err != nil || mounted == (tc.want == codes.OK && name != "NothingMounted") {
				t.Errorf("the mount is still there: %t, %v", mounted, err)
			}
		})
	}
}

// TestUnstageElsewhere unmounts what an earlier driver has left at another path than the one at which the volume is staged.
func TestUnstageElsewhere(t *testing.T) {
	b := newBench(t, nil)
	v := b.create("pvc-1")
	wantCode(t, "stage", b.stage(v), codes.OK)
	b.place("old")
	wantCode(t, "unstage at the old path", b.unstageAt(v, "old"), codes.OK)
	if left := b.mounts.Targets(); len(left) != 1 || left[0] != b.path("staging") {
		t.Errorf("mounted are %q, want the staging path alone", left)
	}
}

// staging is a driver that mounts a volume itself at its staging path, for writing.
type staging struct {
	backend

	mounts *mount.Fake
}

func (s staging) Stage(ctx context.Context, req *driverkit.StageRequest) (*driverkit.Staged, error) {
	return &driverkit.Staged{Mounted: true}, s.mounts.Place(ctx, "server:/"+req.ID, req.Path, mount.Options{})
}

// TestWritableAlthoughReadOnly refuses a mount of the driver that can be written although the access mode forbids it.
func TestWritableAlthoughReadOnly(t *testing.T) {
	b := prepareBench(t, nil)
	b.start(staging{b.array, b.mounts})
	req := b.stageRequest(b.create("pvc-1"))
	req.VolumeCapability.AccessMode.Mode = csi.VolumeCapability_AccessMode_Mode(driverkit.SingleNodeReaderOnly)
	_, err := b.NodeStageVolume(ctxOf(t), req)
	wantCode(t, "stage", err, codes.Internal)
	if left := b.mounts.Targets(); len(left) > 0 {
		t.Errorf("left mounted: %q", left)
	}
}

// TestOccupied refuses to mount over something else, which stays.
func TestOccupied(t *testing.T) {
	b := newBench(t, nil)
	v := b.create("pvc-1")
	b.place("staging")
	wantCode(t, "stage", b.stage(v), codes.FailedPrecondition)
	wantCode(t, "delete", b.delete(v), codes.OK) // ErrInUse if it is staged.
	if b.mounts.At(b.path("staging")) == nil {
		t.Error("the other mount at the staging path is gone")
	}
	v = b.create("pvc-2")
	wantCode(t, "unstage", b.unstage(v), codes.OK)
	wantCode(t, "stage", b.stage(v), codes.OK)
	b.place("pod-1")
	wantCode(t, "publish", b.publish(v, "pod-1"), codes.FailedPrecondition)
	if b.mounts.At(b.path("pod-1")) == nil {
		t.Error("the other mount at the target path is gone")
	}
}

// TestTargetWithFiles keeps files that something wrote below a target path after it was unmounted.
func TestTargetWithFiles(t *testing.T) {
	b := newBench(t, nil)
	v := b.create("pvc-1")
	wantCode(t, "stage", b.stage(v), codes.OK)
	wantCode(t, "publish", b.publish(v, "pod-1"), codes.OK)
	file := b.path("pod-1/precious")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	wantCode(t, "unpublish", b.unpublish(v, "pod-1"), codes.Internal)
	if _, err := os.Stat(file); err != nil {
		t.Error(err)
	}
}

// TestBlock publishes a raw block volume, which is mounted nowhere else.
func TestBlock(t *testing.T) {
	b := newBench(t, nil)
	v := b.create("pvc-1")
	stage, publish := b.stageRequest(v), b.publishRequest(v, "pod-1")
	stage.VolumeCapability, publish.VolumeCapability = blockCapability(), blockCapability()
	_, err := b.NodeStageVolume(ctxOf(t), stage)
	wantCode(t, "stage", err, codes.OK)
	_, err = b.NodePublishVolume(ctxOf(t), publish)
	wantCode(t, "publish", err, codes.OK)
	if at := b.mounts.At(b.path("pod-1")); at == nil || at.Source != filepath.Join(b.array.Dir, v.GetVolumeId()) {
		t.Errorf("at the target is %v, want the device", at)
	}
	stats, err := b.NodeGetVolumeStats(ctxOf(t), &csi.NodeGetVolumeStatsRequest{VolumeId: v.GetVolumeId(), VolumePath: b.path("pod-1")})
	if err != nil || len(stats.GetUsage()) != 1 || stats.GetUsage()[0].GetTotal() != 4<<20 {
		t.Errorf("stats: %v, %v, want 4 MiB", stats, err)
	}
	wantCode(t, "unpublish", b.unpublish(v, "pod-1"), codes.OK)
	wantCode(t, "unstage", b.unstage(v), codes.OK)
}

// noSecondDevice is a driver that fails after it made the device.
type noSecondDevice struct{ *testarray.Array }

func (n noSecondDevice) ReadOnlyDevice(ctx context.Context, req *driverkit.StageRequest) (*driverkit.Staged, error) {
	_, err := n.Array.ReadOnlyDevice(ctx, req)
	return nil, errors.Join(err, errBroken)
}

// TestBlockReadOnly publishes a raw block volume read-only from a second device, which goes with the stage.
func TestBlockReadOnly(t *testing.T) {
	b := prepareBench(t, nil)
	b.parts = func(d *driverkit.Driver) { d.ReadOnlyDevice = nil }
	b.start(b.array)
	v := b.create("pvc-1")
	stage, publish := b.stageRequest(v), b.publishRequest(v, "pod-1")
	stage.VolumeCapability, publish.VolumeCapability, publish.Readonly = blockCapability(), blockCapability(), true
	life := func(what string, want codes.Code) {
		t.Helper()
		for range 2 {
			_, err := b.NodeStageVolume(ctxOf(t), stage)
			wantCode(t, "stage", err, codes.OK)
			_, err = b.NodePublishVolume(ctxOf(t), publish)
			wantCode(t, what, err, want)
		}
		device := filepath.Join(b.array.Dir, v.GetVolumeId()) + ".ro"
		if at := b.mounts.At(b.path("pod-1")); want == codes.OK && (at == nil || at.Source != device || !at.Options.ReadOnly) || want != codes.OK && at != nil {
			t.Errorf("%s: at the target is %v, want %s", what, at, device)
		}
		b.stop()
		b.start(b.array)
		wantCode(t, "unpublish", b.unpublish(v, "pod-1"), codes.OK)
		wantCode(t, "unstage", b.unstage(v), codes.OK)
		if _, err := os.Stat(device); err == nil {
			t.Errorf("%s: the second device still exists", what)
		}
	}
	life("publish a device read-only that can be written", codes.InvalidArgument)
	b.parts = nil
	b.restart()
	life("publish from the second device", codes.OK)
	b.stop()
	b.start(noSecondDevice{b.array})
	life("publish from a second device that cannot be made", codes.Internal)
	wantCode(t, "delete", b.delete(v), codes.OK) // ErrInUse if it still has the device.
}

// readOnlyDevices shows devices that refuse writes.
type readOnlyDevices struct{ backend }

func (r readOnlyDevices) Stage(ctx context.Context, req *driverkit.StageRequest) (*driverkit.Staged, error) {
	staged, err := r.backend.Stage(ctx, req)
	if err == nil {
		staged.ReadOnly = true
	}
	return staged, err
}

// TestReadOnlyDevice stages a volume that is attached read-only with a capability that allows writing.
func TestReadOnlyDevice(t *testing.T) {
	b := newBench(t, nil)
	v := b.create("pvc-1")
	wantCode(t, "stage, which formats", b.stage(v), codes.OK)
	wantCode(t, "unstage", b.unstage(v), codes.OK)
	b.stop()
	b.start(readOnlyDevices{b.array})
	for range 2 {
		wantCode(t, "stage", b.stage(v), codes.OK)
		wantCode(t, "publish", b.publish(v, "pod-1"), codes.OK)
	}
	if at := b.mounts.At(b.path("staging")); at == nil || !at.Options.ReadOnly {
		t.Errorf("at the staging path is %+v, want a read-only mount", at)
	}
	wantCode(t, "unpublish", b.unpublish(v, "pod-1"), codes.OK)
	wantCode(t, "unstage", b.unstage(v), codes.OK)
}

// TestSharedFilesystem refuses to mount the file system of a device for writing where other nodes may write to it, too.
func TestSharedFilesystem(t *testing.T) {
	b := newBench(t, func(o *driverkit.Options) { o.Support.MultiNode = true })
	for mode, want := range map[driverkit.AccessMode]codes.Code{
		driverkit.MultiNodeMultiWriter: codes.InvalidArgument, driverkit.MultiNodeSingleWriter: codes.InvalidArgument, driverkit.MultiNodeReaderOnly: codes.Internal,
	} {
		v := b.create("pvc-" + mode.String())
		req := b.stageRequest(v)
		req.VolumeCapability.AccessMode.Mode = csi.VolumeCapability_AccessMode_Mode(mode)
		_, err := b.NodeStageVolume(ctxOf(t), req)
		wantCode(t, "stage in mode "+mode.String(), err, want) // A blank device is not mounted read-only.
		wantCode(t, "delete", b.delete(v), codes.OK)           // ErrInUse if it is still staged.
	}
}

// counting is a driver that counts its stages.
type counting struct {
	backend

	stages *int
}

func (c counting) Stage(ctx context.Context, req *driverkit.StageRequest) (*driverkit.Staged, error) {
	*c.stages++
	return c.backend.Stage(ctx, req)
}

// TestDeviceIsAskedForAgain has a repeated stage of a raw block volume ask the driver, as the kernel may have given the name to another device.
func TestDeviceIsAskedForAgain(t *testing.T) {
	b := prepareBench(t, nil)
	var stages int
	b.start(counting{b.array, &stages})
	req := b.stageRequest(b.create("pvc-1"))
	req.VolumeCapability = blockCapability()
	for range 3 {
		_, err := b.NodeStageVolume(ctxOf(t), req)
		wantCode(t, "stage", err, codes.OK)
	}
	if stages != 3 {
		t.Errorf("the driver was asked %d times, want 3", stages)
	}
}

// TestReadOnlyFlag publishes a volume whose mount options have "ro".
func TestReadOnlyFlag(t *testing.T) {
	b := newBench(t, nil)
	v := b.create("pvc-1")
	wantCode(t, "stage, which formats", b.stage(v), codes.OK)
	wantCode(t, "unstage", b.unstage(v), codes.OK)
	stage, publish := b.stageRequest(v), b.publishRequest(v, "pod-1")
	stage.VolumeCapability.GetMount().MountFlags, publish.VolumeCapability.GetMount().MountFlags = []string{"ro"}, []string{"ro"}
	for range 2 {
		_, err := b.NodeStageVolume(ctxOf(t), stage)
		wantCode(t, "stage", err, codes.OK)
		_, err = b.NodePublishVolume(ctxOf(t), publish)
		wantCode(t, "publish", err, codes.OK)
	}
	_, err := b.NodeExpandVolume(ctxOf(t), &csi.NodeExpandVolumeRequest{VolumeId: v.GetVolumeId(), VolumePath: b.path("staging")})
	wantCode(t, "expand what is read-only here", err, codes.OK)
}

// TestStaleStage stages in another way than before the machine was restarted.
func TestStaleStage(t *testing.T) {
	b := newBench(t, nil)
	v := b.create("pvc-1")
	wantCode(t, "stage", b.stage(v), codes.OK)
	wantCode(t, "publish", b.publish(v, "pod-1"), codes.OK)
	b.mounts.Reboot()
	req := b.stageRequest(v)
	req.StagingTargetPath = b.path("elsewhere")
	req.VolumeCapability.GetMount().MountFlags = []string{"noatime"}
	_, err := b.NodeStageVolume(ctxOf(t), req)
	wantCode(t, "stage elsewhere", err, codes.OK)
	_, err = b.NodeUnstageVolume(ctxOf(t), &csi.NodeUnstageVolumeRequest{VolumeId: v.GetVolumeId(), StagingTargetPath: req.GetStagingTargetPath()})
	wantCode(t, "unstage", err, codes.OK)
	wantCode(t, "delete", b.delete(v), codes.OK)
}

// TestFailedStageAfterReboot undoes a stage that failed although the journal has targets, none of which is mounted any more.
func TestFailedStageAfterReboot(t *testing.T) {
	b := newBench(t, nil)
	v := b.create("pvc-1")
	wantCode(t, "stage", b.stage(v), codes.OK)
	wantCode(t, "publish", b.publish(v, "pod-1"), codes.OK)
	b.mounts.Reboot()
	b.files.Fail(filesystem.StepMount, errBroken)
	wantCode(t, "stage", b.stage(v), codes.Internal)
	wantCode(t, "delete", b.delete(v), codes.OK) // ErrInUse if it is staged.
}

// half is a driver that stages, says that the request is wrong, and cannot unstage.
type half struct{ backend }

func (h half) Stage(ctx context.Context, req *driverkit.StageRequest) (*driverkit.Staged, error) {
	_, err := h.backend.Stage(ctx, req)
	return nil, errors.Join(err, driverkit.ErrInvalid)
}

func (half) Unstage(context.Context, *driverkit.UnstageRequest) error { return errBroken }

// TestUncertainOutcome answers with a code that makes the CO undo or repeat the call where something may be left of it.
func TestUncertainOutcome(t *testing.T) {
	b := prepareBench(t, nil)
	b.start(half{b.array})
	wantCode(t, "stage", b.stage(b.create("pvc-1")), codes.Aborted)
}

// share is a network file system: Support.PublishOnly, mounted by the driver.
type share struct {
	backend

	mounts *mount.Fake
	// writable mounts for writing whatever is asked for.
	writable bool
}

func (s share) Stage(ctx context.Context, req *driverkit.StageRequest) (*driverkit.Staged, error) {
	if s.mounts.At(req.Path) == nil {
		if err := s.mounts.Place(ctx, "server:/"+req.ID, req.Path, mount.Options{ReadOnly: req.ReadOnly && !s.writable}); err != nil {
			return nil, err
		}
	}
	return &driverkit.Staged{Mounted: true}, nil
}

func (s share) Unstage(context.Context, *driverkit.UnstageRequest) error { return nil }

// TestPublishOnly publishes without a stage.
func TestPublishOnly(t *testing.T) {
	b := prepareBench(t, func(o *driverkit.Options) { o.Support.PublishOnly = true })
	b.start(share{b.array, b.mounts, false})
	v := b.create("pvc-1")
	wantCode(t, "stage", b.stage(v), codes.Unimplemented)
	publish := func(target string, readOnly bool) error {
		req := b.publishRequest(v, target)
		req.StagingTargetPath, req.Readonly = "", readOnly
		req.VolumeCapability.AccessMode.Mode = csi.VolumeCapability_AccessMode_Mode(driverkit.SingleNodeMultiWriter)
		_, err := b.NodePublishVolume(ctxOf(t), req)
		return err
	}
	for range 2 {
		wantCode(t, "publish", publish("pod-1", false), codes.OK)
		wantCode(t, "publish for another pod", publish("pod-2", true), codes.OK)
	}
	for range 2 {
		wantCode(t, "unpublish", b.unpublish(v, "pod-1"), codes.OK)
		wantCode(t, "unpublish the other", b.unpublish(v, "pod-2"), codes.OK)
	}
	if left := b.mounts.Targets(); len(left) > 0 || b.records() > 0 {
		t.Errorf("left behind: mounts %q, %d records", left, b.records())
	}
	b.stop()
	b.start(share{b.array, b.mounts, true})
	wantCode(t, "publish read-only by a driver that mounts for writing", publish("pod-3", true), codes.Internal)
	if left := b.mounts.Targets(); len(left) > 0 {
		t.Errorf("left mounted: %q", left)
	}
}

// forceful is a share that is unmounted by force, at the second attempt.
type forceful struct {
	share
	asked *[]driverkit.MountRequest
}

func (f forceful) Unmount(ctx context.Context, req *driverkit.MountRequest) error {
	if *f.asked = append(*f.asked, *req); len(*f.asked) == 1 {
		return fmt.Errorf("the server is gone: %w", driverkit.ErrUnavailable)
	}
	return f.mounts.Unmount(ctx, req.Path)
}

// TestUnmount has the driver unmount what it has mounted itself, once it is mounted.
func TestUnmount(t *testing.T) {
	b := prepareBench(t, nil)
	var asked []driverkit.MountRequest
	b.start(forceful{share{b.array, b.mounts, false}, &asked})
	v := b.create("pvc-1")
	wantCode(t, "stage", b.stage(v), codes.OK)
	wantCode(t, "publish", b.publish(v, "pod-1"), codes.OK)
	wantCode(t, "unpublish a bind mount", b.unpublish(v, "pod-1"), codes.OK)
	if len(asked) != 0 {
		t.Errorf("the driver was asked to unmount %+v, which the kit has mounted", asked)
	}
	wantCode(t, "unstage while the server is gone", b.unstage(v), codes.Unavailable)
	for range 2 {
		wantCode(t, "unstage", b.unstage(v), codes.OK)
	}
	want := driverkit.MountRequest{ID: v.GetVolumeId(), Path: b.path("staging")}
	if len(asked) != 2 || asked[1] != want {
		t.Errorf("the driver was asked to unmount %+v, want twice %+v", asked, want)
	}
}

// TestStateDirLocked refuses a second driver with the same state directory.
func TestStateDirLocked(t *testing.T) {
	b := newBench(t, nil)
	if _, err := b.Probe(ctxOf(t), &csi.ProbeRequest{}); err != nil {
		t.Fatal(err)
	}
	o := driverkit.NewOptions("kit.example.com")
	o.Endpoint, o.NodeID, o.StateDir = "unix://"+b.path("other.sock"), "node-1", b.path("state")
	err := driverkit.Serve(klog.NewContext(t.Context(), klog.Logger{}), o, testarray.Driver(b.array))
	if !errors.Is(err, state.ErrLocked) {
		t.Errorf("got %v, want state.ErrLocked", err)
	}
}

// remembering is a driver that notes what it is asked to unstage.
type remembering struct {
	backend

	unstaged *[]driverkit.UnstageRequest
}

func (r remembering) Unstage(ctx context.Context, req *driverkit.UnstageRequest) error {
	*r.unstaged = append(*r.unstaged, *req)
	return r.backend.Unstage(ctx, req)
}

// editRecord changes the text of the journal's only record.
func (b *bench) editRecord(edit func(string) string) {
	b.t.Helper()
	found, err := filepath.Glob(b.path("state/journal/*.json"))
	if err != nil || len(found) != 1 {
		b.t.Fatalf("records are %q, %v, want one", found, err)
	}
	text, err := os.ReadFile(found[0])
	if err != nil {
		b.t.Fatal(err)
	}
	if err := os.WriteFile(found[0], []byte(edit(string(text))), 0o600); err != nil {
		b.t.Fatal(err)
	}
}

// TestDeviceOfEarlierBoot gives the driver no name of a device that the kernel may have given to another one since.
func TestDeviceOfEarlierBoot(t *testing.T) {
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		t.Fatal(err)
	}
	for _, same := range []bool{true, false} {
		b := newBench(t, nil)
		v := b.create("pvc-1")
		wantCode(t, "stage", b.stage(v), codes.OK)
		b.stop()
		if !same {
			b.mounts.Reboot()
			b.editRecord(func(text string) string {
				return strings.ReplaceAll(text, strings.TrimSpace(string(boot)), "another-boot")
			})
		}
		var unstaged []driverkit.UnstageRequest
		b.start(remembering{b.array, &unstaged})
		wantCode(t, "unstage", b.unstage(v), codes.OK)
		if len(unstaged) != 1 || (unstaged[0].Staged != nil) != same || unstaged[0].PublishContext["lun"] == "" {
			t.Errorf("same boot %t: unstaged %+v", same, unstaged)
		}
	}
}

// TestDamagedRecord moves a record aside that cannot be read, and unstages its volume without.
func TestDamagedRecord(t *testing.T) {
	b := newBench(t, nil)
	v := b.create("pvc-1")
	wantCode(t, "stage", b.stage(v), codes.OK)
	b.stop()
	b.editRecord(func(text string) string { return text[:len(text)/2] })
	b.start(b.array)
	wantCode(t, "unstage", b.unstage(v), codes.OK)
	wantCode(t, "delete", b.delete(v), codes.OK)
	if left := b.mounts.Targets(); len(left) > 0 {
		t.Errorf("left mounted: %q", left)
	}
	if aside, err := filepath.Glob(b.path("state/journal/quarantine/*")); err != nil || len(aside) != 1 {
		t.Errorf("moved aside: %q, %v, want the record", aside, err)
	}
}

// TestTokensAreNotStored looks for what Kubernetes adds to the volume context in the journal: tokens of service accounts.
func TestTokensAreNotStored(t *testing.T) {
	b := newBench(t, nil)
	req := b.stageRequest(b.create("pvc-1"))
	req.VolumeContext = map[string]string{"lun": "1", "csi.storage.k8s.io/serviceAccount.tokens": "ey-token"}
	req.Secrets = map[string]string{"password": "swordfish"}
	_, err := b.NodeStageVolume(ctxOf(t), req)
	wantCode(t, "stage", err, codes.OK)
	b.editRecord(func(text string) string {
		if strings.Contains(text, "ey-token") || strings.Contains(text, "swordfish") || !strings.Contains(text, `"lun"`) {
			t.Errorf("the record is\n%s", text)
		}
		return text
	})
}

// TestInline makes a volume for a pod, and deletes it with the pod.
func TestInline(t *testing.T) {
	b := prepareBench(t, nil)
	b.start(five{b.array})
	_, err := b.NodePublishVolume(ctxOf(t), inlineRequest(b, "true"))
	wantCode(t, "an inline volume of a driver that has none", err, codes.InvalidArgument)
	b.stop()
	b.start(b.array)
	bad := inlineRequest(b, "true")
	bad.VolumeContext["size"] = "huge"
	_, err = b.NodePublishVolume(ctxOf(t), bad)
	wantCode(t, "a wrong attribute", err, codes.InvalidArgument)
	for range 2 {
		_, err = b.NodePublishVolume(ctxOf(t), inlineRequest(b, "true"))
		wantCode(t, "publish", err, codes.OK)
		b.restart()
	}
	if b.mounts.At(b.path("pod-1")) == nil {
		t.Errorf("mounted are %q", b.mounts.Targets())
	}
	_, err = b.ControllerGetVolume(ctxOf(t), &csi.ControllerGetVolumeRequest{VolumeId: "csi-1"})
	wantCode(t, "the volume", err, codes.OK)
	for range 2 {
		wantCode(t, "unpublish", b.unpublish(&csi.Volume{VolumeId: "csi-1"}, "pod-1"), codes.OK)
		b.restart()
	}
	_, err = b.ControllerGetVolume(ctxOf(t), &csi.ControllerGetVolumeRequest{VolumeId: "csi-1"})
	wantCode(t, "the volume after its pod", err, codes.NotFound)
	if left := b.mounts.Targets(); len(left) > 0 || b.records() > 0 {
		t.Errorf("left behind: mounts %q, %d records", left, b.records())
	}
	_, err = b.NodePublishVolume(ctxOf(t), inlineRequest(b, "true"))
	wantCode(t, "publish once more", err, codes.OK)
	b.mounts.Reboot()
	b.files.Fail(filesystem.StepMount, errBroken)
	_, err = b.NodePublishVolume(ctxOf(t), inlineRequest(b, "true"))
	wantCode(t, "a repeated publish that fails", err, codes.Internal)
	_, err = b.ControllerGetVolume(ctxOf(t), &csi.ControllerGetVolumeRequest{VolumeId: "csi-1"})
	wantCode(t, "the volume of a pod that may run", err, codes.OK)
	wantCode(t, "unpublish", b.unpublish(&csi.Volume{VolumeId: "csi-1"}, "pod-1"), codes.OK)
	_, err = b.NodePublishVolume(ctxOf(t), inlineRequest(b, "true"))
	wantCode(t, "publish what cannot be mounted", err, codes.Internal)
	_, err = b.ControllerGetVolume(ctxOf(t), &csi.ControllerGetVolumeRequest{VolumeId: "csi-1"})
	wantCode(t, "the volume that could not be published", err, codes.NotFound)
}

// grouped is a driver that gives files to groups.
type grouped struct {
	backend

	group *string
}

func (g grouped) Stage(ctx context.Context, req *driverkit.StageRequest) (*driverkit.Staged, error) {
	*g.group = req.Capability.MountGroup
	return g.backend.Stage(ctx, req)
}

// TestMountGroup passes the group on.
func TestMountGroup(t *testing.T) {
	b := prepareBench(t, func(o *driverkit.Options) { o.Support.MountGroup = true })
	var group string
	b.start(grouped{b.array, &group})
	req := b.stageRequest(b.create("pvc-1"))
	req.VolumeCapability.GetMount().VolumeMountGroup = "2000"
	_, err := b.NodeStageVolume(ctxOf(t), req)
	if err != nil || group != "2000" {
		t.Errorf("stage: %v, group %q", err, group)
	}
	req.VolumeCapability.GetMount().VolumeMountGroup = "3000"
	_, err = b.NodeStageVolume(ctxOf(t), req)
	wantCode(t, "stage for another group", err, codes.AlreadyExists)
}

// measured is a driver that knows how much of some volumes is used.
type measured struct {
	backend

	usage *filesystem.Usage
}

func (m measured) Usage(_ context.Context, req *driverkit.UsageRequest) (*filesystem.Usage, error) {
	if req.Staged.Device == "" || req.Path == "" {
		return nil, fmt.Errorf("request %+v: %w", req, driverkit.ErrInvalid)
	}
	return m.usage, nil
}

// TestUsage has a driver say what is used, and the kit where it does not.
func TestUsage(t *testing.T) {
	known := &filesystem.Usage{Bytes: filesystem.Space{Total: 10, Used: 3, Available: 7}}
	for name, want := range map[string]*filesystem.Usage{"Known": known, "Unknown": nil} {
		t.Run(name, func(t *testing.T) {
			b := prepareBench(t, nil)
			b.start(measured{b.array, want})
			v := b.create("pvc-1")
			wantCode(t, "stage", b.stage(v), codes.OK)
			stats, err := b.NodeGetVolumeStats(ctxOf(t), &csi.NodeGetVolumeStatsRequest{VolumeId: v.GetVolumeId(), VolumePath: b.path("staging")})
			wantCode(t, "stats", err, codes.OK)
			usage := stats.GetUsage()
			if want != nil && (len(usage) != 1 || usage[0].GetTotal() != 10 || usage[0].GetUsed() != 3 || usage[0].GetAvailable() != 7) {
				t.Errorf("usage %v, want that of the driver without inodes", usage)
			}
			if want == nil && (len(usage) != 2 || usage[0].GetTotal() != v.GetCapacityBytes()) {
				t.Errorf("usage %v, want that of the file system", usage)
			}
		})
	}
}

// TestUnpublishRemovesMountPointsOnly has a call for a volume that does not exist, and paths of which the driver has made none.
func TestUnpublishRemovesMountPointsOnly(t *testing.T) {
	b := newBench(t, nil)
	for name, tt := range map[string]struct {
		reason string
		make   func(path string) error
		code   codes.Code
		stays  bool
	}{
		"Nothing":   {reason: "it was removed by an earlier call", make: func(string) error { return nil }},
		"EmptyFile": {reason: "the mount point of a device", make: func(path string) error { return os.WriteFile(path, nil, 0o600) }},
		"Directory": {reason: "the mount point of a directory", make: func(path string) error { return os.Mkdir(path, 0o700) }},
		"File":      {reason: "it has data", make: func(path string) error { return os.WriteFile(path, []byte("data"), 0o600) }, code: codes.Internal, stays: true},
		"Link":      {reason: "no driver makes links", make: func(path string) error { return os.Symlink("/", path) }, code: codes.Internal, stays: true},
		"FullDirectory": {reason: "it has a file", make: func(path string) error {
			return errors.Join(os.Mkdir(path, 0o700), os.WriteFile(path+"/file", nil, 0o600))
		}, code: codes.Internal, stays: true},
	} {
		t.Run(name, func(t *testing.T) {
			path := b.path("target-" + name)
			if err := tt.make(path); err != nil {
				t.Fatal(err)
			}
			_, err := b.NodeUnpublishVolume(ctxOf(t), &csi.NodeUnpublishVolumeRequest{VolumeId: "no-such-volume", TargetPath: path})
			wantCode(t, tt.reason, err, tt.code)
			if _, err := os.Lstat(path); (err == nil) != tt.stays {
				t.Errorf("%s: %v", tt.reason, err)
			}
		})
	}
}

// TestAnotherDevice has the device of a raw block volume go, and another one come with its name, as after a detachment by force: the volume is not staged any more, so that no pod gets the data of
// another volume, and it can be staged again.
func TestAnotherDevice(t *testing.T) {
	b := newBench(t, nil)
	v := b.create("pvc-1")
	stage := b.stageRequest(v)
	stage.VolumeCapability = blockCapability()
	_, err := b.NodeStageVolume(ctxOf(t), stage)
	wantCode(t, "stage", err, codes.OK)
	publish := func(target string) error {
		r := b.publishRequest(v, target)
		r.VolumeCapability = blockCapability()
		_, err := b.NodePublishVolume(ctxOf(t), r)
		return err
	}
	wantCode(t, "publish", publish("pod-1"), codes.OK)
	device := b.mounts.At(b.path("pod-1")).Source
	if err := errors.Join(os.Rename(device, device+"-before"), os.WriteFile(device, []byte("data of another volume"), 0o600)); err != nil {
		t.Fatal(err)
	}
	wantCode(t, "publish for another pod", publish("pod-2"), codes.FailedPrecondition)
	if b.mounts.At(b.path("pod-2")) != nil {
		t.Error("a pod has the device of another volume")
	}
	_, err = b.NodeGetVolumeStats(ctxOf(t), &csi.NodeGetVolumeStatsRequest{VolumeId: v.GetVolumeId(), VolumePath: b.path("pod-1")})
	wantCode(t, "statistics", err, codes.NotFound)
}

// told is a driver that notes what it is asked to unstage.
type told struct {
	*testarray.Array
	unstaged *driverkit.UnstageRequest
}

// Unstage implements driverkit.Stager.
func (b told) Unstage(ctx context.Context, req *driverkit.UnstageRequest) error {
	*b.unstaged = *req
	return b.Array.Unstage(ctx, req)
}

// TestAdoption has a driver find volumes that another one has staged, or whose records were lost, under running pods: no CO stages them again.
func TestAdoption(t *testing.T) {
	b := prepareBench(t, nil)
	backend := told{b.array, &driverkit.UnstageRequest{}}
	b.start(backend)
	v := b.create("pvc-1")
	wantCode(t, "stage", b.stage(v), codes.OK)
	wantCode(t, "publish", b.publish(v, "pod-1"), codes.OK)
	device := b.mounts.At(b.path("staging")).Source
	forget := func() {
		b.stop()
		if err := os.RemoveAll(b.path("state")); err != nil {
			t.Fatal(err)
		}
		b.start(backend)
	}
	forget()
	for _, path := range []string{"staging", "pod-1"} {
		stats, err := b.NodeGetVolumeStats(ctxOf(t), &csi.NodeGetVolumeStatsRequest{VolumeId: v.GetVolumeId(), VolumePath: b.path(path)})
		wantCode(t, "statistics at "+path, err, codes.OK)
		if total := stats.GetUsage()[0].GetTotal(); total != v.GetCapacityBytes() {
			t.Errorf("statistics at %s: %d bytes, want %d", path, total, v.GetCapacityBytes())
		}
		_, err = b.NodeExpandVolume(ctxOf(t), &csi.NodeExpandVolumeRequest{VolumeId: v.GetVolumeId(), VolumePath: b.path(path)})
		wantCode(t, "expand at "+path, err, codes.OK)
	}
	if left := b.records(); left != 0 {
		t.Errorf("%d records of a volume of which the contexts are not known", left)
	}
	for _, pod := range []string{"pod-1", "pod-2"} {
		req := b.publishRequest(v, pod)
		req.VolumeCapability.AccessMode.Mode = csi.VolumeCapability_AccessMode_SINGLE_NODE_MULTI_WRITER
		_, err := b.NodePublishVolume(ctxOf(t), req)
		wantCode(t, "publish for "+pod, err, codes.OK)
	}
	if left := b.records(); left != 1 {
		t.Errorf("%d records, want one", left)
	}
	forget()
	wantCode(t, "unstage under pods that no record names", b.unstage(v), codes.FailedPrecondition)
	if backend.unstaged.ID != "" {
		t.Errorf("the driver was asked to unstage %+v under running pods", backend.unstaged)
	}
	for _, pod := range []string{"pod-1", "pod-2"} {
		wantCode(t, "unpublish "+pod, b.unpublish(v, pod), codes.OK)
	}
	wantCode(t, "unstage", b.unstage(v), codes.OK)
	if backend.unstaged.Staged == nil || backend.unstaged.Staged.Device != device {
		t.Errorf("the driver was asked to unstage %+v, want device %s", backend.unstaged.Staged, device)
	}
	if left := b.mounts.Targets(); len(left) > 0 || b.records() > 0 {
		t.Errorf("left mounted: %q, %d records", left, b.records())
	}
	wantCode(t, "delete", b.delete(v), codes.OK)
}

// TestFailedAdoption: what is mounted at the staging path is not what the storage system says, so that it stays as it is, and nothing is unstaged.
func TestFailedAdoption(t *testing.T) {
	b := prepareBench(t, nil)
	backend := told{b.array, &driverkit.UnstageRequest{}}
	b.start(backend)
	v := b.create("pvc-1")
	b.place("staging")
	wantCode(t, "publish", b.publish(v, "pod-1"), codes.FailedPrecondition)
	if b.mounts.At(b.path("staging")) == nil || backend.unstaged.ID != "" || b.records() != 0 {
		t.Errorf("mounted are %q, %d records, asked to unstage %+v", b.mounts.Targets(), b.records(), backend.unstaged)
	}
}

// quotingFlags is a driver whose errors have the mount flags of a request.
type quotingFlags struct{ *testarray.Array }

// Stage implements driverkit.Stager.
func (quotingFlags) Stage(_ context.Context, req *driverkit.StageRequest) (*driverkit.Staged, error) {
	return nil, fmt.Errorf("mount with %v: %w", req.Capability.MountFlags, driverkit.ErrUnavailable)
}

// TestMountFlagsAreSecret has the values of mount flags in no error and in no record, and compares them all the same.
func TestMountFlagsAreSecret(t *testing.T) {
	b := newBench(t, nil)
	v := b.create("pvc-1")
	stage := func(password string) error {
		req := b.stageRequest(v)
		req.VolumeCapability.GetMount().MountFlags = []string{"noatime", "password=" + password}
		_, err := b.NodeStageVolume(ctxOf(t), req)
		return err
	}
	b.files.Fail(filesystem.StepMount, errBroken)
	broken := stage("hunter2")
	wantCode(t, "a mount that fails", broken, codes.Internal)
	b.files.Fail(filesystem.StepMount, nil)
	for range 2 {
		wantCode(t, "stage", stage("hunter2"), codes.OK)
	}
	wantCode(t, "stage with another password", stage("hunter3"), codes.AlreadyExists)
	b.editRecord(func(text string) string {
		if strings.Contains(text, "hunter2") || !strings.Contains(text, "noatime") {
			t.Errorf("the record is %s", text)
		}
		return text
	})
	b.restart()
	wantCode(t, "stage after a restart", stage("hunter2"), codes.OK)
	wantCode(t, "unstage", b.unstage(v), codes.OK)
	b.stop()
	b.start(quotingFlags{b.array})
	quoted := stage("hunter2")
	wantCode(t, "a driver that quotes flags", quoted, codes.Unavailable)
	for _, err := range []error{broken, quoted} {
		if strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%v has the value of a flag", err)
		}
	}
}

// inDirectory is a driver that stages directories.
type inDirectory struct{ *testarray.Array }

// Stage implements driverkit.Stager.
func (b inDirectory) Stage(context.Context, *driverkit.StageRequest) (*driverkit.Staged, error) {
	return &driverkit.Staged{Directory: b.Dir}, nil
}

// TestSELinuxContext mounts with the context that a kubelet sends, and refuses it where it has no effect.
func TestSELinuxContext(t *testing.T) {
	b := prepareBench(t, nil)
	b.start(b.array)
	v := b.create("pvc-1")
	req := b.stageRequest(v)
	req.VolumeCapability.GetMount().MountFlags = []string{`context="system_u:object_r:container_file_t:s0:c1,c2"`}
	_, err := b.NodeStageVolume(ctxOf(t), req)
	wantCode(t, "stage a device", err, codes.OK)
	wantCode(t, "unstage", b.unstage(v), codes.OK)
	b.stop()
	b.start(inDirectory{b.array})
	_, err = b.NodeStageVolume(ctxOf(t), req)
	wantCode(t, "stage a directory", err, codes.InvalidArgument)
}

// renewing is a driver that notes repeated publications.
type renewing struct {
	*testarray.Array
	requests *[]driverkit.StageRequest
}

func (r renewing) Republish(_ context.Context, req *driverkit.StageRequest) error {
	*r.requests = append(*r.requests, *req)
	return nil
}

// TestRepublish hands the tokens of a repeated NodePublishVolume to the driver, which kubelets send in the volume context or as a secret.
func TestRepublish(t *testing.T) {
	const key = "csi.storage.k8s.io/serviceAccount.tokens"
	b := prepareBench(t, nil)
	var requests []driverkit.StageRequest
	b.start(renewing{b.array, &requests})
	v := b.create("pvc-1")
	wantCode(t, "stage", b.stage(v), codes.OK)
	staged, inline := b.publishRequest(v, "pod-1"), inlineRequest(b, "true")
	inline.TargetPath = b.path("pod-2")
	publish := func(token string) {
		t.Helper()
		text := `{"vault":{"token":"` + token + `","expirationTimestamp":"2030-01-01T00:00:00Z"}}`
		inline.VolumeContext[key] = text
		staged.Secrets = map[string]string{key: text}
		for _, req := range []*csi.NodePublishVolumeRequest{staged, inline} {
			_, err := b.NodePublishVolume(ctxOf(t), req)
			wantCode(t, "publish with token "+token, err, codes.OK)
		}
	}
	publish("first-token")
	if len(requests) != 0 {
		t.Fatalf("the first publication is a repeated one: %+v", requests)
	}
	publish("second-token")
	if len(requests) != 2 || requests[0].Path != staged.GetTargetPath() || requests[1].Path != inline.GetTargetPath() {
		t.Fatalf("the driver was called with %+v, want both targets", requests)
	}
	for _, req := range requests {
		if token := req.Tokens["vault"]; token.Value != "second-token" || token.Expires.Year() != 2030 {
			t.Errorf("%s: token %q until %v", req.Path, token.Value, token.Expires)
		}
		req.Secrets, req.VolumeContext = nil, nil
		if shown := fmt.Sprintf("%v %+v %#v", req, req, req.Tokens); strings.Contains(shown, "second-token") {
			t.Errorf("the request prints its token: %s", shown)
		}
	}
}

// TestStagedOptions makes and mounts a file system as the driver says.
func TestStagedOptions(t *testing.T) {
	b := prepareBench(t, nil)
	files := &optionFiles{Fake: b.files}
	b.options = func(o *driverkit.Options) { o.Filesystems = files }
	b.start(formatting{b.array})
	v := b.create("pvc-1")
	req := b.stageRequest(v)
	req.VolumeCapability.GetMount().MountFlags = []string{"noatime"}
	_, err := b.NodeStageVolume(ctxOf(t), req)
	wantCode(t, "stage", err, codes.OK)
	if got := files.last; !slices.Equal(got.FormatOptions, []string{"-i", "16384"}) || !slices.Equal(got.Flags, []string{"noatime", "nodelalloc"}) {
		t.Errorf("mounted with %+v", got)
	}
}

// empty is a driver that returns nothing where it has nothing to say.
type empty struct{ *testarray.Array }

func (empty) List(context.Context, *driverkit.ListRequest) (*driverkit.Page[*driverkit.Volume], error) {
	return nil, nil //nolint:nilnil // what is tested
}

func (empty) VolumeHealth(context.Context, *driverkit.HealthRequest) (*driverkit.Health, error) {
	return nil, nil //nolint:nilnil // what is tested
}

func (empty) ExpandOnNode(context.Context, *driverkit.NodeExpandRequest) (*driverkit.NodeExpanded, error) {
	return nil, nil //nolint:nilnil // what is tested
}

func (e empty) Attach(ctx context.Context, req *driverkit.AttachRequest) (*driverkit.Attached, error) {
	_, err := e.Array.Attach(ctx, req)
	return nil, err
}

// TestNothingReturned takes a result that is nil for one that has nothing in it.
func TestNothingReturned(t *testing.T) {
	b := prepareBench(t, func(o *driverkit.Options) { o.VolumeCondition = true })
	b.start(empty{b.array})
	v := b.create("pvc-1")
	_, err := b.ControllerPublishVolume(ctxOf(t), &csi.ControllerPublishVolumeRequest{VolumeId: v.GetVolumeId(), NodeId: "node-1", VolumeCapability: mountCapability()})
	wantCode(t, "attach", err, codes.OK)
	wantCode(t, "stage", b.stage(v), codes.OK)
	wantCode(t, "list", lastError(b.ListVolumes(ctxOf(t), &csi.ListVolumesRequest{})), codes.OK)
	wantCode(t, "get", lastError(b.ControllerGetVolume(ctxOf(t), &csi.ControllerGetVolumeRequest{VolumeId: v.GetVolumeId()})), codes.OK)
	wantCode(t, "health", lastError(b.ControllerGetVolumeHealth(ctxOf(t), &csi.ControllerGetVolumeHealthRequest{VolumeId: v.GetVolumeId()})), codes.OK)
	wantCode(t, "health of all", lastError(b.ControllerListVolumeHealth(ctxOf(t), &csi.ControllerListVolumeHealthRequest{})), codes.OK)
	wantCode(t, "health on the node", lastError(b.NodeGetVolumeHealth(ctxOf(t), &csi.NodeGetVolumeHealthRequest{VolumeId: v.GetVolumeId()})), codes.OK)
	wantCode(t, "expand on the node", lastError(b.NodeExpandVolume(ctxOf(t), &csi.NodeExpandVolumeRequest{VolumeId: v.GetVolumeId(), VolumePath: b.path("staging")})), codes.OK)
}

// formatting is a driver that knows how its file systems are made and mounted.
type formatting struct{ *testarray.Array }

func (f formatting) Stage(ctx context.Context, req *driverkit.StageRequest) (*driverkit.Staged, error) {
	staged, err := f.Array.Stage(ctx, req)
	if err == nil {
		staged.FormatOptions, staged.MountFlags = []string{"-i", "16384"}, []string{"nodelalloc"}
	}
	return staged, err
}

// optionFiles notes the options of the last mount.
type optionFiles struct {
	*filesystem.Fake
	last filesystem.Options
}

func (f *optionFiles) Mount(ctx context.Context, device, target string, o filesystem.Options) error {
	f.last = o
	return f.Fake.Mount(ctx, device, target, o)
}
