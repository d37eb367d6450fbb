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

	"k8s.io/client-go/tools/clientcmd"

	"github.com/longshore-csi/longshore/csikit/csiclient"
	"github.com/longshore-csi/longshore/devcluster/internal/bootstrap"
	"github.com/longshore-csi/longshore/devcluster/internal/build"
	"github.com/longshore-csi/longshore/devcluster/internal/plane"
	"github.com/longshore-csi/longshore/devcluster/internal/proc"
)

// Names of the processes that are not the control plane's. Those of the second driver are followed by "-2", and those of a node by "." and the
// node's name.
const (
	driverController = "driver-controller"
	driverNode       = "driver"
	nodeAgent        = "csi-node-agent"
	nodesWithDriver  = "csi-nodes" // node agents and their reference drivers in one process
	registrar        = "csi-node-driver-registrar"
	provisioner      = "csi-provisioner"
	attacher         = "csi-attacher"
	resizer          = "csi-resizer"
	snapshotter      = "csi-snapshotter"
	// snapshotController is of the cluster, for all drivers.
	snapshotController = "snapshot-controller"
	livenessProbe      = "livenessprobe" // of the driver for the cluster; those of the nodes' drivers are followed by their node
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
	drivers, err := s.startDrivers(ctx)
	if err != nil {
		return err
	}
	boot, err := s.bootstrap(ctx, drivers)
	if err != nil {
		return err
	}
	s.progress("starting %s and %d nodes", strings.Join(append([]string{plane.ControllerManager, plane.Scheduler}, s.controllers()...), ", "), s.options.Nodes)
	specs := []proc.Spec{p.ControllerManagerSpec(), p.SchedulerSpec()}
	for _, specify := range []func(*plane.Plane, []driver) ([]proc.Spec, error){s.sidecars, s.nodes} {
		more, err := specify(p, drivers)
		if err != nil {
			return err
		}
		specs = append(specs, more...)
	}
	if err := s.launch(ctx, specs...); err != nil {
		return err
	}
	for _, d := range drivers {
		if err := boot.WaitNodes(ctx, NodeNames(s.options.Nodes), d.info.Name); err != nil {
			return err
		}
		s.progress("%d nodes ready, driver %s registered on each", s.options.Nodes, d.info.Name)
	}
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
	p.SetSelfAttach(s.options.SelfAttach != "")
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

// startDrivers starts the drivers that the options ask for, as far as they can run before their names are known.
func (s *starter) startDrivers(ctx context.Context) ([]driver, error) {
	drivers := s.options.drivers()
	for i := range drivers {
		d := &drivers[i]
		if err := s.startDriver(ctx, d); err != nil {
			return nil, err
		}
		if slices.ContainsFunc(drivers[:i], func(other driver) bool { return other.info.Name == d.info.Name }) {
			return nil, fmt.Errorf("--driver=%s: answers the name %q, as a --driver before it: each driver must have a name of its own", d.Path, d.info.Name)
		}
		s.progress("driver %s %s answers", d.info.Name, d.info.Version)
		s.update(func(st *Status) { st.Drivers = append(slices.Clone(st.Drivers), d.info.Name) })
	}
	return drivers, nil
}

// startDriver starts the controller side of a driver, or the driver on each node if that serves both, and learns what it is.
func (s *starter) startDriver(ctx context.Context, d *driver) error {
	socket, nodes := s.dir.ControllerSocket(d.suffix), NodeNames(s.options.Nodes)
	if err := os.MkdirAll(filepath.Dir(socket), 0o700); err != nil {
		return fmt.Errorf("make the directory of the driver's socket: %w", err)
	}
	specs, err := s.firstSpecs(*d)
	if err != nil {
		return err
	}
	if err := s.launch(ctx, specs...); err != nil {
		return err
	}
	client, err := csiclient.New(csiclient.Config{Address: socket, Timeout: 5 * time.Second})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, readyTimeout)
	defer cancel()
	info, err := client.Wait(ctx)
	if err != nil {
		log := specs[0].Log
		return errors.Join(fmt.Errorf("ask the driver for its name: %w; its log is %s%s", err, log, proc.LastLines(log)), client.Close())
	}
	d.info = *info
	return errors.Join(s.dir.Check(d.info.Name, nodes), client.Close())
}

// firstSpecs runs those processes of a driver that answer at the socket of its controller side, and makes their directories.
func (s *starter) firstSpecs(d driver) ([]proc.Spec, error) {
	nodes := NodeNames(s.options.Nodes)
	var specs []proc.Spec
	var dirs []string
	if d.split() {
		specs, dirs = append(specs, s.controllerSpec(d)), append(dirs, s.stateDir(d, ""))
	} else {
		for _, node := range nodes {
			specs, dirs = append(specs, s.nodeSpec(d, node)), append(dirs, filepath.Dir(s.nodeSocket(d, node)), s.ownStateDir(d, node))
		}
		if err := os.Symlink(s.nodeSocket(d, nodes[0]), s.dir.ControllerSocket(d.suffix)); err != nil {
			return nil, fmt.Errorf("link the socket of the driver's controller side: %w", err)
		}
	}
	for _, dir := range dirs {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return nil, fmt.Errorf("make the directories of the driver: %w", err)
		}
	}
	return specs, nil
}

// servers names the processes that serve HTTP: all of our own. Which of them run for a driver is known when the driver has answered.
func (s *starter) servers() []string {
	var names []string
	nodes := NodeNames(s.options.Nodes)
	for _, a := range s.options.agents() {
		names = append(names, a.process)
	}
	if !slices.Contains(s.options.Without, snapshotController) {
		names = append(names, snapshotController)
	}
	for _, d := range s.options.drivers() {
		sidecars := slices.DeleteFunc(s.controllers(), func(name string) bool { return name == snapshotController })
		cluster, each := append(slices.Clone(sidecars), livenessProbe), []string{registrar, livenessProbe}
		if s.options.inAgent(d) {
			each = nil
		}
		if !d.split() {
			each = append(each, provisioner, snapshotter)
		}
		if d.Path == "" { // another driver may not know the flag
			cluster = append(cluster, driverController)
		}
		if d.Path == "" && !s.options.inAgent(d) {
			each = append(each, driverNode)
		}
		for _, name := range cluster {
			names = append(names, d.process(name, ""))
		}
		for _, name := range each {
			for _, node := range nodes {
				names = append(names, d.process(name, node))
			}
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

func (s *starter) verbosity() string { return "--v=" + strconv.Itoa(s.options.Verbosity) }

// component runs one of our own components, which this very program contains.
func (s *starter) component(name, component string, args ...string) proc.Spec {
	args = append([]string{"run", component, s.verbosity(), s.endpoint(name)}, args...)
	return proc.Spec{Name: name, Path: s.self, Args: args, Log: s.dir.Log(name)}
}

// bootstrap writes the objects that the components rely on.
func (s *starter) bootstrap(ctx context.Context, drivers []driver) (*bootstrap.Cluster, error) {
	config, err := clientcmd.BuildConfigFromFlags("", s.dir.Kubeconfig())
	if err != nil {
		return nil, fmt.Errorf("read the kubeconfig: %w", err)
	}
	config.QPS = -1 // a few dozen objects for a server that has nothing else to do
	ctx, cancel := context.WithTimeout(ctx, readyTimeout)
	defer cancel()
	all := make([]bootstrap.Driver, 0, len(drivers))
	for _, d := range drivers {
		all = append(all, bootstrap.Driver{Info: d.info, Reference: d.Path == "", File: d.CSIDriver, ClassFile: d.StorageClass})
	}
	return bootstrap.Apply(ctx, bootstrap.Config{REST: config, SelfAttach: s.options.SelfAttach != ""}, all...)
}

// user is how the API server knows a component.
func user(component string) string { return "longshore:" + component }

func (s *starter) sidecars(p *plane.Plane, drivers []driver) ([]proc.Spec, error) {
	var specs []proc.Spec
	for _, name := range Replaceable() {
		kubeconfig, err := p.User(name, user(name))
		if err != nil {
			return nil, err
		}
		if slices.Contains(s.options.Without, name) {
			continue
		}
		if name == snapshotController {
			specs = append(specs, s.component(name, name, s.snapshotControllerArgs(kubeconfig, drivers)...))
			continue
		}
		for _, d := range drivers {
			specs = append(specs, s.sidecar(d, name, kubeconfig)...)
		}
	}
	for _, d := range drivers {
		if d.split() {
			specs = append(specs, s.component(d.process(livenessProbe, ""), livenessProbe, "--csi-address="+s.dir.ControllerSocket(d.suffix)))
		}
	}
	return specs, nil
}

func (s *starter) snapshotControllerArgs(kubeconfig string, drivers []driver) []string {
	args := []string{"--kubeconfig=" + kubeconfig, "--leader-election-namespace=" + Namespace}
	if slices.ContainsFunc(drivers, func(d driver) bool { return d.onEachNode(snapshotter) }) {
		args = append(args, "--enable-distributed-snapshotting")
	}
	return args
}

// sidecar runs a sidecar for a driver: beside its controller side, or on each node.
func (s *starter) sidecar(d driver, name, kubeconfig string) []proc.Spec {
	args := []string{"--kubeconfig=" + kubeconfig}
	var env []string
	if name == provisioner { // the objects live as long as the cluster, so that they need no owner
		args = append(args, "--enable-capacity", "--capacity-ownerref-level=-1")
		env = []string{"NAMESPACE=" + Namespace}
	}
	if !d.onEachNode(name) {
		spec := s.component(d.process(name, ""), name, append(args, "--leader-election-namespace="+Namespace, "--csi-address="+s.dir.ControllerSocket(d.suffix))...)
		spec.Env = env
		return []proc.Spec{spec}
	}
	args = append(args, "--node-deployment")
	if name == provisioner {
		args = append(args, "--node-deployment-base-delay=1s", "--node-deployment-max-delay=10s")
	}
	var specs []proc.Spec
	for _, node := range NodeNames(s.options.Nodes) {
		spec := s.component(d.process(name, node), name, append(slices.Clone(args), "--csi-address="+s.nodeSocket(d, node))...)
		spec.Env = append(slices.Clone(env), "NODE_NAME="+node)
		specs = append(specs, spec)
	}
	return specs
}

// socketReady makes a readiness check: the socket is there. Whether the driver behind it works is its client's question.
func socketReady(path string) func(context.Context) error {
	return func(context.Context) error {
		_, err := os.Stat(path)
		return err
	}
}
