package hostpathdriver

import (
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/longshore-csi/longshore/driverkit/state"
)

// TestStateFiles spoils one record of each kind in each way, and starts the
// driver: what the record belongs to is not served, the rest is, and no contents
// are lost. With the record back all is as it was, but for a start that was
// refused, which changes nothing.
func TestStateFiles(t *testing.T) {
	type answer struct {
		refused, quarantined bool
	}
	aside := answer{quarantined: true}
	for name, tc := range map[string]struct {
		reason string
		spoil  func(record string) string
		want   answer
	}{
		"Torn":    {"a file system that does not keep its promises", func(r string) string { return r[:len(r)/2] }, aside},
		"Empty":   {"the same, with nothing written at all", func(string) string { return "" }, aside},
		"Older":   {"there was no version 0", func(r string) string { return strings.Replace(r, `"version": 1`, `"version": 0`, 1) }, aside},
		"Foreign": {"a record of something else", func(r string) string { return strings.Replace(r, `"kind": "`, `"kind": "x`, 1) }, aside},
		"Renamed": {"a copy that somebody made", func(r string) string { return strings.Replace(r, `"id": "`, `"id": "x`, 1) }, aside},
		"Future":  {"a driver that was downgraded", func(r string) string { return strings.Replace(r, `"version": 1`, `"version": 2`, 1) }, answer{refused: true}},
	} {
		t.Run(name, func(t *testing.T) {
			m := newMachine(t)
			o := m.options(ModeAll, "n1")
			p := m.start(o)
			files := m.oneOfEach(p)
			p.end()
			for kind, file := range files {
				before := m.read(file)
				spoiled := tc.spoil(before)
				if spoiled == before {
					t.Fatalf("%s: %s: the record stayed as it was: %s", tc.reason, kind, before)
				}
				m.must(nil, os.WriteFile(m.path(file), []byte(spoiled), 0o600))
				if tc.want.refused {
					if err := Run(m.ctx, o); !errors.Is(err, state.ErrNewerSchema) || !strings.Contains(err.Error(), m.path(file)) {
						t.Errorf("%s: %s: %v, want an ErrNewerSchema that names the file", tc.reason, kind, err)
					}
					if m.read(file) != spoiled {
						t.Errorf("%s: %s: the start has changed it", tc.reason, kind)
					}
				} else {
					p := m.start(o)
					m.checkWithout(p, kind)
					p.end()
				}
				slash := strings.LastIndex(file, "/")
				aside := m.path(file[:slash] + "/quarantine" + file[slash:])
				if got := !missing(aside); got != tc.want.quarantined {
					t.Errorf("%s: %s: in quarantine: %t", tc.reason, kind, got)
				}
				m.must(nil, errors.Join(ignoreMissing(os.Remove(aside)), os.WriteFile(m.path(file), []byte(before), 0o600)))
				p = m.start(o)
				m.checkWithout(p, "")
				p.end()
			}
		})
	}
}

// TestDirectoryInPlaceOfRecord: it is nobody's, and in nobody's way.
func TestDirectoryInPlaceOfRecord(t *testing.T) {
	m := newMachine(t)
	o := m.options(ModeAll, "n1")
	p := m.start(o)
	files := m.oneOfEach(p)
	p.end()
	for _, file := range files {
		m.must(nil, os.Mkdir(m.path(strings.TrimSuffix(file, ".json")+"x.json"), 0o700))
	}
	m.checkWithout(m.start(o), "")
}

// oneOfEach makes a volume that is published and has contents, one without, a
// snapshot and a group, and returns the record of each kind.
func (m *machine) oneOfEach(p *process) map[string]string {
	m.t.Helper()
	used, other := m.create(p, "used", "").GetVolumeId(), m.create(p, "other", "").GetVolumeId()
	m.must(nil, os.WriteFile(m.path("state/volumes/"+other+"/file"), []byte("precious"), 0o600))
	taken, err := p.CreateSnapshot(m.ctx, &csi.CreateSnapshotRequest{Name: "snapshot", SourceVolumeId: other})
	m.must(taken, err)
	group, err := csi.NewGroupControllerClient(p.conn).CreateVolumeGroupSnapshot(m.ctx, &csi.CreateVolumeGroupSnapshotRequest{Name: "group", SourceVolumeIds: []string{other}})
	m.must(group, err)
	m.must(p.NodePublishVolume(m.ctx, &csi.NodePublishVolumeRequest{
		VolumeId: "csi-1", TargetPath: m.path("inline"), VolumeCapability: mountCapability(), VolumeContext: map[string]string{"csi.storage.k8s.io/ephemeral": "true"},
	}))
	m.must(nil, os.WriteFile(m.path("state/nodes/n1/volumes/csi-1/file"), []byte("precious"), 0o600))
	m.publish(p, used)
	return map[string]string{
		"volume":      "state/records/" + other + ".json",
		"snapshot":    "state/snapshot-records/" + taken.GetSnapshot().GetSnapshotId() + ".json",
		"group":       "state/group-records/" + group.GetGroupSnapshot().GetGroupSnapshotId() + ".json",
		"node volume": "state/nodes/n1/uses/csi-1.json",
	}
}

// checkWithout reports whether all is served but what the record of that kind
// belongs to, and whether all contents are there.
func (m *machine) checkWithout(p *process, kind string) {
	m.t.Helper()
	want := map[string]int{"volumes": 2, "snapshots": 2}
	switch kind {
	case "volume":
		want["volumes"] = 1
	case "snapshot":
		want["snapshots"] = 1
	}
	volumes, err := p.ListVolumes(m.ctx, &csi.ListVolumesRequest{})
	m.must(volumes, err)
	snapshots, err := p.ListSnapshots(m.ctx, &csi.ListSnapshotsRequest{})
	m.must(snapshots, err)
	got := map[string]int{"volumes": len(volumes.GetEntries()), "snapshots": len(snapshots.GetEntries())}
	for what, n := range want {
		if got[what] != n {
			m.t.Errorf("without the record of a %s: %d %s, want %d", kind, got[what], what, n)
		}
	}
	for pattern, n := range map[string]int{"state/volumes/*": 2, "state/volumes/*/file": 1, "state/snapshots/*/file": 2, "state/nodes/n1/volumes/csi-1/file": 1} {
		w := walker{machine: m}
		if found := w.glob(pattern); len(found) != n {
			m.t.Errorf("without the record of a %s: contents %v, want %d", kind, found, n)
		}
	}
	_, err = p.NodeGetVolumeStats(m.ctx, &csi.NodeGetVolumeStatsRequest{VolumeId: "csi-1", VolumePath: m.path("inline")})
	wantStats := codes.OK
	if kind == "node volume" {
		wantStats = codes.NotFound
	}
	if status.Code(err) != wantStats {
		m.t.Errorf("without the record of a %s: statistics of the inline volume: %v, want %v", kind, err, wantStats)
	}
}
