// Package agent is a node of a real API server without a kubelet: it stages and publishes the CSI
// volumes of the pods that the control plane schedules to the node, in the kubelet's directory
// layout, and takes them down again, by package kubeletplugin. The binary csi-node-agent runs it.
//
// There is no container runtime. Pods are reported as running once their volumes are published,
// so drivers can be developed and load-tested with many nodes on one machine. Do not use it to run
// containers.
package agent

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/longshore-csi/longshore/csikit/flagset"
	"github.com/longshore-csi/longshore/kubeletplugin/internal/nodeinfo"
	"github.com/longshore-csi/longshore/kubeletplugin/internal/selfattach"
	"github.com/longshore-csi/longshore/kubeletplugin/resolve"
)

// Options configure one node agent. NewOptions returns the defaults.
type Options struct {
	// Kube says how the API server is reached. The credentials should be the node's:
	// system:node:<name> of the group system:nodes.
	Kube flagset.Kube
	// HTTP is where metrics, health and state are served.
	HTTP flagset.HTTP
	// Registerer receives the metrics, each with the label node, instead of the registry that HTTP serves: several
	// agents of one process can share it. Each of them can be run once. Nil (the default): the agent's own registry.
	Registerer prometheus.Registerer

	// NodeName is the name of the Node object; not used if Nodes is greater than 1.
	NodeName string
	// Nodes is how many nodes the process is, each with a directory of its name below RootDir. With more than one the credentials must have the right to
	// impersonate them, and to watch Nodes, Pods and CSIDriver objects.
	Nodes int
	// NodePrefix is that of the names of several nodes, which end with -0, -1 and so on, counted from FirstNode.
	NodePrefix string
	// FirstNode is the number in the name of the first of several nodes.
	FirstNode int
	// Hostname is the hostname label and address of the node; empty: NodeName.
	Hostname string
	// NodeIP is the internal address of the node; empty: the first address of the machine that
	// is not a loopback address.
	NodeIP string
	// NodeLabels are added to the Node.
	NodeLabels Labels
	// Taints are set when the Node is registered.
	Taints Taints
	// MaxPods is the maximum number of pods on the node.
	MaxPods int
	// CPU, Memory and Storage are the capacity for the scheduler; empty: the machine's.
	CPU, Memory, Storage Quantity

	// RootDir is the kubelet's root directory, with pods, plugins and plugins_registry.
	RootDir string
	// RegistryDirs are watched for registration sockets besides <RootDir>/plugins_registry.
	RegistryDirs Paths
	// Drivers returns the CSI drivers of a node that run in this process, besides those that registrars register; nil: none does. rootDir is the kubelet's
	// root directory of the node.
	Drivers func(node, rootDir string) []Driver
	// StaticDrivers are the sockets of drivers that no registrar announces, by their names: absolute paths.
	StaticDrivers Sockets
	// AllowedDrivers are the drivers that inline volumes may name.
	AllowedDrivers resolve.AllowedDrivers
	// SelfAttach has the agent create and delete VolumeAttachments itself, for clusters whose attach/detach controller is off: csi or pv, for the names that
	// the controller gives to them, or the seeds. Empty: the controller does it.
	SelfAttach string
	// TopologyCollision is the action if a topology label already has another value: fail or overwrite.
	TopologyCollision string

	// CSINodeLinger is how long a driver that has deregistered keeps its entry in the CSINode, with its volume limit; 0: it does not.
	CSINodeLinger time.Duration
	// CSITimeout is the deadline of one operation on a volume, with all its calls.
	CSITimeout time.Duration
	// StatusFrequency is how often the status of the Node is computed; it is written if it has changed.
	StatusFrequency time.Duration
	// LeaseSeconds is for how long the node counts as alive after a renewal of its Lease.
	LeaseSeconds int
	// SyncFrequency is how often each pod is checked although nothing has changed. The claim of each mounted volume is read, and
	// NodePublishVolume is repeated for drivers with requiresRepublish, as often or up to half as long again at random: a node may
	// not watch claims for expansions.
	SyncFrequency time.Duration
	// VolumeStatsPeriod is how often drivers are asked for the usage and the health of each volume, and up to as long again at random; never if
	// negative.
	VolumeStatsPeriod time.Duration
	// Workers is the maximum number of pods processed concurrently.
	Workers int
}

// NewOptions returns the defaults.
func NewOptions() Options {
	hostname, _ := os.Hostname() // Validate reports an empty name
	return Options{
		Kube:              flagset.NewKube(),
		HTTP:              flagset.NewHTTP(),
		NodeName:          strings.ToLower(hostname),
		Nodes:             1,
		MaxPods:           110,
		RootDir:           "/var/lib/kubelet",
		TopologyCollision: string(nodeinfo.CollisionFail),
		CSINodeLinger:     5 * time.Minute,
		CSITimeout:        2 * time.Minute,
		StatusFrequency:   10 * time.Second,
		LeaseSeconds:      40,
		SyncFrequency:     time.Minute,
		VolumeStatsPeriod: time.Minute,
		Workers:           16,
	}
}

// groups returns the groups of flags that all components share.
func (o *Options) groups() []flagset.Group {
	return []flagset.Group{&o.Kube, &o.HTTP}
}

// AddFlags registers all flags on fs. The values that the fields have at that moment are the
// defaults. Flags that a kubelet has too have its names.
func (o *Options) AddFlags(fs *flag.FlagSet) {
	flagset.AddFlags(fs, o.groups()...)
	o.addNodeFlags(fs)
	o.addVolumeFlags(fs)
}

func (o *Options) addNodeFlags(fs *flag.FlagSet) {
	fs.StringVar(&o.NodeName, "node-name", o.NodeName, "`name` of the Node object; the machine's host name if not set")
	fs.StringVar(&o.NodeName, "hostname-override", o.NodeName, "the kubelet's `name` for --node-name; the last one given counts")
	fs.IntVar(&o.Nodes, "nodes", o.Nodes, "`number` of nodes that this process is; with more than one, it impersonates each of them")
	fs.StringVar(&o.NodePrefix, "node-prefix", o.NodePrefix, "`prefix` of the names of several nodes, <prefix>-0, <prefix>-1 and so on, each with a directory of its name below --root-dir")
	fs.IntVar(&o.FirstNode, "first-node", o.FirstNode, "`number` in the name of the first of several nodes; the others are counted from it")
	fs.StringVar(&o.Hostname, "node-hostname", o.Hostname, "`name` in the hostname label and address; empty: --node-name")
	fs.StringVar(&o.NodeIP, "node-ip", o.NodeIP, "internal IP `address` of the node; empty: the first address of the machine that is not a loopback address")
	fs.Var(&o.NodeLabels, "node-labels", "labels of the Node, as `key=value,...`")
	fs.Var(&o.Taints, "register-with-taints", "taints of a Node that is registered, as `key=value:effect,...`")
	fs.IntVar(&o.MaxPods, "max-pods", o.MaxPods, "maximum number of pods on the node")
	fs.Var(&o.CPU, "node-cpu", "CPU capacity of the Node, as a `quantity`; empty: that of the machine")
	fs.Var(&o.Memory, "node-memory", "memory capacity of the Node, as a `quantity`; empty: that of the machine")
	fs.Var(&o.Storage, "node-ephemeral-storage", "ephemeral-storage capacity of the Node, as a `quantity`; empty: that of the file system of --root-dir")
	fs.DurationVar(&o.StatusFrequency, "node-status-update-frequency", o.StatusFrequency,
		"interval at which the status of the Node is computed; it is written if it has changed, otherwise every 5 minutes")
	fs.IntVar(&o.LeaseSeconds, "node-lease-duration-seconds", o.LeaseSeconds,
		"seconds for which the node counts as alive after a renewal of its Lease; the agent renews it four times as often")
}

func (o *Options) addVolumeFlags(fs *flag.FlagSet) {
	fs.StringVar(&o.RootDir, "root-dir", o.RootDir, "the kubelet's root `directory`, with pods, plugins and plugins_registry")
	fs.Var(&o.RegistryDirs, "extra-registry-dirs", "`directories` watched for registration sockets besides <root-dir>/plugins_registry, separated by commas")
	fs.Var(&o.StaticDrivers, "static-drivers", "drivers that no registrar announces, as `name=socket,...` with absolute paths")
	fs.Var(&o.AllowedDrivers, "allowed-csi-drivers",
		"`drivers` that inline volumes may name, separated by commas; not set: any; empty: none")
	fs.StringVar(&o.SelfAttach, "self-attach", o.SelfAttach,
		"`names` of the VolumeAttachments that the agent creates itself, where the attach/detach controller is off: csi (as the controller) or pv (a hash of volume and node); empty: the controller attaches")
	fs.StringVar(&o.TopologyCollision, "topology-collision", o.TopologyCollision,
		"`action` if a topology label already has another value: fail (the registration) or overwrite (the label)")
	fs.DurationVar(&o.CSINodeLinger, "csinode-linger", o.CSINodeLinger,
		"time for which a driver that has deregistered keeps its entry in the CSINode, with its volume limit; 0: no time")
	fs.DurationVar(&o.CSITimeout, "csi-timeout", o.CSITimeout, "deadline of one operation on a volume with all its CSI calls")
	fs.DurationVar(&o.SyncFrequency, "sync-frequency", o.SyncFrequency,
		"interval at which each pod is checked although nothing has changed, the claim of each mounted volume is read to find expansions, and NodePublishVolume is repeated for drivers with requiresRepublish")
	fs.DurationVar(&o.VolumeStatsPeriod, "volume-stats-agg-period", o.VolumeStatsPeriod,
		"interval at which drivers are asked for the usage and the health of each volume; negative: never")
	fs.IntVar(&o.Workers, "pod-workers", o.Workers, "maximum number of pods processed concurrently; each volume has a worker of its own")
}

// Validate reports all invalid options at once; each error names the flag and the rule.
func (o *Options) Validate() error {
	errs := []error{flagset.Validate(o.groups()...)}
	check := func(ok bool, flag string, value any, rule string) {
		if !ok {
			errs = append(errs, fmt.Errorf("--%s=%v: must %s", flag, value, rule))
		}
	}
	check(o.NodeName != "", "node-name", o.NodeName, "not be empty")
	check(isNodeName(o.NodeName), "node-name", o.NodeName, "be a lower-case DNS subdomain name")
	check(o.Nodes > 0, "nodes", o.Nodes, "be greater than 0")
	check(o.Nodes <= 1 || isNodeName(o.NodePrefix+"-0"), "node-prefix", o.NodePrefix, "be the beginning of lower-case DNS subdomain names, with --nodes")
	check(o.Nodes > 1 || o.NodePrefix == "", "node-prefix", o.NodePrefix, "be given with --nodes only")
	check(o.FirstNode >= 0, "first-node", o.FirstNode, "not be negative")
	check(o.Nodes <= 1 || o.Hostname == "", "node-hostname", o.Hostname, "be empty with --nodes")
	check(o.NodeIP == "" || isIP(o.NodeIP), "node-ip", o.NodeIP, "be an IP address")
	check(filepath.IsAbs(o.RootDir), "root-dir", o.RootDir, "be an absolute path")
	check(o.MaxPods > 0, "max-pods", o.MaxPods, "be greater than 0")
	check(o.LeaseSeconds > 0, "node-lease-duration-seconds", o.LeaseSeconds, "be greater than 0")
	check(o.Workers > 0, "pod-workers", o.Workers, "be greater than 0")
	check(o.CSINodeLinger >= 0, "csinode-linger", o.CSINodeLinger, "not be negative")
	check(o.CSITimeout > 0, "csi-timeout", o.CSITimeout, "be greater than 0")
	check(o.StatusFrequency > 0, "node-status-update-frequency", o.StatusFrequency, "be greater than 0")
	check(o.SyncFrequency >= 0, "sync-frequency", o.SyncFrequency, "not be negative")
	naming := selfattach.Naming(o.SelfAttach)
	check(naming == "" || naming == selfattach.CSI || naming == selfattach.PV, "self-attach", o.SelfAttach, "be csi, pv or empty")
	collision := nodeinfo.Collision(o.TopologyCollision)
	check(collision == nodeinfo.CollisionFail || collision == nodeinfo.CollisionOverwrite,
		"topology-collision", o.TopologyCollision, "be fail or overwrite")
	for _, dir := range o.RegistryDirs {
		check(filepath.IsAbs(dir), "extra-registry-dirs", dir, "be absolute paths")
	}
	return errors.Join(errs...)
}

// Warnings lists the given flags that are deprecated or have no effect.
func (o *Options) Warnings() []string { return flagset.Warnings(&o.HTTP) }
