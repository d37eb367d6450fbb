package kubeletplugintest

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"go.uber.org/goleak"
	"google.golang.org/grpc/codes"

	"github.com/longshore-csi/longshore/csikittest/csitest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// forms are drivers of all kinds that a kubelet treats differently.
func forms() map[string]csitest.Options {
	provision := csi.ControllerServiceCapability_RPC_CREATE_DELETE_VOLUME
	return map[string]csitest.Options{
		"Attached":    {NodeID: "node-1", Topology: map[string]string{"zone": "a"}},
		"NotAttached": {NodeID: "node-1", Controller: []csi.ControllerServiceCapability_RPC_Type{provision}},
		"NotStaged":   {NodeID: "node-1", Controller: []csi.ControllerServiceCapability_RPC_Type{provision}, Node: []csi.NodeServiceCapability_RPC_Type{}},
		"OneWriter": {
			NodeID: "node-1", Controller: []csi.ControllerServiceCapability_RPC_Type{provision},
			Node: []csi.NodeServiceCapability_RPC_Type{csi.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME},
		},
		"InlineOnly": {NodeID: "node-1", Plugin: []csi.PluginCapability_Service_Type{}, Node: []csi.NodeServiceCapability_RPC_Type{}},
	}
}

func TestRun(t *testing.T) {
	for name, options := range forms() {
		t.Run(name, func(t *testing.T) { run(t, options, false) })
	}
}

// TestRunBlock uses raw block volumes, and beside them inline volumes with file systems.
func TestRunBlock(t *testing.T) {
	for _, name := range []string{"Attached", "NotStaged", "OneWriter"} {
		t.Run(name, func(t *testing.T) { run(t, forms()[name], true) })
	}
}

func run(t *testing.T, options csitest.Options, block bool) {
	t.Helper()
	Run(t, func(t *testing.T) Config {
		options.TargetPaths = true
		driver := csitest.New(options)
		t.Cleanup(func() {
			if v := driver.Violations(); len(v) > 0 {
				t.Errorf("the driver complains: %v", v)
			}
			if v := driver.Volumes(); len(v) > 0 {
				t.Errorf("left in the driver: %+v", v)
			}
		})
		return Config{
			Conn: driver.Conn(), Block: block, Inline: map[string]string{"kind": "fast"}, Secrets: map[string]string{"password": "hunter2"},
		}
	})
}

// TestTranscript shows what a kubelet calls for a pod with two volumes, and that it does not depend on the run.
func TestTranscript(t *testing.T) {
	driver := csitest.New(csitest.Options{NodeID: "node-1", TargetPaths: true})
	k := New(t, Config{Endpoint: driver.Serve(t)})
	data := k.CreateVolume("data")
	k.LoseAnswer("NodeStageVolume")
	k.StopPod(k.StartPod("pod", data))
	k.DeleteVolume(data)
	k.CheckClean()
	want := `ControllerPublishVolume data OK
NodeStageVolume data staging=plugins/kubernetes.io/csi/test.csi.longshore.example/data/globalmount OK, lost
NodeStageVolume data staging=plugins/kubernetes.io/csi/test.csi.longshore.example/data/globalmount OK
NodePublishVolume data staging=plugins/kubernetes.io/csi/test.csi.longshore.example/data/globalmount target=pods/pod-1/volumes/kubernetes.io~csi/pv-data/mount OK
NodeUnpublishVolume data target=pods/pod-1/volumes/kubernetes.io~csi/pv-data/mount OK
NodeUnstageVolume data staging=plugins/kubernetes.io/csi/test.csi.longshore.example/data/globalmount OK
ControllerUnpublishVolume data OK
DeleteVolume data OK
`
	if got := k.Transcript(); got != want {
		t.Errorf("got\n%swant\n%s", got, want)
	}
}

// TestBlockTranscript shows the paths of a raw block volume.
func TestBlockTranscript(t *testing.T) {
	driver := csitest.New(csitest.Options{NodeID: "node-1", TargetPaths: true})
	k := New(t, Config{Endpoint: driver.Serve(t), Block: true})
	data := k.CreateVolume("data")
	pod := k.StartPod("pod", data)
	if info, err := os.Stat(pod.Path(data)); err != nil || info.IsDir() {
		t.Errorf("the device is %v, %v; want a file", info, err)
	}
	k.StopPod(pod)
	k.DeleteVolume(data)
	k.CheckClean()
	want := `ControllerPublishVolume data OK
NodeStageVolume data staging=plugins/kubernetes.io/csi/volumeDevices/staging/pv-data OK
NodePublishVolume data staging=plugins/kubernetes.io/csi/volumeDevices/staging/pv-data target=plugins/kubernetes.io/csi/volumeDevices/publish/pv-data/pod-1 OK
NodeUnpublishVolume data target=plugins/kubernetes.io/csi/volumeDevices/publish/pv-data/pod-1 OK
NodeUnstageVolume data staging=plugins/kubernetes.io/csi/volumeDevices/staging/pv-data OK
ControllerUnpublishVolume data OK
DeleteVolume data OK
`
	if got := k.Transcript(); got != want {
		t.Errorf("got\n%swant\n%s", got, want)
	}
}

// TestPatience repeats a call of the controller's side whose answer is lost, or which does not reach the driver.
func TestPatience(t *testing.T) {
	driver := csitest.New(csitest.Options{NodeID: "node-1", TargetPaths: true})
	driver.Inject(csitest.Fault{Method: "ControllerPublishVolume", Code: codes.Unavailable, Message: "error reading from server: EOF", Times: 2})
	k := New(t, Config{Conn: driver.Conn()})
	data := k.CreateVolume("data")
	k.LoseAnswer("ControllerUnpublishVolume")
	k.StopPod(k.StartPod("pod", data))
	k.DeleteVolume(data)
	k.CheckClean()
}

// TestViolations finds what kubelets and drivers can do wrong.
func TestViolations(t *testing.T) {
	dir := t.TempDir()
	there, missing := filepath.Join(dir, "there"), filepath.Join(dir, "missing", "mount")
	if err := os.Mkdir(there, 0o700); err != nil {
		t.Fatal(err)
	}
	stage := request{method: "NodeStageVolume", volume: "v", staging: there}
	publish := request{method: "NodePublishVolume", volume: "v", staging: there, target: there}
	done := func(l *callLog, r request) { l.begin(r); l.ended(r, nil) }
	tests := map[string]struct {
		calls func(l *callLog)
		want  string
	}{
		"NoDirectory": {func(l *callLog) { l.begin(request{method: "NodeStageVolume", volume: "v", staging: missing}) }, "kubelet: NodeStageVolume"},
		"NotStaged":   {func(l *callLog) { l.begin(publish) }, "not staged"},
		"Concurrent":  {func(l *callLog) { l.begin(stage); l.begin(stage) }, "no answer yet"},
		"UnstageInUse": {func(l *callLog) {
			done(l, stage)
			done(l, publish)
			l.begin(request{method: "NodeUnstageVolume", volume: "v"})
		}, "is published"},
		"NoTarget":        {func(l *callLog) { done(l, request{method: "NodePublishVolume", volume: "v", target: missing}) }, "driver: NodePublishVolume"},
		"TargetStays":     {func(l *callLog) { done(l, request{method: "NodeUnpublishVolume", volume: "v", target: there}) }, "not removed"},
		"StageAfterError": {func(l *callLog) { l.begin(stage); l.ended(stage, os.ErrDeadlineExceeded); l.begin(publish) }, "not staged"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			l := newCallLog(nil, dir)
			tc.calls(l)
			if !slices.ContainsFunc(l.violations(), func(p string) bool { return strings.Contains(p, tc.want) }) {
				t.Errorf("found are %q, want %q", l.violations(), tc.want)
			}
		})
	}
}

// TestLeftovers finds what a driver has left.
func TestLeftovers(t *testing.T) {
	driver := csitest.New(csitest.Options{NodeID: "node-1", TargetPaths: true})
	k := New(t, Config{Conn: driver.Conn()})
	data := k.CreateVolume("data")
	pod := k.StartPod("pod", data)
	left := strings.Join(k.leftovers(), "\n")
	for _, want := range []string{`pod "pod" exists`, "left behind: " + k.root + "/pods/pod-1", "left attached", "left in volumesInUse"} {
		if !strings.Contains(left, want) {
			t.Errorf("found is\n%s\nwant %q", left, want)
		}
	}
	driver.Inject(csitest.Fault{Method: "NodeUnpublishVolume", Code: codes.Internal, Times: 2})
	k.StopPod(pod)
	k.DeleteVolume(data)
	k.CheckClean()
}
