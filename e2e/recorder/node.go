package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"github.com/longshore-csi/longshore/hostpathdriver/loop"
)

// deviceSize is that of raw block volumes.
const deviceSize = 16 << 20

// GetInfo implements the registration.
func (d *driver) GetInfo(context.Context, *registerapi.InfoRequest) (*registerapi.PluginInfo, error) {
	return &registerapi.PluginInfo{Type: registerapi.CSIPlugin, Name: d.Name, Endpoint: d.Socket(), SupportedVersions: []string{"1.0.0"}}, nil
}

// NotifyRegistrationStatus implements the registration. The test looks at the CSINode.
func (d *driver) NotifyRegistrationStatus(context.Context, *registerapi.RegistrationStatus) (*registerapi.RegistrationStatusResponse, error) {
	return &registerapi.RegistrationStatusResponse{}, nil
}

// GetPluginInfo implements the identity service.
func (d *driver) GetPluginInfo(context.Context, *csi.GetPluginInfoRequest) (*csi.GetPluginInfoResponse, error) {
	return &csi.GetPluginInfoResponse{Name: d.Name, VendorVersion: "1"}, nil
}

// GetPluginCapabilities implements the identity service.
func (d *driver) GetPluginCapabilities(context.Context, *csi.GetPluginCapabilitiesRequest) (*csi.GetPluginCapabilitiesResponse, error) {
	return &csi.GetPluginCapabilitiesResponse{}, nil
}

// Probe implements the identity service.
func (d *driver) Probe(context.Context, *csi.ProbeRequest) (*csi.ProbeResponse, error) {
	return &csi.ProbeResponse{}, nil
}

// NodeGetInfo implements the node service.
func (d *driver) NodeGetInfo(context.Context, *csi.NodeGetInfoRequest) (*csi.NodeGetInfoResponse, error) {
	return &csi.NodeGetInfoResponse{NodeId: d.Node}, nil
}

// NodeGetCapabilities implements the node service.
func (d *driver) NodeGetCapabilities(context.Context, *csi.NodeGetCapabilitiesRequest) (*csi.NodeGetCapabilitiesResponse, error) {
	reply := &csi.NodeGetCapabilitiesResponse{}
	for _, name := range d.Capabilities {
		reply.Capabilities = append(reply.Capabilities, &csi.NodeServiceCapability{Type: &csi.NodeServiceCapability_Rpc{
			Rpc: &csi.NodeServiceCapability_RPC{Type: csi.NodeServiceCapability_RPC_Type(csi.NodeServiceCapability_RPC_Type_value[name])},
		}})
	}
	return reply, nil
}

// NodeStageVolume mounts the directory of a volume. A raw block volume has nothing to stage.
func (d *driver) NodeStageVolume(_ context.Context, r *csi.NodeStageVolumeRequest) (*csi.NodeStageVolumeResponse, error) {
	if r.GetVolumeCapability().GetBlock() != nil {
		return &csi.NodeStageVolumeResponse{}, nil
	}
	return &csi.NodeStageVolumeResponse{}, d.bindDirectory(r.GetVolumeId(), r.GetStagingTargetPath(), false)
}

// NodeUnstageVolume implements the node service.
func (d *driver) NodeUnstageVolume(_ context.Context, r *csi.NodeUnstageVolumeRequest) (*csi.NodeUnstageVolumeResponse, error) {
	return &csi.NodeUnstageVolumeResponse{}, unmount(r.GetStagingTargetPath())
}

// NodePublishVolume implements the node service.
func (d *driver) NodePublishVolume(_ context.Context, r *csi.NodePublishVolumeRequest) (*csi.NodePublishVolumeResponse, error) {
	if r.GetVolumeCapability().GetBlock() != nil {
		return &csi.NodePublishVolumeResponse{}, d.bindDevice(r.GetVolumeId(), r.GetTargetPath())
	}
	return &csi.NodePublishVolumeResponse{}, d.bindDirectory(r.GetVolumeId(), r.GetTargetPath(), r.GetReadonly())
}

// NodeUnpublishVolume implements the node service.
func (d *driver) NodeUnpublishVolume(_ context.Context, r *csi.NodeUnpublishVolumeRequest) (*csi.NodeUnpublishVolumeResponse, error) {
	err := errors.Join(unmount(r.GetTargetPath()), ignoreMissing(os.Remove(r.GetTargetPath())), d.detach(r.GetVolumeId()))
	return &csi.NodeUnpublishVolumeResponse{}, err
}

// NodeExpandVolume has nothing to expand: directories have no size.
func (d *driver) NodeExpandVolume(_ context.Context, r *csi.NodeExpandVolumeRequest) (*csi.NodeExpandVolumeResponse, error) {
	return &csi.NodeExpandVolumeResponse{CapacityBytes: r.GetCapacityRange().GetRequiredBytes()}, nil
}

// bindDirectory mounts the directory of a volume.
func (d *driver) bindDirectory(volume, target string, readOnly bool) error {
	if mounted(target) {
		return nil
	}
	if err := errors.Join(os.MkdirAll(d.Volume(volume), 0o750), os.MkdirAll(target, 0o750)); err != nil {
		return err
	}
	if err := unix.Mount(d.Volume(volume), target, "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("mount %s: %w", target, err)
	}
	if !readOnly {
		return nil
	}
	return unix.Mount("", target, "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY, "")
}

// bindDevice mounts a loop device, of which each publication has its own.
func (d *driver) bindDevice(volume, target string) error {
	if mounted(target) {
		return nil
	}
	image := d.Volume(volume) + ".img"
	if err := os.MkdirAll(filepath.Dir(image), 0o750); err != nil {
		return err
	}
	for _, path := range []string{image, target} {
		f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
		if err != nil {
			return err
		}
		_ = f.Close()
	}
	if err := os.Truncate(image, deviceSize); err != nil {
		return err
	}
	device, err := losetup("--find", "--show", image)
	if err != nil {
		return err
	}
	if err := unix.Mount(device, target, "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("mount %s at %s: %w", device, target, err)
	}
	return nil
}

// detach lets the loop devices of a volume go; one that is still in use goes when it is not any more.
func (d *driver) detach(volume string) error {
	image := d.Volume(volume) + ".img"
	if _, err := os.Stat(image); err != nil {
		return ignoreMissing(err)
	}
	// Not by the devices' numbers, which may be those of somebody else's by then.
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	err := loop.Kernel{}.Detach(ctx, image, false)
	if errors.Is(err, context.DeadlineExceeded) {
		return nil
	}
	return err
}

func losetup(args ...string) (string, error) {
	out, err := exec.CommandContext(context.Background(), "losetup", args...).CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("losetup %q: %w: %s", args, err, out)
	}
	return strings.TrimSpace(string(out)), nil
}

func unmount(path string) error {
	if !mounted(path) {
		return nil
	}
	// Tests look at all directories of the node, which must not keep a mount busy.
	if err := unix.Unmount(path, unix.MNT_DETACH); err != nil {
		return fmt.Errorf("unmount %s: %w", path, err)
	}
	return nil
}

func mounted(path string) bool {
	ok, err := mountinfo.Mounted(path)
	return ok && err == nil
}
