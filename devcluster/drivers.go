package devcluster

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/longshore-csi/longshore/csikit/csiclient"
	"github.com/longshore-csi/longshore/devcluster/internal/bootstrap"
	"github.com/longshore-csi/longshore/devcluster/internal/proc"
)

// Driver says how to run a CSI driver.
type Driver struct {
	// Path is the program; empty: the reference driver that is built in, for which the other fields must be empty, too.
	Path string
	// Flags are separated by spaces. {endpoint}, {node}, {mode}, {statedir} and {v} are replaced. If they contain {mode}, a process of mode
	// controller serves the cluster, and one of mode node each node; otherwise each node has one process for all services.
	Flags string
	// CSIDriver is a file with the CSIDriver object; empty: an object is made from the capabilities of the driver.
	CSIDriver string
	// StorageClass is a file with StorageClasses; empty: one with the name of the driver is made if the driver creates volumes.
	StorageClass string
}

// referenceFlags are those of the reference driver.
const referenceFlags = "--endpoint={endpoint} --statedir={statedir} --v={v} --mode={mode} --nodeid={node}"

// environmentHelp names the variables that driverEnv sets.
const environmentHelp = "CSI_ENDPOINT, NODE_ID, NODE_NAME, KUBE_NODE_NAME, STATE_DIR and KUBELET_DIR"

// addDriverFlags adds --driver, which may be repeated, and the flags that belong to the --driver before them.
func (o *Options) addDriverFlags(fs *flag.FlagSet) {
	fs.Func("driver", "`program` of a CSI driver (empty: the reference driver, which runs if there is no --driver); may be repeated; its environment has "+environmentHelp, func(path string) error {
		o.Drivers = append(o.Drivers, Driver{Path: path})
		return nil
	})
	add := func(name, help string, field func(*Driver) *string) {
		fs.Func(name, help, func(text string) error {
			if len(o.Drivers) == 0 {
				return errors.New("must come after the --driver that it belongs to")
			}
			value := field(&o.Drivers[len(o.Drivers)-1])
			if *value != "" {
				return errors.New("must be given at most once after each --driver")
			}
			*value = text
			return nil
		})
	}
	add("driver-flags", "`flags` of the --driver before, separated by spaces; {endpoint}, {node}, {statedir}, {v} and {mode} are replaced. With {mode}, a process of mode controller serves the cluster, and one of mode node each node; without it each node has one process for all services",
		func(d *Driver) *string { return &d.Flags })
	add("csidriver", "`file` with the CSIDriver object of the --driver before (empty: made from the capabilities of the driver)", func(d *Driver) *string { return &d.CSIDriver })
	add("storageclass", "`file` with StorageClasses of the --driver before (empty: one with the name of the driver, which waits for the first consumer)", func(d *Driver) *string { return &d.StorageClass })
}

// args renders the driver as flags.
func (d Driver) args() []string {
	args := []string{"--driver=" + d.Path}
	for _, f := range [][2]string{{"--driver-flags=", d.Flags}, {"--csidriver=", d.CSIDriver}, {"--storageclass=", d.StorageClass}} {
		if f[1] != "" {
			args = append(args, f[0]+f[1])
		}
	}
	return args
}

func (d Driver) check() error {
	if d.Path == "" {
		if d != (Driver{}) {
			return errors.New("--driver-flags, --csidriver and --storageclass: must come after a --driver with a program: the reference driver has its own")
		}
		return nil
	}
	var errs []error
	info, err := os.Stat(d.Path)
	if err == nil && (info.IsDir() || info.Mode()&0o111 == 0) {
		err = errors.New("not a program")
	}
	if err != nil {
		errs = append(errs, fmt.Errorf("--driver=%s: %w", d.Path, err))
	}
	if d.CSIDriver != "" {
		if _, err := bootstrap.ReadCSIDriver(d.CSIDriver); err != nil {
			errs = append(errs, fmt.Errorf("--csidriver: %w", err))
		}
	}
	if d.StorageClass != "" {
		if _, err := bootstrap.ReadStorageClasses(d.StorageClass); err != nil {
			errs = append(errs, fmt.Errorf("--storageclass: %w", err))
		}
	}
	return errors.Join(errs...)
}

// driver is a driver of this cluster.
type driver struct {
	Driver
	// suffix follows the names of the driver's processes and directories: nothing for the first driver, "-2" for the second.
	suffix string
	// info is what the driver answers, once it runs.
	info csiclient.Info
}

// drivers are those that the options ask for.
func (o *Options) drivers() []driver {
	if len(o.Drivers) == 0 {
		return []driver{{}}
	}
	all := make([]driver, 0, len(o.Drivers))
	for i, d := range o.Drivers {
		all = append(all, driver{Driver: d})
		if i > 0 {
			all[i].suffix = "-" + strconv.Itoa(i+1)
		}
	}
	return all
}

func (d driver) flags() string {
	if d.Path == "" {
		return referenceFlags
	}
	return d.Flags
}

// split reports whether the driver has a process for the controller, beside those of the nodes.
func (d driver) split() bool { return strings.Contains(d.flags(), "{mode}") }

// onEachNode reports whether a sidecar runs on each node: the process of a node makes volumes and snapshots for that node alone.
func (d driver) onEachNode(sidecar string) bool {
	return !d.split() && (sidecar == provisioner || sidecar == snapshotter) && d.info.Plugin[csi.PluginCapability_Service_VOLUME_ACCESSIBILITY_CONSTRAINTS]
}

// process is the name of a process of the driver, of a node or, without one, of the cluster.
func (d driver) process(name, node string) string {
	if name += d.suffix; node != "" {
		name += "." + node
	}
	return name
}

// nodeSocket is where the driver listens for the agent of a node. A driver without a process for the controller is started before its name is
// known.
func (s *starter) nodeSocket(d driver, node string) string {
	if d.split() {
		return s.dir.NodeSocket(node, d.info.Name)
	}
	return s.dir.NodeSocket(node, d.process(driverNode, ""))
}

// ownStateDir is the directory of a process alone.
func (s *starter) ownStateDir(d driver, node string) string {
	return filepath.Join(s.dir.DriverState(d.suffix), node)
}

// stateDir is what {statedir} is replaced by: all processes of a split driver share one, as those of the reference driver do.
func (s *starter) stateDir(d driver, node string) string {
	if d.split() {
		return s.dir.DriverState(d.suffix)
	}
	return s.ownStateDir(d, node)
}

// controllerSpec runs the driver for the cluster.
func (s *starter) controllerSpec(d driver) proc.Spec {
	return s.driverSpec(d, d.process(driverController, ""), s.dir.ControllerSocket(d.suffix), "controller", "controller")
}

// nodeSpec runs the driver for a node.
func (s *starter) nodeSpec(d driver, node string) proc.Spec {
	mode := "all"
	if d.split() {
		mode = "node"
	}
	return s.driverSpec(d, d.process(driverNode, node), s.nodeSocket(d, node), mode, node)
}

func (s *starter) driverSpec(d driver, name, socket, mode, node string) proc.Spec {
	path, args := d.Path, strings.Fields(d.flags())
	if path == "" {
		path, args = s.self, append([]string{"run", referenceDriver, s.endpoint(name)}, args...)
		if mode == "controller" {
			args = append(args, "--enable-attach=true", "--enable-controller-modify-volume=true")
		}
	}
	endpoint := "unix://" + socket
	values := strings.NewReplacer("{endpoint}", endpoint, "{statedir}", s.stateDir(d, node), "{v}", strconv.Itoa(s.options.Verbosity), "{mode}", mode, "{node}", node)
	for i := range args { // a path may have spaces
		args[i] = values.Replace(args[i])
	}
	return proc.Spec{
		Name: name, Path: path, Args: args, Log: s.dir.Log(name), Ready: socketReady(socket),
		Env: []string{"CSI_ENDPOINT=" + endpoint, "NODE_ID=" + node, "NODE_NAME=" + node, "KUBE_NODE_NAME=" + node, "STATE_DIR=" + s.ownStateDir(d, node), "KUBELET_DIR=" + s.dir.Node(node)},
	}
}
