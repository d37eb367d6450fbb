package driverkit_test

import (
	"context"
	"errors"
	"flag"
	"io"
	"slices"
	"strings"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/go-logr/logr/funcr"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"k8s.io/klog/v2"

	"github.com/longshore-csi/longshore/driverkit"
	"github.com/longshore-csi/longshore/driverkit/internal/testarray"
)

// parse makes options of a command line.
func parse(t *testing.T, args ...string) (driverkit.Options, error) {
	t.Helper()
	o := driverkit.NewOptions("kit.example.com")
	fs := flag.NewFlagSet("kit", flag.ContinueOnError)
	fs.SetOutput(io.Discard)
	o.AddFlags(fs)
	if err := fs.Parse(args); err != nil {
		return o, err
	}
	return o, o.Validate()
}

func TestFlags(t *testing.T) {
	o, err := parse(t, "--endpoint=unix:///a.sock", "--nodeid=n", "--topology=zone=a", "--topology=rack=7", "--mode=node")
	if err != nil || o.Endpoint != "unix:///a.sock" || o.NodeID != "n" || o.Topology.String() != "rack=7,zone=a" || o.Mode != driverkit.ModeNode {
		t.Errorf("flags: %+v, %v", o, err)
	}
	for args, want := range map[string]string{
		"--mode=both":                            `must be "controller", "node" or "all"`,
		"--topology=zone":                        "must be key=value",
		"--topology==a":                          "must be key=value",
		"--endpoint=":                            "--endpoint: must not be empty",
		"--statedir=relative":                    `--statedir="relative": must be an absolute path`,
		"--statedir=/":                           "other than /",
		"--maxvolumespernode=-1":                 "must not be negative",
		"--call-timeout=0":                       "--call-timeout=0s: must be greater than zero",
		"--stop-timeout=-1s":                     "--stop-timeout=-1s: must be greater than zero",
		"--drivername=not_a_domain":              "--drivername",
		"--http-endpoint=nowhere --endpoint=tcp": "http-endpoint",
	} {
		if _, err := parse(t, strings.Fields(args)...); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", args, err, want)
		}
	}
}

// TestWithout leaves parts out, as a driver does with a flag that switches them off.
func TestWithout(t *testing.T) {
	b := prepareBench(t, nil)
	b.parts = func(d *driverkit.Driver) {
		d.Expand, d.List, d.Snapshotter, d.ListSnapshots, d.GroupSnapshotter = nil, nil, nil, nil, nil
	}
	b.start(b.array)
	controller, err := b.ControllerGetCapabilities(ctxOf(t), &csi.ControllerGetCapabilitiesRequest{})
	wantCode(t, "capabilities", err, codes.OK)
	for _, c := range controller.GetCapabilities() {
		if slices.Contains([]string{"EXPAND_VOLUME", "LIST_VOLUMES", "CREATE_DELETE_SNAPSHOT", "LIST_SNAPSHOTS"}, c.GetRpc().GetType().String()) {
			t.Errorf("%v is announced", c)
		}
	}
	_, err = b.ControllerExpandVolume(ctxOf(t), &csi.ControllerExpandVolumeRequest{})
	wantCode(t, "expand", err, codes.Unimplemented)
	_, err = b.GroupControllerGetCapabilities(ctxOf(t), &csi.GroupControllerGetCapabilitiesRequest{})
	wantCode(t, "groups", err, codes.Unimplemented)
	// ExpandOnNode does the whole expansion then.
	v := b.create("pvc-1")
	wantCode(t, "stage", b.stage(v), codes.OK)
	_, err = b.NodeExpandVolume(ctxOf(t), &csi.NodeExpandVolumeRequest{VolumeId: v.GetVolumeId(), VolumePath: b.path("staging")})
	wantCode(t, "expand on the node", err, codes.OK)
}

// TestDriverLacksAPart refuses a driver one of whose parts needs another one that is missing.
func TestDriverLacksAPart(t *testing.T) {
	whole := testarray.Driver(testarray.New(t.TempDir()))
	for want, change := range map[string]func(*driverkit.Options, *driverkit.Driver){
		"driver: has no Stager":      func(_ *driverkit.Options, d *driverkit.Driver) { d.Stager = nil },
		"driver: has no Provisioner": func(o *driverkit.Options, d *driverkit.Driver) { d.Provisioner, o.Support.Clones = nil, true },
		"driver: has no Snapshotter": func(_ *driverkit.Options, d *driverkit.Driver) { d.Snapshotter = nil },
	} {
		o, d := driverkit.NewOptions("kit.example.com"), whole
		o.NodeID, o.StateDir = "n", t.TempDir()
		change(&o, &d)
		err := driverkit.Serve(klog.NewContext(t.Context(), klog.Logger{}), o, d)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
}

// TestWithoutProvisioner serves the volumes that administrators make, and those of pods, without functions that create and delete others.
func TestWithoutProvisioner(t *testing.T) {
	b := prepareBench(t, nil)
	b.parts = func(d *driverkit.Driver) { *d = driverkit.Driver{Stager: d.Stager, Inliner: d.Inliner} }
	b.start(b.array)
	plugin, err := b.GetPluginCapabilities(ctxOf(t), &csi.GetPluginCapabilitiesRequest{})
	wantCode(t, "plugin capabilities", err, codes.OK)
	if len(plugin.GetCapabilities()) != 0 {
		t.Errorf("announced are %v, want nothing", plugin)
	}
	_, err = b.ControllerGetCapabilities(ctxOf(t), &csi.ControllerGetCapabilitiesRequest{})
	wantCode(t, "controller", err, codes.Unimplemented)
	_, err = b.NodePublishVolume(ctxOf(t), inlineRequest(b, "true"))
	wantCode(t, "publish an inline volume", err, codes.OK)
	wantCode(t, "unpublish", b.unpublish(&csi.Volume{VolumeId: "csi-1"}, "pod-1"), codes.OK)
	b.stop()
	b.parts = func(d *driverkit.Driver) { *d = driverkit.Driver{Stager: d.Stager, Attacher: d.Attacher} }
	made, err := b.array.Create(t.Context(), &driverkit.CreateRequest{Name: "static", Size: driverkit.Range{Required: 4 << 20}})
	wantCode(t, "make a volume by hand", err, codes.OK)
	b.start(b.array)
	_, err = b.CreateVolume(ctxOf(t), createRequest("pvc-1"))
	wantCode(t, "create", err, codes.Unimplemented)
	_, err = b.DeleteVolume(ctxOf(t), &csi.DeleteVolumeRequest{VolumeId: made.ID})
	wantCode(t, "delete", err, codes.Unimplemented)
	attached, err := b.ControllerPublishVolume(ctxOf(t), &csi.ControllerPublishVolumeRequest{VolumeId: made.ID, NodeId: "node-1", VolumeCapability: mountCapability()})
	wantCode(t, "attach", err, codes.OK)
	v := &csi.Volume{VolumeId: made.ID, VolumeContext: attached.GetPublishContext()}
	wantCode(t, "publish before the stage", b.publish(v, "pod-1"), codes.FailedPrecondition)
	wantCode(t, "stage", b.stage(v), codes.OK)
	wantCode(t, "publish", b.publish(v, "pod-1"), codes.OK)
	answer, err := b.ValidateVolumeCapabilities(ctxOf(t), &csi.ValidateVolumeCapabilitiesRequest{VolumeId: made.ID, VolumeCapabilities: []*csi.VolumeCapability{mountCapability()}})
	if err != nil || answer.GetConfirmed() == nil {
		t.Errorf("validate: %v, %v", answer, err)
	}
}

// TestStart logs what is announced: a part that was forgotten is seen at the first start.
func TestStart(t *testing.T) {
	var log strings.Builder
	logger := funcr.New(func(_, line string) { log.WriteString(line + "\n") }, funcr.Options{})
	b := prepareBench(t, nil)
	o := driverkit.NewOptions("kit.example.com")
	o.Endpoint, o.NodeID, o.StateDir, o.Mounter, o.Filesystems = "unix://"+b.path("csi.sock"), "node-1", b.path("state"), b.mounts, b.files
	ctx, cancel := context.WithCancel(klog.NewContext(t.Context(), logger))
	o.Opened = func(context.Context) error { cancel(); return nil }
	if err := driverkit.Serve(ctx, o, testarray.Driver(b.array)); err != nil {
		t.Error(err)
	}
	for _, want := range []string{`"Announcing what the driver can do"`, "CONTROLLER_SERVICE", "ONLINE_EXPANSION", "controller:EXPAND_VOLUME", "node:STAGE_UNSTAGE_VOLUME"} {
		if !strings.Contains(log.String(), want) {
			t.Errorf("the log has no %s:\n%s", want, log.String())
		}
	}
}

// TestDefaultsFromTheEnvironment reads the variables by which devcluster and manifests pass what a driver needs; flags come first.
func TestDefaultsFromTheEnvironment(t *testing.T) {
	tests := map[string]struct {
		reason, endpoint, node, state string
		args                          []string
		want                          [3]string
	}{
		"Unset": {reason: "each has a default", want: [3]string{"unix:///csi/csi.sock", "", "/var/lib/kit.example.com"}},
		"Set":   {reason: "the environment is the default", endpoint: "unix:///e", node: "n", state: "/s", want: [3]string{"unix:///e", "n", "/s"}},
		"Flags": {
			reason: "a flag is stronger", endpoint: "unix:///e", node: "n", state: "/s", args: []string{"--endpoint=/f", "--nodeid=g", "--statedir=/h"},
			want: [3]string{"/f", "g", "/h"},
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			t.Setenv("CSI_ENDPOINT", tc.endpoint)
			t.Setenv("NODE_ID", tc.node)
			t.Setenv("STATE_DIR", tc.state)
			o := driverkit.NewOptions("kit.example.com")
			fs := flag.NewFlagSet("", flag.ContinueOnError)
			o.AddFlags(fs)
			if err := fs.Parse(tc.args); err != nil {
				t.Fatal(err)
			}
			if got := [3]string{o.Endpoint, o.NodeID, o.StateDir}; got != tc.want {
				t.Errorf("%s: got %q, want %q", tc.reason, got, tc.want)
			}
		})
	}
}

// TestNodeNeeds refuses to start a node without what it has to report.
func TestNodeNeeds(t *testing.T) {
	for want, change := range map[string]func(*driverkit.Options){
		"--nodeid: is required":                         func(o *driverkit.Options) { o.NodeID = "" },
		`--topology: has no value for key "rack"; add `: func(o *driverkit.Options) { o.TopologyKeys = []string{"rack"} },
	} {
		o := driverkit.NewOptions("kit.example.com")
		o.NodeID, o.StateDir = "n", t.TempDir()
		change(&o)
		err := driverkit.Serve(klog.NewContext(t.Context(), klog.Logger{}), o, testarray.Driver(testarray.New(t.TempDir())))
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
}

// somewhere is a driver that finds out where its node is, and whether it works.
type somewhere struct {
	backend

	broken *bool
}

func (s somewhere) DescribeNode(_ context.Context, node *driverkit.Node) error {
	if *s.broken {
		return driverkit.ErrUnavailable
	}
	node.Topology["rack"] = "7"
	node.MaxVolumes = 3
	return nil
}

func (s somewhere) Probe(context.Context) error {
	if *s.broken {
		return errors.New("the array does not answer")
	}
	return nil
}

// TestNodeInfo reports what a driver knows of its node, and whether it is ready.
func TestNodeInfo(t *testing.T) {
	b := prepareBench(t, func(o *driverkit.Options) { o.TopologyKeys = []string{"rack"} })
	broken := true
	b.start(somewhere{b.array, &broken})
	ready, err := b.Probe(ctxOf(t), &csi.ProbeRequest{})
	if err != nil || ready.GetReady().GetValue() {
		t.Errorf("probe of a driver that cannot start: %v, %v", ready, err)
	}
	broken = false
	info, err := b.NodeGetInfo(ctxOf(t), &csi.NodeGetInfoRequest{})
	if err != nil || info.GetNodeId() != "node-1" || info.GetMaxVolumesPerNode() != 3 || info.GetAccessibleTopology().GetSegments()["rack"] != "7" {
		t.Errorf("node info: %v, %v", info, err)
	}
	ready, err = b.Probe(ctxOf(t), &csi.ProbeRequest{})
	if err != nil || !ready.GetReady().GetValue() {
		t.Errorf("probe: %v, %v", ready, err)
	}
	broken = true
	_, err = b.NodeGetInfo(ctxOf(t), &csi.NodeGetInfoRequest{})
	wantCode(t, "node info while the driver does not know", err, codes.Unavailable)
	ready, err = b.Probe(ctxOf(t), &csi.ProbeRequest{})
	if err != nil || !ready.GetReady().GetValue() {
		t.Errorf("probe in an outage of the storage system: %v, %v: the driver would be restarted", ready, err)
	}
	plugin, err := b.GetPluginInfo(ctxOf(t), &csi.GetPluginInfoRequest{})
	if err != nil || plugin.GetName() != "kit.example.com" || plugin.GetVendorVersion() == "" {
		t.Errorf("plugin info: %v, %v", plugin, err)
	}
}

// TestEscapes uses the ways out of the kit: an interceptor, another service, the controller on a server of the driver's own.
func TestEscapes(t *testing.T) {
	intercepted := make(chan string, 100)
	own := grpc.NewServer()
	b := newBench(t, func(o *driverkit.Options) {
		o.Interceptors = []grpc.UnaryServerInterceptor{func(ctx context.Context, req any, info *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (any, error) {
			intercepted <- info.FullMethod
			return handle(ctx, req)
		}}
		o.Register = func(r grpc.ServiceRegistrar) {
			csi.RegisterSnapshotMetadataServer(r, &csi.UnimplementedSnapshotMetadataServer{})
		}
		o.ControllerServices = func(register func(grpc.ServiceRegistrar)) { register(own) }
	})
	_, err := b.NodeGetCapabilities(ctxOf(t), &csi.NodeGetCapabilitiesRequest{})
	wantCode(t, "a call", err, codes.OK)
	if method := <-intercepted; method != csi.Node_NodeGetCapabilities_FullMethodName {
		t.Errorf("intercepted %s", method)
	}
	if services := own.GetServiceInfo(); len(services) != 2 || len(services["csi.v1.Controller"].Methods) == 0 || len(services["csi.v1.GroupController"].Methods) == 0 {
		t.Errorf("the driver's own server has %v, want Controller and GroupController", services)
	}
}
