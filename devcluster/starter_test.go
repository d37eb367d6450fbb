package devcluster

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/google/go-cmp/cmp"

	"github.com/longshore-csi/longshore/devcluster/internal/build"
	"github.com/longshore-csi/longshore/devcluster/internal/components"
	"github.com/longshore-csi/longshore/devcluster/internal/layout"
	"github.com/longshore-csi/longshore/devcluster/internal/plane"
	"github.com/longshore-csi/longshore/devcluster/internal/proc"
)

// newTestStarter makes what a starter needs to say how it would run things.
func newTestStarter(t *testing.T, o Options) (*starter, *plane.Plane) {
	t.Helper()
	o.Dir = filepath.Join(t.TempDir(), "c")
	dir := layout.Dir(o.Dir)
	s := &starter{supervisor: &supervisor{options: o, dir: dir}, self: "/bin/devcluster"}
	p, err := plane.New(dir, build.Binaries{Dir: "/bin-dir"}, s.servers()...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	})
	s.plane = p
	return s, p
}

// running are the drivers of a starter as if they had answered.
func running(s *starter, names ...string) []driver {
	all := s.options.drivers()
	for i := range all {
		all[i].info.Name = names[i]
		all[i].info.Plugin = map[csi.PluginCapability_Service_Type]bool{csi.PluginCapability_Service_VOLUME_ACCESSIBILITY_CONSTRAINTS: true}
	}
	return all
}

func specNames(specs []proc.Spec) []string {
	var names []string
	for _, s := range specs {
		names = append(names, s.Name)
	}
	return names
}

func TestEachNodeHasDriverAgentAndSidecars(t *testing.T) {
	s, p := newTestStarter(t, Options{Nodes: 2, Verbosity: 4})
	specs, err := s.nodes(p, running(s, "d.example.com"))
	if err != nil {
		t.Fatal(err)
	}
	want := []string{
		"csi-node-agent.node-1", "driver.node-1", "csi-node-driver-registrar.node-1", "livenessprobe.node-1",
		"csi-node-agent.node-2", "driver.node-2", "csi-node-driver-registrar.node-2", "livenessprobe.node-2",
	}
	if diff := cmp.Diff(want, specNames(specs)); diff != "" {
		t.Error(diff)
	}
	for _, spec := range specs {
		if spec.Log != s.dir.Log(spec.Name) || !slices.Contains(spec.Args, "--v=4") {
			t.Errorf("%s: log %q, arguments %q", spec.Name, spec.Log, spec.Args)
		}
	}
	// Driver, registrar and probe of a node meet at one socket, agent and registrar in one directory.
	socket, registry := s.dir.NodeSocket("node-2", "d.example.com"), s.dir.Registry("node-2")
	driverArgs, registrarArgs := strings.Join(specs[5].Args, " "), strings.Join(specs[6].Args, " ")
	if !strings.Contains(driverArgs, "--endpoint=unix://"+socket) || !strings.Contains(driverArgs, "--nodeid=node-2") {
		t.Errorf("driver: %s", driverArgs)
	}
	if !strings.Contains(registrarArgs, "--csi-address="+socket) || !strings.Contains(registrarArgs, "--plugin-registration-path="+registry) {
		t.Errorf("registrar: %s", registrarArgs)
	}
	if probe := specs[7].Args; !slices.Contains(probe, "--csi-address="+socket) {
		t.Errorf("livenessprobe: %q", probe)
	}
	for _, dir := range []string{filepath.Dir(socket), registry} {
		if info, err := os.Stat(dir); err != nil || !info.IsDir() {
			t.Errorf("%s: %v", dir, err)
		}
	}
}

func TestNodesHaveIdentitiesOfTheirOwn(t *testing.T) {
	s, p := newTestStarter(t, Options{Nodes: 2})
	specs, err := s.nodes(p, running(s, "d.example.com"))
	if err != nil {
		t.Fatal(err)
	}
	for i, node := range []string{"node-1", "node-2"} {
		agent := strings.Join(specs[4*i].Args, " ")
		kubeconfig := s.dir.UserKubeconfig(node)
		if !strings.Contains(agent, "--kubeconfig="+kubeconfig) || !strings.Contains(agent, "--node-name="+node) || !strings.Contains(agent, "--root-dir="+s.dir.Node(node)) {
			t.Errorf("agent of %s: %s", node, agent)
		}
		if data, err := os.ReadFile(kubeconfig); err != nil || !strings.Contains(string(data), "system:node:"+node) {
			t.Errorf("kubeconfig of %s: %v", node, err)
		}
	}
}

// TestNodesOfOneAgent: one process is several nodes, with the reference driver; another driver has its processes on each.
func TestNodesOfOneAgent(t *testing.T) {
	s, p := newTestStarter(t, Options{Nodes: 5, NodesPerAgent: 2, MaxPods: 7, Drivers: []Driver{{}, {Path: "/opt/driver"}}})
	specs, err := s.nodes(p, running(s, "d.example.com", "e.example.com"))
	if err != nil {
		t.Fatal(err)
	}
	var want []string
	for _, a := range []struct {
		process string
		nodes   []string
	}{
		{"csi-node-agent.node-1..node-2", []string{"node-1", "node-2"}},
		{"csi-node-agent.node-3..node-4", []string{"node-3", "node-4"}},
		{"csi-node-agent.node-5", []string{"node-5"}},
	} {
		want = append(want, a.process)
		for _, node := range a.nodes {
			want = append(want, "csi-node-driver-registrar-2."+node, "livenessprobe-2."+node) // the driver runs before
		}
	}
	if diff := cmp.Diff(want, specNames(specs)); diff != "" {
		t.Error(diff)
	}
	for i, flags := range map[int][]string{
		5:  {"--nodes=2", "--node-prefix=node", "--first-node=3", "--root-dir=" + s.dir.Nodes(), "--kubeconfig=" + s.dir.UserKubeconfig("csi-node-agent")},
		10: {"--node-name=node-5", "--root-dir=" + s.dir.Node("node-5"), "--kubeconfig=" + s.dir.UserKubeconfig("node-5")},
	} {
		args := specs[i].Args
		for _, flag := range append(flags, "--driver-statedir="+s.dir.DriverState(""), "--max-pods=7", "--http-endpoint="+p.Address(specs[i].Name)) {
			if !slices.Contains(args, flag) {
				t.Errorf("%s: %q lack %s", specs[i].Name, args, flag)
			}
		}
		if args[1] != "csi-nodes" {
			t.Errorf("%s runs %q", specs[i].Name, args)
		}
	}
	if data, err := os.ReadFile(s.dir.UserKubeconfig("csi-node-agent")); err != nil || !strings.Contains(string(data), "longshore:csi-node-agent") {
		t.Errorf("kubeconfig of the nodes: %v", err)
	}
}

func TestSidecarsElectTheirLeaders(t *testing.T) {
	s, p := newTestStarter(t, Options{Nodes: 1})
	specs, err := s.sidecars(p, running(s, "d.example.com"))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"csi-provisioner", "csi-attacher", "csi-resizer", "csi-snapshotter", "snapshot-controller", "livenessprobe"}, specNames(specs)); diff != "" {
		t.Error(diff)
	}
	for _, spec := range specs[:5] {
		args := strings.Join(spec.Args, " ")
		if talks := strings.Contains(args, "--csi-address="+s.dir.ControllerSocket("")); talks == (spec.Name == "snapshot-controller") {
			t.Errorf("%s talks to the driver: %v", spec.Name, talks)
		}
		for _, want := range []string{"run " + spec.Name, "--leader-election-namespace=longshore-system", s.dir.UserKubeconfig(spec.Name)} {
			if !strings.Contains(args, want) {
				t.Errorf("%s lacks %q: %s", spec.Name, want, args)
			}
		}
		if spec.Path != s.self {
			t.Errorf("%s runs %q", spec.Name, spec.Path)
		}
	}
}

// TestWithout leaves components to the user, who finds their kubeconfigs.
func TestWithout(t *testing.T) {
	s, p := newTestStarter(t, Options{Nodes: 1, Without: []string{"csi-attacher", "snapshot-controller"}})
	specs, err := s.sidecars(p, running(s, "d.example.com"))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"csi-provisioner", "csi-resizer", "csi-snapshotter", "livenessprobe"}, specNames(specs)); diff != "" {
		t.Error(diff)
	}
	if slices.Contains(s.servers(), "csi-attacher") {
		t.Errorf("the status would tell an address of csi-attacher: %q", s.servers())
	}
	if data, err := os.ReadFile(s.dir.UserKubeconfig("csi-attacher")); err != nil || !strings.Contains(string(data), "longshore:csi-attacher") {
		t.Errorf("kubeconfig of csi-attacher: %v", err)
	}
}

// TestProvisionerTellsCapacity in the namespace of the leases; the attacher has nothing to do with it.
func TestProvisionerTellsCapacity(t *testing.T) {
	s, p := newTestStarter(t, Options{Nodes: 1})
	specs, err := s.sidecars(p, running(s, "d.example.com"))
	if err != nil {
		t.Fatal(err)
	}
	for _, spec := range specs {
		tells := slices.Contains(spec.Args, "--enable-capacity") && slices.Equal(spec.Env, []string{"NAMESPACE=longshore-system"})
		if want := spec.Name == "csi-provisioner"; tells != want {
			t.Errorf("%s: arguments %q, environment %q", spec.Name, spec.Args, spec.Env)
		}
	}
}

func TestReferenceDriverIsBuiltIn(t *testing.T) {
	s, _ := newTestStarter(t, Options{Verbosity: 3})
	d := running(s, "d.example.com")[0]
	got := s.controllerSpec(d)
	want := []string{
		"run", "hostpathplugin", s.endpoint("driver-controller"), "--endpoint=unix://" + s.dir.ControllerSocket(""), "--statedir=" + s.dir.DriverState(""),
		"--v=3", "--mode=controller", "--nodeid=controller", "--enable-attach=true", "--enable-controller-modify-volume=true",
	}
	if diff := cmp.Diff(want, got.Args); diff != "" || got.Path != "/bin/devcluster" {
		t.Errorf("%s\n%s", got.Path, diff)
	}
	if args := s.nodeSpec(d, "node-1").Args; !slices.Contains(args, "--mode=node") || slices.Contains(args, "--enable-attach=true") {
		t.Errorf("on a node: %q", args)
	}
}

// TestDriverWithModes has a process for the cluster and one for each node, as the reference driver has.
func TestDriverWithModes(t *testing.T) {
	s, _ := newTestStarter(t, Options{Drivers: []Driver{{Path: "/opt/driver", Flags: " -e {endpoint}  --{mode}=true --name={node} --state={statedir}/{node} -v={v} "}}, Verbosity: 5})
	d := running(s, "d.example.com")[0]
	want := []string{"-e", "unix://" + s.dir.NodeSocket("node-1", "d.example.com"), "--node=true", "--name=node-1", "--state=" + s.dir.DriverState("") + "/node-1", "-v=5"}
	if diff := cmp.Diff(want, s.nodeSpec(d, "node-1").Args); diff != "" {
		t.Error(diff)
	}
	for spec, own := range map[string]string{"node-1": s.nodeSpec(d, "node-1").Env[4], "controller": s.controllerSpec(d).Env[4]} {
		if want := "STATE_DIR=" + filepath.Join(s.dir.DriverState(""), spec); own != want { // a driver that reads it runs on several nodes
			t.Errorf("%s has %s, want %s", spec, own, want)
		}
	}
	want = []string{"-e", "unix://" + s.dir.ControllerSocket(""), "--controller=true", "--name=controller", "--state=" + s.dir.DriverState("") + "/controller", "-v=5"}
	if diff := cmp.Diff(want, s.controllerSpec(d).Args); diff != "" {
		t.Error(diff)
	}
}

// TestDriverWithoutModes has one process on each node, which the environment tells what it needs, and the sidecars of volumes and snapshots
// beside it.
func TestDriverWithoutModes(t *testing.T) {
	s, p := newTestStarter(t, Options{Nodes: 2, Drivers: []Driver{{Path: "/opt/driver"}}})
	drivers := running(s, "d.example.com")
	spec, state := s.nodeSpec(drivers[0], "node-2"), filepath.Join(s.dir.DriverState(""), "node-2")
	want := []string{
		"CSI_ENDPOINT=unix://" + s.dir.NodeSocket("node-2", "driver"), "NODE_ID=node-2", "NODE_NAME=node-2", "KUBE_NODE_NAME=node-2", "STATE_DIR=" + state,
		"KUBELET_DIR=" + s.dir.Node("node-2"),
	}
	if diff := cmp.Diff(want, spec.Env); diff != "" || len(spec.Args) > 0 || spec.Name != "driver.node-2" {
		t.Errorf("%s %q\n%s", spec.Name, spec.Args, diff)
	}
	for _, variable := range want {
		if name, _, _ := strings.Cut(variable, "="); !strings.Contains(environmentHelp, name) {
			t.Errorf("the help does not name %s: %s", name, environmentHelp)
		}
	}
	if err := os.MkdirAll(filepath.Dir(s.dir.ControllerSocket("")), 0o700); err != nil {
		t.Fatal(err)
	}
	first, err0 := s.firstSpecs(drivers[0])
	sidecars, err1 := s.sidecars(p, drivers)
	nodes, err2 := s.nodes(p, drivers)
	if err := errors.Join(err0, err1, err2); err != nil {
		t.Fatal(err)
	}
	if target, err := os.Readlink(s.dir.ControllerSocket("")); err != nil || target != s.dir.NodeSocket("node-1", "driver") {
		t.Errorf("the controller side is at %q, %v", target, err)
	}
	if info, err := os.Stat(state); err != nil || !info.IsDir() {
		t.Errorf("the state directory: %v", err)
	}
	wantNames := []string{
		"driver.node-1", "driver.node-2", "csi-provisioner.node-1", "csi-provisioner.node-2", "csi-attacher", "csi-resizer", "csi-snapshotter.node-1", "csi-snapshotter.node-2", "snapshot-controller",
		"csi-node-agent.node-1", "csi-node-driver-registrar.node-1", "livenessprobe.node-1", "csi-node-agent.node-2", "csi-node-driver-registrar.node-2", "livenessprobe.node-2",
	}
	if diff := cmp.Diff(wantNames, specNames(slices.Concat(first, sidecars, nodes))); diff != "" {
		t.Error(diff)
	}
	provisioner := sidecars[1]
	if !slices.Contains(provisioner.Args, "--node-deployment") || !slices.Contains(provisioner.Args, "--csi-address="+s.dir.NodeSocket("node-2", "driver")) || !slices.Contains(provisioner.Env, "NODE_NAME=node-2") {
		t.Errorf("provisioner: %q, %q", provisioner.Args, provisioner.Env)
	}
	if args := sidecars[6].Args; !slices.Contains(args, "--enable-distributed-snapshotting") {
		t.Errorf("snapshot-controller: %q", args)
	}
	// Volumes of a driver without topology are every node's: one provisioner is enough.
	drivers[0].info.Plugin = nil
	sidecars, err := s.sidecars(p, drivers)
	if err != nil || sidecars[0].Name != "csi-provisioner" || !slices.Contains(sidecars[0].Args, "--csi-address="+s.dir.ControllerSocket("")) {
		t.Errorf("without topology: %q, %v", specNames(sidecars), err)
	}
}

// TestDriversBesideEachOther share nodes and snapshot-controller, and nothing else.
func TestDriversBesideEachOther(t *testing.T) {
	s, p := newTestStarter(t, Options{Nodes: 1, Drivers: []Driver{{}, {Path: "/opt/driver"}, {Path: "/opt/driver", Flags: "{mode}"}}})
	drivers := running(s, "c.example.com", "d.example.com", "e.example.com")
	var specs []proc.Spec
	for _, d := range drivers {
		if d.split() {
			specs = append(specs, s.controllerSpec(d))
		} else {
			specs = append(specs, s.nodeSpec(d, "node-1"))
		}
	}
	sidecars, err1 := s.sidecars(p, drivers)
	nodes, err2 := s.nodes(p, drivers)
	if err := errors.Join(err1, err2); err != nil {
		t.Fatal(err)
	}
	specs = slices.Concat(specs, sidecars, nodes)
	endpoints := map[string]string{}
	for _, spec := range specs {
		i := slices.IndexFunc(spec.Env, func(v string) bool { return strings.HasPrefix(v, "CSI_ENDPOINT=") })
		if i < 0 {
			continue
		}
		if other := endpoints[spec.Env[i]]; other != "" {
			t.Errorf("%s and %s have %s", other, spec.Name, spec.Env[i])
		}
		endpoints[spec.Env[i]] = spec.Name
	}
	want := []string{
		"driver-controller", "driver-2.node-1", "driver-controller-3",
		"csi-provisioner", "csi-provisioner-2.node-1", "csi-provisioner-3", "csi-attacher", "csi-attacher-2", "csi-attacher-3", "csi-resizer", "csi-resizer-2", "csi-resizer-3",
		"csi-snapshotter", "csi-snapshotter-2.node-1", "csi-snapshotter-3", "snapshot-controller", "livenessprobe", "livenessprobe-3",
		"csi-node-agent.node-1", "driver.node-1", "csi-node-driver-registrar.node-1", "livenessprobe.node-1",
		"csi-node-driver-registrar-2.node-1", "livenessprobe-2.node-1", "driver-3.node-1", "csi-node-driver-registrar-3.node-1", "livenessprobe-3.node-1",
	}
	if diff := cmp.Diff(want, specNames(specs)); diff != "" {
		t.Error(diff)
	}
}

// TestOwnProcessesServeHTTP: each on a port of its own, and the status says where.
func TestOwnProcessesServeHTTP(t *testing.T) {
	for name, d := range map[string]Driver{"ReferenceDriver": {}, "UsersDriver": {Path: "/opt/driver", Flags: "{mode}"}} {
		t.Run(name, func(t *testing.T) {
			s, p := newTestStarter(t, Options{Nodes: 2, Drivers: []Driver{d}})
			told := urls(p, s.servers())
			drivers := running(s, "d.example.com")
			specs := []proc.Spec{s.controllerSpec(drivers[0])}
			for _, specify := range []func(*plane.Plane, []driver) ([]proc.Spec, error){s.sidecars, s.nodes} {
				more, err := specify(p, drivers)
				if err != nil {
					t.Fatal(err)
				}
				specs = append(specs, more...)
			}
			used := map[string]bool{}
			for _, spec := range specs {
				url, ok := told[spec.Name]
				if foreign := spec.Path == "/opt/driver"; ok == foreign {
					t.Errorf("%s: told to serve HTTP: %v, by a driver of the user's: %v", spec.Name, ok, foreign)
				} else if ok && !slices.Contains(spec.Args, "--http-endpoint="+strings.TrimPrefix(url, "http://")) {
					t.Errorf("%s is told at %s, and runs with %q", spec.Name, url, spec.Args)
				}
				used[url] = true
			}
			if delete(used, ""); len(used) != len(told) {
				t.Errorf("%d URLs of %d are used: %q", len(used), len(told), told)
			}
		})
	}
}

func TestEveryComponentIsPartOfThisProgram(t *testing.T) {
	for _, name := range append(Replaceable(), nodeAgent, registrar, livenessProbe, referenceDriver) {
		if !slices.Contains(components.Names(), name) {
			t.Errorf("%s is none of %q", name, components.Names())
		}
	}
}

func TestSocketReady(t *testing.T) {
	path := filepath.Join(t.TempDir(), "csi.sock")
	ready := socketReady(path)
	if err := ready(t.Context()); err == nil {
		t.Error("ready without a socket")
	}
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := ready(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestNodesBelowAFile(t *testing.T) {
	s, p := newTestStarter(t, Options{Nodes: 1})
	if err := os.WriteFile(filepath.Join(string(s.dir), "nodes"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := s.nodes(p, running(s, "d.example.com")); err == nil || !strings.Contains(err.Error(), "node-1") {
		t.Errorf("got %v", err)
	}
}
