package hostpathdriver

import (
	"errors"
	"os"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
)

// TestUndoOnAFullDisk: when a tenant has filled the disk that has the records, too, what was made is undone all the same, also by a driver that starts then.
func TestUndoOnAFullDisk(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("a file system of its own needs root")
	}
	m := newMachine(t)
	m.must(nil, errors.Join(os.Mkdir(m.path("state"), 0o700), unix.Mount("full", m.path("state"), "tmpfs", 0, "size=2m")))
	t.Cleanup(func() { m.must(nil, unix.Unmount(m.path("state"), 0)) })
	o := m.options(ModeAll, "node-1")
	o.Attach = true
	p := m.start(o)
	made, err := p.CreateVolume(m.ctx, smallRequest("pvc-1"))
	m.must(nil, err)
	id := made.GetVolume().GetVolumeId()
	attach := &csi.ControllerPublishVolumeRequest{VolumeId: id, NodeId: "node-1", VolumeCapability: mountCapability()}
	_, err = p.ControllerPublishVolume(m.ctx, attach)
	m.must(nil, err)

	file, err := os.Create(m.path("state/volumes/" + id + "/ballast"))
	for err == nil {
		_, err = file.Write(make([]byte, 4096))
	}
	if !errors.Is(err, unix.ENOSPC) {
		t.Fatalf("fill the disk: %v", err)
	}
	m.must(nil, file.Close())
	p.end()
	p = m.start(o)
	_, err = p.ControllerUnpublishVolume(m.ctx, &csi.ControllerUnpublishVolumeRequest{VolumeId: id, NodeId: "node-1"})
	if err != nil {
		t.Fatalf("unpublish on a full disk: %v", err)
	}
	p.end()
	p = m.start(o)
	got, err := p.ControllerGetVolume(m.ctx, &csi.ControllerGetVolumeRequest{VolumeId: id})
	m.must(nil, err)
	if nodes := got.GetStatus().GetPublishedNodeIds(); len(nodes) > 0 {
		t.Errorf("after a restart the volume is attached to %v", nodes)
	}
	if _, err := p.DeleteVolume(m.ctx, &csi.DeleteVolumeRequest{VolumeId: id}); err != nil {
		t.Errorf("delete on a full disk: %v", err)
	}
	if _, err := p.CreateVolume(m.ctx, smallRequest("pvc-2")); err != nil {
		t.Errorf("create when there is room again: %v", err)
	}
}
