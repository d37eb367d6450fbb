package backend

import (
	"testing"

	"github.com/longshore-csi/longshore/hostpathdriver/internal/volume"
)

// TestOneNodeWritesWithMultiNodeSingleWriter: without attachments it is the node
// that publishes for writing first.
func TestOneNodeWritesWithMultiNodeSingleWriter(t *testing.T) {
	w := newWorld(t)
	w.own = "" // volumes on every node
	s := w.boot()
	other, err := OpenNode(s.ctx, NodeConfig{StateDir: w.stateDir, NodeID: "node-2", Pools: s.pools, MaxSize: gib, Mounter: w.mounter, Devices: w.devices})
	w.must(err)
	single := volume.Capability{Access: volume.AccessMount, Mode: volume.MultiNodeSingleWriter}
	req := createRequest("pvc-1")
	req.Capabilities = []volume.Capability{single}
	s.volumes.cfg.Placement = volume.Placement{}
	v, err := s.volumes.Create(s.ctx, req)
	w.must(err)
	stage := func(n *Node, path string) error {
		return n.Stage(s.ctx, &volume.StageRequest{ID: v.ID, Stage: volume.Stage{Path: w.staging(v.ID) + path, Capability: single}})
	}
	publish := func(n *Node, path string, readOnly bool) error {
		return n.Publish(s.ctx, &volume.TargetRequest{ID: v.ID, Target: volume.Target{Path: w.target(v.ID) + path, Source: w.staging(v.ID) + path, Capability: single, ReadOnly: readOnly}})
	}
	w.must(stage(s.node, "1"), stage(other, "2"), publish(s.node, "1", false))
	wantErr(t, "a second node that writes", publish(other, "2", false), volume.ErrInUse)
	w.must(publish(other, "2", true), other.Unpublish(s.ctx, v.ID, w.target(v.ID)+"2"), s.node.Unpublish(s.ctx, v.ID, w.target(v.ID)+"1"))
	w.must(publish(other, "2", false))
}
