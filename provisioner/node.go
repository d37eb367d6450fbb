package provisioner

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"k8s.io/klog/v2"

	"github.com/longshore-csi/longshore/csikit/csiclient"
	"github.com/longshore-csi/longshore/csikit/flagset"
	"github.com/longshore-csi/longshore/csikit/logging"
	"github.com/longshore-csi/longshore/csikit/outcome"
	"github.com/longshore-csi/longshore/csikit/poll"
	"github.com/longshore-csi/longshore/provisioner/internal/claim"
	"github.com/longshore-csi/longshore/provisioner/internal/nodemode"
	"github.com/longshore-csi/longshore/provisioner/internal/view"
	"github.com/longshore-csi/longshore/topology"
)

// EnvNodeName is the environment variable with the name of the node that --node-deployment provisions for. A pod gets it
// from its field spec.nodeName.
const EnvNodeName = "NODE_NAME"

// NodeOptions configure an instance that runs on each node and provisions for that node alone.
type NodeOptions struct {
	// Enabled makes each instance provision for its own node.
	Enabled bool
	// Name is the name of that node; NewOptions takes it from the environment variable EnvNodeName.
	Name string
	// Immediate lets the instances compete for claims with immediate binding. Otherwise such claims are not provisioned.
	Immediate bool
	// BaseDelay and MaxDelay are the limits of the pause before an instance takes such a claim.
	BaseDelay, MaxDelay time.Duration
}

// addFlags registers the flags; the name of the node has none.
func (n *NodeOptions) addFlags(fs *flag.FlagSet) {
	fs.BoolVar(&n.Enabled, "node-deployment", n.Enabled, "provision only for the node of this instance, whose name is in $"+EnvNodeName)
	fs.BoolVar(&n.Immediate, "node-deployment-immediate-binding", n.Immediate, "provision claims with immediate binding, for which the instances compete")
	fs.DurationVar(&n.BaseDelay, "node-deployment-base-delay", n.BaseDelay, "longest first pause before an instance takes a claim with immediate binding")
	fs.DurationVar(&n.MaxDelay, "node-deployment-max-delay", n.MaxDelay, "longest pause before an instance takes a claim with immediate binding")
}

// validateNode reports what is wrong with the options of an instance for one node, which have no effect when that is off.
func (o *Options) validateNode() error {
	n := &o.Node
	if !n.Enabled {
		return nil
	}
	return errors.Join(
		flagset.Require(n.Name != "", "node-deployment", true, "the environment variable "+EnvNodeName+" must be the name of the node"),
		flagset.Require(!o.LeaderElection.Enabled, "node-deployment", true, "must not be used together with --leader-election=true, because the leader would provision for its own node only"),
		flagset.Require(o.Features.Enabled(GateTopology), "node-deployment", true,
			"must not be used together with --feature-gates="+GateTopology+"=false, because the topology of a volume decides which node deletes it"),
		flagset.Require(n.BaseDelay > 0, "node-deployment-base-delay", n.BaseDelay, "must be positive"),
		flagset.Require(n.MaxDelay >= n.BaseDelay, "node-deployment-max-delay", n.MaxDelay, fmt.Sprintf("must not be below --node-deployment-base-delay=%v", n.BaseDelay)),
	)
}

// node returns the node that the controller provisions for, in the segment that the driver reports.
func (n *NodeOptions) node(segment topology.Segment) view.Node {
	if !n.Enabled {
		return view.Node{}
	}
	return view.Node{Name: n.Name, Segments: segment.Map()}
}

// competition returns what takes claims with immediate binding for the own node; nil: they are left to others, or there are none.
func (p *provisioner) competition() claim.Competition {
	n := p.options.Node
	if !n.Enabled || !n.Immediate {
		return nil
	}
	return nodemode.New(nodemode.Config{
		Node: n.Name, BaseDelay: n.BaseDelay, MaxDelay: n.MaxDelay, Nodes: p.kube.Nodes(), Timeout: p.options.KubeTimeout, Warn: claim.WarnOfFailure(p.env.Events),
	})
}

// locate asks the driver for the segment of the node, if the instance provisions for its node alone.
func (p *provisioner) locate(ctx context.Context, info *csiclient.Info) error {
	if !p.options.Node.Enabled {
		return nil
	}
	if err := fitForNode(info); err != nil {
		return err
	}
	reply, err := p.nodeInfo(ctx, info.Name)
	if err != nil {
		return err
	}
	segment, err := segmentOf(info.Name, reply)
	if err != nil {
		return err
	}
	klog.FromContext(ctx).Info("Provisioning for one node", logging.KeyNode, p.options.Node.Name, logging.KeyNodeID, reply.GetNodeId(), logging.KeyTopology, segment.String())
	p.mu.Lock()
	defer p.mu.Unlock()
	p.segment = segment
	return nil
}

// fitForNode reports whether a driver can be used with --node-deployment. Without topology it is unknown which node has
// a volume: the first instance whose driver says that there is no such volume would forget it.
func fitForNode(info *csiclient.Info) error {
	for _, service := range []csi.PluginCapability_Service_Type{csi.PluginCapability_Service_CONTROLLER_SERVICE, csi.PluginCapability_Service_VOLUME_ACCESSIBILITY_CONSTRAINTS} {
		if !info.Plugin[service] {
			return fmt.Errorf("use CSI driver %q with --node-deployment: it lacks the plugin capability %s", info.Name, service)
		}
	}
	return nil
}

// segmentOf returns the segment of the node.
func segmentOf(driver string, reply *csi.NodeGetInfoResponse) (topology.Segment, error) {
	segment, err := topology.FromTopology(reply.GetAccessibleTopology())
	if err == nil && segment.IsEmpty() {
		err = errors.New("it is empty")
	}
	if err != nil {
		return topology.Segment{}, fmt.Errorf("use CSI driver %q with --node-deployment: its NodeGetInfo must answer a valid accessible_topology for node ID %q: %w", driver, reply.GetNodeId(), err)
	}
	return segment, nil
}

// nodeInfo calls NodeGetInfo until the driver is ready to answer.
func (p *provisioner) nodeInfo(ctx context.Context, driver string) (reply *csi.NodeGetInfoResponse, err error) {
	logged := klog.NewContext(ctx, klog.FromContext(ctx).WithValues(logging.KeyDriver, driver))
	ended := poll.Until(logged, pollInterval, "Waiting for the CSI driver to answer NodeGetInfo", func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, p.options.CSI.Timeout)
		defer cancel()
		reply, err = p.env.CSI.Node().NodeGetInfo(ctx, &csi.NodeGetInfoRequest{})
		if outcome.Of(err).MayStillRun() || outcome.Code(err) == codes.FailedPrecondition { // which drivers say that are not healthy yet
			return errors.New(outcome.Message(err))
		}
		return nil
	})
	switch err = cmp.Or(err, ended); {
	case err == nil:
		return reply, nil
	case outcome.Code(err) == codes.Unimplemented:
		return nil, fmt.Errorf("use CSI driver %q with --node-deployment: it must serve the Node service at %q, too: %w", driver, p.options.CSI.Address, err)
	}
	return nil, fmt.Errorf("get info about the node from CSI driver %q: %w", driver, err)
}
