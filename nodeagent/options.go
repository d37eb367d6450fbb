// Package nodeagent is a node of a real API server without a kubelet: it stages and publishes the CSI
// volumes of the pods that the control plane schedules to the node, in the kubelet's directory
// layout, and takes them down again, by package kubeletplugin. The binary csi-node-agent runs it.
//
// There is no container runtime. Pods are reported as running once their volumes are published,
// so drivers can be developed and load-tested with many nodes on one machine. Do not use it to run
// containers.
package nodeagent

import (
	"errors"
	"flag"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/longshore-csi/longshore/csikit/flagset"
	"github.com/longshore-csi/longshore/kubeletplugin/resolve"
	"github.com/longshore-csi/longshore/nodeagent/internal/nodeinfo"
	"github.com/longshore-csi/longshore/nodeagent/internal/selfattach"
)

// GateVolumeHealth is a feature gate, alpha in Kubernetes 1.37. It writes the health of volumes to the status of their pods, and that of the storage of drivers
// (NodeGetStorageHealth) to the status of the CSINode. The API server needs the gate, too.
const GateVolumeHealth = "CSIVolumeHealth"

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
	// NodeIP is the internal address of the node; empty: the first address of the machine that
	// is not a loopback address.
	NodeIP string
	// MaxPods is the maximum number of pods on the node.
	MaxPods int

	// RootDir is the kubelet's root directory, with pods, plugins and plugins_registry.
	RootDir string
	// Drivers returns the CSI drivers of a node that run in this process, besides those that registrars register; nil: none does. rootDir is the kubelet's
	// root directory of the node.
	Drivers func(node, rootDir string) []Driver
	// AllowedDrivers are the drivers that inline volumes may name.
	AllowedDrivers resolve.AllowedDrivers
	// SelfAttach has the agent create and delete VolumeAttachments itself, for clusters whose attach/detach controller is off: csi or pv, for the names that
	// the controller gives to them, or the seeds. Empty: the controller does it.
	SelfAttach string
	// TopologyCollision is the action if a topology label already has another value: fail or overwrite.
	TopologyCollision string

	// Features are the feature gates: GateVolumeHealth.
	Features flagset.FeatureGates

	// SyncFrequency is how often each pod is checked although nothing has changed. The claim of each mounted volume is read, and
	// NodePublishVolume is repeated for drivers with requiresRepublish, as often or up to half as long again at random: a node may
	// not watch claims for expansions.
	SyncFrequency time.Duration
}

// NewOptions returns the defaults.
func NewOptions() Options {
	hostname, _ := os.Hostname() // Validate reports an empty name
	return Options{
		Kube:              flagset.NewKube(),
		HTTP:              flagset.NewHTTP(),
		Features:          flagset.NewFeatureGates(map[string]flagset.Gate{GateVolumeHealth: {Stage: flagset.Alpha}}),
		NodeName:          strings.ToLower(hostname),
		Nodes:             1,
		MaxPods:           110,
		RootDir:           "/var/lib/kubelet",
		TopologyCollision: string(nodeinfo.CollisionFail),
		SyncFrequency:     time.Minute,
	}
}

// groups returns the groups of flags that all components share.
func (o *Options) groups() []flagset.Group {
	return []flagset.Group{&o.Kube, &o.HTTP, &o.Features}
}

// AddFlags registers all flags on fs. The values that the fields have at that moment are the
// defaults. Flags that a kubelet has too have its names.
func (o *Options) AddFlags(fs *flag.FlagSet) {
	flagset.AddFlags(fs, o.groups()...)
	fs.StringVar(&o.NodeName, "node-name", o.NodeName, "`name` of the Node object; the machine's host name if not set")
	fs.IntVar(&o.Nodes, "nodes", o.Nodes, "`number` of nodes that this process is; with more than one, it impersonates each of them")
	fs.StringVar(&o.NodePrefix, "node-prefix", o.NodePrefix, "`prefix` of the names of several nodes, <prefix>-0, <prefix>-1 and so on, each with a directory of its name below --root-dir")
	fs.IntVar(&o.FirstNode, "first-node", o.FirstNode, "`number` in the name of the first of several nodes; the others are counted from it")
	fs.StringVar(&o.NodeIP, "node-ip", o.NodeIP, "internal IP `address` of the node; empty: the first address of the machine that is not a loopback address")
	fs.IntVar(&o.MaxPods, "max-pods", o.MaxPods, "maximum number of pods on the node")
	fs.StringVar(&o.RootDir, "root-dir", o.RootDir, "the kubelet's root `directory`, with pods, plugins and plugins_registry")
	fs.Var(&o.AllowedDrivers, "allowed-csi-drivers",
		"`drivers` that inline volumes may name, separated by commas; not set: any; empty: none")
	fs.StringVar(&o.SelfAttach, "self-attach", o.SelfAttach,
		"`names` of the VolumeAttachments that the agent creates itself, where the attach/detach controller is off: csi (as the controller) or pv (a hash of volume and node); empty: the controller attaches")
	fs.StringVar(&o.TopologyCollision, "topology-collision", o.TopologyCollision,
		"`action` if a topology label already has another value: fail (the registration) or overwrite (the label)")
	fs.DurationVar(&o.SyncFrequency, "sync-frequency", o.SyncFrequency,
		"interval at which each pod is checked although nothing has changed, the claim of each mounted volume is read to find expansions, and NodePublishVolume is repeated for drivers with requiresRepublish")
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
	check(o.NodeIP == "" || isIP(o.NodeIP), "node-ip", o.NodeIP, "be an IP address")
	check(filepath.IsAbs(o.RootDir), "root-dir", o.RootDir, "be an absolute path")
	check(o.MaxPods > 0, "max-pods", o.MaxPods, "be greater than 0")
	check(o.SyncFrequency >= 0, "sync-frequency", o.SyncFrequency, "not be negative")
	naming := selfattach.Naming(o.SelfAttach)
	check(naming == "" || naming == selfattach.CSI || naming == selfattach.PV, "self-attach", o.SelfAttach, "be csi, pv or empty")
	collision := nodeinfo.Collision(o.TopologyCollision)
	check(collision == nodeinfo.CollisionFail || collision == nodeinfo.CollisionOverwrite,
		"topology-collision", o.TopologyCollision, "be fail or overwrite")
	return errors.Join(errs...)
}

func isNodeName(name string) bool { return len(validation.IsDNS1123Subdomain(name)) == 0 }

func isIP(text string) bool {
	_, err := netip.ParseAddr(text)
	return err == nil
}

// Warnings lists the given flags that are deprecated or have no effect.
func (o *Options) Warnings() []string { return flagset.Warnings(&o.HTTP, &o.Features) }
