package grpcapi

import (
	"fmt"
	"strings"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/testing/protocmp"
)

func TestCreateVolumeAnswer(t *testing.T) {
	f := newFixture(t, false)
	got, err := f.CreateVolume(f.ctx, createRequest("pvc-1"))
	if err != nil {
		t.Fatal(err)
	}
	want := &csi.CreateVolumeResponse{Volume: &csi.Volume{
		VolumeId: got.GetVolume().GetVolumeId(), CapacityBytes: 1 << 30,
		AccessibleTopology: []*csi.Topology{{Segments: map[string]string{"topology.hostpath.csi/node": testNode}}},
	}}
	if diff := cmp.Diff(want, got, protocmp.Transform()); diff != "" || want.GetVolume().GetVolumeId() == "" {
		t.Errorf("answer (-want +got):\n%s", diff)
	}
}

func TestCreateVolumeCodes(t *testing.T) {
	elsewhere := &csi.TopologyRequirement{Requisite: []*csi.Topology{{Segments: map[string]string{"topology.hostpath.csi/node": "other"}}}}
	cases := map[string]struct {
		reason string
		change func(*csi.CreateVolumeRequest)
		want   codes.Code
	}{
		"Plain":          {reason: "nothing wrong", change: func(*csi.CreateVolumeRequest) {}, want: codes.OK},
		"NoName":         {reason: "the name is required", change: func(r *csi.CreateVolumeRequest) { r.Name = "" }, want: codes.InvalidArgument},
		"LongName":       {reason: "129 bytes", change: func(r *csi.CreateVolumeRequest) { r.Name = strings.Repeat("n", 129) }, want: codes.InvalidArgument},
		"NoCapabilities": {reason: "capabilities are required", change: func(r *csi.CreateVolumeRequest) { r.VolumeCapabilities = nil }, want: codes.InvalidArgument},
		"EmptyCapa":      {reason: "upstream accepts a capability without type and mode", change: func(r *csi.CreateVolumeRequest) { r.VolumeCapabilities = []*csi.VolumeCapability{{}} }, want: codes.InvalidArgument},
		"NilCapability":  {reason: "no capability at all", change: func(r *csi.CreateVolumeRequest) { r.VolumeCapabilities = []*csi.VolumeCapability{nil} }, want: codes.InvalidArgument},
		"NoType":         {reason: "mode alone", change: func(r *csi.CreateVolumeRequest) { r.VolumeCapabilities[0].AccessType = nil }, want: codes.InvalidArgument},
		"Block": {reason: "a device", change: func(r *csi.CreateVolumeRequest) {
			r.VolumeCapabilities = []*csi.VolumeCapability{blockCapability()}
		}, want: codes.OK},
		"BlockAndMount": {reason: "a device is no directory", change: func(r *csi.CreateVolumeRequest) {
			r.VolumeCapabilities = append(r.VolumeCapabilities, blockCapability())
		}, want: codes.InvalidArgument},
		"MountGroup": {reason: "the nodes' business", change: func(r *csi.CreateVolumeRequest) {
			r.VolumeCapabilities[0].GetMount().VolumeMountGroup = "1000"
		}, want: codes.OK},
		"Source": {reason: "neither clones nor snapshots", change: func(r *csi.CreateVolumeRequest) {
			r.VolumeContentSource = &csi.VolumeContentSource{}
		}, want: codes.InvalidArgument},
		"Mutable":     {reason: "not advertised", change: func(r *csi.CreateVolumeRequest) { r.MutableParameters = map[string]string{"a": "b"} }, want: codes.InvalidArgument},
		"Negative":    {reason: "a negative size", change: func(r *csi.CreateVolumeRequest) { r.CapacityRange.RequiredBytes = -1 }, want: codes.InvalidArgument},
		"TooLarge":    {reason: "beyond the maximum", change: func(r *csi.CreateVolumeRequest) { r.CapacityRange.RequiredBytes = 2 << 40 }, want: codes.OutOfRange},
		"PoolFull":    {reason: "beyond the pool", change: func(r *csi.CreateVolumeRequest) { r.CapacityRange.RequiredBytes = 200 << 30 }, want: codes.ResourceExhausted},
		"Elsewhere":   {reason: "another node's segment", change: func(r *csi.CreateVolumeRequest) { r.AccessibilityRequirements = elsewhere }, want: codes.ResourceExhausted},
		"SameName":    {reason: "another volume of that name", change: func(r *csi.CreateVolumeRequest) { r.Name = "existing" }, want: codes.AlreadyExists},
		"UnknownPara": {reason: "a misspelt parameter", change: func(r *csi.CreateVolumeRequest) { r.Parameters = map[string]string{"knd": "fast"} }, want: codes.InvalidArgument},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, false)
			existing := createRequest("existing")
			existing.CapacityRange.RequiredBytes = 5
			existing.CapacityRange.LimitBytes = 5
			if _, err := f.CreateVolume(f.ctx, existing); err != nil {
				t.Fatal(err)
			}
			req := createRequest("pvc-1")
			c.change(req)
			_, err := f.CreateVolume(f.ctx, req)
			wantCode(t, c.reason, err, c.want)
		})
	}
}

func TestDeleteVolumeCodes(t *testing.T) {
	f := newFixture(t, false)
	id := f.create("pvc-1")
	if _, err := f.NodeStageVolume(f.ctx, f.stage(id)); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		id   string
		want codes.Code
	}{
		"Unknown": {id: "no-such-volume", want: codes.OK},
		"Empty":   {id: "", want: codes.InvalidArgument},
		"Path":    {id: "../../etc", want: codes.InvalidArgument},
		"InUse":   {id: id, want: codes.FailedPrecondition},
	} {
		_, err := f.DeleteVolume(f.ctx, &csi.DeleteVolumeRequest{VolumeId: c.id})
		wantCode(t, name, err, c.want)
	}
}

func TestValidateVolumeCapabilities(t *testing.T) {
	f := newFixture(t, false)
	created := createRequest("pvc-1")
	created.Parameters = map[string]string{"kind": "fast"}
	answer, err := f.CreateVolume(f.ctx, created)
	if err != nil {
		t.Fatal(err)
	}
	id := answer.GetVolume().GetVolumeId()
	typed := mountCapability()
	typed.GetMount().FsType = "ext4"
	cases := map[string]struct {
		reason    string
		change    func(*csi.ValidateVolumeCapabilitiesRequest)
		confirmed bool
		code      codes.Code
	}{
		"Same":       {reason: "what it was made for", change: func(*csi.ValidateVolumeCapabilitiesRequest) {}, confirmed: true},
		"Parameters": {reason: "its own parameters", change: func(r *csi.ValidateVolumeCapabilitiesRequest) { r.Parameters = created.GetParameters() }, confirmed: true},
		"Kubernetes": {reason: "what Kubernetes adds to the context does not count", change: func(r *csi.ValidateVolumeCapabilitiesRequest) {
			r.VolumeContext = map[string]string{"storage.kubernetes.io/csiProvisionerIdentity": "x"}
		}, confirmed: true},
		"OtherMode": {reason: "every mode is served", change: func(r *csi.ValidateVolumeCapabilitiesRequest) {
			r.VolumeCapabilities[0].AccessMode.Mode = csi.VolumeCapability_AccessMode_MULTI_NODE_MULTI_WRITER
		}, confirmed: true},
		"Block": {reason: "a directory is no device", change: func(r *csi.ValidateVolumeCapabilitiesRequest) {
			r.VolumeCapabilities = []*csi.VolumeCapability{blockCapability()}
		}},
		"BlockToo": {reason: "not even besides", change: func(r *csi.ValidateVolumeCapabilitiesRequest) {
			r.VolumeCapabilities = []*csi.VolumeCapability{mountCapability(), blockCapability()}
		}},
		"FSType":         {reason: "no file system", change: func(r *csi.ValidateVolumeCapabilitiesRequest) { r.VolumeCapabilities = []*csi.VolumeCapability{typed} }},
		"OtherParameter": {reason: "not its parameters", change: func(r *csi.ValidateVolumeCapabilitiesRequest) { r.Parameters = map[string]string{"kind": "slow"} }},
		"OtherContext":   {reason: "not its context", change: func(r *csi.ValidateVolumeCapabilitiesRequest) { r.VolumeContext = map[string]string{"a": "b"} }},
		"Mutable":        {reason: "nothing is mutable", change: func(r *csi.ValidateVolumeCapabilitiesRequest) { r.MutableParameters = map[string]string{"a": "b"} }},
		"NoID":           {reason: "the id is required", change: func(r *csi.ValidateVolumeCapabilitiesRequest) { r.VolumeId = "" }, code: codes.InvalidArgument},
		"NoCapabilities": {reason: "so are capabilities", change: func(r *csi.ValidateVolumeCapabilitiesRequest) { r.VolumeCapabilities = nil }, code: codes.InvalidArgument},
		"Unknown":        {reason: "no such volume", change: func(r *csi.ValidateVolumeCapabilitiesRequest) { r.VolumeId = "x" }, code: codes.NotFound},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			req := &csi.ValidateVolumeCapabilitiesRequest{VolumeId: id, VolumeCapabilities: []*csi.VolumeCapability{mountCapability()}}
			c.change(req)
			got, err := f.ValidateVolumeCapabilities(f.ctx, req)
			wantCode(t, c.reason, err, c.code)
			if c.code != codes.OK {
				return
			}
			if (got.GetConfirmed() != nil) != c.confirmed || (got.GetMessage() == "") != c.confirmed {
				t.Errorf("%s: answer %v, want confirmed %t, else a message", c.reason, got, c.confirmed)
			}
			if diff := cmp.Diff(req.GetVolumeCapabilities(), got.GetConfirmed().GetVolumeCapabilities(), protocmp.Transform()); c.confirmed && diff != "" {
				t.Errorf("%s: confirmed (-want +got):\n%s", c.reason, diff)
			}
		})
	}
}

func TestListVolumes(t *testing.T) {
	f := newFixture(t, true)
	var want []string
	for i := range 5 {
		want = append(want, f.create(fmt.Sprintf("pvc-%d", i)))
	}
	_, err := f.ControllerPublishVolume(f.ctx, &csi.ControllerPublishVolumeRequest{VolumeId: want[3], NodeId: testNode, VolumeCapability: mountCapability()})
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for token := ""; ; {
		page, err := f.ListVolumes(f.ctx, &csi.ListVolumesRequest{MaxEntries: 2, StartingToken: token})
		if err != nil {
			t.Fatal(err)
		}
		for _, entry := range page.GetEntries() {
			got = append(got, entry.GetVolume().GetVolumeId())
			published := entry.GetVolume().GetVolumeId() == want[3]
			if nodes := entry.GetStatus().GetPublishedNodeIds(); published != (len(nodes) == 1) {
				t.Errorf("volume %d is published to %v", len(got)-1, nodes)
			}
		}
		if token = page.GetNextToken(); token == "" {
			break
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("volumes (-want +got):\n%s", diff)
	}
	for name, c := range map[string]struct {
		req  *csi.ListVolumesRequest
		want codes.Code
	}{
		"NegativeMax":   {req: &csi.ListVolumesRequest{MaxEntries: -1}, want: codes.InvalidArgument},
		"NegativeToken": {req: &csi.ListVolumesRequest{StartingToken: "-5"}, want: codes.Aborted},
		"NumericToken":  {req: &csi.ListVolumesRequest{StartingToken: "3"}, want: codes.Aborted},
	} {
		_, err := f.ListVolumes(f.ctx, c.req)
		wantCode(t, name, err, c.want)
	}
}

func TestListVolumesWithoutAttachSaysNothingOfNodes(t *testing.T) {
	f := newFixture(t, false)
	f.create("pvc-1")
	page, err := f.ListVolumes(f.ctx, &csi.ListVolumesRequest{})
	if err != nil || len(page.GetEntries()) != 1 || page.GetEntries()[0].GetStatus() != nil {
		t.Errorf("page %v, %v, want one entry without status", page, err)
	}
}

func TestControllerGetVolume(t *testing.T) {
	f := newFixture(t, true)
	id := f.create("pvc-1")
	got, err := f.ControllerGetVolume(f.ctx, &csi.ControllerGetVolumeRequest{VolumeId: id})
	if err != nil || got.GetVolume().GetVolumeId() != id || len(got.GetStatus().GetPublishedNodeIds()) != 0 {
		t.Errorf("answer %v, %v", got, err)
	}
	_, err = f.ControllerGetVolume(f.ctx, &csi.ControllerGetVolumeRequest{VolumeId: "x"})
	wantCode(t, "unknown: upstream answers OK", err, codes.NotFound)
	_, err = f.ControllerGetVolume(f.ctx, &csi.ControllerGetVolumeRequest{})
	wantCode(t, "no id", err, codes.InvalidArgument)
}

func TestGetCapacity(t *testing.T) {
	f := newFixture(t, false)
	f.create("pvc-1")
	segment := func(value string) *csi.Topology {
		return &csi.Topology{Segments: map[string]string{"topology.hostpath.csi/node": value}}
	}
	cases := map[string]struct {
		reason string
		req    *csi.GetCapacityRequest
		want   int64
		code   codes.Code
	}{
		"All":     {reason: "what is left of the pool", req: &csi.GetCapacityRequest{}, want: 99 << 30},
		"Here":    {reason: "in the own segment", req: &csi.GetCapacityRequest{AccessibleTopology: segment(testNode)}, want: 99 << 30},
		"There":   {reason: "not in another one", req: &csi.GetCapacityRequest{AccessibleTopology: segment("other")}},
		"BadKind": {reason: "no such pool", req: &csi.GetCapacityRequest{Parameters: map[string]string{"kind": "x"}}, code: codes.InvalidArgument},
		"NoMode":  {reason: "half a capability", req: &csi.GetCapacityRequest{VolumeCapabilities: []*csi.VolumeCapability{{}}}, code: codes.InvalidArgument},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			got, err := f.GetCapacity(f.ctx, c.req)
			wantCode(t, c.reason, err, c.code)
			if got.GetAvailableCapacity() != c.want || got.GetMaximumVolumeSize().GetValue() != c.want {
				t.Errorf("%s: %v, want %d", c.reason, got, c.want)
			}
		})
	}
}

func TestControllerPublishCodes(t *testing.T) {
	f := newFixture(t, true)
	id := f.create("pvc-1")
	cases := map[string]struct {
		reason string
		req    *csi.ControllerPublishVolumeRequest
		want   codes.Code
	}{
		"NoVolume":       {reason: "required", req: &csi.ControllerPublishVolumeRequest{NodeId: testNode, VolumeCapability: mountCapability()}, want: codes.InvalidArgument},
		"NoNode":         {reason: "required", req: &csi.ControllerPublishVolumeRequest{VolumeId: id, VolumeCapability: mountCapability()}, want: codes.InvalidArgument},
		"NoCapability":   {reason: "required", req: &csi.ControllerPublishVolumeRequest{VolumeId: id, NodeId: testNode}, want: codes.InvalidArgument},
		"UnknownVolume":  {reason: "no such volume", req: &csi.ControllerPublishVolumeRequest{VolumeId: "x", NodeId: testNode, VolumeCapability: mountCapability()}, want: codes.NotFound},
		"UnknownNode":    {reason: "no such node", req: &csi.ControllerPublishVolumeRequest{VolumeId: id, NodeId: "other", VolumeCapability: mountCapability()}, want: codes.NotFound},
		"NodeWithAPath":  {reason: "never a path", req: &csi.ControllerPublishVolumeRequest{VolumeId: id, NodeId: "../x", VolumeCapability: mountCapability()}, want: codes.InvalidArgument},
		"VolumeWithPath": {reason: "never a path", req: &csi.ControllerPublishVolumeRequest{VolumeId: "../x", NodeId: testNode, VolumeCapability: mountCapability()}, want: codes.InvalidArgument},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			_, err := f.ControllerPublishVolume(f.ctx, c.req)
			wantCode(t, c.reason, err, c.want)
		})
	}
	for name, c := range map[string]struct {
		id, node string
		want     codes.Code
	}{
		"NoVolume": {node: testNode, want: codes.InvalidArgument}, "Unknown": {id: "x", node: testNode},
		"NodeGone": {id: id, node: "gone"}, "AllNodes": {id: id},
	} {
		_, err := f.ControllerUnpublishVolume(f.ctx, &csi.ControllerUnpublishVolumeRequest{VolumeId: c.id, NodeId: c.node})
		wantCode(t, "unpublish "+name, err, c.want)
	}
}
