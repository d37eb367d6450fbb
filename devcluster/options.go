package devcluster

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"

	"github.com/longshore-csi/longshore/devcluster/internal/layout"
)

const maxNodes = 1000

// Options say what cluster to start. NewOptions fills the defaults.
type Options struct {
	// Dir is the directory of the cluster: state, sockets, logs, the nodes' root directories and the volumes' data. It is
	// removed by Down.
	Dir string
	// Nodes is how many node agents run, each with a driver and a registrar.
	Nodes int
	// Driver is the program of the CSI driver; empty: the reference driver that is built in.
	Driver string
	// ControlPlane is the directory with the go.mod that pins the control plane. Empty: devcluster/controlplane in the
	// checkout around the working directory.
	ControlPlane string
	// Cache is the directory for built binaries.
	Cache string
	// Verbosity is the log level of the components.
	Verbosity int
	// Audit makes the API server log every write with its user, and what csi-provisioner and csi-attacher read, in the log "audit".
	Audit bool
}

// NewOptions returns the defaults: three nodes and the built-in driver.
func NewOptions() (Options, error) {
	dir, noDir := layout.Default()
	cache, noCache := layout.Cache()
	return Options{Dir: string(dir), Nodes: 3, Cache: cache, Verbosity: 2}, errors.Join(noDir, noCache)
}

// AddDirFlag adds the one flag that all commands share.
func (o *Options) AddDirFlag(fs *flag.FlagSet) {
	fs.StringVar(&o.Dir, "dir", o.Dir, "directory of the cluster")
}

// AddFlags adds all flags.
func (o *Options) AddFlags(fs *flag.FlagSet) {
	o.AddDirFlag(fs)
	fs.IntVar(&o.Nodes, "nodes", o.Nodes, "number of nodes")
	fs.StringVar(&o.Driver, "driver", o.Driver, "program of the CSI driver; it gets the flags of the reference driver (empty: the reference driver itself)")
	fs.StringVar(&o.ControlPlane, "controlplane", o.ControlPlane, "directory with the go.mod that pins the control plane (empty: devcluster/controlplane in the checkout around the working directory)")
	fs.StringVar(&o.Cache, "cache", o.Cache, "directory for the built control plane")
	fs.IntVar(&o.Verbosity, "v", o.Verbosity, "log level of the components")
	fs.BoolVar(&o.Audit, "audit", o.Audit, "log every API write and who made it, and what provisioner and attacher read (devcluster logs audit)")
}

// Args renders the options as flags, so that another process gets the same.
func (o *Options) Args() []string {
	return []string{
		"--dir=" + o.Dir, "--nodes=" + strconv.Itoa(o.Nodes), "--driver=" + o.Driver,
		"--controlplane=" + o.ControlPlane, "--cache=" + o.Cache, "--v=" + strconv.Itoa(o.Verbosity), "--audit=" + strconv.FormatBool(o.Audit),
	}
}

// Complete makes paths absolute and finds the pins of the control plane.
func (o *Options) Complete() error {
	if o.ControlPlane == "" {
		o.ControlPlane = findUpwards(filepath.Join("devcluster", "controlplane", "go.mod"))
	}
	for _, path := range []*string{&o.Dir, &o.ControlPlane, &o.Cache, &o.Driver} {
		if *path == "" {
			continue
		}
		abs, err := filepath.Abs(*path)
		if err != nil {
			return fmt.Errorf("make %q absolute: %w", *path, err)
		}
		*path = abs
	}
	return nil
}

// Validate reports everything that is wrong with the options, and what this machine or its user lacks to run a cluster.
func (o *Options) Validate() error {
	return errors.Join(o.check(), host{user: os.Geteuid(), lookPath: exec.LookPath}.check())
}

// host is what a cluster needs of the machine.
type host struct {
	user     int
	lookPath func(program string) (string, error)
}

func (h host) check() error {
	var errs []error
	if h.user != 0 {
		errs = append(errs, fmt.Errorf("user %d: a cluster mounts volumes, which needs root; run devcluster as root, for example by `sudo env PATH=\"$PATH\" devcluster up`", h.user))
	}
	if _, err := h.lookPath("go"); err != nil {
		errs = append(errs, fmt.Errorf("%w: the control plane is built from source; install Go or add it to PATH (sudo resets PATH)", err))
	}
	return errors.Join(errs...)
}

func (o *Options) check() error {
	var errs []error
	if o.Nodes < 1 || o.Nodes > maxNodes {
		errs = append(errs, fmt.Errorf("--nodes=%d: must be between 1 and %d", o.Nodes, maxNodes))
	}
	if o.Verbosity < 0 {
		errs = append(errs, fmt.Errorf("--v=%d: must not be negative", o.Verbosity))
	}
	if o.Driver != "" {
		info, err := os.Stat(o.Driver)
		if err == nil && (info.IsDir() || info.Mode()&0o111 == 0) {
			err = errors.New("not a program")
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("--driver=%s: %w", o.Driver, err))
		}
	}
	return errors.Join(append(errs, layout.Dir(o.Dir).Check(defaultDriver, NodeNames(o.Nodes)))...)
}

// NodeNames are the names that the nodes of a cluster of this size get.
func NodeNames(n int) []string {
	names := make([]string, 0, max(0, n))
	for i := range max(0, n) {
		names = append(names, fmt.Sprintf("node-%d", i+1))
	}
	return names
}
