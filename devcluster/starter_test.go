package devcluster

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

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

func specNames(specs []proc.Spec) []string {
	var names []string
	for _, s := range specs {
		names = append(names, s.Name)
	}
	return names
}

func TestEachNodeHasDriverAgentAndSidecars(t *testing.T) {
	s, p := newTestStarter(t, Options{Nodes: 2, Verbosity: 4})
	specs, err := s.nodes(p, "d.example.com")
	if err != nil {
		t.Fatal(err)
	}
	want := []string{
		"driver.node-1", "csi-node-agent.node-1", "csi-node-driver-registrar.node-1", "livenessprobe.node-1",
		"driver.node-2", "csi-node-agent.node-2", "csi-node-driver-registrar.node-2", "livenessprobe.node-2",
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
	driverArgs, registrarArgs := strings.Join(specs[4].Args, " "), strings.Join(specs[6].Args, " ")
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
	specs, err := s.nodes(p, "d.example.com")
	if err != nil {
		t.Fatal(err)
	}
	for i, node := range []string{"node-1", "node-2"} {
		agent := strings.Join(specs[4*i+1].Args, " ")
		kubeconfig := s.dir.UserKubeconfig(node)
		if !strings.Contains(agent, "--kubeconfig="+kubeconfig) || !strings.Contains(agent, "--node-name="+node) || !strings.Contains(agent, "--root-dir="+s.dir.Node(node)) {
			t.Errorf("agent of %s: %s", node, agent)
		}
		if data, err := os.ReadFile(kubeconfig); err != nil || !strings.Contains(string(data), "system:node:"+node) {
			t.Errorf("kubeconfig of %s: %v", node, err)
		}
	}
}

func TestSidecarsElectTheirLeaders(t *testing.T) {
	s, p := newTestStarter(t, Options{Nodes: 1})
	specs, err := s.sidecars(p, "")
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"csi-provisioner", "csi-attacher", "csi-resizer", "csi-snapshotter", "snapshot-controller", "livenessprobe"}, specNames(specs)); diff != "" {
		t.Error(diff)
	}
	for _, spec := range specs[:5] {
		args := strings.Join(spec.Args, " ")
		if talks := strings.Contains(args, "--csi-address="+s.dir.ControllerSocket()); talks == (spec.Name == "snapshot-controller") {
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
	specs, err := s.sidecars(p, "")
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
	specs, err := s.sidecars(p, "")
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

func TestDriverIsBuiltInOrTheUsers(t *testing.T) {
	builtIn, _ := newTestStarter(t, Options{})
	own, _ := newTestStarter(t, Options{Driver: "/opt/driver"})
	a, b := builtIn.driverSpec("driver-controller", "/s", "controller", "controller"), own.driverSpec("driver-controller", "/s", "controller", "controller")
	if a.Path != "/bin/devcluster" || !slices.Equal(a.Args[:2], []string{"run", "hostpathplugin"}) {
		t.Errorf("built in: %s %q", a.Path, a.Args)
	}
	if b.Path != "/opt/driver" || b.Args[0] != "--endpoint=unix:///s" {
		t.Errorf("the user's: %s %q", b.Path, b.Args)
	}
	// Both get the same flags, but for HTTP, which not every driver has: a user's driver stands where the reference driver stood.
	flags := func(args []string) []string {
		return slices.DeleteFunc(slices.Clone(args), func(a string) bool {
			return strings.HasPrefix(a, "--statedir=") || a == builtIn.endpoint("driver-controller")
		})
	}
	if diff := cmp.Diff(flags(a.Args[2:]), flags(b.Args)); diff != "" {
		t.Error(diff)
	}
}

// TestDriverHasFlagsOfItsOwn: not every driver has those of the reference driver.
func TestDriverHasFlagsOfItsOwn(t *testing.T) {
	s, _ := newTestStarter(t, Options{Driver: "/opt/driver", DriverFlags: " -e {endpoint}  --{mode}=true --name={node} --state={statedir}/{node} -v={v} ", Verbosity: 5})
	want := []string{"-e", "unix:///s p/csi.sock", "--node=true", "--name=node-1", "--state=" + s.dir.DriverState() + "/node-1", "-v=5"}
	if diff := cmp.Diff(want, s.driverSpec("driver.node-1", "/s p/csi.sock", "node", "node-1").Args); diff != "" {
		t.Error(diff)
	}
}

// TestOwnProcessesServeHTTP: each on a port of its own, and the status says where.
func TestOwnProcessesServeHTTP(t *testing.T) {
	for name, driver := range map[string]string{"ReferenceDriver": "", "UsersDriver": "/opt/driver"} {
		t.Run(name, func(t *testing.T) {
			s, p := newTestStarter(t, Options{Nodes: 2, Driver: driver})
			told := urls(p, s.servers())
			specs := []proc.Spec{s.driverSpec(driverController, "/s", "controller", "controller")}
			for _, specify := range []func(*plane.Plane, string) ([]proc.Spec, error){s.sidecars, s.nodes} {
				more, err := specify(p, "d.example.com")
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
	if _, err := s.nodes(p, "d.example.com"); err == nil || !strings.Contains(err.Error(), "node-1") {
		t.Errorf("got %v", err)
	}
}
