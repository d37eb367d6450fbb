package main

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/longshore-csi/longshore/driverkit"
	"github.com/longshore-csi/longshore/driverkit/drivertest"
	"github.com/longshore-csi/longshore/driverkit/mount"
)

// served is a driver on a machine with the kernel's devices, and a CO.
type served struct {
	t   *testing.T
	dir string
	// fsType is that of the volumes; empty for the default.
	fsType string

	csi.ControllerClient
	csi.NodeClient
}

func serve(t *testing.T) *served {
	t.Helper()
	r := newRig(t, false)
	s := &served{t: t, dir: t.TempDir()}
	sockets, err := os.MkdirTemp("", "drv") // t.TempDir has a path that is too long for a socket.
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(sockets) })
	if err := os.Mkdir(s.path("array"), 0o700); err != nil {
		t.Fatal(err)
	}
	o, d, err := r.driver(t, s.path("array"))
	if err != nil {
		t.Fatal(err)
	}
	o.Endpoint, o.NodeID, o.StateDir = "unix://"+filepath.Join(sockets, "csi.sock"), drivertest.NodeID, s.path("state")
	t.Cleanup(s.unmount)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- driverkit.Serve(ctx, o, d) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	conn, err := grpc.NewClient(o.Endpoint, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithDefaultCallOptions(grpc.WaitForReady(true)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	s.ControllerClient, s.NodeClient = csi.NewControllerClient(conn), csi.NewNodeClient(conn)
	return s
}

func (s *served) path(name string) string { return filepath.Join(s.dir, name) }

func (s *served) create(name string, size int64, source *csi.VolumeContentSource) *csi.Volume {
	s.t.Helper()
	created, err := s.CreateVolume(s.t.Context(), &csi.CreateVolumeRequest{
		Name: name, VolumeCapabilities: []*csi.VolumeCapability{s.writer()}, CapacityRange: &csi.CapacityRange{RequiredBytes: size},
		VolumeContentSource: source, Secrets: credentials(),
	})
	s.must("create", err)
	return created.GetVolume()
}

func (s *served) writer() *csi.VolumeCapability {
	return &csi.VolumeCapability{
		AccessMode: &csi.VolumeCapability_AccessMode{Mode: csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER},
		AccessType: &csi.VolumeCapability_Mount{Mount: &csi.VolumeCapability_MountVolume{FsType: s.fsType}},
	}
}

func (s *served) must(what string, err error) {
	s.t.Helper()
	if err != nil {
		s.t.Fatalf("%s: %v", what, err)
	}
}

func (s *served) attach(v *csi.Volume, node string, readOnly bool) (map[string]string, error) {
	attached, err := s.ControllerPublishVolume(s.t.Context(), &csi.ControllerPublishVolumeRequest{
		VolumeId: v.GetVolumeId(), NodeId: node, VolumeCapability: s.writer(), Readonly: readOnly, Secrets: credentials(),
	})
	return attached.GetPublishContext(), err
}

// use attaches, stages and publishes a volume, and returns its directory and a function that undoes it.
func (s *served) use(v *csi.Volume, readOnly bool) (dir string, end func()) {
	s.t.Helper()
	staging, target := s.path("staging-"+v.GetVolumeId()), s.path("target-"+v.GetVolumeId())
	published, err := s.attach(v, drivertest.NodeID, readOnly)
	s.must("attach", err)
	_, err = s.NodeStageVolume(s.t.Context(), &csi.NodeStageVolumeRequest{
		VolumeId: v.GetVolumeId(), StagingTargetPath: staging, VolumeCapability: s.writer(), VolumeContext: v.GetVolumeContext(), PublishContext: published,
	})
	s.must("stage", err)
	_, err = s.NodePublishVolume(s.t.Context(), &csi.NodePublishVolumeRequest{
		VolumeId: v.GetVolumeId(), StagingTargetPath: staging, TargetPath: target, VolumeCapability: s.writer(), Readonly: readOnly,
	})
	s.must("publish", err)
	return target, func() {
		s.t.Helper()
		_, err := s.NodeUnpublishVolume(s.t.Context(), &csi.NodeUnpublishVolumeRequest{VolumeId: v.GetVolumeId(), TargetPath: target})
		s.must("unpublish", err)
		_, err = s.NodeUnstageVolume(s.t.Context(), &csi.NodeUnstageVolumeRequest{VolumeId: v.GetVolumeId(), StagingTargetPath: staging})
		s.must("unstage", err)
		_, err = s.ControllerUnpublishVolume(s.t.Context(), &csi.ControllerUnpublishVolumeRequest{
			VolumeId: v.GetVolumeId(), NodeId: drivertest.NodeID, Secrets: credentials(),
		})
		s.must("detach", err)
	}
}

// unmount undoes what a failed test leaves.
func (s *served) unmount() {
	points, err := mount.Kernel{}.Below(context.Background(), s.dir)
	if err != nil {
		s.t.Error(err)
	}
	for _, p := range points {
		s.t.Errorf("left behind: mount %s", p)
		if err := (mount.Kernel{}).Unmount(context.Background(), p); err != nil {
			s.t.Error(err)
		}
	}
}

// sizeOf is the size of the file system at a directory in bytes.
func (s *served) sizeOf(dir string) int64 {
	s.t.Helper()
	var fs unix.Statfs_t
	s.must("measure", unix.Statfs(dir, &fs))
	return int64(fs.Blocks) * fs.Bsize
}

// TestExpand lets a file system grow while it is mounted. It is XFS, for which a container needs fewer capabilities than for ext4.
func TestExpand(t *testing.T) {
	if _, err := exec.LookPath("mkfs.xfs"); err != nil {
		t.Skip(err)
	}
	s := serve(t)
	s.fsType = "xfs"
	v := s.create("pvc-1", 300<<20, nil)
	dir, end := s.use(v, false)
	defer end()
	before := s.sizeOf(dir)
	size := &csi.CapacityRange{RequiredBytes: 600 << 20}
	_, err := s.ControllerExpandVolume(t.Context(), &csi.ControllerExpandVolumeRequest{VolumeId: v.GetVolumeId(), CapacityRange: size, Secrets: credentials()})
	s.must("expand", err)
	_, err = s.NodeExpandVolume(t.Context(), &csi.NodeExpandVolumeRequest{VolumeId: v.GetVolumeId(), VolumePath: dir, CapacityRange: size})
	s.must("expand on the node", err)
	if after := s.sizeOf(dir); after < before+290<<20 {
		t.Errorf("the file system has %d bytes after its expansion by 300 MiB, and had %d", after, before)
	}
}

// TestLife writes, copies and reads on file systems of the kernel.
func TestLife(t *testing.T) {
	s := serve(t)
	v := s.create("pvc-1", 16<<20, nil)
	dir, end := s.use(v, false)
	s.must("write", os.WriteFile(filepath.Join(dir, "file"), []byte("contents"), 0o600))
	if _, err := s.attach(v, "other-node", false); status.Code(err) != codes.FailedPrecondition {
		t.Errorf("attach to a second node: %v, want FAILED_PRECONDITION", err)
	}
	end()
	made, err := s.CreateSnapshot(t.Context(), &csi.CreateSnapshotRequest{Name: "s-1", SourceVolumeId: v.GetVolumeId(), Secrets: credentials()})
	s.must("snapshot", err)
	restored := s.create("pvc-2", 16<<20, &csi.VolumeContentSource{Type: &csi.VolumeContentSource_Snapshot{
		Snapshot: &csi.VolumeContentSource_SnapshotSource{SnapshotId: made.GetSnapshot().GetSnapshotId()},
	}})
	dir, end = s.use(restored, true)
	defer end()
	if text, err := os.ReadFile(filepath.Join(dir, "file")); err != nil || string(text) != "contents" {
		t.Errorf("the restored file has %q, %v", text, err)
	}
	if err := os.WriteFile(filepath.Join(dir, "file"), nil, 0o600); !errors.Is(err, unix.EROFS) {
		t.Errorf("write to a volume that is attached read-only: %v, want EROFS", err)
	}
}

// TestFormerDriver replaces a driver that was made without the kit, while a pod uses a volume that it has staged: as in driverkit/docs/from-your-driver.md.
func TestFormerDriver(t *testing.T) {
	s := serve(t)
	v := s.create("pvc-1", 32<<20, nil)
	published, err := s.attach(v, drivertest.NodeID, false)
	s.must("attach", err)
	staging, target := s.path("staging"), s.path("target")
	device, err := os.Readlink(published[pathKey])
	s.must("find the device", errors.Join(err, os.Mkdir(staging, 0o700), os.Mkdir(target, 0o700)))
	for _, args := range [][]string{{"mkfs.ext4", "-q", device}, {"mount", device, staging}, {"mount", "--bind", staging, target}} { // what the former driver did
		if out, err := exec.CommandContext(t.Context(), args[0], args[1:]...).CombinedOutput(); err != nil {
			t.Fatalf("%v: %v: %s", args, err, out)
		}
	}
	file := filepath.Join(target, "file")
	s.must("write", os.WriteFile(file, []byte("data"), 0o600))

	stats, err := s.NodeGetVolumeStats(t.Context(), &csi.NodeGetVolumeStatsRequest{VolumeId: v.GetVolumeId(), VolumePath: target})
	s.must("statistics", err)
	if total := stats.GetUsage()[0].GetTotal(); total < 16<<20 || total > 32<<20 {
		t.Errorf("statistics: %d bytes, want about 32 MiB", total)
	}
	for range 2 { // a repeated call, as with requiresRepublish, and after a restart of the kubelet
		_, err = s.NodePublishVolume(t.Context(), &csi.NodePublishVolumeRequest{
			VolumeId: v.GetVolumeId(), StagingTargetPath: staging, TargetPath: target, VolumeCapability: s.writer(), PublishContext: published,
		})
		s.must("publish", err)
	}
	if data, err := os.ReadFile(file); err != nil || string(data) != "data" {
		t.Errorf("the pod reads %q, %v", data, err)
	}
	_, err = s.NodeExpandVolume(t.Context(), &csi.NodeExpandVolumeRequest{VolumeId: v.GetVolumeId(), VolumePath: target})
	s.must("expand", err)
	_, err = s.NodeUnpublishVolume(t.Context(), &csi.NodeUnpublishVolumeRequest{VolumeId: v.GetVolumeId(), TargetPath: target})
	s.must("unpublish", err)
	_, err = s.NodeUnstageVolume(t.Context(), &csi.NodeUnstageVolumeRequest{VolumeId: v.GetVolumeId(), StagingTargetPath: staging})
	s.must("unstage", err)
	if mounted, err := (mount.Kernel{}).Mounted(t.Context(), staging); mounted || err != nil {
		t.Errorf("mounted at the staging path: %t, %v", mounted, err)
	}
	_, err = s.ControllerUnpublishVolume(t.Context(), &csi.ControllerUnpublishVolumeRequest{VolumeId: v.GetVolumeId(), NodeId: drivertest.NodeID, Secrets: credentials()})
	s.must("detach", err)
	_, err = s.DeleteVolume(t.Context(), &csi.DeleteVolumeRequest{VolumeId: v.GetVolumeId(), Secrets: credentials()})
	s.must("delete", err)
}
