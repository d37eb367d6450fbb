package driverkit_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"k8s.io/klog/v2"

	"github.com/longshore-csi/longshore/driverkit"
	"github.com/longshore-csi/longshore/driverkit/filesystem"
	"github.com/longshore-csi/longshore/driverkit/internal/testarray"
)

// TestOwnDirs: nothing is mounted in the directories of a driver, or above them.
func TestOwnDirs(t *testing.T) {
	b := prepareBench(t, nil)
	b.options = func(o *driverkit.Options) { o.OwnDirs = []string{b.path("pool")} }
	b.start(b.array)
	v := b.create("pvc-1")
	for path, want := range map[string]codes.Code{"pool": codes.InvalidArgument, "pool/a": codes.InvalidArgument, "pool2": codes.OK} {
		req := b.stageRequest(v)
		req.StagingTargetPath = b.path(path)
		_, err := b.NodeStageVolume(ctxOf(t), req)
		wantCode(t, "stage at "+path, err, want)
	}
}

// TestOpened: it is called under the lock of the node, and its error ends Serve.
func TestOpened(t *testing.T) {
	b := prepareBench(t, nil)
	calls := 0
	b.options = func(o *driverkit.Options) {
		o.Opened = func(context.Context) error { calls++; return nil }
	}
	b.start(b.array)
	b.create("pvc-1")
	second := driverkit.NewOptions("kit.example.com")
	second.Endpoint, second.NodeID, second.StateDir = "unix://"+b.path("second.sock"), "node-1", b.path("state")
	second.Opened = func(context.Context) error { return errors.New("must not be called") }
	ctx := klog.NewContext(ctxOf(t), klog.Logger{})
	if err := driverkit.Serve(ctx, second, testarray.Driver(b.array)); err == nil || strings.Contains(err.Error(), "must not be called") {
		t.Errorf("a second driver: %v, want that the state directory is locked", err)
	}
	b.stop()
	second.Opened = func(context.Context) error { return errBroken }
	if err := driverkit.Serve(ctx, second, testarray.Driver(b.array)); !errors.Is(err, errBroken) || calls != 1 {
		t.Errorf("serve: %v after %d calls of Opened, want its error after 1", err, calls)
	}
}

// TestInlineOrphans: of two pods one went while the driver did not run; of a third the whole directory is missing, as before the CO's is mounted.
func TestInlineOrphans(t *testing.T) {
	b := newBench(t, nil)
	for name, dir := range map[string]string{"csi-1": "pods/a/target", "csi-2": "pods/b/target", "csi-3": "pods/c/target"} {
		req := inlineRequest(b, "true")
		req.VolumeId, req.TargetPath = name, b.path(dir)
		_, err := b.NodePublishVolume(ctxOf(t), req)
		wantCode(t, "publish "+name, err, codes.OK)
	}
	b.stop()
	for _, dir := range []string{"pods/a/target", "pods/c/target"} {
		if err := errors.Join(b.mounts.Unmount(ctxOf(t), b.path(dir)), os.Remove(b.path(dir))); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Remove(b.path("pods/c")); err != nil {
		t.Fatal(err)
	}
	b.start(b.array)
	for id, want := range map[string]codes.Code{"csi-1": codes.NotFound, "csi-2": codes.OK, "csi-3": codes.OK} {
		_, err := b.ControllerGetVolume(ctxOf(t), &csi.ControllerGetVolumeRequest{VolumeId: id})
		wantCode(t, id, err, want)
	}
	if b.records() != 2 {
		t.Errorf("%d records, want those of csi-2 and csi-3", b.records())
	}
}

// TestInlineAttributes: a volume with other attributes is not that of an earlier call.
func TestInlineAttributes(t *testing.T) {
	b := newBench(t, nil)
	_, err := b.NodePublishVolume(ctxOf(t), inlineRequest(b, "true"))
	wantCode(t, "publish", err, codes.OK)
	other := inlineRequest(b, "true")
	other.VolumeContext["size"] = "8388608"
	_, err = b.NodePublishVolume(ctxOf(t), other)
	wantCode(t, "publish with another size", err, codes.AlreadyExists)
	other = inlineRequest(b, "true")
	other.VolumeContext["csi.storage.k8s.io/serviceAccount.tokens"] = "a new token"
	_, err = b.NodePublishVolume(ctxOf(t), other)
	wantCode(t, "publish with a new token", err, codes.OK)
}

// TestStatsAtAnotherPath: a kubelet asks for the statistics of a raw block volume at a path of its own that shows the device.
func TestStatsAtAnotherPath(t *testing.T) {
	b := newBench(t, nil)
	v := b.create("pvc-1")
	stage := b.stageRequest(v)
	stage.VolumeCapability = blockCapability()
	_, err := b.NodeStageVolume(ctxOf(t), stage)
	wantCode(t, "stage", err, codes.OK)
	if err := os.Link(filepath.Join(b.array.Dir, v.GetVolumeId()), b.path("device")); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(b.path("other"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]codes.Code{"device": codes.OK, "other": codes.NotFound, "missing": codes.NotFound} {
		_, err := b.NodeGetVolumeStats(ctxOf(t), &csi.NodeGetVolumeStatsRequest{VolumeId: v.GetVolumeId(), VolumePath: b.path(path)})
		wantCode(t, "stats at "+path, err, want)
	}
}

// TestStageCompletesGrowth: a process that ended between the mount and the growth of a file system had no answer, so that the CO calls again.
func TestStageCompletesGrowth(t *testing.T) {
	b := newBench(t, nil)
	v := b.create("pvc-1")
	wantCode(t, "stage", b.stage(v), codes.OK)
	b.files.Fail(filesystem.StepGrow, errBroken)
	if err := os.Truncate(filepath.Join(b.array.Dir, v.GetVolumeId()), 8<<20); err != nil {
		t.Fatal(err)
	}
	wantCode(t, "stage where the file system cannot grow", b.stage(v), codes.Internal)
	b.files.Fail(filesystem.StepGrow, nil)
	wantCode(t, "stage again", b.stage(v), codes.OK)
	usage, err := b.files.Usage(ctxOf(t), b.path("staging"))
	if err != nil || usage.Bytes.Total != 8<<20 {
		t.Errorf("usage %v, %v, want a file system of 8 MiB", usage, err)
	}
}

// degraded is an array that reports the health of its storage.
type degraded struct {
	backend
	health driverkit.Health
}

func (d degraded) StorageHealth(_ context.Context, req *driverkit.StorageHealthRequest) (*driverkit.Health, error) {
	if req.Secrets["account"] == "wrong-account" {
		return nil, fmt.Errorf("account %s: %w", req.Secrets["account"], driverkit.ErrDenied)
	}
	return &d.health, nil
}

func TestStorageHealth(t *testing.T) {
	b := prepareBench(t, nil)
	b.start(degraded{b.array, driverkit.Health{Conditions: []driverkit.Condition{{Severity: driverkit.Degraded, Reason: "LowSpace", Message: "5% are left"}}}})
	health, err := b.NodeGetStorageHealth(ctxOf(t), &csi.NodeGetStorageHealthRequest{})
	wantCode(t, "health", err, codes.OK)
	if list := health.GetBackendHealth(); len(list) != 1 || list[0].GetStatus() != csi.StorageHealthErrorType_STORAGE_DEGRADED || list[0].GetReason() != "LowSpace" || list[0].GetMessage() == "" {
		t.Errorf("health %v, want the condition of the driver", list)
	}
	_, err = b.NodeGetStorageHealth(ctxOf(t), &csi.NodeGetStorageHealthRequest{Secrets: map[string]string{"account": "wrong-account"}})
	wantCode(t, "health with a wrong account", err, codes.PermissionDenied)
	if strings.Contains(err.Error(), "wrong-account") {
		t.Errorf("%v has a secret", err)
	}
	announced, err := b.NodeGetCapabilities(ctxOf(t), &csi.NodeGetCapabilitiesRequest{})
	if err != nil || !strings.Contains(announced.String(), "GET_STORAGE_HEALTH") {
		t.Errorf("capabilities %v, %v, want GET_STORAGE_HEALTH", announced, err)
	}
}

// TestUnpublishOnAFullDisk: the record cannot be replaced, and pods end all the same; what is unmounted in memory is so for the next calls.
func TestUnpublishOnAFullDisk(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("a file system of its own needs root")
	}
	b := prepareBench(t, nil)
	if err := errors.Join(os.Mkdir(b.path("state"), 0o700), unix.Mount("full", b.path("state"), "tmpfs", 0, "size=1m")); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		b.stop()
		if err := unix.Unmount(b.path("state"), 0); err != nil {
			t.Error(err)
		}
	})
	b.start(b.array)
	v := b.create("pvc-1")
	wantCode(t, "stage", b.stage(v), codes.OK)
	wantCode(t, "publish", b.publish(v, "pod-1"), codes.OK)
	file, err := os.Create(b.path("state/ballast"))
	for err == nil {
		_, err = file.Write(make([]byte, 4096))
	}
	if !errors.Is(err, unix.ENOSPC) {
		t.Fatalf("fill the disk: %v", errors.Join(err, file.Close()))
	}
	if err := file.Close(); err != nil {
		t.Fatal(err)
	}
	wantCode(t, "unpublish", b.unpublish(v, "pod-1"), codes.OK)
	wantCode(t, "unpublish again", b.unpublish(v, "pod-1"), codes.OK)
	if at := b.mounts.At(b.path("pod-1")); at != nil {
		t.Errorf("still mounted: %+v", at)
	}
	wantCode(t, "unstage", b.unstage(v), codes.OK)
	if left := b.records(); left != 0 {
		t.Errorf("%d records are left", left)
	}
}
