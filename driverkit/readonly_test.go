package driverkit_test

import (
	"context"
	"os"
	"slices"
	"sync/atomic"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"

	"github.com/longshore-csi/longshore/driverkit"
)

// reasons are those of the problems of a volume on the node.
func (b *bench) reasons(id string) []string {
	b.t.Helper()
	health, err := b.NodeGetVolumeHealth(ctxOf(b.t), &csi.NodeGetVolumeHealthRequest{VolumeId: id})
	wantCode(b.t, "health", err, codes.OK)
	var reasons []string
	for _, s := range health.GetVolumeHealth().GetHealthStatuses() {
		reasons = append(reasons, s.GetStatus().String()+" "+s.GetReason())
	}
	return reasons
}

func (b *bench) wantReasons(what, id string, want ...string) {
	b.t.Helper()
	if got := b.reasons(id); !slices.Equal(got, want) {
		b.t.Errorf("%s: problems %q, want %q", what, got, want)
	}
}

const readOnlyReason = "DEGRADED FileSystemReadOnly"

// TestFilesystemBecameReadOnly reports a file system that the kernel made read-only after an error, refuses to publish it, and repairs it with the next
// stage, when no target uses it. The driver knows nothing of health.
func TestFilesystemBecameReadOnly(t *testing.T) {
	b := prepareBench(t, nil)
	b.start(five{b.array})
	v := b.create("pvc-1")
	_, err := b.NodeGetVolumeHealth(ctxOf(t), &csi.NodeGetVolumeHealthRequest{VolumeId: v.GetVolumeId()})
	wantCode(t, "health before the stage", err, codes.NotFound)
	wantCode(t, "stage", b.stage(v), codes.OK)
	wantCode(t, "publish", b.publish(v, "pod-1"), codes.OK)
	b.wantReasons("published", v.GetVolumeId())
	b.mounts.Break(b.path("staging"))
	for range 2 {
		b.wantReasons("broken", v.GetVolumeId(), readOnlyReason)
		wantCode(t, "publish again", b.publish(v, "pod-1"), codes.FailedPrecondition)
		wantCode(t, "stage while published", b.stage(v), codes.FailedPrecondition)
		b.stop()
		b.start(five{b.array})
	}
	wantCode(t, "unpublish", b.unpublish(v, "pod-1"), codes.OK)
	wantCode(t, "publish what is broken", b.publish(v, "pod-1"), codes.FailedPrecondition)
	wantCode(t, "stage, which repairs", b.stage(v), codes.OK)
	b.wantReasons("repaired", v.GetVolumeId())
	wantCode(t, "publish", b.publish(v, "pod-1"), codes.OK)
	wantCode(t, "unpublish", b.unpublish(v, "pod-1"), codes.OK)
	wantCode(t, "unstage", b.unstage(v), codes.OK)
	if left := b.mounts.Targets(); len(left) > 0 || b.records() > 0 {
		t.Errorf("left behind: mounts %q, %d records", left, b.records())
	}
}

// TestRepairIsInterrupted ends the process at each point of the stage that repairs a file system; the next call completes it, or undoes it.
func TestRepairIsInterrupted(t *testing.T) {
	for _, givesUp := range []bool{false, true} {
		for kill := int64(1); ; kill++ {
			var points atomic.Int64
			points.Store(1 << 30)
			b := newBench(t, func(o *driverkit.Options) {
				o.FaultPoint = func(context.Context, string) {
					if points.Add(-1) == 0 {
						panic("killed")
					}
				}
			})
			v := b.create("pvc-1")
			wantCode(t, "stage", b.stage(v), codes.OK)
			b.mounts.Break(b.path("staging"))
			points.Store(kill)
			err := b.stage(v)
			left := points.Swap(1 << 30)
			b.restart()
			if !givesUp {
				wantCode(t, "stage again", b.stage(v), codes.OK)
				b.wantReasons("repaired", v.GetVolumeId())
			}
			wantCode(t, "unstage", b.unstage(v), codes.OK)
			wantCode(t, "delete", b.delete(v), codes.OK) // ErrInUse if it is still staged.
			if at := b.mounts.Targets(); len(at) > 0 || b.records() > 0 {
				t.Errorf("killed at point %d: left behind: mounts %q, %d records", kill, at, b.records())
			}
			b.stop()
			if left > 0 {
				wantCode(t, "stage without a fault", err, codes.OK)
				break
			}
		}
	}
}

// directories is a driver whose volumes are directories.
type directories struct {
	five

	dir      string
	readOnly bool
}

func (d directories) Stage(context.Context, *driverkit.StageRequest) (*driverkit.Staged, error) {
	return &driverkit.Staged{Directory: d.dir, ReadOnly: d.readOnly}, nil
}

// TestReadOnlyIsExpected reports the file system of a directory, and not what was staged or mounted for reading.
func TestReadOnlyIsExpected(t *testing.T) {
	b := prepareBench(t, nil)
	dir := b.path("directory")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	reader := driverkit.SingleNodeReaderOnly
	for name, tc := range map[string]struct {
		driver  any
		mode    driverkit.AccessMode
		want    []string
		publish codes.Code
	}{
		"Directory":             {directories{five: five{b.array}, dir: dir}, driverkit.SingleNodeWriter, []string{readOnlyReason}, codes.FailedPrecondition},
		"DirectoryForReading":   {directories{five: five{b.array}, dir: dir}, reader, nil, codes.OK},
		"DirectoryReadOnly":     {directories{five: five{b.array}, dir: dir, readOnly: true}, driverkit.SingleNodeWriter, nil, codes.OK},
		"MountedByTheDriver":    {staging{five{b.array}, b.mounts}, driverkit.SingleNodeWriter, nil, codes.OK},
		"DeviceForReading":      {five{b.array}, reader, nil, codes.OK},
		"DeviceAttachedForRead": {readOnlyDevices{five{b.array}}, driverkit.SingleNodeWriter, nil, codes.OK},
	} {
		t.Run(name, func(t *testing.T) {
			b.start(five{b.array})
			v := b.create("pvc-" + name)
			wantCode(t, "stage, which formats", b.stage(v), codes.OK)
			wantCode(t, "unstage", b.unstage(v), codes.OK)
			b.stop()
			b.start(tc.driver)
			stage, publish := b.stageRequest(v), b.publishRequest(v, "pod-1")
			stage.VolumeCapability.AccessMode.Mode, publish.VolumeCapability.AccessMode.Mode = csi.VolumeCapability_AccessMode_Mode(tc.mode), csi.VolumeCapability_AccessMode_Mode(tc.mode)
			_, err := b.NodeStageVolume(ctxOf(t), stage)
			wantCode(t, "stage", err, codes.OK)
			b.mounts.Break(b.path("staging"))
			b.wantReasons("after an error", v.GetVolumeId(), tc.want...)
			_, err = b.NodeStageVolume(ctxOf(t), stage)
			wantCode(t, "stage again", err, codes.OK)
			_, err = b.NodePublishVolume(ctxOf(t), publish)
			wantCode(t, "publish", err, tc.publish)
			wantCode(t, "unpublish", b.unpublish(v, "pod-1"), codes.OK)
			wantCode(t, "unstage", b.unstage(v), codes.OK)
			b.stop()
		})
	}
}

// TestInlineBecameReadOnly reports an inline volume at its target, which is all that it has.
func TestInlineBecameReadOnly(t *testing.T) {
	b := newBench(t, nil)
	_, err := b.NodePublishVolume(ctxOf(t), inlineRequest(b, "true"))
	wantCode(t, "publish", err, codes.OK)
	b.wantReasons("published", "csi-1")
	b.mounts.Break(b.path("pod-1"))
	b.wantReasons("broken", "csi-1", readOnlyReason)
	_, err = b.NodePublishVolume(ctxOf(t), inlineRequest(b, "true"))
	wantCode(t, "publish again", err, codes.FailedPrecondition)
	wantCode(t, "unpublish", b.unpublish(&csi.Volume{VolumeId: "csi-1"}, "pod-1"), codes.OK)
}
