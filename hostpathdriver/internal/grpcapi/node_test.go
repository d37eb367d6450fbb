package grpcapi

import (
	"errors"
	"io/fs"
	"os"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/testing/protocmp"
)

func TestNodeGetInfo(t *testing.T) {
	f := newFixture(t, false)
	want := &csi.NodeGetInfoResponse{
		NodeId: testNode, MaxVolumesPerNode: 7,
		AccessibleTopology: &csi.Topology{Segments: map[string]string{"topology.hostpath.csi/node": testNode}},
	}
	got, err := f.NodeGetInfo(f.ctx, &csi.NodeGetInfoRequest{})
	if diff := cmp.Diff(want, got, protocmp.Transform()); err != nil || diff != "" {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}
	f.Node = NewNode(NodeConfig{NodeID: testNode, MaxVolumes: func() int64 { return 0 }})
	got, err = f.NodeGetInfo(f.ctx, &csi.NodeGetInfoRequest{})
	if diff := cmp.Diff(&csi.NodeGetInfoResponse{NodeId: testNode}, got, protocmp.Transform()); err != nil || diff != "" {
		t.Errorf("without topology: %v (-want +got):\n%s", err, diff)
	}
}

func TestNodeStageCodes(t *testing.T) {
	cases := map[string]struct {
		reason string
		change func(*csi.NodeStageVolumeRequest)
		want   codes.Code
	}{
		"Plain":        {reason: "nothing wrong", change: func(*csi.NodeStageVolumeRequest) {}, want: codes.OK},
		"NoVolume":     {reason: "required", change: func(r *csi.NodeStageVolumeRequest) { r.VolumeId = "" }, want: codes.InvalidArgument},
		"NoPath":       {reason: "required", change: func(r *csi.NodeStageVolumeRequest) { r.StagingTargetPath = "" }, want: codes.InvalidArgument},
		"NoCapability": {reason: "required", change: func(r *csi.NodeStageVolumeRequest) { r.VolumeCapability = nil }, want: codes.InvalidArgument},
		"Unknown":      {reason: "no such volume", change: func(r *csi.NodeStageVolumeRequest) { r.VolumeId = "x" }, want: codes.NotFound},
		"Relative":     {reason: "relative path", change: func(r *csi.NodeStageVolumeRequest) { r.StagingTargetPath = "x" }, want: codes.InvalidArgument},
		"FSType":       {reason: "directories have none", change: func(r *csi.NodeStageVolumeRequest) { r.VolumeCapability.GetMount().FsType = "ext4" }, want: codes.InvalidArgument},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, false)
			req := f.stage(f.create("pvc-1"))
			c.change(req)
			_, err := f.NodeStageVolume(f.ctx, req)
			wantCode(t, c.reason, err, c.want)
		})
	}
}

func TestNodeStageNeedsAttach(t *testing.T) {
	f := newFixture(t, true)
	id := f.create("pvc-1")
	_, err := f.NodeStageVolume(f.ctx, f.stage(id))
	wantCode(t, "not attached", err, codes.FailedPrecondition)
	_, err = f.ControllerPublishVolume(f.ctx, &csi.ControllerPublishVolumeRequest{VolumeId: id, NodeId: testNode, VolumeCapability: mountCapability()})
	wantCode(t, "attach", err, codes.OK)
	_, err = f.NodeStageVolume(f.ctx, f.stage(id))
	wantCode(t, "attached", err, codes.OK)
}

func TestNodePublishCodes(t *testing.T) {
	cases := map[string]struct {
		reason string
		change func(*csi.NodePublishVolumeRequest)
		want   codes.Code
	}{
		"Plain":        {reason: "nothing wrong", change: func(*csi.NodePublishVolumeRequest) {}, want: codes.OK},
		"NoVolume":     {reason: "required", change: func(r *csi.NodePublishVolumeRequest) { r.VolumeId = "" }, want: codes.InvalidArgument},
		"NoTarget":     {reason: "required", change: func(r *csi.NodePublishVolumeRequest) { r.TargetPath = "" }, want: codes.InvalidArgument},
		"NoCapability": {reason: "required", change: func(r *csi.NodePublishVolumeRequest) { r.VolumeCapability = nil }, want: codes.InvalidArgument},
		"NoStaging":    {reason: "the driver stages", change: func(r *csi.NodePublishVolumeRequest) { r.StagingTargetPath = "" }, want: codes.FailedPrecondition},
		"OtherStaging": {reason: "not staged there", change: func(r *csi.NodePublishVolumeRequest) { r.StagingTargetPath += "x" }, want: codes.FailedPrecondition},
		"Unknown":      {reason: "no such volume", change: func(r *csi.NodePublishVolumeRequest) { r.VolumeId = "x" }, want: codes.NotFound},
		"Guess": {reason: "ephemeral is neither true nor false", change: func(r *csi.NodePublishVolumeRequest) {
			r.VolumeContext = map[string]string{"csi.storage.k8s.io/ephemeral": "maybe"}
		}, want: codes.InvalidArgument},
		"PodInfo": {reason: "pod information on a persistent volume", change: func(r *csi.NodePublishVolumeRequest) {
			r.VolumeContext = map[string]string{"csi.storage.k8s.io/pod.uid": "u", "csi.storage.k8s.io/ephemeral": "false"}
		}, want: codes.OK},
		"InlineSameID": {reason: "a persistent volume is no inline one", change: func(r *csi.NodePublishVolumeRequest) {
			r.VolumeContext = map[string]string{"csi.storage.k8s.io/ephemeral": "true"}
		}, want: codes.AlreadyExists},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, false)
			id := f.create("pvc-1")
			if _, err := f.NodeStageVolume(f.ctx, f.stage(id)); err != nil {
				t.Fatal(err)
			}
			req := f.publish(id)
			c.change(req)
			_, err := f.NodePublishVolume(f.ctx, req)
			wantCode(t, c.reason, err, c.want)
		})
	}
}

// TestNodePublishTable is the second table of CSI v1.13, "NodePublishVolume",
// through the whole driver.
func TestNodePublishTable(t *testing.T) {
	rows := map[csi.VolumeCapability_AccessMode_Mode]codes.Code{
		csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER:        codes.FailedPrecondition,
		csi.VolumeCapability_AccessMode_SINGLE_NODE_READER_ONLY:   codes.FailedPrecondition,
		csi.VolumeCapability_AccessMode_SINGLE_NODE_SINGLE_WRITER: codes.FailedPrecondition,
		csi.VolumeCapability_AccessMode_SINGLE_NODE_MULTI_WRITER:  codes.OK,
		csi.VolumeCapability_AccessMode_MULTI_NODE_READER_ONLY:    codes.OK,
		csi.VolumeCapability_AccessMode_MULTI_NODE_SINGLE_WRITER:  codes.OK,
		csi.VolumeCapability_AccessMode_MULTI_NODE_MULTI_WRITER:   codes.OK,
	}
	if len(rows) != len(csi.VolumeCapability_AccessMode_Mode_name)-1 {
		t.Errorf("%d rows for %d access modes", len(rows), len(csi.VolumeCapability_AccessMode_Mode_name)-1)
	}
	for mode, elsewhere := range rows {
		t.Run(mode.String(), func(t *testing.T) {
			f := newFixture(t, false)
			id := f.create("pvc-1")
			request := func(target string, readOnly bool) *csi.NodePublishVolumeRequest {
				req := f.publish(id)
				req.TargetPath, req.Readonly, req.VolumeCapability.AccessMode.Mode = f.path(target), readOnly, mode
				return req
			}
			if _, err := f.NodeStageVolume(f.ctx, f.stage(id)); err != nil {
				t.Fatal(err)
			}
			for _, c := range []struct {
				what     string
				target   string
				readOnly bool
				want     codes.Code
			}{
				{"first", "t1", false, codes.OK},
				{"T1=T2, P1=P2", "t1", false, codes.OK},
				{"T1=T2, P1!=P2", "t1", true, codes.AlreadyExists},
				{"T1!=T2, P1=P2", "t2", false, elsewhere},
				{"T1!=T2, P1!=P2", "t3", true, elsewhere},
			} {
				_, err := f.NodePublishVolume(f.ctx, request(c.target, c.readOnly))
				wantCode(t, c.what, err, c.want)
			}
		})
	}
}

// TestInlineVolume calls as the kubelet does: neither staging nor a
// controller, pod information and tokens in the context.
func TestInlineVolume(t *testing.T) {
	f := newFixture(t, true)
	req := &csi.NodePublishVolumeRequest{
		VolumeId: "csi-0123", TargetPath: f.path("target"), VolumeCapability: mountCapability(),
		VolumeContext: map[string]string{
			"size": "10Mi", "kind": "fast",
			"csi.storage.k8s.io/ephemeral": "true", "csi.storage.k8s.io/pod.name": "web-0", "csi.storage.k8s.io/pod.namespace": "shop",
			"csi.storage.k8s.io/serviceAccount.tokens": "first-token",
		},
	}
	_, err := f.NodePublishVolume(f.ctx, req)
	wantCode(t, "publish", err, codes.OK)
	req.VolumeContext["csi.storage.k8s.io/serviceAccount.tokens"] = "second-token"
	_, err = f.NodePublishVolume(f.ctx, req)
	wantCode(t, "republish with a new token", err, codes.OK)
	known, err := f.nodePublish.service.Lookup(f.ctx, "csi-0123")
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(map[string]string{"size": "10Mi", "kind": "fast"}, known.Ephemeral.Attributes); diff != "" || known.Ephemeral.Pod != "shop/web-0" {
		t.Errorf("pod %q, attributes on disk (-want +got):\n%s", known.Ephemeral.Pod, diff)
	}
	req.VolumeContext["size"] = "20Mi"
	_, err = f.NodePublishVolume(f.ctx, req)
	wantCode(t, "republish with another size", err, codes.AlreadyExists)
	for range 2 {
		_, err = f.NodeUnpublishVolume(f.ctx, &csi.NodeUnpublishVolumeRequest{VolumeId: "csi-0123", TargetPath: f.path("target")})
		wantCode(t, "unpublish: upstream fails the second time", err, codes.OK)
	}
	if _, err := os.Stat(f.path("target")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("target: %v, want it gone", err)
	}
}

func TestInlineVolumeCodes(t *testing.T) {
	cases := map[string]struct {
		reason string
		id     string
		add    map[string]string
		want   codes.Code
	}{
		"Escape":   {reason: "upstream deletes ../victim", id: "../victim", want: codes.InvalidArgument},
		"Unknown":  {reason: "unknown attribute", id: "csi-1", add: map[string]string{"sizze": "1Gi"}, want: codes.InvalidArgument},
		"PodKeys":  {reason: "keys of the kubelet pass", id: "csi-1", add: map[string]string{"csi.storage.k8s.io/new.key": "x"}, want: codes.OK},
		"TooLarge": {reason: "beyond the maximum", id: "csi-1", add: map[string]string{"size": "2Ti"}, want: codes.OutOfRange},
		"PoolFull": {reason: "beyond the pool", id: "csi-1", add: map[string]string{"size": "200Gi"}, want: codes.ResourceExhausted},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, false)
			attributes := map[string]string{"csi.storage.k8s.io/ephemeral": "true"}
			for key, value := range c.add {
				attributes[key] = value
			}
			_, err := f.NodePublishVolume(f.ctx, &csi.NodePublishVolumeRequest{
				VolumeId: c.id, TargetPath: f.path("target"), VolumeCapability: mountCapability(), VolumeContext: attributes,
			})
			wantCode(t, c.reason, err, c.want)
		})
	}
}

func TestNodeUndoCodes(t *testing.T) {
	f := newFixture(t, false)
	id := f.create("pvc-1")
	_, stageErr := f.NodeStageVolume(f.ctx, f.stage(id))
	_, publishErr := f.NodePublishVolume(f.ctx, f.publish(id))
	if err := errors.Join(stageErr, publishErr); err != nil {
		t.Fatal(err)
	}
	unstage := func(id, path string) error {
		_, err := f.NodeUnstageVolume(f.ctx, &csi.NodeUnstageVolumeRequest{VolumeId: id, StagingTargetPath: path})
		return err
	}
	unpublish := func(id, path string) error {
		_, err := f.NodeUnpublishVolume(f.ctx, &csi.NodeUnpublishVolumeRequest{VolumeId: id, TargetPath: path})
		return err
	}
	wantCode(t, "unstage without id", unstage("", f.path("staging")), codes.InvalidArgument)
	wantCode(t, "unstage without path", unstage(id, ""), codes.InvalidArgument)
	wantCode(t, "unpublish without id", unpublish("", f.path("target")), codes.InvalidArgument)
	wantCode(t, "unpublish without path", unpublish(id, ""), codes.InvalidArgument)
	wantCode(t, "unstage while published", unstage(id, f.path("staging")), codes.FailedPrecondition)
	wantCode(t, "unpublish an unknown volume", unpublish("x", f.path("other")), codes.OK)
	wantCode(t, "unstage an unknown volume", unstage("x", f.path("other")), codes.OK)
	for range 2 {
		wantCode(t, "unpublish", unpublish(id, f.path("target")), codes.OK)
	}
	for range 2 {
		wantCode(t, "unstage", unstage(id, f.path("staging")), codes.OK)
	}
}

func TestNodeGetVolumeStats(t *testing.T) {
	f := newFixture(t, false)
	id := f.create("pvc-1")
	if _, err := f.NodeStageVolume(f.ctx, f.stage(id)); err != nil {
		t.Fatal(err)
	}
	got, err := f.NodeGetVolumeStats(f.ctx, &csi.NodeGetVolumeStatsRequest{VolumeId: id, VolumePath: f.path("staging")})
	if err != nil || len(got.GetUsage()) != 2 {
		t.Fatalf("answer %v, %v", got, err)
	}
	if b := got.GetUsage()[0]; b.GetUnit() != csi.VolumeUsage_BYTES || b.GetTotal() != 1<<30 || b.GetAvailable() <= 0 {
		t.Errorf("bytes %v", b)
	}
	if i := got.GetUsage()[1]; i.GetUnit() != csi.VolumeUsage_INODES || i.GetUsed() != 1 {
		t.Errorf("inodes %v", i)
	}
	for name, c := range map[string]struct {
		id, path string
		want     codes.Code
	}{
		"NoVolume":  {path: f.path("staging"), want: codes.InvalidArgument},
		"NoPath":    {id: id, want: codes.InvalidArgument},
		"Unknown":   {id: "x", path: "some/path", want: codes.NotFound},
		"WrongPath": {id: id, path: "some/path", want: codes.NotFound},
	} {
		_, err := f.NodeGetVolumeStats(f.ctx, &csi.NodeGetVolumeStatsRequest{VolumeId: c.id, VolumePath: c.path})
		wantCode(t, name, err, c.want)
	}
}

// TestBlockVolume is the life of a device through gRPC.
func TestBlockVolume(t *testing.T) {
	f := newFixture(t, false)
	request := createRequest("pvc-1")
	request.VolumeCapabilities = []*csi.VolumeCapability{blockCapability()}
	created, err := f.CreateVolume(f.ctx, request)
	wantCode(t, "create", err, codes.OK)
	id := created.GetVolume().GetVolumeId()
	stage, publish := f.stage(id), f.publish(id)
	_, err = f.NodeStageVolume(f.ctx, stage)
	wantCode(t, "stage as a directory", err, codes.InvalidArgument)
	stage.VolumeCapability, publish.VolumeCapability = blockCapability(), blockCapability()
	for range 2 {
		_, err = f.NodeStageVolume(f.ctx, stage)
		wantCode(t, "stage", err, codes.OK)
		_, err = f.NodePublishVolume(f.ctx, publish)
		wantCode(t, "publish", err, codes.OK)
	}
	stats, err := f.NodeGetVolumeStats(f.ctx, &csi.NodeGetVolumeStatsRequest{VolumeId: id, VolumePath: f.path("target")})
	wantCode(t, "stats", err, codes.OK)
	if usage := stats.GetUsage(); len(usage) != 1 || usage[0].GetUnit() != csi.VolumeUsage_BYTES || usage[0].GetTotal() != 1<<30 {
		t.Errorf("usage %v, want that of 1 GiB and no inodes", usage)
	}
	_, err = f.NodeUnpublishVolume(f.ctx, &csi.NodeUnpublishVolumeRequest{VolumeId: id, TargetPath: f.path("target")})
	wantCode(t, "unpublish", err, codes.OK)
	_, err = f.NodeUnstageVolume(f.ctx, &csi.NodeUnstageVolumeRequest{VolumeId: id, StagingTargetPath: f.path("staging")})
	wantCode(t, "unstage", err, codes.OK)
	_, err = f.DeleteVolume(f.ctx, &csi.DeleteVolumeRequest{VolumeId: id})
	wantCode(t, "delete", err, codes.OK)
}

// TestMountGroupIsRefused where the capability is not announced.
func TestMountGroupIsRefused(t *testing.T) {
	f := newFixture(t, false)
	id := f.create("pvc-1")
	stage, publish := f.stage(id), f.publish(id)
	stage.GetVolumeCapability().GetMount().VolumeMountGroup, publish.GetVolumeCapability().GetMount().VolumeMountGroup = "2000", "2000"
	_, err := f.NodeStageVolume(f.ctx, stage)
	wantCode(t, "stage", err, codes.InvalidArgument)
	_, err = f.NodePublishVolume(f.ctx, publish)
	wantCode(t, "publish", err, codes.InvalidArgument)
}
