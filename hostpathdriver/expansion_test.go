package hostpathdriver

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// TestNodeOnlyExpansion: without ControllerExpandVolume the CO asks the node, which
// makes the volume larger, and charges the pool for it.
func TestNodeOnlyExpansion(t *testing.T) {
	m := newMachine(t)
	o := m.options(ModeAll, "n1")
	o.NoControllerExpansion, o.Capacity = true, map[string]int64{"pool": 10 * mib}
	p := m.start(o)
	made, err := p.CreateVolume(m.ctx, &csi.CreateVolumeRequest{
		Name: "pvc-1", CapacityRange: &csi.CapacityRange{RequiredBytes: mib}, VolumeCapabilities: []*csi.VolumeCapability{mountCapability()},
	})
	m.must(made, err)
	id := made.GetVolume().GetVolumeId()
	m.publish(p, id)
	expand := func(size int64) (*csi.NodeExpandVolumeResponse, error) {
		return p.NodeExpandVolume(m.ctx, &csi.NodeExpandVolumeRequest{
			VolumeId: id, VolumePath: m.path("target"), CapacityRange: &csi.CapacityRange{RequiredBytes: size},
		})
	}
	for range 2 {
		if got, err := expand(4 * mib); err != nil || got.GetCapacityBytes() != 4*mib {
			t.Errorf("expand on the node: %v, %v", got, err)
		}
	}
	left, err := p.GetCapacity(m.ctx, &csi.GetCapacityRequest{})
	if err != nil || left.GetAvailableCapacity() != 6*mib {
		t.Errorf("capacity %v, %v, want %d left", left, err, 6*mib)
	}
	if _, err := expand(11 * mib); status.Code(err) != codes.ResourceExhausted {
		t.Errorf("more than the pool has: %v", err)
	}
	m.unpublish(p, id)
	m.must(p.DeleteVolume(m.ctx, &csi.DeleteVolumeRequest{VolumeId: id}))
	m.checkClean()
}

// begin starts the driver that a walk would kill, and looks often at the records of
// the controller beside it.
func (w *walker) begin() *process {
	w.t.Helper()
	o := w.options
	w.must(nil, equip(&o, w.dir, nil))
	o.reconcilePeriod = time.Millisecond
	p := w.start(o)
	w.use(p.conn)
	return p
}

// eventually repeats an act that only looks until it succeeds: something that happens
// without a call is awaited.
func (w *walker) eventually(a act) {
	w.t.Helper()
	for err := a.call(w.ctx, w); err != nil; err = a.call(w.ctx, w) {
		select {
		case <-w.ctx.Done():
			w.t.Fatalf("waited for %s: %v", a.name, err)
		case <-time.After(10 * time.Millisecond):
		}
	}
}

func (w *walker) do(acts ...act) {
	w.t.Helper()
	for _, a := range acts {
		if err := a.call(w.ctx, w); err != nil {
			w.t.Fatalf("%s: %v", a.name, err)
		}
	}
}

func expandable() []disk {
	return []disk{
		{name: "directory", size: mib}, {name: "device", size: mib, block: true}, {name: "image", size: 300 * mib, fsType: "xfs"},
	}
}

// charged reports whether that is what the pool has given away.
func charged(size int64) act {
	return act{name: "GetCapacity", call: func(ctx context.Context, w *walker) error {
		left, err := w.GetCapacity(ctx, &csi.GetCapacityRequest{})
		if err == nil && left.GetAvailableCapacity() != walkPool-size {
			err = fmt.Errorf("%d bytes are left, want %d", left.GetAvailableCapacity(), walkPool-size)
		}
		return err
	}}
}

// TestNodeOnlyExpansionOfANodeAlone: a node without a controller in its process
// expands the volume in the state directory that they share; the controller knows.
func TestNodeOnlyExpansionOfANodeAlone(t *testing.T) {
	for _, d := range expandable() {
		w := newWalker(t, setup{expansion: byNode, nodeAlone: true})
		w.begin()
		_, err := w.ControllerExpandVolume(w.ctx, &csi.ControllerExpandVolumeRequest{VolumeId: "x", CapacityRange: &csi.CapacityRange{RequiredBytes: mib}})
		if status.Code(err) != codes.Unimplemented {
			t.Errorf("ControllerExpandVolume: %v", err)
		}
		w.do(d.up()...)
		for range 2 {
			w.do(d.expandOnNode(d.size+20*mib), d.verify("old"), d.sized(d.size+20*mib), charged(d.size+20*mib))
		}
		_, err = w.NodeExpandVolume(w.ctx, &csi.NodeExpandVolumeRequest{
			VolumeId: w.ids[d.name], VolumePath: d.target(w), CapacityRange: &csi.CapacityRange{RequiredBytes: walkPool + mib},
		})
		if status.Code(err) != codes.OutOfRange {
			t.Errorf("%s: more than the largest volume: %v", d.name, err)
		}
		w.do(d.down()...)
		w.do(charged(0))
	}
}

// TestControllerOnlyExpansion: no node is asked, and the answer says so. A node in the
// process has expanded what is in use before the answer, a node elsewhere does so soon.
func TestControllerOnlyExpansion(t *testing.T) {
	for _, d := range expandable() {
		for _, nodeAlone := range []bool{false, true} {
			w := newWalker(t, setup{expansion: byController, nodeAlone: nodeAlone})
			w.begin()
			w.do(d.up()...)
			answer, err := w.ControllerExpandVolume(w.ctx, &csi.ControllerExpandVolumeRequest{VolumeId: w.ids[d.name], CapacityRange: &csi.CapacityRange{RequiredBytes: d.size + 20*mib}})
			if err != nil || answer.GetNodeExpansionRequired() || answer.GetCapacityBytes() != d.size+20*mib {
				t.Errorf("%s: %v, %v", d.name, answer, err)
			}
			if nodeAlone {
				w.eventually(d.sized(d.size + 20*mib))
			}
			w.do(d.sized(d.size + 20*mib))
			_, err = w.NodeExpandVolume(w.ctx, &csi.NodeExpandVolumeRequest{VolumeId: w.ids[d.name], VolumePath: d.target(w)})
			if status.Code(err) != codes.Unimplemented {
				t.Errorf("%s: NodeExpandVolume: %v", d.name, err)
			}
			w.do(d.verify("old"))
			w.do(d.down()...)
		}
	}
}

// TestOfflineExpansion: OFFLINE is announced, and a volume in use keeps its size.
func TestOfflineExpansion(t *testing.T) {
	w := newWalker(t, setup{expansion: offline, nodeAlone: true})
	node := w.begin()
	for _, conn := range []*grpc.ClientConn{w.controller, node.conn} {
		answer, err := csi.NewIdentityClient(conn).GetPluginCapabilities(w.ctx, &csi.GetPluginCapabilitiesRequest{})
		w.must(answer, err)
		var types []csi.PluginCapability_VolumeExpansion_Type
		for _, c := range answer.GetCapabilities() {
			if e := c.GetVolumeExpansion(); e != nil {
				types = append(types, e.GetType())
			}
		}
		if len(types) != 1 || types[0] != csi.PluginCapability_VolumeExpansion_OFFLINE {
			t.Errorf("announced: %v", types)
		}
	}
	for _, d := range expandable() {
		w.do(d.up()...)
		err := d.expandOnController(d.size+20*mib).call(w.ctx, w)
		if status.Code(err) != codes.FailedPrecondition || !strings.Contains(err.Error(), "n1") {
			t.Errorf("%s in use: %v, want FAILED_PRECONDITION that names n1", d.name, err)
		}
		w.do(d.pause()...)
		w.do(d.expandOnController(d.size+20*mib), d.stage(), d.publish(), d.verify("old"), d.sized(d.size+20*mib))
		w.do(d.down()...)
	}
}

// TestModifyOfANodeAlone: a node elsewhere applies a modification soon.
func TestModifyOfANodeAlone(t *testing.T) {
	w := newWalker(t, setup{nodeAlone: true})
	w.begin()
	for _, d := range expandable()[1:] {
		w.do(d.up()...)
		for _, value := range []string{"8192", "64"} {
			w.do(d.modify("readAheadKiB", value))
			w.eventually(d.readAhead(value))
		}
		w.do(d.down()...)
	}
}
