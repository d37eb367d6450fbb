package grpcapi

import (
	"context"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"

	"github.com/longshore-csi/longshore/hostpathdriver/internal/volume"
)

// nodeRPC shortens the type of node capabilities.
type nodeRPC = csi.NodeServiceCapability_RPC_Type

// NodeConfig configures the Node service.
type NodeConfig struct {
	// Service does the work; it is decorated to be idempotent.
	Service volume.NodeService
	// NodeID is the answer of NodeGetInfo, and the topology value.
	NodeID string
	// Topology adds the segment of the node to NodeGetInfo.
	Topology bool
	// Condition adds the VolumeCondition of CSI v1.12 to answers.
	Condition bool
	// Inline serves inline volumes.
	Inline bool
	// Expansion serves NodeExpandVolume.
	Expansion bool
	// MaxVolumes returns the limit of volumes on this node; zero is no limit.
	// It is asked each time.
	MaxVolumes func() int64
}

// Node serves csi.v1.Node.
type Node struct {
	nodeRest
	nodeInfo
	nodeStage
	nodePublish
	nodeStats
	nodeExpand
	nodeHealth

	parts []nodePart
}

// nodeRest answers what no part serves. It is one level deeper than the
// parts, so that their methods win.
type nodeRest struct {
	csi.UnimplementedNodeServer
}

// nodePart announces what its methods can do.
type nodePart interface {
	announceNode() []nodeRPC
}

var _ csi.NodeServer = (*Node)(nil)

// NewNode returns the service.
func NewNode(cfg NodeConfig) *Node {
	n := &Node{
		nodeInfo:    nodeInfo{cfg: cfg},
		nodeStage:   nodeStage{service: cfg.Service},
		nodePublish: nodePublish{service: cfg.Service, inline: cfg.Inline},
		nodeStats:   nodeStats{service: cfg.Service, condition: cfg.Condition},
		nodeExpand:  nodeExpand{service: cfg.Service, enabled: cfg.Expansion},
		nodeHealth:  nodeHealth{service: cfg.Service},
	}
	n.parts = []nodePart{&n.nodeStage, &n.nodePublish, &n.nodeStats, &n.nodeExpand, &n.nodeHealth}
	return n
}

// Register adds the service to a server.
func (n *Node) Register(r grpc.ServiceRegistrar) {
	csi.RegisterNodeServer(r, n)
}

// NodeGetCapabilities announces what the parts announce. A real driver does
// the same.
func (n *Node) NodeGetCapabilities(context.Context, *csi.NodeGetCapabilitiesRequest) (*csi.NodeGetCapabilitiesResponse, error) {
	answer := &csi.NodeGetCapabilitiesResponse{}
	for _, part := range n.parts {
		for _, rpc := range part.announceNode() {
			answer.Capabilities = append(answer.Capabilities, &csi.NodeServiceCapability{
				Type: &csi.NodeServiceCapability_Rpc{Rpc: &csi.NodeServiceCapability_RPC{Type: rpc}},
			})
		}
	}
	return answer, nil
}

// nodeInfo is the part that describes the node.
type nodeInfo struct {
	cfg NodeConfig
}

// NodeGetInfo names the node, its place and its limit. A real driver returns
// the id by which its storage system knows the machine.
func (n *nodeInfo) NodeGetInfo(context.Context, *csi.NodeGetInfoRequest) (*csi.NodeGetInfoResponse, error) {
	answer := &csi.NodeGetInfoResponse{NodeId: n.cfg.NodeID, MaxVolumesPerNode: n.cfg.MaxVolumes()}
	if n.cfg.Topology {
		answer.AccessibleTopology = topologyOf(n.cfg.NodeID)
	}
	return answer, nil
}
