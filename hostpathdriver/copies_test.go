package hostpathdriver

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/google/go-cmp/cmp"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/testing/protocmp"

	"github.com/longshore-csi/longshore/hostpathdriver/loop"
)

func blockCapability() *csi.VolumeCapability {
	c := mountCapability()
	c.AccessType = &csi.VolumeCapability_Block{Block: &csi.VolumeCapability_BlockVolume{}}
	return c
}

func ofVolume(id string) *csi.VolumeContentSource {
	return &csi.VolumeContentSource{Type: &csi.VolumeContentSource_Volume{Volume: &csi.VolumeContentSource_VolumeSource{VolumeId: id}}}
}

func ofSnapshot(id string) *csi.VolumeContentSource {
	return &csi.VolumeContentSource{Type: &csi.VolumeContentSource_Snapshot{Snapshot: &csi.VolumeContentSource_SnapshotSource{SnapshotId: id}}}
}

// make makes a volume, empty or of a source.
func (m *machine) make(p *process, name string, c *csi.VolumeCapability, source *csi.VolumeContentSource) string {
	m.t.Helper()
	req := &csi.CreateVolumeRequest{Name: name, VolumeCapabilities: []*csi.VolumeCapability{c}, VolumeContentSource: source}
	if source == nil {
		req.CapacityRange = &csi.CapacityRange{RequiredBytes: 1 << 20}
	}
	made, err := p.CreateVolume(m.ctx, req)
	m.must(made, err)
	if got := made.GetVolume(); got.GetCapacityBytes() != 1<<20 {
		m.t.Errorf("%s has %d bytes", name, got.GetCapacityBytes())
	}
	return made.GetVolume().GetVolumeId()
}

// write changes what a volume contains, as a workload does.
func (m *machine) write(id, name, text string, at int64) {
	m.t.Helper()
	file, err := os.OpenFile(m.path(filepath.Join("state/volumes", id, name)), os.O_WRONLY|os.O_CREATE, 0o600)
	m.must(nil, err)
	_, err = file.WriteAt([]byte(text), at)
	m.must(nil, errors.Join(err, file.Sync(), file.Close()))
}

// TestContentsOfCopies: a snapshot has what was there when it was made, and
// what is made of it has the same; by a driver for each node, and by
// controllers beside node instances.
func TestContentsOfCopies(t *testing.T) {
	for _, mode := range []Mode{ModeAll, ModeController} {
		t.Run(string(mode), func(t *testing.T) {
			m := newMachine(t)
			o := m.options(mode, "n1")
			o.Capacity = map[string]int64{"pool": 100 << 20}
			p := m.start(o)
			directory, device := m.make(p, "directory", mountCapability(), nil), m.make(p, "device", blockCapability(), nil)
			m.write(directory, "file", "old", 0)
			m.write(device, "disk", "old", 8192)
			snapshots := map[string]string{}
			for name, source := range map[string]string{"directory": directory, "device": device} {
				taken, err := p.CreateSnapshot(m.ctx, &csi.CreateSnapshotRequest{Name: name, SourceVolumeId: source})
				m.must(taken, err)
				if got := taken.GetSnapshot(); !got.GetReadyToUse() || got.GetSizeBytes() != 1<<20 || got.GetCreationTime() == nil {
					t.Errorf("snapshot %v", got)
				}
				snapshots[name] = taken.GetSnapshot().GetSnapshotId()
			}
			m.write(directory, "file", "new", 0)
			m.write(device, "disk", "new", 8192)
			for name, want := range map[string]string{
				"volumes/" + m.make(p, "d-clone", mountCapability(), ofVolume(directory)) + "/file":                        "new",
				"volumes/" + m.make(p, "b-clone", blockCapability(), ofVolume(device)) + "/disk":                           "new",
				"volumes/" + m.make(p, "d-restored", mountCapability(), ofSnapshot(snapshots["directory"])) + "/file":      "old",
				"volumes/" + m.make(p, "b-restored", blockCapability(), ofSnapshot(snapshots["device"])) + "/disk":         "old",
				"snapshots/" + snapshots["directory"] + "/file":                                                            "old",
				"volumes/" + m.make(p, "d-again", mountCapability(), ofSnapshot(snapshots["directory"])) + "/file":         "old",
				"volumes/" + m.make(p, "as-larger-limit", mountCapability(), ofSnapshot(snapshots["directory"])) + "/file": "old",
			} {
				content := m.read("state/" + name)
				if filepath.Base(name) == "disk" {
					content = content[8192 : 8192+3]
				}
				if content != want {
					t.Errorf("%s has %q, want %q", name, content, want)
				}
			}
			left, err := p.GetCapacity(m.ctx, &csi.GetCapacityRequest{})
			if err != nil || left.GetAvailableCapacity() != 90<<20 {
				t.Errorf("left in the pool: %v, %v; want 10 MiB taken by 8 volumes and 2 snapshots", left, err)
			}
			_, err = p.DeleteSnapshot(m.ctx, &csi.DeleteSnapshotRequest{SnapshotId: snapshots["device"]})
			wantCode(t, "delete a snapshot that volumes were made of", err, codes.OK)
		})
	}
}

// TestGroups is the life of a group over a restart: both snapshots or none,
// listed with their group, deleted together.
func TestGroups(t *testing.T) {
	m := newMachine(t)
	o := m.options(ModeAll, "n1")
	o.Capacity, o.Devices = map[string]int64{"pool": 5 << 20}, &loop.Fake{Dir: m.path("dev")}
	m.must(nil, os.Mkdir(m.path("dev"), 0o700))
	p := m.start(o)
	groups := csi.NewGroupControllerClient(p.conn)
	a, b := m.make(p, "a", blockCapability(), nil), m.make(p, "b", mountCapability(), nil)
	req := &csi.CreateVolumeGroupSnapshotRequest{Name: "g", SourceVolumeIds: []string{a, b}}

	_, err := p.NodeStageVolume(m.ctx, &csi.NodeStageVolumeRequest{VolumeId: a, StagingTargetPath: m.path("staging"), VolumeCapability: blockCapability()})
	wantCode(t, "stage one of them", err, codes.OK)
	_, err = groups.CreateVolumeGroupSnapshot(m.ctx, &csi.CreateVolumeGroupSnapshotRequest{Name: "h", SourceVolumeIds: []string{a, "unknown"}})
	wantCode(t, "one does not exist", err, codes.NotFound)
	third := m.make(p, "c", mountCapability(), nil)
	_, err = groups.CreateVolumeGroupSnapshot(m.ctx, &csi.CreateVolumeGroupSnapshotRequest{Name: "h", SourceVolumeIds: []string{a, b, third}})
	wantCode(t, "no space for all", err, codes.ResourceExhausted)
	list, err := p.ListSnapshots(m.ctx, &csi.ListSnapshotsRequest{})
	if err != nil || len(list.GetEntries()) > 0 {
		t.Errorf("snapshots after the refusals: %v, %v", list, err)
	}

	made, err := groups.CreateVolumeGroupSnapshot(m.ctx, req)
	m.must(made, err)
	group := made.GetGroupSnapshot()
	if !group.GetReadyToUse() || len(group.GetSnapshots()) != 2 || group.GetSnapshots()[0].GetGroupSnapshotId() != group.GetGroupSnapshotId() {
		t.Errorf("group %v", group)
	}
	p.end()
	p = m.start(o)
	groups = csi.NewGroupControllerClient(p.conn)
	again, err := groups.CreateVolumeGroupSnapshot(m.ctx, req)
	m.must(again, err)
	if diff := cmp.Diff(made, again, protocmp.Transform()); diff != "" {
		t.Errorf("the same call after a restart (-want +got):\n%s", diff)
	}
	_, err = groups.CreateVolumeGroupSnapshot(m.ctx, &csi.CreateVolumeGroupSnapshotRequest{Name: "g", SourceVolumeIds: []string{a}})
	wantCode(t, "the same name for other volumes", err, codes.AlreadyExists)
	var members []string
	for _, one := range group.GetSnapshots() {
		members = append(members, one.GetSnapshotId())
	}
	_, err = p.DeleteSnapshot(m.ctx, &csi.DeleteSnapshotRequest{SnapshotId: members[0]})
	wantCode(t, "delete a member", err, codes.InvalidArgument)
	_, err = groups.DeleteVolumeGroupSnapshot(m.ctx, &csi.DeleteVolumeGroupSnapshotRequest{GroupSnapshotId: group.GetGroupSnapshotId(), SnapshotIds: members[:1]})
	wantCode(t, "delete another list", err, codes.InvalidArgument)
	_, err = p.DeleteVolume(m.ctx, &csi.DeleteVolumeRequest{VolumeId: third})
	wantCode(t, "make space", err, codes.OK)
	m.make(p, "restored", mountCapability(), ofSnapshot(members[1]))
	for range 2 {
		_, err = groups.DeleteVolumeGroupSnapshot(m.ctx, &csi.DeleteVolumeGroupSnapshotRequest{GroupSnapshotId: group.GetGroupSnapshotId(), SnapshotIds: members})
		wantCode(t, "delete", err, codes.OK)
	}
	_, err = groups.GetVolumeGroupSnapshot(m.ctx, &csi.GetVolumeGroupSnapshotRequest{GroupSnapshotId: group.GetGroupSnapshotId(), SnapshotIds: members})
	wantCode(t, "get what was deleted", err, codes.NotFound)
}

// TestChangedBlocks asks for what two snapshots of a device have, over a
// socket.
func TestChangedBlocks(t *testing.T) {
	m := newMachine(t)
	o := m.options(ModeAll, "n1")
	o.SnapshotMetadata, o.MetadataExtents = true, true
	p := m.start(o)
	device := m.make(p, "device", blockCapability(), nil)
	var snapshots []string
	for i, at := range []int64{0, 16384} {
		m.write(device, "disk", "text", at)
		taken, err := p.CreateSnapshot(m.ctx, &csi.CreateSnapshotRequest{Name: fmt.Sprint(i), SourceVolumeId: device})
		m.must(taken, err)
		snapshots = append(snapshots, taken.GetSnapshot().GetSnapshotId())
	}
	metadata := csi.NewSnapshotMetadataClient(p.conn)
	allocated, err := metadata.GetMetadataAllocated(m.ctx, &csi.GetMetadataAllocatedRequest{SnapshotId: snapshots[1]})
	m.must(allocated, err)
	delta, err := metadata.GetMetadataDelta(m.ctx, &csi.GetMetadataDeltaRequest{BaseSnapshotId: snapshots[0], TargetSnapshotId: snapshots[1]})
	m.must(delta, err)
	got := map[string][]int64{
		"allocated": starts(t, func() ([]*csi.BlockMetadata, error) { r, err := allocated.Recv(); return r.GetBlockMetadata(), err }),
		"delta":     starts(t, func() ([]*csi.BlockMetadata, error) { r, err := delta.Recv(); return r.GetBlockMetadata(), err }),
	}
	if diff := cmp.Diff(map[string][]int64{"allocated": {0, 16384}, "delta": {16384}}, got); diff != "" {
		t.Errorf("beginnings of the ranges (-want +got):\n%s", diff)
	}
}

// starts reads a stream to its end.
func starts(t *testing.T, receive func() ([]*csi.BlockMetadata, error)) []int64 {
	t.Helper()
	var list []int64
	for {
		blocks, err := receive()
		if errors.Is(err, io.EOF) {
			return list
		}
		if err != nil {
			t.Fatal(err)
		}
		for _, block := range blocks {
			list = append(list, block.GetByteOffset())
		}
	}
}

// held is a driver that makes a copy which ends when release is called.
func (m *machine) held(o Options) (p *process, source string, release func()) {
	m.t.Helper()
	gate := make(chan struct{})
	release = sync.OnceFunc(func() { close(gate) })
	m.t.Cleanup(release)
	entered := make(chan struct{})
	enter := sync.OnceFunc(func() { close(entered) })
	o.step = func(name string) {
		if name == "copy:contents" {
			enter()
			<-gate
		}
	}
	p = m.start(o)
	source = m.make(p, "source", mountCapability(), nil)
	ctx, cancel := context.WithCancel(m.ctx)
	go func() {
		p.CreateVolume(ctx, &csi.CreateVolumeRequest{ // which is called again below
			Name: "clone", VolumeCapabilities: []*csi.VolumeCapability{mountCapability()}, VolumeContentSource: ofVolume(source),
		})
	}()
	<-entered
	cancel()
	return p, source, release
}

// TestNobodyWaitsForACopy: while a copy is made, any other call is served, by
// this controller and by another one.
func TestNobodyWaitsForACopy(t *testing.T) {
	m := newMachine(t)
	o := m.options(ModeController, "")
	p, source, release := m.held(o)
	o.Endpoint = "unix://" + m.path("other.sock")
	for name, served := range map[string]*process{"this": p, "other": m.start(o)} {
		var group errgroup.Group
		for i := range 50 {
			group.Go(func() error { return m.createDelete(served, fmt.Sprintf("%s-%d", name, i)) })
		}
		m.must(nil, group.Wait())
	}
	_, err := p.DeleteVolume(m.ctx, &csi.DeleteVolumeRequest{VolumeId: source})
	wantCode(t, "delete the source of the copy", err, codes.FailedPrecondition)
	release()
	m.write(m.make(p, "clone", mountCapability(), ofVolume(source)), "file", "text", 0)
}
