package devcluster

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/longshore-csi/longshore/devcluster/internal/build"
	"github.com/longshore-csi/longshore/devcluster/internal/layout"
)

// maxNodes is the largest cluster that was tried: it is up in half a minute on two cores and takes 3 GiB, 26 MiB for each node. Kernels
// that allow 128 inotify instances per user, the default of many, set the next limit: each node agent has one.
const maxNodes = 100

// maxSharedNodes is the largest cluster of one process for all nodes that was tried.
const maxSharedNodes = 200

// Options say what cluster to start. NewOptions fills the defaults.
type Options struct {
	// Dir is the directory of the cluster: state, sockets, logs, the nodes' root directories and the volumes' data. It is
	// removed by Down.
	Dir string
	// Nodes is how many nodes there are, each with its drivers.
	Nodes int
	// NodesPerAgent is how many nodes one process of the node agent is; 0 means 1. With more than one, the reference driver of each node is in that process, too;
	// other drivers are processes of their own, with a registrar each, as with one.
	NodesPerAgent int
	// MaxPods is the maximum number of pods on a node; 0: that of the node agent.
	MaxPods int
	// Drivers are the CSI drivers; none: the reference driver alone.
	Drivers []Driver
	// ControlPlane is the directory with the go.mod that pins the control plane. Empty: devcluster/controlplane in the
	// checkout around the working directory.
	ControlPlane string
	// Cache is the directory for the programs of the control plane.
	Cache string
	// KubernetesURL and EtcdURL are the servers from which the programs of the control plane are downloaded when the cache has none.
	// Empty: they are built from the pinned modules.
	KubernetesURL, EtcdURL string
	// Verbosity is the log level of the components.
	Verbosity int
	// Audit makes the API server log every write with its user, and what the components of Replaceable read, in the log "audit".
	Audit bool
	// FeatureGates are those of the control plane, as "Name=true,Other=false".
	FeatureGates string
	// SelfAttach has the node agents attach volumes, with names csi or pv (`csi-node-agent --self-attach`), and kube-controller-manager run without the
	// attach/detach controller. Empty: that controller does it.
	SelfAttach string
	// Without names components of Replaceable that do not run, for those who run their own. Their users, with rights and kubeconfigs, exist.
	Without []string
}

// Replaceable are the components of the controller side, which Options.Without may name.
func Replaceable() []string {
	return []string{provisioner, attacher, resizer, snapshotter, snapshotController}
}

// NewOptions returns the defaults: three nodes and the built-in driver. The environment variables LONGSHORE_KUBERNETES_URL and
// LONGSHORE_ETCD_URL replace the default servers.
func NewOptions() (Options, error) {
	dir, noDir := layout.Default()
	cache, noCache := layout.Cache()
	servers := build.DefaultServers()
	return Options{
		Dir: string(dir), Nodes: 3, NodesPerAgent: 1, Cache: cache, KubernetesURL: servers.Kubernetes, EtcdURL: servers.Etcd, Verbosity: 2,
	}, errors.Join(noDir, noCache)
}

// AddDirFlag adds the one flag that all commands share.
func (o *Options) AddDirFlag(fs *flag.FlagSet) {
	fs.StringVar(&o.Dir, "dir", o.Dir, "directory of the cluster")
}

// AddFlags adds all flags.
func (o *Options) AddFlags(fs *flag.FlagSet) {
	o.AddDirFlag(fs)
	fs.IntVar(&o.Nodes, "nodes", o.Nodes, fmt.Sprintf("number of nodes, at most %d, or %d with --nodes-per-agent", maxNodes, maxSharedNodes))
	fs.IntVar(&o.NodesPerAgent, "nodes-per-agent", o.NodesPerAgent, "number of nodes that are one process; with more than 1, each of them with its reference driver")
	fs.IntVar(&o.MaxPods, "max-pods", o.MaxPods, "maximum number of pods on each node (0: that of csi-node-agent, 110)")
	o.addDriverFlags(fs)
	fs.StringVar(&o.ControlPlane, "controlplane", o.ControlPlane, "directory with the go.mod that pins the control plane (empty: devcluster/controlplane in the checkout around the working directory)")
	fs.StringVar(&o.Cache, "cache", o.Cache, "directory for the programs of the control plane")
	fs.StringVar(&o.KubernetesURL, "kubernetes-url", o.KubernetesURL, "base URL of published Kubernetes programs, as https://dl.k8s.io/release (empty: build them; default: $LONGSHORE_KUBERNETES_URL)")
	fs.StringVar(&o.EtcdURL, "etcd-url", o.EtcdURL, "base URL of published etcd archives, as https://github.com/etcd-io/etcd/releases/download (empty: build etcd; default: $LONGSHORE_ETCD_URL)")
	fs.IntVar(&o.Verbosity, "v", o.Verbosity, "log level of the components")
	fs.BoolVar(&o.Audit, "audit", o.Audit, "log every API write with its user, and the reads of "+strings.Join(Replaceable(), ", ")+" (devcluster logs audit)")
	fs.StringVar(&o.FeatureGates, "feature-gates", o.FeatureGates, "feature gates of kube-apiserver, kube-controller-manager and kube-scheduler, as Name=true,Other=false")
	fs.StringVar(&o.SelfAttach, "self-attach", o.SelfAttach, "`names` of the VolumeAttachments that the node agents create, csi or pv, without the attach/detach controller (empty: with it)")
	fs.Func("without", "comma-separated `components` that do not run, for those who run their own as one of DIR/users/NAME.kubeconfig: "+strings.Join(Replaceable(), ", "), func(names string) error {
		o.Without = strings.FieldsFunc(names, func(r rune) bool { return r == ',' })
		return nil
	})
}

// Args renders the options as flags, so that another process gets the same.
func (o *Options) Args() []string {
	args := []string{
		"--dir=" + o.Dir, "--nodes=" + strconv.Itoa(o.Nodes), "--nodes-per-agent=" + strconv.Itoa(o.NodesPerAgent), "--max-pods=" + strconv.Itoa(o.MaxPods),
		"--controlplane=" + o.ControlPlane, "--cache=" + o.Cache,
		"--kubernetes-url=" + o.KubernetesURL, "--etcd-url=" + o.EtcdURL, "--v=" + strconv.Itoa(o.Verbosity), "--audit=" + strconv.FormatBool(o.Audit), "--feature-gates=" + o.FeatureGates,
		"--self-attach=" + o.SelfAttach,
		"--without=" + strings.Join(o.Without, ","),
	}
	for _, d := range o.Drivers {
		args = append(args, d.args()...)
	}
	return args
}

// Complete makes paths absolute, resolves the links of the cluster's directory and finds the pins of the control plane.
func (o *Options) Complete() error {
	if o.Dir != "" {
		var err error
		if o.Dir, err = layout.Resolve(o.Dir); err != nil {
			return err
		}
	}
	if o.ControlPlane == "" {
		o.ControlPlane = findUpwards(filepath.Join("devcluster", "controlplane", "go.mod"))
	}
	paths := []*string{&o.ControlPlane, &o.Cache}
	for i := range o.Drivers {
		paths = append(paths, &o.Drivers[i].Path, &o.Drivers[i].CSIDriver, &o.Drivers[i].StorageClass)
	}
	for _, path := range paths {
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
		errs = append(errs, fmt.Errorf("%w: the control plane is built from source where it cannot be downloaded; install Go or add it to PATH (sudo resets PATH)", err))
	}
	return errors.Join(errs...)
}

func (o *Options) check() error {
	var errs []error
	errs = append(errs, o.checkNodes())
	if o.Verbosity < 0 {
		errs = append(errs, fmt.Errorf("--v=%d: must not be negative", o.Verbosity))
	}
	if !slices.Contains([]string{"", "csi", "pv"}, o.SelfAttach) {
		errs = append(errs, fmt.Errorf("--self-attach=%s: must be csi, pv or empty", o.SelfAttach))
	}
	for _, d := range o.Drivers {
		errs = append(errs, d.check())
	}
	for _, name := range o.Without {
		if !slices.Contains(Replaceable(), name) {
			errs = append(errs, fmt.Errorf("--without=%s: must be of %s", name, strings.Join(Replaceable(), ", ")))
		}
	}
	return errors.Join(append(errs, layout.Dir(o.Dir).Check(defaultDriver, NodeNames(o.Nodes)))...)
}

func (o *Options) checkNodes() error {
	var errs []error
	limit, why := maxNodes, "each node is four processes with about 26 MiB in all (--nodes-per-agent makes many nodes one process)"
	if o.NodesPerAgent > 1 && !slices.ContainsFunc(o.Drivers, func(d Driver) bool { return d.Path != "" }) {
		limit, why = maxSharedNodes, "each node takes memory"
	}
	if o.Nodes < 1 || o.Nodes > limit {
		errs = append(errs, fmt.Errorf("--nodes=%d: must be between 1 and %d: %s, and larger clusters are not tested", o.Nodes, limit, why))
	}
	if o.NodesPerAgent < 0 {
		errs = append(errs, fmt.Errorf("--nodes-per-agent=%d: must not be negative", o.NodesPerAgent))
	}
	if o.MaxPods < 0 {
		errs = append(errs, fmt.Errorf("--max-pods=%d: must not be negative", o.MaxPods))
	}
	return errors.Join(errs...)
}

// nodePrefix is that of the names of nodes.
const nodePrefix = "node"

// NodeNames are the names that the nodes of a cluster of this size get.
func NodeNames(n int) []string {
	names := make([]string, 0, max(0, n))
	for i := range max(0, n) {
		names = append(names, fmt.Sprintf("%s-%d", nodePrefix, i+1))
	}
	return names
}
