package grpcapi

import (
	"context"
	"path/filepath"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"k8s.io/klog/v2"

	"github.com/longshore-csi/longshore/driverkit/loop"
	"github.com/longshore-csi/longshore/driverkit/mount"
	"github.com/longshore-csi/longshore/hostpathdriver/internal/backend"
	"github.com/longshore-csi/longshore/hostpathdriver/internal/idempotent"
	"github.com/longshore-csi/longshore/hostpathdriver/internal/volume"
)

const testNode = "node-1"

// fixture is the whole driver below gRPC.
type fixture struct {
	*Controller
	*Node

	t       *testing.T
	ctx     context.Context // fixture of one test
	pods    string
	state   string
	mounter *mount.Fake
}

func newFixture(t *testing.T, attach bool) *fixture {
	t.Helper()
	f := &fixture{t: t, ctx: klog.NewContext(t.Context(), klog.Logger{}), pods: t.TempDir(), mounter: &mount.Fake{}}
	f.state = t.TempDir()
	stateDir, pools := f.state, volume.NewPools(map[string]int64{"fast": 100 << 30})
	volumes, err := backend.OpenVolumes(f.ctx, backend.VolumesConfig{
		StateDir: stateDir, Placement: volume.Placement{Enabled: true, Own: testNode}, Pools: pools,
		MaxSize: 1 << 40, Attach: attach, ProtectUsed: true, Mounter: f.mounter,
		Mutable: volume.Mutable{Enabled: true, Names: []string{"iops"}},
	})
	if err != nil {
		t.Fatal(err)
	}
	node, err := backend.OpenNode(f.ctx, backend.NodeConfig{
		StateDir: stateDir, NodeID: testNode, Pools: pools, MaxSize: 1 << 40, Attach: attach, Mounter: f.mounter,
		Devices: &loop.Fake{Dir: t.TempDir()},
	})
	if err != nil {
		t.Fatal(err)
	}
	services := idempotent.New(volumes)
	f.Controller = NewController(ControllerConfig{
		Service: services, Snapshots: services, Attach: attach, Expansion: true, NodeExpansion: true, Modify: true,
	})
	f.Node = NewNode(NodeConfig{
		Service: idempotent.NewNode(node), NodeID: testNode, Topology: true, Inline: true, Expansion: true, MaxVolumes: func() int64 { return 7 },
	})
	return f
}

func mountCapability() *csi.VolumeCapability {
	return &csi.VolumeCapability{
		AccessType: &csi.VolumeCapability_Mount{Mount: &csi.VolumeCapability_MountVolume{}},
		AccessMode: &csi.VolumeCapability_AccessMode{Mode: csi.VolumeCapability_AccessMode_SINGLE_NODE_MULTI_WRITER},
	}
}

func blockCapability() *csi.VolumeCapability {
	c := mountCapability()
	c.AccessType = &csi.VolumeCapability_Block{Block: &csi.VolumeCapability_BlockVolume{}}
	return c
}

func createRequest(name string) *csi.CreateVolumeRequest {
	return &csi.CreateVolumeRequest{
		Name: name, CapacityRange: &csi.CapacityRange{RequiredBytes: 1 << 30},
		VolumeCapabilities: []*csi.VolumeCapability{mountCapability()},
	}
}

func (f *fixture) create(name string) string {
	f.t.Helper()
	created, err := f.CreateVolume(f.ctx, createRequest(name))
	if err != nil {
		f.t.Fatal(err)
	}
	return created.GetVolume().GetVolumeId()
}

// contents is where the controller keeps a volume.
func (f *fixture) contents(id string) string { return filepath.Join(f.state, "volumes", id) }

func (f *fixture) path(name string) string { return filepath.Join(f.pods, name) }

func (f *fixture) stage(id string) *csi.NodeStageVolumeRequest {
	return &csi.NodeStageVolumeRequest{VolumeId: id, StagingTargetPath: f.path("staging"), VolumeCapability: mountCapability()}
}

func (f *fixture) publish(id string) *csi.NodePublishVolumeRequest {
	return &csi.NodePublishVolumeRequest{
		VolumeId: id, StagingTargetPath: f.path("staging"), TargetPath: f.path("target"), VolumeCapability: mountCapability(),
	}
}

func wantCode(t *testing.T, what string, err error, want codes.Code) {
	t.Helper()
	if got := status.Code(err); got != want {
		t.Errorf("%s: code %v (%v), want %v", what, got, err, want)
	}
}
