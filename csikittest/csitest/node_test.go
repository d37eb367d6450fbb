package csitest_test

import (
	"context"
	"strings"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/testing/protocmp"

	"github.com/longshore-csi/longshore/csikittest/csitest"
)

// step is one call in the life of volume vol-a.
type step struct {
	name string
	call func(context.Context, *csitest.Driver) error
}

func node(d *csitest.Driver) csi.NodeClient { return csi.NewNodeClient(d.Conn()) }

func attach(nodeID string) step {
	return step{"attach " + nodeID, func(ctx context.Context, d *csitest.Driver) error {
		_, err := controller(d).ControllerPublishVolume(ctx, &csi.ControllerPublishVolumeRequest{VolumeId: "vol-a", NodeId: nodeID, VolumeCapability: writer()})
		return err
	}}
}

func detach(nodeID string) step {
	return step{"detach " + nodeID, func(ctx context.Context, d *csitest.Driver) error {
		_, err := controller(d).ControllerUnpublishVolume(ctx, &csi.ControllerUnpublishVolumeRequest{VolumeId: "vol-a", NodeId: nodeID})
		return err
	}}
}

func stage(path string) step {
	return step{"stage " + path, func(ctx context.Context, d *csitest.Driver) error {
		_, err := node(d).NodeStageVolume(ctx, &csi.NodeStageVolumeRequest{VolumeId: "vol-a", StagingTargetPath: path, VolumeCapability: writer()})
		return err
	}}
}

func unstage(path string) step {
	return step{"unstage " + path, func(ctx context.Context, d *csitest.Driver) error {
		_, err := node(d).NodeUnstageVolume(ctx, &csi.NodeUnstageVolumeRequest{VolumeId: "vol-a", StagingTargetPath: path})
		return err
	}}
}

func publish(path string) step {
	return step{"publish " + path, func(ctx context.Context, d *csitest.Driver) error {
		_, err := node(d).NodePublishVolume(ctx, &csi.NodePublishVolumeRequest{VolumeId: "vol-a", StagingTargetPath: "/stage", TargetPath: path, VolumeCapability: writer()})
		return err
	}}
}

func unpublish(path string) step {
	return step{"unpublish " + path, func(ctx context.Context, d *csitest.Driver) error {
		_, err := node(d).NodeUnpublishVolume(ctx, &csi.NodeUnpublishVolumeRequest{VolumeId: "vol-a", TargetPath: path})
		return err
	}}
}

func remove() step {
	return step{"delete", func(ctx context.Context, d *csitest.Driver) error {
		_, err := controller(d).DeleteVolume(ctx, &csi.DeleteVolumeRequest{VolumeId: "vol-a"})
		return err
	}}
}

func TestLifeCycle(t *testing.T) {
	noStage := csitest.Options{Node: []csi.NodeServiceCapability_RPC_Type{}}
	noAttach := csitest.Options{Controller: []csi.ControllerServiceCapability_RPC_Type{csi.ControllerServiceCapability_RPC_CREATE_DELETE_VOLUME}}
	cases := map[string]struct {
		reason    string
		options   csitest.Options
		steps     []step
		want      codes.Code // of the last step; the others succeed
		violation string
	}{
		"Full": {
			reason: "the whole life, each step twice",
			steps: []step{
				attach("node-1"), attach("node-1"), stage("/stage"), stage("/stage"), publish("/a"), publish("/a"), publish("/b"),
				unpublish("/a"), unpublish("/a"), unpublish("/b"), unstage("/stage"), unstage("/stage"), detach("node-1"), detach("node-1"), remove(), remove(),
			},
		},
		"WithoutStaging":   {reason: "a driver without staging publishes at once", options: noStage, steps: []step{attach("node-1"), publish("/a"), unpublish("/a")}},
		"WithoutAttaching": {reason: "a driver without attaching stages at once", options: noAttach, steps: []step{stage("/stage"), publish("/a")}},
		"StageUnattached":  {reason: "attach comes first", steps: []step{stage("/stage")}, want: codes.FailedPrecondition, violation: "NodeStageVolume"},
		"PublishUnstaged":  {reason: "stage comes first", steps: []step{attach("node-1"), publish("/a")}, want: codes.FailedPrecondition, violation: "NodePublishVolume"},
		"StageTwice":       {reason: "one staging path per node", steps: []step{attach("node-1"), stage("/stage"), stage("/other")}, want: codes.FailedPrecondition, violation: "NodeStageVolume"},
		"UnstagePublished": {reason: "unpublish comes first", steps: []step{attach("node-1"), stage("/stage"), publish("/a"), unstage("/stage")}, want: codes.FailedPrecondition, violation: "NodeUnstageVolume"},
		"DetachStaged":     {reason: "unstage comes first", steps: []step{attach("node-1"), stage("/stage"), detach("node-1")}, want: codes.FailedPrecondition, violation: "ControllerUnpublishVolume"},
		"DetachAllStaged":  {reason: "an empty node ID means all nodes", steps: []step{attach("node-1"), stage("/stage"), detach("")}, want: codes.FailedPrecondition, violation: "ControllerUnpublishVolume"},
		"DetachAll":        {reason: "an empty node ID means all nodes", steps: []step{attach("node-1"), detach(""), remove()}},
		"DeleteAttached":   {reason: "detach comes first", steps: []step{attach("node-1"), remove()}, want: codes.FailedPrecondition, violation: "DeleteVolume"},
		"SecondNode":       {reason: "a driver refuses a second node to a single-node volume, which is no fault of its caller", steps: []step{attach("node-1"), attach("node-2")}, want: codes.FailedPrecondition},
		"UnstageUnknown":   {reason: "what does not exist is not staged", steps: []step{remove(), unstage("/stage"), unpublish("/a"), detach("node-1")}},
		"UnstageElsewhere": {reason: "unstaging a path without a stage succeeds", steps: []step{attach("node-1"), stage("/stage"), publish("/a"), unstage("/other")}},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			d := csitest.New(c.options)
			mustCreate(t, d, "a")
			for i, s := range c.steps {
				want := codes.OK
				if i == len(c.steps)-1 {
					want = c.want
				}
				wantCode(t, c.reason+": "+s.name, s.call(t.Context(), d), want)
			}
			got := strings.Join(d.Violations(), "; ")
			if (c.violation == "") != (got == "") || !strings.HasPrefix(got, c.violation) {
				t.Errorf("%s: violations %q, want one of %q", c.reason, got, c.violation)
			}
		})
	}
}

func TestVolumesShowUse(t *testing.T) {
	d := csitest.New(csitest.Options{})
	mustCreate(t, d, "a")
	for _, s := range []step{attach("node-1"), stage("/stage"), publish("/b"), publish("/a")} {
		wantCode(t, s.name, s.call(t.Context(), d), codes.OK)
	}
	want := []csitest.Volume{{
		ID: "vol-a", Name: "a", Capacity: gib, Context: map[string]string{"name": "a"},
		Nodes:     []string{"node-1"},
		Staged:    []csitest.Mount{{Node: "node-1", Path: "/stage"}},
		Published: []csitest.Mount{{Node: "node-1", Path: "/a"}, {Node: "node-1", Path: "/b"}},
	}}
	if diff := cmp.Diff(want, d.Volumes(), protocmp.Transform()); diff != "" {
		t.Errorf("volumes (-want +got):\n%s", diff)
	}
}

func TestContradictingRepetition(t *testing.T) {
	ctx := t.Context()
	d := csitest.New(csitest.Options{})
	mustCreate(t, d, "a")
	for _, s := range []step{attach("node-1"), stage("/stage"), publish("/a")} {
		wantCode(t, s.name, s.call(ctx, d), codes.OK)
	}
	reader := mode(csi.VolumeCapability_AccessMode_MULTI_NODE_READER_ONLY)
	_, err := controller(d).ControllerPublishVolume(ctx, &csi.ControllerPublishVolumeRequest{VolumeId: "vol-a", NodeId: "node-1", VolumeCapability: writer(), Readonly: true})
	wantCode(t, "attach read-only a volume that is attached writable", err, codes.AlreadyExists)
	_, err = node(d).NodeStageVolume(ctx, &csi.NodeStageVolumeRequest{VolumeId: "vol-a", StagingTargetPath: "/stage", VolumeCapability: reader})
	wantCode(t, "stage with another capability", err, codes.AlreadyExists)
	_, err = node(d).NodePublishVolume(ctx, &csi.NodePublishVolumeRequest{VolumeId: "vol-a", StagingTargetPath: "/stage", TargetPath: "/a", VolumeCapability: writer(), Readonly: true})
	wantCode(t, "publish read-only a volume that is published writable", err, codes.AlreadyExists)
}

func TestRequiredFieldsOfPublication(t *testing.T) {
	ctx := t.Context()
	d := csitest.New(csitest.Options{})
	mustCreate(t, d, "a")
	wantCode(t, "attach", attach("node-1").call(ctx, d), codes.OK)
	cases := map[string]func() error{
		"AttachNoVolume": func() error {
			_, err := controller(d).ControllerPublishVolume(ctx, &csi.ControllerPublishVolumeRequest{NodeId: "n", VolumeCapability: writer()})
			return err
		},
		"AttachNoNode": func() error {
			_, err := controller(d).ControllerPublishVolume(ctx, &csi.ControllerPublishVolumeRequest{VolumeId: "vol-a", VolumeCapability: writer()})
			return err
		},
		"AttachNoCapability": func() error {
			_, err := controller(d).ControllerPublishVolume(ctx, &csi.ControllerPublishVolumeRequest{VolumeId: "vol-a", NodeId: "n"})
			return err
		},
		"DetachNoVolume": func() error {
			_, err := controller(d).ControllerUnpublishVolume(ctx, &csi.ControllerUnpublishVolumeRequest{NodeId: "n"})
			return err
		},
		"StageNoPath": func() error {
			_, err := node(d).NodeStageVolume(ctx, &csi.NodeStageVolumeRequest{VolumeId: "vol-a", VolumeCapability: writer()})
			return err
		},
		"UnstageNoPath": func() error {
			_, err := node(d).NodeUnstageVolume(ctx, &csi.NodeUnstageVolumeRequest{VolumeId: "vol-a"})
			return err
		},
		"PublishNoPath": func() error {
			_, err := node(d).NodePublishVolume(ctx, &csi.NodePublishVolumeRequest{VolumeId: "vol-a", VolumeCapability: writer()})
			return err
		},
		"PublishNoStagingPath": func() error {
			_, err := node(d).NodePublishVolume(ctx, &csi.NodePublishVolumeRequest{VolumeId: "vol-a", TargetPath: "/a", VolumeCapability: writer()})
			return err
		},
		"UnpublishNoPath": func() error {
			_, err := node(d).NodeUnpublishVolume(ctx, &csi.NodeUnpublishVolumeRequest{VolumeId: "vol-a"})
			return err
		},
		"StatsNoPath": func() error {
			_, err := node(d).NodeGetVolumeStats(ctx, &csi.NodeGetVolumeStatsRequest{VolumeId: "vol-a"})
			return err
		},
		"ExpandNoVolume": func() error {
			_, err := node(d).NodeExpandVolume(ctx, &csi.NodeExpandVolumeRequest{VolumePath: "/a"})
			return err
		},
	}
	for name, call := range cases {
		t.Run(name, func(t *testing.T) { wantCode(t, "a required field is missing", call(), codes.InvalidArgument) })
	}
	if got := d.Violations(); len(got) > 0 {
		t.Errorf("incomplete requests count as violations: %q", got)
	}
}

func TestNodesAndLimits(t *testing.T) {
	d := csitest.New(csitest.Options{Nodes: []string{"node-2"}, MaxVolumesPerNode: 1})
	mustCreate(t, d, "a", "b")
	wantCode(t, "own node", attach("node-1").call(t.Context(), d), codes.OK)
	wantCode(t, "repetition at the limit", attach("node-1").call(t.Context(), d), codes.OK)
	_, err := controller(d).ControllerPublishVolume(t.Context(), &csi.ControllerPublishVolumeRequest{VolumeId: "vol-b", NodeId: "node-1", VolumeCapability: writer()})
	wantCode(t, "a second volume on a full node", err, codes.ResourceExhausted)
	_, err = controller(d).ControllerPublishVolume(t.Context(), &csi.ControllerPublishVolumeRequest{VolumeId: "vol-b", NodeId: "node-9", VolumeCapability: writer()})
	wantCode(t, "a node that does not exist", err, codes.NotFound)
	d.OnNode("node-9", nil)
	_, err = controller(d).ControllerPublishVolume(t.Context(), &csi.ControllerPublishVolumeRequest{VolumeId: "vol-b", NodeId: "node-9", VolumeCapability: writer()})
	wantCode(t, "a node that the driver has come to", err, codes.OK)
}

func TestReadOnlyNeedsCapability(t *testing.T) {
	d := csitest.New(csitest.Options{Controller: []csi.ControllerServiceCapability_RPC_Type{csi.ControllerServiceCapability_RPC_PUBLISH_UNPUBLISH_VOLUME}})
	d.AddVolume(csitest.Volume{ID: "v"})
	_, err := controller(d).ControllerPublishVolume(t.Context(), &csi.ControllerPublishVolumeRequest{VolumeId: "v", NodeId: "n", VolumeCapability: writer(), Readonly: true})
	wantCode(t, "read-only is not announced", err, codes.FailedPrecondition)
	if got := d.Violations(); len(got) != 1 {
		t.Errorf("violations %q, want one", got)
	}
}

func TestTwoNodesShareVolumes(t *testing.T) {
	one := csitest.New(csitest.Options{Topology: map[string]string{"zone": "z1"}})
	two := one.OnNode("node-2", map[string]string{"zone": "z2"})
	mustCreate(t, one, "a")
	wantCode(t, "attach", attach("node-2").call(t.Context(), one), codes.OK)
	wantCode(t, "stage on the wrong node", stage("/stage").call(t.Context(), one), codes.FailedPrecondition)
	wantCode(t, "stage on the right node", stage("/stage").call(t.Context(), two), codes.OK)
	info, err := node(two).NodeGetInfo(t.Context(), &csi.NodeGetInfoRequest{})
	if err != nil {
		t.Fatalf("NodeGetInfo: %v", err)
	}
	want := &csi.NodeGetInfoResponse{NodeId: "node-2", AccessibleTopology: &csi.Topology{Segments: map[string]string{"zone": "z2"}}}
	if diff := cmp.Diff(want, info, protocmp.Transform()); diff != "" {
		t.Errorf("NodeGetInfo (-want +got):\n%s", diff)
	}
	if calls := one.Calls(); calls[len(calls)-1].Node != "node-2" {
		t.Errorf("last call was logged for node %q, want node-2", calls[len(calls)-1].Node)
	}
}

func TestInlineVolume(t *testing.T) {
	d := csitest.New(csitest.Options{})
	inline := func(path string) error {
		_, err := node(d).NodePublishVolume(t.Context(), &csi.NodePublishVolumeRequest{
			VolumeId: "csi-1", TargetPath: path, VolumeCapability: writer(),
			VolumeContext: map[string]string{"csi.storage.k8s.io/ephemeral": "true"},
		})
		return err
	}
	wantCode(t, "publish", inline("/a"), codes.OK)
	wantCode(t, "publish again", inline("/a"), codes.OK)
	if got := d.Volumes(); len(got) != 1 || !got[0].Ephemeral || len(got[0].Published) != 1 {
		t.Errorf("volumes %+v, want one inline volume that is published once", got)
	}
	list, err := controller(d).ListVolumes(t.Context(), &csi.ListVolumesRequest{})
	if err != nil || len(list.GetEntries()) != 0 {
		t.Errorf("ListVolumes: %v, %v; an inline volume is not listed", list, err)
	}
	for range 2 {
		_, err := node(d).NodeUnpublishVolume(t.Context(), &csi.NodeUnpublishVolumeRequest{VolumeId: "csi-1", TargetPath: "/a"})
		wantCode(t, "unpublish", err, codes.OK)
	}
	if got := d.Volumes(); len(got) != 0 {
		t.Errorf("volumes %+v are left, want none", got)
	}
}

func TestSingleWriter(t *testing.T) {
	d := csitest.New(csitest.Options{Node: []csi.NodeServiceCapability_RPC_Type{}})
	d.AddVolume(csitest.Volume{ID: "v", Nodes: []string{"node-1"}})
	put := func(path string) error {
		_, err := node(d).NodePublishVolume(t.Context(), &csi.NodePublishVolumeRequest{
			VolumeId: "v", TargetPath: path, VolumeCapability: mode(csi.VolumeCapability_AccessMode_SINGLE_NODE_SINGLE_WRITER),
		})
		return err
	}
	wantCode(t, "first path", put("/a"), codes.OK)
	wantCode(t, "same path", put("/a"), codes.OK)
	wantCode(t, "second path", put("/b"), codes.FailedPrecondition)
}

func TestStatsAndExpand(t *testing.T) {
	d := csitest.New(csitest.Options{})
	d.AddVolume(csitest.Volume{ID: "v", Capacity: gib, Published: []csitest.Mount{{Node: "node-1", Path: "/a"}}})
	stats, err := node(d).NodeGetVolumeStats(t.Context(), &csi.NodeGetVolumeStatsRequest{VolumeId: "v", VolumePath: "/a"})
	if err != nil || stats.GetUsage()[0].GetTotal() != gib {
		t.Errorf("NodeGetVolumeStats: %v, %v; want a total of 1 GiB", stats, err)
	}
	_, err = node(d).NodeGetVolumeStats(t.Context(), &csi.NodeGetVolumeStatsRequest{VolumeId: "v", VolumePath: "/b"})
	wantCode(t, "a path without the volume", err, codes.NotFound)
	expand := func(size int64) error {
		_, err := node(d).NodeExpandVolume(t.Context(), &csi.NodeExpandVolumeRequest{VolumeId: "v", VolumePath: "/a", CapacityRange: &csi.CapacityRange{RequiredBytes: size}})
		return err
	}
	wantCode(t, "expand to the size it has", expand(gib), codes.OK)
	wantCode(t, "expand on the node only", expand(2*gib), codes.OutOfRange)
	d.SetNode()
	wantCode(t, "expansion is not announced any more", expand(gib), codes.Unimplemented)
}
