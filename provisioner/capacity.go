package provisioner

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"os"
	"time"

	"github.com/longshore-csi/longshore/csikit/flagset"
	"github.com/longshore-csi/longshore/provisioner/internal/capacity"
)

// Environment variables that --enable-capacity needs. A pod gets them from its fields metadata.namespace and metadata.name.
const (
	// EnvNamespace is the namespace of the CSIStorageCapacity objects; POD_NAMESPACE is taken as well.
	EnvNamespace = "NAMESPACE"
	// EnvPodName is the pod from which the owner of the objects is found.
	EnvPodName = "POD_NAME"
)

// CapacityOptions configure the publication of CSIStorageCapacity objects.
type CapacityOptions struct {
	// Enabled turns the publication on.
	Enabled bool
	// Namespace and Pod are where the objects are and who runs; NewOptions takes them from the environment.
	Namespace, Pod string
	// Immediate also publishes for StorageClasses with immediate binding.
	Immediate bool
	// PollInterval is the pause between two GetCapacity calls for the same StorageClass and segment.
	PollInterval time.Duration
	// OwnerLevel counts the owner references from the pod to the owner of the objects; -1 sets no owner.
	OwnerLevel int
	// Workers is the maximum number of concurrent GetCapacity calls.
	Workers int
	// QPS and Burst limit the requests about CSIStorageCapacity objects; a QPS of 0 does not, which is the default: the scheduler finds
	// no node for a volume before there is an object that says that there is capacity.
	QPS   float64
	Burst int
}

// newCapacityOptions returns the defaults.
func newCapacityOptions() CapacityOptions {
	return CapacityOptions{
		Namespace: cmp.Or(os.Getenv(EnvNamespace), os.Getenv("POD_NAMESPACE")), Pod: os.Getenv(EnvPodName),
		PollInterval: time.Minute, OwnerLevel: 1, Workers: 1, Burst: 5,
	}
}

// addFlags registers the flags; namespace and pod have none.
func (c *CapacityOptions) addFlags(fs *flag.FlagSet) {
	fs.BoolVar(&c.Enabled, "enable-capacity", c.Enabled, "publish CSIStorageCapacity objects in the namespace $"+EnvNamespace)
	fs.BoolVar(&c.Immediate, "capacity-for-immediate-binding", c.Immediate, "also publish CSIStorageCapacity objects for StorageClasses with immediate binding")
	fs.DurationVar(&c.PollInterval, "capacity-poll-interval", c.PollInterval, "pause between two GetCapacity calls for the same StorageClass and segment")
	fs.IntVar(&c.OwnerLevel, "capacity-ownerref-level", c.OwnerLevel,
		"owner of the CSIStorageCapacity objects, counted in owner references from the pod $"+EnvPodName+": 0 the pod, 1 its StatefulSet or DaemonSet, 2 its Deployment; -1: no owner")
	fs.IntVar(&c.Workers, "capacity-threads", c.Workers, "maximum concurrent GetCapacity calls")
	fs.Float64Var(&c.QPS, "kube-api-capacity-qps", c.QPS, "CSIStorageCapacity requests per second to the API server before the client throttles itself; 0: never, the server decides")
	fs.IntVar(&c.Burst, "kube-api-capacity-burst", c.Burst, "number of requests that may exceed --kube-api-capacity-qps for a moment")
}

// validate reports what is wrong with the options, which have no effect when the publication is off.
func (c *CapacityOptions) validate() error {
	if !c.Enabled {
		return nil
	}
	return errors.Join(
		flagset.Require(c.Namespace != "", "enable-capacity", c.Enabled, "the environment variable "+EnvNamespace+" must be the namespace of the objects"),
		flagset.Require(c.OwnerLevel >= -1, "capacity-ownerref-level", c.OwnerLevel, "must be at least -1"),
		flagset.Require(c.OwnerLevel < 0 || c.Pod != "", "capacity-ownerref-level", c.OwnerLevel, "the environment variable "+EnvPodName+" must be the name of the pod, or the level -1"),
		flagset.Require(c.PollInterval > 0, "capacity-poll-interval", c.PollInterval, "must be positive"),
		flagset.Require(c.Workers >= 1, "capacity-threads", c.Workers, "must be at least 1"),
		flagset.Require(c.QPS >= 0, "kube-api-capacity-qps", c.QPS, "must not be negative"),
		flagset.Require(c.QPS <= 0 || c.Burst >= 1, "kube-api-capacity-burst", c.Burst, "must be at least 1"),
	)
}

// findOwner finds out once who owns the objects.
func (p *provisioner) findOwner(ctx context.Context) (err error) {
	o := p.options.Capacity
	if !o.Enabled || p.owner != nil {
		return nil
	}
	p.owner, err = capacity.FindOwner(ctx, p.kube, o.Namespace, o.Pod, o.OwnerLevel)
	return err
}

// capacitySettings returns the options that the publication acts on.
func (p *provisioner) capacitySettings() capacity.Settings {
	o, node := p.options.Capacity, ""
	if p.options.Node.Enabled {
		node = p.options.Node.Name
	}
	return capacity.Settings{
		Namespace: o.Namespace, ManagedBy: capacity.ManagedBy(node), Owner: p.owner, Immediate: o.Immediate, Poll: o.PollInterval, Workers: o.Workers,
		Retry: p.options.Retry, Timeout: p.options.CSI.Timeout, Drain: p.options.Drain(),
	}
}
