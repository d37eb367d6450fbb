package hostpathdriver

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/longshore-csi/longshore/csikittest/seeds"
)

// controllers starts several on one state directory, with nodes n1 and n2.
func (m *machine) controllers(names ...string) []*process {
	m.t.Helper()
	for _, node := range []string{"n1", "n2"} {
		o := m.options(ModeNode, node)
		o.Attach = true
		m.start(o)
	}
	started := make([]*process, len(names))
	for i, name := range names {
		o := m.options(ModeController, "")
		o.Endpoint, o.Attach, o.Capacity = "unix://"+m.path(name+".sock"), true, map[string]int64{"pool": poolSize}
		started[i] = m.start(o)
	}
	return started
}

const poolSize = 8 << 20

// walk makes random calls, one after the other, each to a random one of
// several controllers, and knows what each answer must be.
type walk struct {
	*machine

	*rand.Rand
	controllers []*process
	volumes     map[string]*walked
}

// walked is a volume in a walk.
type walked struct {
	id, node string
	size     int64
	attached bool
}

func (w *walk) one() *process { return w.controllers[w.IntN(len(w.controllers))] }

func (w *walk) left() int64 {
	left := int64(poolSize)
	for _, v := range w.volumes {
		left -= v.size
	}
	return left
}

func (w *walk) want(what string, err error, want codes.Code) bool {
	w.t.Helper()
	if got := status.Code(err); got != want {
		w.t.Fatalf("%s: %v, want %v", what, err, want)
	}
	return want == codes.OK
}

func (w *walk) create(name string) {
	w.t.Helper()
	known := w.volumes[name]
	asked, want := &walked{node: []string{"n1", "n2"}[w.IntN(2)], size: int64(1+w.IntN(3)) << 20}, codes.OK
	switch {
	case known != nil && w.IntN(2) == 0:
		asked = known // the same again
	case known != nil && (asked.node != known.node || asked.size > known.size):
		want = codes.AlreadyExists
	case known == nil && asked.size > w.left():
		want = codes.ResourceExhausted
	}
	created, err := w.one().CreateVolume(w.ctx, &csi.CreateVolumeRequest{
		Name: name, VolumeCapabilities: []*csi.VolumeCapability{mountCapability()},
		CapacityRange: &csi.CapacityRange{RequiredBytes: asked.size},
		AccessibilityRequirements: &csi.TopologyRequirement{Requisite: []*csi.Topology{{
			Segments: map[string]string{"topology.hostpath.csi/node": asked.node},
		}}},
	})
	if !w.want("create "+name, err, want) {
		return
	}
	v := created.GetVolume()
	if known != nil && v.GetVolumeId() != known.id {
		w.t.Fatalf("create %s again: volume %s, want %s", name, v.GetVolumeId(), known.id)
	}
	if node := v.GetAccessibleTopology()[0].GetSegments()["topology.hostpath.csi/node"]; node != asked.node {
		w.t.Fatalf("create %s on %s: it is on %s", name, asked.node, node)
	}
	if known == nil {
		asked.id = v.GetVolumeId()
		w.volumes[name] = asked
	}
}

func (w *walk) remove(name string) {
	w.t.Helper()
	v := w.volumes[name]
	want := codes.OK
	if v.attached {
		want = codes.FailedPrecondition
	}
	_, err := w.one().DeleteVolume(w.ctx, &csi.DeleteVolumeRequest{VolumeId: v.id})
	if !w.want("delete "+name, err, want) {
		return
	}
	delete(w.volumes, name)
	_, err = w.one().DeleteVolume(w.ctx, &csi.DeleteVolumeRequest{VolumeId: v.id})
	w.want("delete "+name+" again", err, codes.OK)
	_, err = w.one().ControllerGetVolume(w.ctx, &csi.ControllerGetVolumeRequest{VolumeId: v.id})
	w.want("get "+name+" after its end", err, codes.NotFound)
}

func (w *walk) attach(name string) {
	w.t.Helper()
	v := w.volumes[name]
	for _, node := range []string{"n1", "n2"} {
		want := codes.OK
		if node != v.node {
			want = codes.FailedPrecondition // attached elsewhere, or not reachable
		}
		_, err := w.one().ControllerPublishVolume(w.ctx, &csi.ControllerPublishVolumeRequest{VolumeId: v.id, NodeId: node, VolumeCapability: mountCapability()})
		w.want("attach "+name+" to "+node, err, want)
	}
	v.attached = true
}

func (w *walk) detach(name string) {
	w.t.Helper()
	v := w.volumes[name]
	_, err := w.one().ControllerUnpublishVolume(w.ctx, &csi.ControllerUnpublishVolumeRequest{VolumeId: v.id, NodeId: v.node})
	w.want("detach "+name, err, codes.OK)
	v.attached = false
}

// look compares everything that can be seen from outside.
func (w *walk) look() {
	w.t.Helper()
	p := w.one()
	left, err := p.GetCapacity(w.ctx, &csi.GetCapacityRequest{})
	if err != nil || left.GetAvailableCapacity() != w.left() {
		w.t.Fatalf("left in the pool: %v, %v, want %d", left, err, w.left())
	}
	want, got := map[string][]string{}, map[string][]string{}
	for _, v := range w.volumes {
		want[v.id] = nil
		if v.attached {
			want[v.id] = []string{v.node}
		}
	}
	for token := ""; ; {
		page, err := p.ListVolumes(w.ctx, &csi.ListVolumesRequest{MaxEntries: 2, StartingToken: token})
		w.must(nil, err)
		for _, entry := range page.GetEntries() {
			got[entry.GetVolume().GetVolumeId()] = entry.GetStatus().GetPublishedNodeIds()
		}
		if token = page.GetNextToken(); token == "" {
			break
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		w.t.Fatalf("volumes and their nodes (-want +got):\n%s", diff)
	}
}

func (w *walk) step() {
	w.t.Helper()
	name := fmt.Sprintf("pvc-%d", w.IntN(6))
	known := w.volumes[name] != nil
	switch what := w.IntN(5); {
	case what == 0 || !known:
		w.create(name)
	case what == 1:
		w.remove(name)
	case what == 2:
		w.attach(name)
	case what == 3:
		w.detach(name)
	default:
		w.look()
	}
}

// TestControllersAnswerAsOne: it makes no difference which one is asked.
func TestControllersAnswerAsOne(t *testing.T) { seeds.Each(t, answerAsOne) }

func answerAsOne(t *testing.T, seed uint64) {
	m := newMachine(t)
	w := &walk{machine: m, Rand: rand.New(rand.NewPCG(seed, 0)), controllers: m.controllers("a", "b"), volumes: map[string]*walked{}}
	for range 300 {
		w.step()
	}
	for _, name := range slices.Sorted(maps.Keys(w.volumes)) {
		w.detach(name)
		w.remove(name)
	}
	w.look()
	m.checkClean()
}

// TestPagesGoOn: a page of one controller goes on at another one, and each volume
// that exists all the time is in one of the pages, whatever is done meanwhile.
func TestPagesGoOn(t *testing.T) {
	m := newMachine(t)
	pair := m.controllers("a", "b")
	a, b := pair[0], pair[1]
	var ids []string
	for i := range 4 {
		ids = append(ids, m.small(pair[i%2], fmt.Sprintf("pvc-%d", i)))
	}
	first, err := a.ListVolumes(m.ctx, &csi.ListVolumesRequest{MaxEntries: 1})
	m.must(nil, err)
	later := m.small(b, "pvc-later")
	seen := first.GetEntries()[0].GetVolume().GetVolumeId()
	gone := ids[slices.IndexFunc(ids, func(id string) bool { return id != seen })]
	m.must(b.DeleteVolume(m.ctx, &csi.DeleteVolumeRequest{VolumeId: gone}))
	for _, p := range pair {
		rest, err := p.ListVolumes(m.ctx, &csi.ListVolumesRequest{StartingToken: first.GetNextToken()})
		m.must(nil, err)
		got := []string{seen, gone}
		for _, entry := range rest.GetEntries() {
			if id := entry.GetVolume().GetVolumeId(); id != later { // It may be in the rest.
				got = append(got, id)
			}
		}
		slices.Sort(ids)
		slices.Sort(got)
		if diff := cmp.Diff(ids, got); diff != "" {
			t.Errorf("both pages, and what was deleted between them (-want +got):\n%s", diff)
		}
	}
}

func (m *machine) small(p *process, name string) string {
	m.t.Helper()
	created, err := p.CreateVolume(m.ctx, &csi.CreateVolumeRequest{
		Name: name, CapacityRange: &csi.CapacityRange{RequiredBytes: 1 << 20}, VolumeCapabilities: []*csi.VolumeCapability{mountCapability()},
	})
	m.must(nil, err)
	return created.GetVolume().GetVolumeId()
}

// TestSameNameAtOnce asks both controllers for the same volumes at the same
// time, out of a pool in which half of them fit.
func TestSameNameAtOnce(t *testing.T) {
	m := newMachine(t)
	pair := m.controllers("a", "b")
	const names, size = 16, poolSize / 8
	var mu sync.Mutex
	ids := map[string]string{}
	var group sync.WaitGroup
	for i := range names {
		for _, p := range pair {
			group.Go(func() {
				name := fmt.Sprintf("pvc-%d", i)
				created, err := p.CreateVolume(m.ctx, &csi.CreateVolumeRequest{
					Name: name, CapacityRange: &csi.CapacityRange{RequiredBytes: size}, VolumeCapabilities: []*csi.VolumeCapability{mountCapability()},
				})
				if status.Code(err) == codes.ResourceExhausted {
					return
				}
				m.check("create "+name, err)
				mu.Lock()
				defer mu.Unlock()
				if id := created.GetVolume().GetVolumeId(); ids[name] == "" {
					ids[name] = id
				} else if ids[name] != id {
					t.Errorf("%s is volume %s and volume %s", name, ids[name], id)
				}
			})
		}
	}
	group.Wait()
	if len(ids) != poolSize/size {
		t.Errorf("%d volumes, want %d: %v", len(ids), poolSize/size, ids)
	}
	for _, p := range pair {
		left, err := p.GetCapacity(m.ctx, &csi.GetCapacityRequest{})
		if err != nil || left.GetAvailableCapacity() != 0 {
			t.Errorf("left in the pool: %v, %v, want nothing", left, err)
		}
	}
}

// smallRequest asks for a volume of 1 MiB.
func smallRequest(name string) *csi.CreateVolumeRequest {
	return &csi.CreateVolumeRequest{
		Name: name, CapacityRange: &csi.CapacityRange{RequiredBytes: 1 << 20}, VolumeCapabilities: []*csi.VolumeCapability{mountCapability()},
	}
}

func (m *machine) createDelete(p *process, name string) error {
	created, err := p.CreateVolume(m.ctx, smallRequest(name))
	if err == nil {
		_, err = p.DeleteVolume(m.ctx, &csi.DeleteVolumeRequest{VolumeId: created.GetVolume().GetVolumeId()})
	}
	return err
}

// TestNobodyStarves: one controller works while the other one never has a
// moment without calls. If it starved, the test would not end.
func TestNobodyStarves(t *testing.T) {
	m := newMachine(t)
	pair := m.controllers("a", "b")
	ctx, stop := context.WithCancel(m.ctx)
	var group sync.WaitGroup
	for i := range 6 {
		group.Go(func() {
			for ctx.Err() == nil {
				m.check("load", m.createDelete(pair[0], fmt.Sprintf("load-%d", i)))
			}
		})
	}
	for range 10 {
		m.must(nil, m.createDelete(pair[1], "pvc-1"))
	}
	stop()
	group.Wait()
	m.checkClean()
}

// TestAllOnEachNode: drivers that serve everything share a directory too.
// Each makes volumes for its own node and out of its own pool; any of them
// deletes.
func TestAllOnEachNode(t *testing.T) {
	m := newMachine(t)
	drivers := map[string]*process{}
	for _, node := range []string{"n1", "n2"} {
		o := m.options(ModeAll, node)
		o.Capacity = map[string]int64{"pool": poolSize}
		drivers[node] = m.start(o)
	}
	for node, p := range drivers {
		created, err := p.CreateVolume(m.ctx, &csi.CreateVolumeRequest{
			Name: "pvc-" + node, CapacityRange: &csi.CapacityRange{RequiredBytes: poolSize}, VolumeCapabilities: []*csi.VolumeCapability{mountCapability()},
		})
		m.must(nil, err)
		if got := created.GetVolume().GetAccessibleTopology()[0].GetSegments()["topology.hostpath.csi/node"]; got != node {
			t.Errorf("the volume of %s is on %s", node, got)
		}
		m.publish(p, created.GetVolume().GetVolumeId())
		m.unpublish(p, created.GetVolume().GetVolumeId())
	}
	list, err := drivers["n1"].ListVolumes(m.ctx, &csi.ListVolumesRequest{})
	m.must(nil, err)
	for _, entry := range list.GetEntries() {
		m.must(drivers["n1"].DeleteVolume(m.ctx, &csi.DeleteVolumeRequest{VolumeId: entry.GetVolume().GetVolumeId()}))
	}
	for node, p := range drivers {
		left, err := p.GetCapacity(m.ctx, &csi.GetCapacityRequest{})
		if err != nil || left.GetAvailableCapacity() != poolSize {
			t.Errorf("left in the pool of %s: %v, %v, want %d", node, left, err, poolSize)
		}
	}
	m.checkClean()
}

// TestDriversOfOtherNames share a state directory, as the csi-hostpath drivers of Kubernetes' own tests do: each has its volumes, its node and its lead, also after a restart, and the first one has
// what the version without names has left.
func TestDriversOfOtherNames(t *testing.T) {
	m := newMachine(t)
	names := []string{"first.example.com", "second.example.com"}
	options := map[string]Options{}
	volumes := map[string]string{}
	for _, name := range names {
		o := m.options(ModeAll, "n1")
		o.DriverName, o.Endpoint = name, "unix://"+m.path(name+".sock")
		options[name] = o
	}
	for round := range 2 {
		running := map[string]*process{}
		for _, name := range names {
			p := m.start(options[name])
			running[name] = p
			if round == 0 {
				volumes[name] = m.create(p, "pvc-of-both", "").GetVolumeId()
			}
			page, err := p.ListVolumes(m.ctx, &csi.ListVolumesRequest{})
			m.must(nil, err)
			if all := page.GetEntries(); len(all) != 1 || all[0].GetVolume().GetVolumeId() != volumes[name] {
				t.Errorf("%s, start %d: volumes %v, want %s alone", name, round+1, all, volumes[name])
			}
		}
		for _, p := range running {
			p.end()
		}
		if round == 0 { // as the version left it that had no names
			m.must(nil, os.Remove(filepath.Join(options[names[0]].StateDir, "driver")))
		}
	}
}
