package hostpathdriver

import (
	"fmt"
	"sync"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// TestManyAtOnce lives many volumes at once over one socket, persistent and
// inline ones out of one pool, while somebody lists them in small pages.
func TestManyAtOnce(t *testing.T) {
	const count, size = 40, 1 << 20
	m := newMachine(t)
	o := m.options(ModeAll, "n1")
	o.Capacity = map[string]int64{"pool": 2 * count * size}
	p := m.start(o)

	listed := make(chan struct{})
	stop := make(chan struct{})
	go func() {
		defer close(listed)
		for {
			m.listOnce(p)
			select {
			case <-stop:
				return
			default:
			}
		}
	}()
	var group sync.WaitGroup
	for i := range count {
		group.Go(func() { m.persistentLife(p, fmt.Sprintf("pvc-%d", i), size) })
		group.Go(func() { m.inlineLife(p, fmt.Sprintf("csi-%d", i)) })
	}
	group.Wait()
	close(stop)
	<-listed
	left, err := p.GetCapacity(m.ctx, &csi.GetCapacityRequest{})
	if err != nil || left.GetAvailableCapacity() != 2*count*size {
		t.Errorf("left in the pool: %v, %v, want %d", left, err, 2*count*size)
	}
	p.end()
	m.checkClean()
}

func (m *machine) check(what string, err error) {
	m.t.Helper()
	if err != nil {
		m.t.Errorf("%s: %v", what, err)
	}
}

func (m *machine) persistentLife(p *process, name string, size int64) {
	m.t.Helper()
	created, err := p.CreateVolume(m.ctx, &csi.CreateVolumeRequest{
		Name: name, CapacityRange: &csi.CapacityRange{RequiredBytes: size}, VolumeCapabilities: []*csi.VolumeCapability{mountCapability()},
	})
	m.check("create "+name, err)
	id, staging, target := created.GetVolume().GetVolumeId(), m.path(name+"-staging"), m.path(name)
	_, err = p.NodeStageVolume(m.ctx, &csi.NodeStageVolumeRequest{VolumeId: id, StagingTargetPath: staging, VolumeCapability: mountCapability()})
	m.check("stage "+name, err)
	_, err = p.NodePublishVolume(m.ctx, &csi.NodePublishVolumeRequest{VolumeId: id, StagingTargetPath: staging, TargetPath: target, VolumeCapability: mountCapability()})
	m.check("publish "+name, err)
	if at := m.mounter.At(target); at == nil || at.Source != staging {
		m.t.Errorf("%s shows %v, want %s", target, at, staging)
	}
	_, err = p.NodeUnpublishVolume(m.ctx, &csi.NodeUnpublishVolumeRequest{VolumeId: id, TargetPath: target})
	m.check("unpublish "+name, err)
	_, err = p.NodeUnstageVolume(m.ctx, &csi.NodeUnstageVolumeRequest{VolumeId: id, StagingTargetPath: staging})
	m.check("unstage "+name, err)
	_, err = p.DeleteVolume(m.ctx, &csi.DeleteVolumeRequest{VolumeId: id})
	m.check("delete "+name, err)
}

func (m *machine) inlineLife(p *process, id string) {
	m.t.Helper()
	_, err := p.NodePublishVolume(m.ctx, &csi.NodePublishVolumeRequest{
		VolumeId: id, TargetPath: m.path(id), VolumeCapability: mountCapability(),
		VolumeContext: map[string]string{"csi.storage.k8s.io/ephemeral": "true", "size": "1Mi"},
	})
	m.check("publish "+id, err)
	_, err = p.NodeUnpublishVolume(m.ctx, &csi.NodeUnpublishVolumeRequest{VolumeId: id, TargetPath: m.path(id)})
	m.check("unpublish "+id, err)
}

// listOnce walks through the pages; no volume may be on two of them.
func (m *machine) listOnce(p *process) {
	m.t.Helper()
	seen := map[string]bool{}
	for token := ""; ; {
		page, err := p.ListVolumes(m.ctx, &csi.ListVolumesRequest{MaxEntries: 3, StartingToken: token})
		if err != nil {
			m.t.Errorf("list: %v", err)
			return
		}
		for _, entry := range page.GetEntries() {
			if id := entry.GetVolume().GetVolumeId(); seen[id] {
				m.t.Errorf("volume %s is on two pages", id)
			} else {
				seen[id] = true
			}
		}
		if token = page.GetNextToken(); token == "" {
			return
		}
	}
}

// TestSharedPool: persistent and inline volumes of one driver take from the
// same pool, also after a restart.
func TestSharedPool(t *testing.T) {
	m := newMachine(t)
	o := m.options(ModeAll, "n1")
	o.Capacity = map[string]int64{"pool": 1 << 30}
	p := m.start(o)
	m.must(p.NodePublishVolume(m.ctx, &csi.NodePublishVolumeRequest{
		VolumeId: "csi-1", TargetPath: m.path("target"), VolumeCapability: mountCapability(),
		VolumeContext: map[string]string{"csi.storage.k8s.io/ephemeral": "true", "size": "1Mi"},
	}))
	for range 2 {
		_, err := p.CreateVolume(m.ctx, &csi.CreateVolumeRequest{
			Name: "pvc-1", CapacityRange: &csi.CapacityRange{RequiredBytes: 1 << 30}, VolumeCapabilities: []*csi.VolumeCapability{mountCapability()},
		})
		if status.Code(err) != codes.ResourceExhausted {
			t.Errorf("create what no longer fits: %v", err)
		}
		p.end()
		p = m.start(o)
	}
	m.must(p.NodeUnpublishVolume(m.ctx, &csi.NodeUnpublishVolumeRequest{VolumeId: "csi-1", TargetPath: m.path("target")}))
	m.create(p, "pvc-1", "")
}
