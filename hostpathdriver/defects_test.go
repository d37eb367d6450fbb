package hostpathdriver

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Each test here is named for a defect of the Kubernetes project's hostpath
// driver (v1.18), and says how that driver answers.

func wantCode(t *testing.T, what string, err error, want codes.Code) {
	t.Helper()
	if got := status.Code(err); got != want {
		t.Errorf("%s: code %v (%v), want %v", what, got, err, want)
	}
}

// TestDefectListSnapshotsCannotBeSwitchedOff: with --enable-list-snapshots=false
// LIST_SNAPSHOTS is announced, and twice with true.
func TestDefectListSnapshotsCannotBeSwitchedOff(t *testing.T) {
	m := newMachine(t)
	o := m.options(ModeAll, "n1")
	for _, enabled := range []bool{true, false} {
		o.ListSnapshots = enabled
		p := m.start(o)
		announced, err := p.ControllerGetCapabilities(m.ctx, &csi.ControllerGetCapabilitiesRequest{})
		m.must(announced, err)
		got := 0
		for _, c := range announced.GetCapabilities() {
			if c.GetRpc().GetType() == csi.ControllerServiceCapability_RPC_LIST_SNAPSHOTS {
				got++
			}
		}
		want := map[bool]int{true: 1}[enabled]
		if got != want {
			t.Errorf("enabled %t: LIST_SNAPSHOTS is announced %d times, want %d", enabled, got, want)
		}
		_, err = p.ListSnapshots(m.ctx, &csi.ListSnapshotsRequest{})
		wantCode(t, "list", err, map[bool]codes.Code{true: codes.OK, false: codes.Unimplemented}[enabled])
		p.end()
	}
}

// TestDefectCloneTwice: the second CreateVolume of a clone answers
// ALREADY_EXISTS, so that one slower than the call never succeeds.
func TestDefectCloneTwice(t *testing.T) {
	m := newMachine(t)
	o := m.options(ModeAll, "n1")
	p := m.start(o)
	source := m.create(p, "pvc-1", "").GetVolumeId()
	taken, err := p.CreateSnapshot(m.ctx, &csi.CreateSnapshotRequest{Name: "snapshot-1", SourceVolumeId: source})
	m.must(taken, err)
	for name, content := range map[string]*csi.VolumeContentSource{
		"clone": {Type: &csi.VolumeContentSource_Volume{Volume: &csi.VolumeContentSource_VolumeSource{VolumeId: source}}},
		"restored": {Type: &csi.VolumeContentSource_Snapshot{Snapshot: &csi.VolumeContentSource_SnapshotSource{
			SnapshotId: taken.GetSnapshot().GetSnapshotId(),
		}}},
	} {
		id := ""
		for call := range 4 {
			if call == 2 {
				p.end()
				p = m.start(o)
			}
			made, err := p.CreateVolume(m.ctx, &csi.CreateVolumeRequest{
				Name: name, VolumeCapabilities: []*csi.VolumeCapability{mountCapability()}, VolumeContentSource: content,
			})
			wantCode(t, name, err, codes.OK)
			if id == "" {
				id = made.GetVolume().GetVolumeId()
			}
			if got := made.GetVolume(); got.GetVolumeId() != id || got.GetContentSource().String() != content.String() {
				t.Errorf("call %d: %v, want id %s and its source", call, got, id)
			}
		}
	}
}

// TestDefectSnapshotsOfOneVolume: ListSnapshots of a volume with two snapshots
// has one entry.
func TestDefectSnapshotsOfOneVolume(t *testing.T) {
	m := newMachine(t)
	p := m.start(m.options(ModeAll, "n1"))
	source, other := m.create(p, "pvc-1", "").GetVolumeId(), m.create(p, "pvc-2", "").GetVolumeId()
	var want []string
	for name, volume := range map[string]string{"a": source, "b": other, "c": source} {
		taken, err := p.CreateSnapshot(m.ctx, &csi.CreateSnapshotRequest{Name: name, SourceVolumeId: volume})
		m.must(taken, err)
		if volume == source {
			want = append(want, taken.GetSnapshot().GetSnapshotId())
		}
	}
	list, err := p.ListSnapshots(m.ctx, &csi.ListSnapshotsRequest{SourceVolumeId: source})
	m.must(list, err)
	var got []string
	for _, entry := range list.GetEntries() {
		got = append(got, entry.GetSnapshot().GetSnapshotId())
	}
	slices.Sort(want)
	slices.Sort(got)
	if !slices.Equal(want, got) {
		t.Errorf("snapshots of the volume: %v, want %v", got, want)
	}
}

// TestDefectSnapshotWithoutID: GetSnapshot answers NOT_FOUND, which tells a CO
// that its snapshot is gone.
func TestDefectSnapshotWithoutID(t *testing.T) {
	m := newMachine(t)
	p := m.start(m.options(ModeAll, "n1"))
	_, err := p.GetSnapshot(m.ctx, &csi.GetSnapshotRequest{})
	wantCode(t, "no id", err, codes.InvalidArgument)
	_, err = p.GetSnapshot(m.ctx, &csi.GetSnapshotRequest{SnapshotId: "unknown"})
	wantCode(t, "unknown id", err, codes.NotFound)
}

// TestDefectPagesLoseVolumes: of five volumes the first page of two has no next
// token, so three are lost; a page that begins at 3 is empty.
func TestDefectPagesLoseVolumes(t *testing.T) {
	m := newMachine(t)
	p := m.start(m.options(ModeAll, "n1"))
	var want, got []string
	for _, name := range []string{"a", "b", "c", "d", "e"} {
		want = append(want, m.create(p, name, "").GetVolumeId())
	}
	req := &csi.ListVolumesRequest{MaxEntries: 2}
	for {
		page, err := p.ListVolumes(m.ctx, req)
		m.must(page, err)
		for _, entry := range page.GetEntries() {
			got = append(got, entry.GetVolume().GetVolumeId())
		}
		if req.StartingToken = page.GetNextToken(); req.StartingToken == "" {
			break
		}
	}
	slices.Sort(want)
	slices.Sort(got)
	if !slices.Equal(want, got) {
		t.Errorf("pages have %v, want %v", got, want)
	}
}

// TestDefectNegativeTokenPanics: the token "-5" ends the process.
func TestDefectNegativeTokenPanics(t *testing.T) {
	m := newMachine(t)
	p := m.start(m.options(ModeAll, "n1"))
	m.create(p, "pvc-1", "")
	for _, token := range []string{"-5", "3", "1000000", "x"} {
		_, err := p.ListVolumes(m.ctx, &csi.ListVolumesRequest{MaxEntries: 2, StartingToken: token})
		wantCode(t, "token "+token, err, codes.Aborted)
	}
	_, err := p.Probe(m.ctx, &csi.ProbeRequest{})
	wantCode(t, "afterwards", err, codes.OK)
}

// TestDefectUnknownVolumeIsAbnormal: ControllerGetVolume answers OK, with the
// condition "abnormal".
func TestDefectUnknownVolumeIsAbnormal(t *testing.T) {
	m := newMachine(t)
	p := m.start(m.options(ModeAll, "n1"))
	_, err := p.ControllerGetVolume(m.ctx, &csi.ControllerGetVolumeRequest{VolumeId: "unknown"})
	wantCode(t, "get", err, codes.NotFound)
	_, err = p.ControllerGetVolumeHealth(m.ctx, &csi.ControllerGetVolumeHealthRequest{VolumeId: "unknown"})
	wantCode(t, "get health", err, codes.NotFound)
}

// TestDefectExpansionOvercommitsThePool: a pool of 10 MiB has -1063256064
// bytes available after a volume in it was expanded to 1 GiB.
func TestDefectExpansionOvercommitsThePool(t *testing.T) {
	m := newMachine(t)
	o := m.options(ModeAll, "n1")
	o.Capacity = map[string]int64{"small": 10 << 20}
	p := m.start(o)
	created, err := p.CreateVolume(m.ctx, &csi.CreateVolumeRequest{
		Name: "pvc-1", CapacityRange: &csi.CapacityRange{RequiredBytes: 1 << 20}, VolumeCapabilities: []*csi.VolumeCapability{mountCapability()},
	})
	m.must(created, err)
	_, err = p.ControllerExpandVolume(m.ctx, &csi.ControllerExpandVolumeRequest{
		VolumeId: created.GetVolume().GetVolumeId(), CapacityRange: &csi.CapacityRange{RequiredBytes: 1 << 30},
	})
	wantCode(t, "expand", err, codes.ResourceExhausted)
	left, err := p.GetCapacity(m.ctx, &csi.GetCapacityRequest{})
	if err != nil || left.GetAvailableCapacity() != 9<<20 {
		t.Errorf("available %v, %v, want %d", left, err, 9<<20)
	}
}

// TestDefectIDsLeadOutOfTheStateDirectory: NodePublishVolume of an inline volume
// with the id "../victim" adopts a directory beside the state directory, and
// NodeUnpublishVolume deletes it with its contents.
func TestDefectIDsLeadOutOfTheStateDirectory(t *testing.T) {
	m := newMachine(t)
	p := m.start(m.options(ModeAll, "n1"))
	victim := m.path("victim")
	m.must(nil, os.Mkdir(victim, 0o700))
	m.must(nil, os.WriteFile(filepath.Join(victim, "precious"), []byte("content"), 0o600))
	for _, id := range []string{"../victim", "../../victim", "x/../../victim", victim} {
		_, err := p.NodePublishVolume(m.ctx, &csi.NodePublishVolumeRequest{
			VolumeId: id, TargetPath: m.path("target"), VolumeCapability: mountCapability(),
			VolumeContext: map[string]string{"csi.storage.k8s.io/ephemeral": "true"},
		})
		wantCode(t, "publish "+id, err, codes.InvalidArgument)
		_, err = p.NodeUnpublishVolume(m.ctx, &csi.NodeUnpublishVolumeRequest{VolumeId: id, TargetPath: m.path("target")})
		wantCode(t, "unpublish "+id, err, codes.OK) // There is no such volume.
		_, err = p.DeleteVolume(m.ctx, &csi.DeleteVolumeRequest{VolumeId: id})
		wantCode(t, "delete "+id, err, codes.OK)
	}
	if content := m.read("victim/precious"); content != "content" {
		t.Errorf("the victim has %q", content)
	}
}

// TestDefectInlineUnpublishTwice: the second NodeUnpublishVolume of an inline
// volume answers NOT_FOUND, so that a kubelet that must repeat it never ends.
func TestDefectInlineUnpublishTwice(t *testing.T) {
	m := newMachine(t)
	p := m.start(m.options(ModeAll, "n1"))
	m.must(p.NodePublishVolume(m.ctx, &csi.NodePublishVolumeRequest{
		VolumeId: "csi-1", TargetPath: m.path("target"), VolumeCapability: mountCapability(),
		VolumeContext: map[string]string{"csi.storage.k8s.io/ephemeral": "true"},
	}))
	for range 3 {
		_, err := p.NodeUnpublishVolume(m.ctx, &csi.NodeUnpublishVolumeRequest{VolumeId: "csi-1", TargetPath: m.path("target")})
		wantCode(t, "unpublish", err, codes.OK)
	}
	m.checkClean()
}

// TestDefectTornStateStopsTheStart: with a torn state.json the driver does not
// start, and no volume can be used.
func TestDefectTornStateStopsTheStart(t *testing.T) {
	m := newMachine(t)
	o := m.options(ModeAll, "n1")
	p := m.start(o)
	torn, whole := m.create(p, "pvc-1", "").GetVolumeId(), m.create(p, "pvc-2", "").GetVolumeId()
	p.end()
	m.must(nil, os.WriteFile(m.path("state/records/"+torn+".json"), []byte(`{"version": 1, "kind": "vol`), 0o600))
	p = m.start(o)
	_, err := p.ControllerGetVolume(m.ctx, &csi.ControllerGetVolumeRequest{VolumeId: whole})
	wantCode(t, "the others", err, codes.OK)
	m.publish(p, whole)
	m.unpublish(p, whole)
	if _, err := os.Stat(m.path("state/volumes/" + torn)); err != nil {
		t.Errorf("the contents of the volume with the torn record: %v", err)
	}
}

// TestDefectSameNameOtherVolume: CreateVolume with the name of a volume, other
// parameters, and block in place of mount, answers OK with the mount volume.
func TestDefectSameNameOtherVolume(t *testing.T) {
	m := newMachine(t)
	p := m.start(m.options(ModeAll, "n1"))
	m.create(p, "pvc-1", "")
	block := mountCapability()
	block.AccessType = &csi.VolumeCapability_Block{Block: &csi.VolumeCapability_BlockVolume{}}
	for what, req := range map[string]*csi.CreateVolumeRequest{
		"block":      {VolumeCapabilities: []*csi.VolumeCapability{block}},
		"parameters": {VolumeCapabilities: []*csi.VolumeCapability{mountCapability()}, Parameters: map[string]string{"mode": "0700"}},
	} {
		req.Name = "pvc-1"
		_, err := p.CreateVolume(m.ctx, req)
		wantCode(t, what, err, codes.AlreadyExists)
	}
}

// TestDefectCapabilityWithoutTypeAndMode: it is accepted.
func TestDefectCapabilityWithoutTypeAndMode(t *testing.T) {
	m := newMachine(t)
	p := m.start(m.options(ModeAll, "n1"))
	withoutMode, withoutType := mountCapability(), mountCapability()
	withoutMode.AccessMode, withoutType.AccessType = nil, nil
	for what, capability := range map[string]*csi.VolumeCapability{"neither": {}, "no mode": withoutMode, "no type": withoutType} {
		_, err := p.CreateVolume(m.ctx, &csi.CreateVolumeRequest{Name: "pvc-1", VolumeCapabilities: []*csi.VolumeCapability{capability}})
		wantCode(t, what, err, codes.InvalidArgument)
	}
}
