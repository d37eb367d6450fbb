package devcluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/longshore-csi/longshore/csikit/csiclient"
	"github.com/longshore-csi/longshore/devcluster/internal/bootstrap"
	"github.com/longshore-csi/longshore/devcluster/internal/build"
	"github.com/longshore-csi/longshore/devcluster/internal/plane"
	"github.com/longshore-csi/longshore/devcluster/internal/proc"
)

// Names of the processes that are not the control plane's. Those of a node are followed by "." and the node's name.
const (
	driverController = "driver-controller"
	driverNode       = "driver"
	nodeAgent        = "csi-node-agent"
	registrar        = "csi-node-driver-registrar"
	provisioner      = "csi-provisioner"
	attacher         = "csi-attacher"
	resizer          = "csi-resizer"
	snapshotter      = "csi-snapshotter"
	// snapshotController is of the cluster, for all drivers.
	snapshotController = "snapshot-controller"
	livenessProbe      = "livenessprobe" // of the controller's driver; those of the nodes' drivers are followed by their node
	referenceDriver    = "hostpathplugin"

	defaultDriver = "hostpath.csi.k8s.io"
	// Namespace is where the components keep their leases, and the provisioner its CSIStorageCapacity objects.
	Namespace = "longshore-system"
)

// starter brings a cluster up, step by step; it is thrown away when the cluster runs.
type starter struct {
	*supervisor
	bin  build.Binaries
	self string
}

func newStarter(s *supervisor, bin build.Binaries) *starter { return &starter{supervisor: s, bin: bin} }

func (s *starter) run(ctx context.Context) error {
	var err error
	if s.self, err = self(); err != nil {
		return err
	}
	p, err := s.apiServer(ctx)
	if err != nil {
		return err
	}
	driver, err := s.driver(ctx)
	if err != nil {
		return err
	}
	boot, err := s.bootstrap(ctx, driver)
	if err != nil {
		return err
	}
	s.progress("starting %s and %d nodes", strings.Join(append([]string{plane.ControllerManager, plane.Scheduler}, s.controllers()...), ", "), s.options.Nodes)
	specs := []proc.Spec{p.ControllerManagerSpec(), p.SchedulerSpec()}
	for _, specify := range []func(*plane.Plane, string) ([]proc.Spec, error){s.sidecars, s.nodes} {
		more, err := specify(p, driver.Name)
		if err != nil {
			return err
		}
		specs = append(specs, more...)
	}
	if err := s.launch(ctx, specs...); err != nil {
		return err
	}
	if err := boot.WaitNodes(ctx, NodeNames(s.options.Nodes), driver.Name); err != nil {
		return err
	}
	s.progress("%d nodes ready, driver %s registered on each", s.options.Nodes, driver.Name)
	return nil
}

// apiServer starts etcd and the API server.
func (s *starter) apiServer(ctx context.Context) (*plane.Plane, error) {
	servers := s.servers()
	p, err := plane.New(s.dir, s.bin, servers...)
	if err != nil {
		return nil, err
	}
	s.plane = p
	s.update(func(*Status) { s.http = urls(p, servers) })
	p.SetFeatureGates(s.options.FeatureGates)
	if s.options.Audit {
		var readers []string
		for _, name := range Replaceable() {
			readers = append(readers, user(name))
		}
		if err := p.Audit(readers...); err != nil {
			return nil, err
		}
	}
	s.progress("starting etcd and kube-apiserver %s", s.bin.Version)
	for _, spec := range []proc.Spec{p.EtcdSpec(), p.APIServerSpec()} {
		if err := s.launch(ctx, spec); err != nil {
			return nil, err
		}
	}
	s.progress("API server ready at %s", p.Server())
	return p, nil
}

// driver starts the controller side of the driver and learns from it what the objects say of the driver.
func (s *starter) driver(ctx context.Context) (bootstrap.Driver, error) {
	socket := s.dir.ControllerSocket()
	if err := os.MkdirAll(filepath.Dir(socket), 0o700); err != nil {
		return bootstrap.Driver{}, fmt.Errorf("make the directory of the driver's socket: %w", err)
	}
	spec := s.driverSpec(driverController, socket, "controller", "controller")
	if err := s.launch(ctx, spec); err != nil {
		return bootstrap.Driver{}, err
	}
	client, err := csiclient.New(csiclient.Config{Address: socket, Timeout: 5 * time.Second})
	if err != nil {
		return bootstrap.Driver{}, err
	}
	ctx, cancel := context.WithTimeout(ctx, readyTimeout)
	defer cancel()
	info, err := client.Wait(ctx)
	if err != nil {
		return bootstrap.Driver{}, errors.Join(fmt.Errorf("ask the driver for its name: %w", err), client.Close())
	}
	s.progress("driver %s %s answers", info.Name, info.Version)
	s.update(func(st *Status) { st.Driver = info.Name })
	driver := bootstrap.Driver{
		Name: info.Name, Capacity: info.Controller[csi.ControllerServiceCapability_RPC_GET_CAPACITY], File: s.options.CSIDriver,
	}
	return driver, errors.Join(s.dir.Check(info.Name, NodeNames(s.options.Nodes)), client.Close())
}

// servers names the processes that serve HTTP: all of our own.
func (s *starter) servers() []string {
	drivers := s.options.Driver == "" // a driver of the user's may not know the flag
	names := append(s.controllers(), livenessProbe)
	if drivers {
		names = append(names, driverController)
	}
	for _, node := range NodeNames(s.options.Nodes) {
		names = append(names, nodeAgent+"."+node, registrar+"."+node, livenessProbe+"."+node)
		if drivers {
			names = append(names, driverNode+"."+node)
		}
	}
	return names
}

// controllers are the components of the controller side that run.
func (s *starter) controllers() []string {
	return slices.DeleteFunc(Replaceable(), func(name string) bool { return slices.Contains(s.options.Without, name) })
}

func urls(p *plane.Plane, servers []string) map[string]string {
	all := map[string]string{}
	for _, name := range servers {
		all[name] = "http://" + p.Address(name)
	}
	return all
}

func (s *starter) endpoint(name string) string { return "--http-endpoint=" + s.plane.Address(name) }

// defaultDriverFlags are those of the reference driver.
const defaultDriverFlags = "--endpoint={endpoint} --statedir={statedir} --v={v} --mode={mode} --nodeid={node}"

// driverSpec runs the driver for a node, or for the controller.
func (s *starter) driverSpec(name, socket, mode, node string) proc.Spec {
	path := s.options.Driver
	var program []string
	if path == "" {
		path, program = s.self, []string{"run", referenceDriver, s.endpoint(name)}
	}
	flags := strings.Fields(s.options.DriverFlags)
	if len(flags) == 0 {
		flags = strings.Fields(defaultDriverFlags)
		if mode == "controller" {
			flags = append(flags, "--enable-attach=true", "--enable-controller-modify-volume=true")
		}
	}
	values := strings.NewReplacer("{endpoint}", "unix://"+socket, "{statedir}", s.dir.DriverState(), "{v}", strconv.Itoa(s.options.Verbosity), "{mode}", mode, "{node}", node)
	for i := range flags { // a path may have spaces
		flags[i] = values.Replace(flags[i])
	}
	return proc.Spec{Name: name, Path: path, Args: slices.Concat(program, flags), Log: s.dir.Log(name), Ready: socketReady(socket)}
}

func (s *starter) verbosity() string { return "--v=" + strconv.Itoa(s.options.Verbosity) }

// component runs one of our own components, which this very program contains.
func (s *starter) component(name, component string, args ...string) proc.Spec {
	args = append([]string{"run", component, s.verbosity(), s.endpoint(name)}, args...)
	return proc.Spec{Name: name, Path: s.self, Args: args, Log: s.dir.Log(name)}
}

// bootstrap writes the objects that the components rely on.
func (s *starter) bootstrap(ctx context.Context, driver bootstrap.Driver) (*bootstrap.Cluster, error) {
	config, err := clientcmd.BuildConfigFromFlags("", s.dir.Kubeconfig())
	if err != nil {
		return nil, fmt.Errorf("read the kubeconfig: %w", err)
	}
	config.QPS = -1 // a few dozen objects for a server that has nothing else to do
	ctx, cancel := context.WithTimeout(ctx, readyTimeout)
	defer cancel()
	return bootstrap.Apply(ctx, config, driver)
}

// user is how the API server knows a component.
func user(component string) string { return "longshore:" + component }

func (s *starter) sidecars(p *plane.Plane, _ string) ([]proc.Spec, error) {
	var specs []proc.Spec
	for _, name := range Replaceable() {
		kubeconfig, err := p.User(name, user(name))
		if err != nil {
			return nil, err
		}
		if slices.Contains(s.options.Without, name) {
			continue
		}
		spec := s.component(name, name, "--kubeconfig="+kubeconfig, "--leader-election-namespace="+Namespace)
		if name != snapshotController {
			spec.Args = append(spec.Args, "--csi-address="+s.dir.ControllerSocket())
		}
		if name == provisioner { // the objects live as long as the cluster, so that they need no owner
			spec.Args = append(spec.Args, "--enable-capacity", "--capacity-ownerref-level=-1")
			spec.Env = []string{"NAMESPACE=" + Namespace}
		}
		specs = append(specs, spec)
	}
	return append(specs, s.component(livenessProbe, livenessProbe, "--csi-address="+s.dir.ControllerSocket())), nil
}

func (s *starter) nodes(p *plane.Plane, driver string) ([]proc.Spec, error) {
	var specs []proc.Spec
	for _, node := range NodeNames(s.options.Nodes) {
		socket, registry := s.dir.NodeSocket(node, driver), s.dir.Registry(node)
		for _, dir := range []string{filepath.Dir(socket), registry} {
			if err := os.MkdirAll(dir, 0o755); err != nil {
				return nil, fmt.Errorf("make the directories of %s: %w", node, err)
			}
		}
		kubeconfig, err := p.User(node, "system:node:"+node, "system:nodes")
		if err != nil {
			return nil, err
		}
		specs = append(specs,
			s.driverSpec(driverNode+"."+node, socket, "node", node),
			s.component(nodeAgent+"."+node, nodeAgent, "--kubeconfig="+kubeconfig, "--node-name="+node, "--root-dir="+s.dir.Node(node),
				"--sync-frequency="+claimInterval),
			s.component(registrar+"."+node, registrar, "--csi-address="+socket, "--kubelet-registration-path="+socket, "--plugin-registration-path="+registry),
			s.component(livenessProbe+"."+node, livenessProbe, "--csi-address="+socket),
		)
	}
	return specs, nil
}

// claimInterval is how often a node looks at the claims of its mounted volumes, for expansions: someone is waiting for it.
const claimInterval = "5s"

// socketReady makes a readiness check: the socket is there. Whether the driver behind it works is its client's question.
func socketReady(path string) func(context.Context) error {
	return func(context.Context) error {
		_, err := os.Stat(path)
		return err
	}
}
