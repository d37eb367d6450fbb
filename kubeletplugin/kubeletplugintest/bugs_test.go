package kubeletplugintest

import (
	"context"
	"errors"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// bugEnv names the bug of TestVendor's driver.
const bugEnv = "KUBELETPLUGINTEST_BUG"

// vendor is a driver that keeps each volume in a directory, and stages and publishes it by bind mounts. It has at most one bug.
type vendor struct {
	csi.UnimplementedIdentityServer
	csi.UnimplementedControllerServer
	csi.UnimplementedNodeServer

	dir, bug string

	mu                sync.Mutex
	staged, published map[string]bool // since the start
}

func (d *vendor) GetPluginInfo(context.Context, *csi.GetPluginInfoRequest) (*csi.GetPluginInfoResponse, error) {
	return &csi.GetPluginInfoResponse{Name: "vendor.example.org", VendorVersion: "1"}, nil
}

func (d *vendor) GetPluginCapabilities(context.Context, *csi.GetPluginCapabilitiesRequest) (*csi.GetPluginCapabilitiesResponse, error) {
	return &csi.GetPluginCapabilitiesResponse{Capabilities: []*csi.PluginCapability{{
		Type: &csi.PluginCapability_Service_{Service: &csi.PluginCapability_Service{Type: csi.PluginCapability_Service_CONTROLLER_SERVICE}},
	}}}, nil
}

func (d *vendor) ControllerGetCapabilities(context.Context, *csi.ControllerGetCapabilitiesRequest) (*csi.ControllerGetCapabilitiesResponse, error) {
	return &csi.ControllerGetCapabilitiesResponse{Capabilities: []*csi.ControllerServiceCapability{{
		Type: &csi.ControllerServiceCapability_Rpc{Rpc: &csi.ControllerServiceCapability_RPC{Type: csi.ControllerServiceCapability_RPC_CREATE_DELETE_VOLUME}},
	}}}, nil
}

func (d *vendor) NodeGetCapabilities(context.Context, *csi.NodeGetCapabilitiesRequest) (*csi.NodeGetCapabilitiesResponse, error) {
	r := &csi.NodeGetCapabilitiesResponse{}
	for _, c := range []csi.NodeServiceCapability_RPC_Type{csi.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME, csi.NodeServiceCapability_RPC_SINGLE_NODE_MULTI_WRITER} {
		r.Capabilities = append(r.Capabilities, &csi.NodeServiceCapability{Type: &csi.NodeServiceCapability_Rpc{Rpc: &csi.NodeServiceCapability_RPC{Type: c}}})
	}
	return r, nil
}

func (d *vendor) NodeGetInfo(context.Context, *csi.NodeGetInfoRequest) (*csi.NodeGetInfoResponse, error) {
	return &csi.NodeGetInfoResponse{NodeId: "node"}, nil
}

func (d *vendor) CreateVolume(_ context.Context, r *csi.CreateVolumeRequest) (*csi.CreateVolumeResponse, error) {
	if err := os.MkdirAll(d.data(r.GetName()), 0o750); err != nil {
		return nil, err
	}
	return &csi.CreateVolumeResponse{Volume: &csi.Volume{VolumeId: r.GetName(), CapacityBytes: r.GetCapacityRange().GetRequiredBytes()}}, nil
}

func (d *vendor) DeleteVolume(_ context.Context, r *csi.DeleteVolumeRequest) (*csi.DeleteVolumeResponse, error) {
	return &csi.DeleteVolumeResponse{}, os.RemoveAll(d.data(r.GetVolumeId()))
}

func (d *vendor) data(id string) string { return filepath.Join(d.dir, id) }

func (d *vendor) NodeStageVolume(_ context.Context, r *csi.NodeStageVolumeRequest) (*csi.NodeStageVolumeResponse, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	path := r.GetStagingTargetPath()
	if d.bug == "stage-not-idempotent" && d.staged[path] {
		return nil, status.Error(codes.AlreadyExists, "the volume is staged already")
	}
	d.staged[path] = true
	if d.bug == "formats-at-stage" {
		if err := os.Remove(filepath.Join(d.data(r.GetVolumeId()), "text")); err != nil && !errors.Is(err, os.ErrNotExist) {
			return nil, err
		}
	}
	return &csi.NodeStageVolumeResponse{}, bind(d.data(r.GetVolumeId()), path)
}

func (d *vendor) NodeUnstageVolume(_ context.Context, r *csi.NodeUnstageVolumeRequest) (*csi.NodeUnstageVolumeResponse, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.staged, r.GetStagingTargetPath())
	if d.bug == "leaks-at-unstage" {
		return &csi.NodeUnstageVolumeResponse{}, nil
	}
	return &csi.NodeUnstageVolumeResponse{}, unmount(r.GetStagingTargetPath())
}

func (d *vendor) NodePublishVolume(_ context.Context, r *csi.NodePublishVolumeRequest) (*csi.NodePublishVolumeResponse, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	path := r.GetTargetPath()
	if d.bug == "publish-not-idempotent" && d.published[path] {
		return nil, status.Error(codes.AlreadyExists, "the volume is published already")
	}
	d.published[path] = true
	if err := os.MkdirAll(path, 0o750); err != nil {
		return nil, err
	}
	switch d.bug {
	case "never-mounts":
		return &csi.NodePublishVolumeResponse{}, nil
	case "answers-before-it-mounts":
		time.AfterFunc(500*time.Millisecond, func() {
			d.mu.Lock()
			defer d.mu.Unlock()
			if d.published[path] {
				_ = d.publish(r)
			}
		})
		return &csi.NodePublishVolumeResponse{}, nil
	}
	return &csi.NodePublishVolumeResponse{}, d.publish(r)
}

func (d *vendor) publish(r *csi.NodePublishVolumeRequest) error {
	source, path := r.GetStagingTargetPath(), r.GetTargetPath()
	if d.bug == "publishes-another-volume" {
		source = d.dir
	}
	mount := bind
	if d.bug == "stacks-mounts" {
		mount = stack
	}
	if err := mount(source, path); err != nil || !r.GetReadonly() || d.bug == "forgets-read-only" {
		return err
	}
	return unix.Mount("", path, "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY, "")
}

func (d *vendor) NodeUnpublishVolume(_ context.Context, r *csi.NodeUnpublishVolumeRequest) (*csi.NodeUnpublishVolumeResponse, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	path := r.GetTargetPath()
	if d.bug == "unpublish-needs-memory" && !d.published[path] {
		return nil, status.Error(codes.NotFound, "the volume is not published")
	}
	delete(d.published, path)
	if d.bug == "leaks-at-unpublish" {
		return &csi.NodeUnpublishVolumeResponse{}, nil
	}
	if err := unmount(path); err != nil || d.bug == "keeps-the-target-path" {
		return &csi.NodeUnpublishVolumeResponse{}, err
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	return &csi.NodeUnpublishVolumeResponse{}, nil
}

// bind mounts a directory at a path, unless something is there.
func bind(source, path string) error {
	if there, err := mountinfo.Mounted(path); there || err != nil {
		return err
	}
	return stack(source, path)
}

// stack mounts a directory at a path.
func stack(source, path string) error { return unix.Mount(source, path, "", unix.MS_BIND, "") }

func unmount(path string) error {
	for {
		if err := unix.Unmount(path, unix.UMOUNT_NOFOLLOW); errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOENT) {
			return nil
		} else if err != nil {
			return err
		}
	}
}

// TestVendor runs the driver with the bug that the environment names: none in this process.
func TestVendor(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root, to mount")
	}
	Run(t, func(t *testing.T) Config {
		dir, err := os.MkdirTemp("", "vendor")
		if err != nil {
			t.Fatal(err)
		}
		socket, data := filepath.Join(dir, "csi.sock"), filepath.Join(dir, "data")
		var server *grpc.Server
		start := func() {
			d := &vendor{dir: data, bug: os.Getenv(bugEnv), staged: map[string]bool{}, published: map[string]bool{}}
			listener, err := net.Listen("unix", socket)
			if err != nil {
				t.Fatal(err)
			}
			server = grpc.NewServer()
			csi.RegisterIdentityServer(server, d)
			csi.RegisterControllerServer(server, d)
			csi.RegisterNodeServer(server, d)
			go func() { _ = server.Serve(listener) }()
		}
		start()
		t.Cleanup(func() {
			server.Stop()
			_ = os.RemoveAll(dir)
		})
		return Config{Endpoint: "unix://" + socket, Restart: func() { server.Stop(); start() }}
	})
}

// TestBugs runs a driver with one bug after the other. Each is found in seconds, and the message says what is wrong and where the specification says so.
func TestBugs(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root, to mount")
	}
	bugs := map[string]string{
		"stacks-mounts":            `mounts are on top of each other`,
		"never-mounts":             `OK, but nothing is mounted at the target path (CSI v1.13, "NodePublishVolume")`,
		"answers-before-it-mounts": `OK, but nothing is mounted at the target path (CSI v1.13, "NodePublishVolume")`,
		"forgets-read-only":        `OK with readonly=true, but a file can be written (CSI v1.13, "NodePublishVolume")`,
		"publishes-another-volume": `volume "data" has`,
		"formats-at-stage":         `volume "data" has`,
		"keeps-the-target-path":    `OK, but the driver has not removed the target path (CSI v1.13, "NodeUnpublishVolume")`,
		"leaks-at-unstage":         `OK, but something is mounted at the staging path (CSI v1.13, "NodeUnstageVolume")`,
		"leaks-at-unpublish":       `OK, but the driver has not removed the target path (CSI v1.13, "NodeUnpublishVolume")`,
		"publish-not-idempotent":   `must be answered with OK when the call is repeated (CSI v1.13, "NodePublishVolume")`,
		"stage-not-idempotent":     `must be answered with OK when the call is repeated (CSI v1.13, "NodeStageVolume")`,
		"unpublish-needs-memory":   `must be answered with OK when the call is repeated (CSI v1.13, "NodeUnpublishVolume")`,
	}
	for bug, want := range bugs {
		t.Run(bug, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestVendor$", "-test.timeout=5m") //nolint:gosec // this very program
			cmd.Env = append(os.Environ(), bugEnv+"="+bug, "TMPDIR="+dir)
			began := time.Now()
			output, err := cmd.CombinedOutput()
			lasted := time.Since(began)
			sweep(t, dir)
			if err == nil || !strings.Contains(string(output), want) {
				t.Errorf("%v, want %q in\n%s", err, want, output)
			}
			t.Logf("found after %v", lasted.Round(100*time.Millisecond))
			if lasted > time.Minute { // a machine that is busy
				t.Errorf("found after %v", lasted)
			}
		})
	}
}

// sweep unmounts what a driver with a bug has left below a directory.
func sweep(t *testing.T, dir string) {
	t.Helper()
	mounts, err := mountinfo.GetMounts(mountinfo.PrefixFilter(dir))
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range mounts {
		if err := unix.Unmount(m.Mountpoint, unix.MNT_DETACH); err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOENT) {
			t.Error(err)
		}
	}
}
