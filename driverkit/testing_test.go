package driverkit_test

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"k8s.io/klog/v2"

	"github.com/longshore-csi/longshore/driverkit"
	"github.com/longshore-csi/longshore/driverkit/filesystem"
	"github.com/longshore-csi/longshore/driverkit/internal/testarray"
	"github.com/longshore-csi/longshore/driverkit/mount"
)

const (
	// patience bounds what should take milliseconds.
	patience = 2 * time.Minute
	// pause is the time between two attempts to connect.
	pause = 2 * time.Millisecond
)

// bench is a machine with an array, on which one driver after the other runs.
type bench struct {
	t      *testing.T
	dir    string
	array  *testarray.Array
	mounts *mount.Fake
	files  *filesystem.Fake
	// options changes those of each start.
	options func(*driverkit.Options)
	// parts changes what the driver of each start can do.
	parts func(*driverkit.Driver)

	csi.IdentityClient
	csi.ControllerClient
	csi.NodeClient
	csi.GroupControllerClient
	csi.SnapshotMetadataClient

	stop func()
}

// newBench starts a driver whose backend is the array.
func newBench(t *testing.T, options func(*driverkit.Options)) *bench {
	t.Helper()
	b := prepareBench(t, options)
	b.start(b.array)
	return b
}

func prepareBench(t *testing.T, options func(*driverkit.Options)) *bench {
	t.Helper()
	dir, err := os.MkdirTemp("", "kit") // t.TempDir has a path that is too long for a socket.
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	b := &bench{t: t, dir: dir, mounts: &mount.Fake{}, options: options, array: testarray.New(filepath.Join(dir, "array"), "node-1", "node-2")}
	b.files = &filesystem.Fake{Mounts: b.mounts}
	if err := os.Mkdir(b.array.Dir, 0o700); err != nil {
		t.Fatal(err)
	}
	return b
}

func (b *bench) path(name string) string { return filepath.Join(b.dir, name) }

// backend is the least that a driver is made of.
type backend interface {
	driverkit.Provisioner
	driverkit.Stager
}

// start serves a driver, made of all that a value can do, until the test ends or stop is called.
func (b *bench) start(of any) {
	b.t.Helper()
	o := driverkit.NewOptions("kit.example.com")
	o.Endpoint, o.NodeID, o.StateDir, o.Support.Block = "unix://"+b.path("csi.sock"), "node-1", b.path("state"), true
	d := testarray.Driver(of)
	if b.parts != nil {
		b.parts(&d)
	}
	o.Mounter, o.Filesystems, o.Support.Clones = b.mounts, b.files, d.Snapshotter != nil
	if b.options != nil {
		b.options(&o)
	}
	ctx, cancel := context.WithCancel(klog.NewContext(context.Background(), klog.Logger{}))
	ended := make(chan error, 1)
	go func() { ended <- driverkit.Serve(ctx, o, d) }()
	conn, err := grpc.NewClient(o.Endpoint, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithDefaultCallOptions(grpc.WaitForReady(true)),
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: backoff.Config{BaseDelay: pause, MaxDelay: pause}, MinConnectTimeout: patience}))
	if err != nil {
		b.t.Fatal(err)
	}
	b.IdentityClient, b.ControllerClient, b.NodeClient = csi.NewIdentityClient(conn), csi.NewControllerClient(conn), csi.NewNodeClient(conn)
	b.GroupControllerClient, b.SnapshotMetadataClient = csi.NewGroupControllerClient(conn), csi.NewSnapshotMetadataClient(conn)
	stopped := false
	b.stop = func() {
		if stopped {
			return
		}
		stopped = true
		_ = conn.Close() // It has no calls.
		cancel()
		select {
		case err := <-ended:
			if err != nil {
				b.t.Errorf("serve: %v", err)
			}
		case <-time.After(patience):
			b.t.Error("the driver does not stop")
		}
	}
	b.t.Cleanup(b.stop)
}

// restart starts the driver again, as after a crash between calls.
func (b *bench) restart() {
	b.t.Helper()
	b.stop()
	b.start(b.array)
}

func ctxOf(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	return ctx
}

// wantCode fails the test if the error has another code.
func wantCode(t *testing.T, what string, err error, want codes.Code) {
	t.Helper()
	if got := status.Code(err); got != want {
		t.Errorf("%s: %v (%v), want %v", what, got, err, want)
	}
}

func mountCapability() *csi.VolumeCapability {
	return &csi.VolumeCapability{
		AccessMode: &csi.VolumeCapability_AccessMode{Mode: csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER},
		AccessType: &csi.VolumeCapability_Mount{Mount: &csi.VolumeCapability_MountVolume{}},
	}
}

func blockCapability() *csi.VolumeCapability {
	c := mountCapability()
	c.AccessType = &csi.VolumeCapability_Block{Block: &csi.VolumeCapability_BlockVolume{}}
	return c
}

// create makes a volume of 4 MiB.
func (b *bench) create(name string) *csi.Volume {
	b.t.Helper()
	created, err := b.CreateVolume(ctxOf(b.t), createRequest(name))
	if err != nil {
		b.t.Fatalf("create %q: %v", name, err)
	}
	return created.GetVolume()
}

func createRequest(name string) *csi.CreateVolumeRequest {
	return &csi.CreateVolumeRequest{
		Name: name, VolumeCapabilities: []*csi.VolumeCapability{mountCapability()}, CapacityRange: &csi.CapacityRange{RequiredBytes: 4 << 20},
	}
}

// stageRequest is for an attached volume.
func (b *bench) stageRequest(v *csi.Volume) *csi.NodeStageVolumeRequest {
	return &csi.NodeStageVolumeRequest{
		VolumeId: v.GetVolumeId(), StagingTargetPath: b.path("staging"), VolumeCapability: mountCapability(), PublishContext: v.GetVolumeContext(),
	}
}

func (b *bench) publishRequest(v *csi.Volume, target string) *csi.NodePublishVolumeRequest {
	return &csi.NodePublishVolumeRequest{
		VolumeId: v.GetVolumeId(), StagingTargetPath: b.path("staging"), TargetPath: b.path(target), VolumeCapability: mountCapability(),
		PublishContext: v.GetVolumeContext(),
	}
}
