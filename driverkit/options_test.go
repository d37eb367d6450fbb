package driverkit_test

import (
	"context"
	"errors"
	"flag"
	"io"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
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

// TestWithout switches optional interfaces off.
func TestWithout(t *testing.T) {
	interfaces := regexp.MustCompile(`(?m)^type (\w+) interface$`)
	api, err := os.ReadFile("api.txt")
	if err != nil {
		t.Fatal(err)
	}
	root, _, _ := strings.Cut(string(api), "package driverkit/")
	for _, found := range interfaces.FindAllStringSubmatch(root, -1) {
		o := driverkit.NewOptions("kit.example.com")
		o.NodeID, o.Without = "n", found[1:]
		optional := found[1] != "Backend" && found[1] != "Flags"
		if err := o.Validate(); (err == nil) != optional {
			t.Errorf("without %s: %v", found[1], err)
		}
	}
	b := newBench(t, func(o *driverkit.Options) {
		o.Without = []string{"Expander", "Lister", "Snapshotter", "SnapshotLister", "GroupSnapshotter"}
	})
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
	// The array is a NodeExpander, too, which does the whole expansion then.
	v := b.create("pvc-1")
	wantCode(t, "stage", b.stage(v), codes.OK)
	_, err = b.NodeExpandVolume(ctxOf(t), &csi.NodeExpandVolumeRequest{VolumeId: v.GetVolumeId(), VolumePath: b.path("staging")})
	wantCode(t, "expand on the node", err, codes.OK)
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
		err := driverkit.Serve(klog.NewContext(t.Context(), klog.Logger{}), o, testarray.New(t.TempDir()))
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
}

// somewhere is a Backend that finds out where its node is, and whether it works.
type somewhere struct {
	driverkit.Backend

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

// TestNodeInfo reports what a Backend knows of its node, and whether it is ready.
func TestNodeInfo(t *testing.T) {
	b := prepareBench(t, func(o *driverkit.Options) { o.TopologyKeys = []string{"rack"} })
	broken := true
	b.start(somewhere{b.array, &broken})
	ready, err := b.Probe(ctxOf(t), &csi.ProbeRequest{})
	if err != nil || ready.GetReady().GetValue() {
		t.Errorf("probe of a Backend that cannot start: %v, %v", ready, err)
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
	wantCode(t, "node info while the Backend does not know", err, codes.Unavailable)
	ready, err = b.Probe(ctxOf(t), &csi.ProbeRequest{})
	if err != nil || !ready.GetReady().GetValue() {
		t.Errorf("probe in an outage of the storage system: %v, %v: the driver would be restarted", ready, err)
	}
	plugin, err := b.GetPluginInfo(ctxOf(t), &csi.GetPluginInfoRequest{})
	if err != nil || plugin.GetName() != "kit.example.com" || plugin.GetVendorVersion() == "" {
		t.Errorf("plugin info: %v, %v", plugin, err)
	}
}

// node is a service that replaces one method of the kit's.
type node struct {
	csi.NodeServer
}

func (node) NodeGetInfo(context.Context, *csi.NodeGetInfoRequest) (*csi.NodeGetInfoResponse, error) {
	return &csi.NodeGetInfoResponse{NodeId: "own"}, nil
}

// TestEscapes uses the ways out of the kit: a wrapped service, an interceptor, another service.
func TestEscapes(t *testing.T) {
	intercepted := make(chan string, 100)
	b := newBench(t, func(o *driverkit.Options) {
		o.Services = func(s *driverkit.Services) { s.Node = node{s.Node} }
		o.Interceptors = []grpc.UnaryServerInterceptor{func(ctx context.Context, req any, info *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (any, error) {
			intercepted <- info.FullMethod
			return handle(ctx, req)
		}}
		o.Register = func(r grpc.ServiceRegistrar) {
			csi.RegisterSnapshotMetadataServer(r, &csi.UnimplementedSnapshotMetadataServer{})
		}
	})
	info, err := b.NodeGetInfo(ctxOf(t), &csi.NodeGetInfoRequest{})
	if err != nil || info.GetNodeId() != "own" {
		t.Errorf("node info: %v, %v, want that of the own service", info, err)
	}
	if method := <-intercepted; method != csi.Node_NodeGetInfo_FullMethodName {
		t.Errorf("intercepted %s", method)
	}
	_, err = b.NodeGetCapabilities(ctxOf(t), &csi.NodeGetCapabilitiesRequest{})
	wantCode(t, "a call of the kit's service below", err, codes.OK)
}
