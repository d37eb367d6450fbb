package csitest_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/longshore-csi/longshore/csikittest/csitest"
	"github.com/longshore-csi/longshore/csikittest/seeds"
)

// deed is a random call and what it is about.
type deed struct {
	name, volume, node, path string
	call                     func(context.Context) error
}

// pick chooses a random call to one of two volumes on one of two nodes.
func pick(random *rand.Rand, nodes []*csitest.Driver) deed {
	i := random.IntN(len(nodes))
	d := nodes[i]
	name, nodeID := fmt.Sprintf("v%d", random.IntN(2)), fmt.Sprintf("node-%d", i+1)
	id, path := "vol-"+name, fmt.Sprintf("/p%d", random.IntN(2))
	many := mode(csi.VolumeCapability_AccessMode_MULTI_NODE_MULTI_WRITER)
	deeds := []deed{
		{name: "create", call: func(ctx context.Context) error {
			_, err := controller(d).CreateVolume(ctx, create(name))
			return err
		}},
		{name: "delete", call: func(ctx context.Context) error {
			_, err := controller(d).DeleteVolume(ctx, &csi.DeleteVolumeRequest{VolumeId: id})
			return err
		}},
		{name: "attach", call: func(ctx context.Context) error {
			_, err := controller(d).ControllerPublishVolume(ctx, &csi.ControllerPublishVolumeRequest{VolumeId: id, NodeId: nodeID, VolumeCapability: many})
			return err
		}},
		{name: "detach", call: func(ctx context.Context) error {
			_, err := controller(d).ControllerUnpublishVolume(ctx, &csi.ControllerUnpublishVolumeRequest{VolumeId: id, NodeId: nodeID})
			return err
		}},
		{name: "stage", call: func(ctx context.Context) error {
			_, err := node(d).NodeStageVolume(ctx, &csi.NodeStageVolumeRequest{VolumeId: id, StagingTargetPath: "/stage", VolumeCapability: many})
			return err
		}},
		{name: "unstage", call: func(ctx context.Context) error {
			_, err := node(d).NodeUnstageVolume(ctx, &csi.NodeUnstageVolumeRequest{VolumeId: id, StagingTargetPath: "/stage"})
			return err
		}},
		{name: "publish", call: func(ctx context.Context) error {
			_, err := node(d).NodePublishVolume(ctx, &csi.NodePublishVolumeRequest{VolumeId: id, StagingTargetPath: "/stage", TargetPath: path, VolumeCapability: many})
			return err
		}},
		{name: "unpublish", call: func(ctx context.Context) error {
			_, err := node(d).NodeUnpublishVolume(ctx, &csi.NodeUnpublishVolumeRequest{VolumeId: id, TargetPath: path})
			return err
		}},
	}
	chosen := deeds[random.IntN(len(deeds))]
	chosen.volume, chosen.node, chosen.path = id, nodeID, path
	return chosen
}

// checkInvariants reports a volume that is published where it is not staged,
// or staged where it is not attached.
func checkInvariants(volumes []csitest.Volume) error {
	for _, v := range volumes {
		for _, p := range v.Published {
			if !slices.ContainsFunc(v.Staged, func(s csitest.Mount) bool { return s.Node == p.Node }) {
				return fmt.Errorf("%s is published at %v and not staged there: %v", v.ID, p, v.Staged)
			}
		}
		for _, s := range v.Staged {
			if !slices.Contains(v.Nodes, s.Node) {
				return fmt.Errorf("%s is staged at %v and not attached there: %v", v.ID, s, v.Nodes)
			}
		}
	}
	return nil
}

// Whatever its callers do, in whatever order, the driver's state stays within
// the life cycle, each success repeats, and each refusal of an order that the
// specification forbids is recorded.
func TestRandomLives(t *testing.T) { seeds.Each(t, randomLives) }

func randomLives(t *testing.T, seed uint64) {
	random := rand.New(rand.NewPCG(seed, 0))
	one := csitest.New(csitest.Options{})
	nodes := []*csitest.Driver{one, one.OnNode("node-2", nil)}
	refused := 0
	for i := range 2_000 {
		act := pick(random, nodes)
		err := act.call(t.Context())
		switch status.Code(err) {
		case codes.OK:
			if again := act.call(t.Context()); again != nil {
				t.Fatalf("step %d: %s of %s on %s succeeds, but its repetition does not: %v", i, act.name, act.volume, act.node, again)
			}
		case codes.FailedPrecondition:
			refused++
		case codes.NotFound:
		default:
			t.Fatalf("step %d: %s of %s on %s: %v", i, act.name, act.volume, act.node, err)
		}
		if err := checkInvariants(one.Volumes()); err != nil {
			t.Fatalf("step %d: after %s of %s on %s: %v", i, act.name, act.volume, act.node, err)
		}
	}
	if got := len(one.Violations()); got != refused || refused == 0 {
		t.Errorf("%d violations are recorded, %d calls were refused", got, refused)
	}
}
