package hostpathdriver

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"k8s.io/klog/v2"

	"github.com/longshore-csi/longshore/csikit/logging"
	"github.com/longshore-csi/longshore/driverkit/mount"
	"github.com/longshore-csi/longshore/driverkit/state"
)

func TestMain(m *testing.M) {
	if dir := os.Getenv(childEnv); dir != "" {
		os.Exit(runChild(dir)) //nolint:forbidigo // this is the main function of the child
	}
	goleak.VerifyTestMain(m)
}

// patience only ends a test that would hang.
const patience = 5 * time.Minute

// machine is what outlives a process of the driver: a disk and a mount table.
type machine struct {
	t       testing.TB
	ctx     context.Context // fixture of one test
	dir     string
	mounter *mount.Fake
}

func newMachine(t testing.TB) *machine {
	t.Helper()
	dir, err := os.MkdirTemp("", "hp") // t.TempDir has a path too long for a socket
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Errorf("clean up: %v", err)
		}
	})
	ctx, cancel := context.WithTimeout(klog.NewContext(t.Context(), klog.Logger{}), patience)
	t.Cleanup(cancel)
	return &machine{t: t, ctx: ctx, dir: dir, mounter: &mount.Fake{}}
}

func (m *machine) path(name string) string { return filepath.Join(m.dir, name) }

func (m *machine) options(mode Mode, node string) Options {
	o := NewOptions()
	o.Mode, o.NodeID, o.StateDir, o.Mounter = mode, node, m.path("state"), m.mounter
	o.Endpoint = "unix://" + m.path(string(mode)+node+".sock")
	return o
}

// process is a running driver and a connection to it.
type process struct {
	csi.IdentityClient
	csi.ControllerClient
	csi.NodeClient

	t    testing.TB
	stop context.CancelFunc
	done chan error
	conn *grpc.ClientConn
}

func (m *machine) start(o Options, dial ...grpc.DialOption) *process {
	m.t.Helper()
	ctx, stop := context.WithCancel(m.ctx)
	p := &process{t: m.t, stop: stop, done: make(chan error, 1)}
	go func() { p.done <- Run(ctx, o) }()
	fastRetry := backoff.Config{BaseDelay: time.Millisecond, Multiplier: 1.5, MaxDelay: 20 * time.Millisecond}
	conn, err := grpc.NewClient(o.Endpoint, append(dial, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: fastRetry, MinConnectTimeout: time.Minute}))...)
	if err != nil {
		m.t.Fatal(err)
	}
	p.conn = conn
	p.IdentityClient, p.ControllerClient, p.NodeClient = csi.NewIdentityClient(conn), csi.NewControllerClient(conn), csi.NewNodeClient(conn)
	m.t.Cleanup(p.end)
	for {
		_, err := p.Probe(m.ctx, &csi.ProbeRequest{}, grpc.WaitForReady(true))
		if err == nil {
			return p
		}
		select {
		case err := <-p.done:
			m.t.Fatalf("driver ended: %v", err)
		case <-m.ctx.Done():
			m.t.Fatalf("driver does not answer: %v", err)
		default:
		}
	}
}

// end stops the driver as a signal does. A second call does nothing.
func (p *process) end() {
	p.t.Helper()
	if p.stop == nil {
		return
	}
	p.stop()
	if err := errors.Join(<-p.done, p.conn.Close()); err != nil {
		p.t.Errorf("end of the driver: %v", err)
	}
	p.stop = nil
}

func mountCapability() *csi.VolumeCapability {
	return &csi.VolumeCapability{
		AccessType: &csi.VolumeCapability_Mount{Mount: &csi.VolumeCapability_MountVolume{}},
		AccessMode: &csi.VolumeCapability_AccessMode{Mode: csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER},
	}
}

func (m *machine) create(p *process, name, node string) *csi.Volume {
	m.t.Helper()
	req := &csi.CreateVolumeRequest{Name: name, VolumeCapabilities: []*csi.VolumeCapability{mountCapability()}}
	if node != "" {
		segment := &csi.Topology{Segments: map[string]string{"topology.hostpath.csi/node": node}}
		req.AccessibilityRequirements = &csi.TopologyRequirement{Preferred: []*csi.Topology{segment}, Requisite: []*csi.Topology{segment}}
	}
	created, err := p.CreateVolume(m.ctx, req)
	if err != nil {
		m.t.Fatal(err)
	}
	return created.GetVolume()
}

func (m *machine) must(_ any, err error) {
	m.t.Helper()
	if err != nil {
		m.t.Fatal(err)
	}
}

func (m *machine) publish(p *process, id string) {
	m.t.Helper()
	m.must(p.NodeStageVolume(m.ctx, &csi.NodeStageVolumeRequest{VolumeId: id, StagingTargetPath: m.path("staging"), VolumeCapability: mountCapability()}))
	m.must(p.NodePublishVolume(m.ctx, &csi.NodePublishVolumeRequest{VolumeId: id, StagingTargetPath: m.path("staging"), TargetPath: m.path("target"), VolumeCapability: mountCapability()}))
}

func (m *machine) unpublish(p *process, id string) {
	m.t.Helper()
	m.must(p.NodeUnpublishVolume(m.ctx, &csi.NodeUnpublishVolumeRequest{VolumeId: id, TargetPath: m.path("target")}))
	m.must(p.NodeUnstageVolume(m.ctx, &csi.NodeUnstageVolumeRequest{VolumeId: id, StagingTargetPath: m.path("staging")}))
}

// checkClean looks for volumes, records and mounts.
func (m *machine) checkClean() {
	m.t.Helper()
	left := m.mounter.Targets()
	for _, pattern := range []string{"records/*.json", "volumes/*", "trash/*", "copies/*", "nodes/*/journal/*.json", "nodes/*/uses/*.json", "nodes/*/volumes/*", "nodes/*/trash/*"} {
		found, err := filepath.Glob(filepath.Join(m.path("state"), pattern))
		m.must(nil, err)
		left = append(left, found...)
	}
	if len(left) > 0 {
		m.t.Errorf("left behind: %v", left)
	}
}

// TestLifeOverRestarts restarts the driver between any two calls.
func TestLifeOverRestarts(t *testing.T) {
	m := newMachine(t)
	o := m.options(ModeAll, "n1")
	restarted := func(call func(p *process)) {
		t.Helper()
		p := m.start(o)
		call(p)
		p.end()
	}
	var id string
	restarted(func(p *process) { id = m.create(p, "pvc-1", "n1").GetVolumeId() })
	restarted(func(p *process) {
		if again := m.create(p, "pvc-1", "n1").GetVolumeId(); again != id {
			t.Errorf("a second volume %s besides %s", again, id)
		}
	})
	restarted(func(p *process) { m.publish(p, id) })
	restarted(func(p *process) {
		_, err := p.DeleteVolume(m.ctx, &csi.DeleteVolumeRequest{VolumeId: id})
		if status.Code(err) != codes.FailedPrecondition {
			t.Errorf("delete while used: %v", err)
		}
	})
	restarted(func(p *process) { m.unpublish(p, id) })
	restarted(func(p *process) { m.must(p.DeleteVolume(m.ctx, &csi.DeleteVolumeRequest{VolumeId: id})) })
	m.checkClean()
}

// TestSplit runs a controller and two nodes on one state directory.
func TestSplit(t *testing.T) {
	m := newMachine(t)
	controllerOptions := m.options(ModeController, "")
	controllerOptions.Attach = true
	controller := m.start(controllerOptions)
	nodes := map[string]*process{}
	for _, name := range []string{"n1", "n2"} {
		o := m.options(ModeNode, name)
		o.Attach = true
		nodes[name] = m.start(o)
	}
	v := m.create(controller, "pvc-1", "n2")
	if got := v.GetAccessibleTopology()[0].GetSegments()["topology.hostpath.csi/node"]; got != "n2" {
		t.Errorf("the volume is on %q, want n2", got)
	}
	attach := func(node string) codes.Code {
		_, err := controller.ControllerPublishVolume(m.ctx, &csi.ControllerPublishVolumeRequest{VolumeId: v.GetVolumeId(), NodeId: node, VolumeCapability: mountCapability()})
		return status.Code(err)
	}
	for _, tc := range []struct {
		node string
		want codes.Code
	}{{"n1", codes.FailedPrecondition}, {"n3", codes.NotFound}, {"n2", codes.OK}} { // the last one uses the volume
		if got := attach(tc.node); got != tc.want {
			t.Errorf("attach to %s: %v, want %v", tc.node, got, tc.want)
		}
	}
	_, err := nodes["n1"].NodeStageVolume(m.ctx, &csi.NodeStageVolumeRequest{VolumeId: v.GetVolumeId(), StagingTargetPath: m.path("staging"), VolumeCapability: mountCapability()})
	if status.Code(err) != codes.FailedPrecondition {
		t.Errorf("stage on the wrong node: %v", err)
	}
	m.publish(nodes["n2"], v.GetVolumeId())
	m.unpublish(nodes["n2"], v.GetVolumeId())
	m.must(controller.ControllerUnpublishVolume(m.ctx, &csi.ControllerUnpublishVolumeRequest{VolumeId: v.GetVolumeId(), NodeId: "n2"}))
	m.must(controller.DeleteVolume(m.ctx, &csi.DeleteVolumeRequest{VolumeId: v.GetVolumeId()}))
	m.checkClean()

	// Each process serves its own services only.
	_, err = controller.NodeGetInfo(m.ctx, &csi.NodeGetInfoRequest{})
	if status.Code(err) != codes.Unimplemented {
		t.Errorf("node service of a controller: %v", err)
	}
	_, err = nodes["n1"].ListVolumes(m.ctx, &csi.ListVolumesRequest{})
	if status.Code(err) != codes.Unimplemented {
		t.Errorf("controller service of a node: %v", err)
	}
}

// TestSocketIsOpenToItsGroup: sidecars need not be root.
func TestSocketIsOpenToItsGroup(t *testing.T) {
	m := newMachine(t)
	o := m.options(ModeController, "")
	m.start(o)
	info, err := os.Stat(strings.TrimPrefix(o.Endpoint, "unix://"))
	if err != nil || info.Mode().Perm() != 0o660 {
		t.Errorf("got %v, %v; want the group to read and write, nobody else", info.Mode(), err)
	}
}

// TestSecondInstance: one process for each node, whatever else it serves.
func TestSecondInstance(t *testing.T) {
	m := newMachine(t)
	m.start(m.options(ModeAll, "n1"))
	for name, o := range map[string]Options{
		"SameNode": m.options(ModeNode, "n1"),
		"SameAll":  m.options(ModeAll, "n1"),
	} {
		o.Endpoint = m.path("second.sock")
		err := Run(m.ctx, o)
		if !errors.Is(err, state.ErrLocked) || !strings.Contains(err.Error(), m.path("state")) || !strings.Contains(err.Error(), "node n1") {
			t.Errorf("%s: %v, want an ErrLocked that names the directory and the node", name, err)
		}
	}
	p := m.start(m.options(ModeNode, "n2"))
	if info, err := p.NodeGetInfo(m.ctx, &csi.NodeGetInfoRequest{}); err != nil || info.GetNodeId() != "n2" {
		t.Errorf("another node: %v, %v", info, err)
	}
}

func TestRunRefuses(t *testing.T) {
	m := newMachine(t)
	if err := Run(m.ctx, Options{}); err == nil || !strings.Contains(err.Error(), "--endpoint") {
		t.Errorf("no options: %v", err)
	}
	busy, err := net.Listen("tcp", "127.0.0.1:0")
	m.must(nil, err)
	defer busy.Close() // test
	o := m.options(ModeAll, "n1")
	o.HTTP.Endpoint = busy.Addr().String()
	if err := Run(m.ctx, o); err == nil || !strings.Contains(err.Error(), o.HTTP.Endpoint) {
		t.Errorf("taken HTTP address: %v", err)
	}
	o = m.options(ModeAll, "n1")
	o.Endpoint = "unix://" + m.path("no/such/dir/csi.sock")
	if err := Run(m.ctx, o); err == nil || !strings.Contains(err.Error(), "csi.sock") {
		t.Errorf("no directory for the socket: %v", err)
	}
	// Nothing of that keeps a lock.
	m.start(m.options(ModeAll, "n1"))
}

func TestHTTP(t *testing.T) {
	m := newMachine(t)
	log := m.keepLog(logging.NewOptions())
	o := m.options(ModeAll, "n1")
	o.DriverName, o.HTTP.Endpoint = "d.example.com", "127.0.0.1:0"
	p := m.start(o)
	address := log.find(m.ctx, regexp.MustCompile(`"Serving HTTP".* address="([^"]+)"`))
	id := m.create(p, "pvc-1", "").GetVolumeId()
	m.publish(p, id)
	get := func(path string) (int, string) {
		t.Helper()
		req, err := http.NewRequestWithContext(m.ctx, http.MethodGet, "http://"+address+path, http.NoBody)
		m.must(nil, err)
		req.Close = true
		answer, err := http.DefaultClient.Do(req)
		m.must(nil, err)
		body, err := io.ReadAll(answer.Body)
		m.must(nil, errors.Join(err, answer.Body.Close()))
		return answer.StatusCode, string(body)
	}
	for _, path := range []string{"/healthz", "/livez", "/readyz"} {
		if code, body := get(path); code != http.StatusOK {
			t.Errorf("%s: %d %s", path, code, body)
		}
	}
	series := `csi_plugin_operations_seconds_count{driver_name="d.example.com",grpc_status_code="OK",method_name="/csi.v1.Controller/CreateVolume"} 1`
	if code, body := get("/metrics"); code != http.StatusOK || !strings.Contains(body, series) || !strings.Contains(body, "process_start_time_seconds") {
		t.Errorf("/metrics: %d, must contain %s:\n%s", code, series, body)
	}
	_, body := get("/debug/state")
	var shown struct {
		Mode    string
		Volumes []struct{ ID string }
		Driver  struct {
			Volumes []struct{ ID, Name, Node string }
		}
	}
	m.must(nil, json.Unmarshal([]byte(body), &shown))
	if got := fmt.Sprint(shown); got != fmt.Sprintf("{all [{%s}] {[{%s pvc-1 n1}]}}", id, id) {
		t.Errorf("/debug/state: %s", got)
	}
	m.must(nil, os.RemoveAll(o.StateDir))
	if code, _ := get("/readyz"); code == http.StatusOK {
		t.Error("/readyz without a state directory: OK")
	}
	if probed, err := p.Probe(m.ctx, &csi.ProbeRequest{}); err != nil || !probed.GetReady().GetValue() {
		t.Errorf("Probe without a state directory: %v, %v, want ready: a restart does not bring it back", probed, err)
	}
}

func TestIdentityOfModes(t *testing.T) {
	want := []string{"CONTROLLER_SERVICE", "GROUP_CONTROLLER_SERVICE", "ONLINE", "SNAPSHOT_ACCESSIBILITY_CONSTRAINTS", "VOLUME_ACCESSIBILITY_CONSTRAINTS"}
	for _, mode := range []Mode{ModeAll, ModeController, ModeNode} {
		m := newMachine(t)
		o := m.options(mode, "n1")
		for _, topology := range []bool{true, false} {
			o.Topology = topology
			p := m.start(o)
			answer, err := p.GetPluginCapabilities(m.ctx, &csi.GetPluginCapabilitiesRequest{})
			m.must(nil, err)
			var got []string
			for _, c := range answer.GetCapabilities() {
				if expansion := c.GetVolumeExpansion(); expansion != nil {
					got = append(got, expansion.GetType().String())
				} else {
					got = append(got, c.GetService().GetType().String())
				}
			}
			slices.Sort(got)
			expected := want
			if !topology {
				expected = want[:3]
			}
			if diff := cmp.Diff(expected, got); diff != "" {
				t.Errorf("mode %s, topology %t (-want +got):\n%s", mode, topology, diff)
			}
			p.end()
		}
	}
}

func (m *machine) read(name string) string {
	m.t.Helper()
	content, err := os.ReadFile(m.path(name))
	m.must(nil, err)
	return string(content)
}

// TestFailedCreationIsFinal: what was undone is not in doubt, so that a claim may be deleted while the disk is broken.
func TestFailedCreationIsFinal(t *testing.T) {
	m := newMachine(t)
	o := m.options(ModeAll, "n1")
	o.Capacity = map[string]int64{"pool": 1 << 33}
	p := m.start(o)
	source := m.create(p, "source", "").GetVolumeId()
	volumes, away := filepath.Join(o.StateDir, "volumes"), filepath.Join(o.StateDir, "away")
	m.must(nil, os.Rename(volumes, away))
	req := &csi.CreateVolumeRequest{Name: "pvc-1", VolumeCapabilities: []*csi.VolumeCapability{mountCapability()}}
	_, err := p.CreateVolume(m.ctx, req)
	wantCode(t, "create without a directory for volumes", err, codes.Internal)
	_, err = p.CreateSnapshot(m.ctx, &csi.CreateSnapshotRequest{Name: "snapshot", SourceVolumeId: source})
	wantCode(t, "take a snapshot without it", err, codes.Internal)
	m.must(nil, os.Rename(away, volumes))
	m.create(p, "pvc-1", "")
}
