package csitest_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"

	"github.com/longshore-csi/longshore/csikittest/csitest"
)

const gib = int64(1) << 30

// mode returns a mount capability with an access mode.
func mode(m csi.VolumeCapability_AccessMode_Mode) *csi.VolumeCapability {
	return &csi.VolumeCapability{
		AccessType: &csi.VolumeCapability_Mount{Mount: &csi.VolumeCapability_MountVolume{FsType: "ext4"}},
		AccessMode: &csi.VolumeCapability_AccessMode{Mode: m},
	}
}

func writer() *csi.VolumeCapability {
	return mode(csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER)
}

func create(name string) *csi.CreateVolumeRequest {
	return &csi.CreateVolumeRequest{Name: name, VolumeCapabilities: []*csi.VolumeCapability{writer()}}
}

// changed returns req after change.
func changed[M proto.Message](req M, change func(M)) M {
	change(req)
	return req
}

func controller(d *csitest.Driver) csi.ControllerClient { return csi.NewControllerClient(d.Conn()) }

func mustCreate(t *testing.T, d *csitest.Driver, names ...string) {
	t.Helper()
	for _, name := range names {
		if _, err := controller(d).CreateVolume(t.Context(), create(name)); err != nil {
			t.Fatalf("CreateVolume(%q): %v", name, err)
		}
	}
}

func wantCode(t *testing.T, reason string, err error, want codes.Code) {
	t.Helper()
	if got := status.Code(err); got != want {
		t.Errorf("%s: got %v (%v), want %v", reason, got, err, want)
	}
}

func TestCreateVolumeChecks(t *testing.T) {
	cases := map[string]struct {
		reason  string
		options csitest.Options
		req     *csi.CreateVolumeRequest
		want    codes.Code
	}{
		"Minimal": {reason: "a name and a capability suffice", req: create("a")},
		"NoName":  {reason: "the name is required", req: create(""), want: codes.InvalidArgument},
		"NoCapabilities": {
			reason: "capabilities are required",
			req:    &csi.CreateVolumeRequest{Name: "a"},
			want:   codes.InvalidArgument,
		},
		"NoAccessType": {
			reason: "a capability without access type is incomplete",
			req:    changed(create("a"), func(r *csi.CreateVolumeRequest) { r.VolumeCapabilities[0].AccessType = nil }),
			want:   codes.InvalidArgument,
		},
		"NoAccessMode": {
			reason: "a capability without access mode is incomplete",
			req:    changed(create("a"), func(r *csi.CreateVolumeRequest) { r.VolumeCapabilities[0].AccessMode = nil }),
			want:   codes.InvalidArgument,
		},
		"NegativeSize": {
			reason: "sizes are not negative",
			req:    changed(create("a"), func(r *csi.CreateVolumeRequest) { r.CapacityRange = &csi.CapacityRange{RequiredBytes: -1} }),
			want:   codes.InvalidArgument,
		},
		"LimitBelowRequired": {
			reason: "no size is in an empty range",
			req: changed(create("a"), func(r *csi.CreateVolumeRequest) {
				r.CapacityRange = &csi.CapacityRange{RequiredBytes: 2, LimitBytes: 1}
			}),
			want: codes.InvalidArgument,
		},
		"TooLarge": {
			reason: "a size that the driver never makes is out of range",
			req: changed(create("a"), func(r *csi.CreateVolumeRequest) {
				r.CapacityRange = &csi.CapacityRange{RequiredBytes: 1 << 60}
			}),
			want: codes.OutOfRange,
		},
		"Full": {
			reason:  "a size that does not fit now exhausts the driver",
			options: csitest.Options{Capacity: gib},
			req: changed(create("a"), func(r *csi.CreateVolumeRequest) {
				r.CapacityRange = &csi.CapacityRange{RequiredBytes: 2 * gib}
			}),
			want: codes.ResourceExhausted,
		},
		"NotAnnounced": {
			reason:  "the call needs its capability",
			options: csitest.Options{Controller: []csi.ControllerServiceCapability_RPC_Type{}},
			req:     create("a"),
			want:    codes.Unimplemented,
		},
		"UnknownSourceVolume": {
			reason: "a clone needs its source",
			req:    changed(create("a"), func(r *csi.CreateVolumeRequest) { r.VolumeContentSource = cloneOf("vol-none") }),
			want:   codes.NotFound,
		},
		"UnknownSourceSnapshot": {
			reason: "no snapshot exists",
			req:    changed(create("a"), func(r *csi.CreateVolumeRequest) { r.VolumeContentSource = restoreOf("none") }),
			want:   codes.NotFound,
		},
		"EmptySource": {
			reason: "a source of no kind is invalid",
			req:    changed(create("a"), func(r *csi.CreateVolumeRequest) { r.VolumeContentSource = &csi.VolumeContentSource{} }),
			want:   codes.InvalidArgument,
		},
		"MutableAccepted": {
			reason:  "a listed mutable parameter is accepted",
			options: csitest.Options{MutableParameters: []string{"iops"}},
			req:     changed(create("a"), func(r *csi.CreateVolumeRequest) { r.MutableParameters = map[string]string{"iops": "1"} }),
		},
		"MutableRefused": {
			reason:  "an unlisted mutable parameter is refused",
			options: csitest.Options{MutableParameters: []string{"iops"}},
			req:     changed(create("a"), func(r *csi.CreateVolumeRequest) { r.MutableParameters = map[string]string{"x": "1"} }),
			want:    codes.InvalidArgument,
		},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			d := csitest.New(c.options)
			_, err := controller(d).CreateVolume(t.Context(), c.req)
			wantCode(t, c.reason, err, c.want)
			if exists := len(d.Volumes()) > 0; exists != (c.want == codes.OK) {
				t.Errorf("%s: a volume exists: %v", c.reason, exists)
			}
		})
	}
}

func cloneOf(id string) *csi.VolumeContentSource {
	return &csi.VolumeContentSource{Type: &csi.VolumeContentSource_Volume{
		Volume: &csi.VolumeContentSource_VolumeSource{VolumeId: id},
	}}
}

func restoreOf(id string) *csi.VolumeContentSource {
	return &csi.VolumeContentSource{Type: &csi.VolumeContentSource_Snapshot{
		Snapshot: &csi.VolumeContentSource_SnapshotSource{SnapshotId: id},
	}}
}

func TestCreateVolumeAgain(t *testing.T) {
	zone := func(z string) *csi.TopologyRequirement {
		return &csi.TopologyRequirement{Requisite: []*csi.Topology{{Segments: map[string]string{"zone": z}}}}
	}
	first := func() *csi.CreateVolumeRequest {
		return changed(create("a"), func(r *csi.CreateVolumeRequest) {
			r.CapacityRange = &csi.CapacityRange{RequiredBytes: gib}
			r.Parameters = map[string]string{"tier": "fast"}
			r.AccessibilityRequirements = zone("z1")
		})
	}
	cases := map[string]struct {
		reason string
		change func(*csi.CreateVolumeRequest)
		want   codes.Code
	}{
		"Same":            {reason: "a repetition returns the same volume", change: func(*csi.CreateVolumeRequest) {}},
		"RangeThatFits":   {reason: "the size is in the new range", change: func(r *csi.CreateVolumeRequest) { r.CapacityRange.LimitBytes = 2 * gib }},
		"Larger":          {reason: "the size is below the new range", change: func(r *csi.CreateVolumeRequest) { r.CapacityRange.RequiredBytes = 2 * gib }, want: codes.AlreadyExists},
		"Smaller":         {reason: "the size is above the new range", change: func(r *csi.CreateVolumeRequest) { r.CapacityRange = &csi.CapacityRange{LimitBytes: 1} }, want: codes.AlreadyExists},
		"OtherParameters": {reason: "parameters belong to the volume", change: func(r *csi.CreateVolumeRequest) { r.Parameters["tier"] = "slow" }, want: codes.AlreadyExists},
		"OtherSource":     {reason: "the content belongs to the volume", change: func(r *csi.CreateVolumeRequest) { r.VolumeContentSource = cloneOf("vol-b") }, want: codes.AlreadyExists},
		"OtherTopology":   {reason: "the volume is not accessible there", change: func(r *csi.CreateVolumeRequest) { r.AccessibilityRequirements = zone("z2") }, want: codes.AlreadyExists},
		"OtherSecrets":    {reason: "secrets are no part of the volume", change: func(r *csi.CreateVolumeRequest) { r.Secrets = map[string]string{"k": "v"} }},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			d := csitest.New(csitest.Options{Topology: map[string]string{"zone": "z1"}})
			one, err := controller(d).CreateVolume(t.Context(), first())
			if err != nil {
				t.Fatalf("first CreateVolume: %v", err)
			}
			two, err := controller(d).CreateVolume(t.Context(), changed(first(), c.change))
			wantCode(t, c.reason, err, c.want)
			if diff := cmp.Diff(one, two, protocmp.Transform()); c.want == codes.OK && diff != "" {
				t.Errorf("%s: replies differ:\n%s", c.reason, diff)
			}
			if n := len(d.Volumes()); n != 1 {
				t.Errorf("%s: %d volumes exist, want 1", c.reason, n)
			}
		})
	}
}

func TestCreateVolumeReply(t *testing.T) {
	z1, z2 := map[string]string{"zone": "z1"}, map[string]string{"zone": "z2"}
	cases := map[string]struct {
		reason  string
		options csitest.Options
		change  func(*csi.CreateVolumeRequest)
		want    *csi.Volume
	}{
		"Defaults": {
			reason: "the size is the default, the volume is accessible from everywhere",
			change: func(*csi.CreateVolumeRequest) {},
			want:   &csi.Volume{CapacityBytes: gib},
		},
		"SizeBelowLimit": {
			reason: "a limit below the default size wins",
			change: func(r *csi.CreateVolumeRequest) { r.CapacityRange = &csi.CapacityRange{LimitBytes: 5} },
			want:   &csi.Volume{CapacityBytes: 5},
		},
		"OwnSegment": {
			reason:  "without requirement a volume is where the driver is",
			options: csitest.Options{Topology: z1},
			change:  func(*csi.CreateVolumeRequest) {},
			want:    &csi.Volume{CapacityBytes: gib, AccessibleTopology: []*csi.Topology{{Segments: z1}}},
		},
		"Preferred": {
			reason:  "the most preferred segment is taken",
			options: csitest.Options{Topology: z1},
			change: func(r *csi.CreateVolumeRequest) {
				r.AccessibilityRequirements = &csi.TopologyRequirement{
					Requisite: []*csi.Topology{{Segments: z1}, {Segments: z2}},
					Preferred: []*csi.Topology{{Segments: z2}, {Segments: z1}},
				}
			},
			want: &csi.Volume{CapacityBytes: gib, AccessibleTopology: []*csi.Topology{{Segments: z2}}},
		},
		"NoConstraints": {
			reason: "a driver without topology ignores the requirement",
			change: func(r *csi.CreateVolumeRequest) {
				r.AccessibilityRequirements = &csi.TopologyRequirement{Requisite: []*csi.Topology{{Segments: z1}}}
			},
			want: &csi.Volume{CapacityBytes: gib},
		},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			c.want.VolumeId, c.want.VolumeContext = "vol-a", map[string]string{"name": "a"}
			got, err := controller(csitest.New(c.options)).CreateVolume(t.Context(), changed(create("a"), c.change))
			if err != nil {
				t.Fatalf("CreateVolume: %v", err)
			}
			if diff := cmp.Diff(c.want, got.GetVolume(), protocmp.Transform()); diff != "" {
				t.Errorf("%s: volume (-want +got):\n%s", c.reason, diff)
			}
		})
	}
}

func TestClone(t *testing.T) {
	d := csitest.New(csitest.Options{})
	d.AddVolume(csitest.Volume{ID: "src", Capacity: 3 * gib})
	req := changed(create("copy"), func(r *csi.CreateVolumeRequest) { r.VolumeContentSource = cloneOf("src") })
	reply, err := controller(d).CreateVolume(t.Context(), req)
	if err != nil {
		t.Fatalf("clone: %v", err)
	}
	if got := reply.GetVolume(); got.GetCapacityBytes() != 3*gib || got.GetContentSource().GetVolume().GetVolumeId() != "src" {
		t.Errorf("clone is %v, want the size of its source and the source named", got)
	}
	d.SetController(csi.ControllerServiceCapability_RPC_CREATE_DELETE_VOLUME)
	req.Name = "copy-2"
	_, err = controller(d).CreateVolume(t.Context(), req)
	wantCode(t, "cloning is not announced any more", err, codes.InvalidArgument)
}

func TestRestore(t *testing.T) {
	d := csitest.New(csitest.Options{})
	d.AddSnapshot(csitest.Snapshot{ID: "snap", Size: 3 * gib})
	req := changed(create("copy"), func(r *csi.CreateVolumeRequest) { r.VolumeContentSource = restoreOf("snap") })
	reply, err := controller(d).CreateVolume(t.Context(), req)
	if err != nil {
		t.Fatalf("restore: %v", err)
	}
	if got := reply.GetVolume(); got.GetCapacityBytes() != 3*gib || got.GetContentSource().GetSnapshot().GetSnapshotId() != "snap" {
		t.Errorf("volume is %v, want the size of its snapshot and the snapshot named", got)
	}
	d.RemoveSnapshot("snap")
	req.Name = "copy-2"
	_, err = controller(d).CreateVolume(t.Context(), req)
	wantCode(t, "a snapshot that is gone cannot be restored", err, codes.NotFound)
}

func TestDeleteVolume(t *testing.T) {
	used := csitest.Mount{Node: "node-1", Path: "/p"}
	cases := map[string]struct {
		reason     string
		volume     csitest.Volume
		id         string
		want       codes.Code
		violations int
	}{
		"Unused":    {reason: "an unused volume goes", volume: csitest.Volume{ID: "v"}, id: "v"},
		"Unknown":   {reason: "a volume that does not exist is deleted already", volume: csitest.Volume{ID: "v"}, id: "w"},
		"NoID":      {reason: "the ID is required", want: codes.InvalidArgument},
		"Attached":  {reason: "a volume of a node stays", volume: csitest.Volume{ID: "v", Nodes: []string{"n"}}, id: "v", want: codes.FailedPrecondition, violations: 1},
		"Staged":    {reason: "a staged volume stays", volume: csitest.Volume{ID: "v", Staged: []csitest.Mount{used}}, id: "v", want: codes.FailedPrecondition, violations: 1},
		"Published": {reason: "a published volume stays", volume: csitest.Volume{ID: "v", Published: []csitest.Mount{used}}, id: "v", want: codes.FailedPrecondition, violations: 1},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			d := csitest.New(csitest.Options{})
			d.AddVolume(c.volume)
			_, err := controller(d).DeleteVolume(t.Context(), &csi.DeleteVolumeRequest{VolumeId: c.id})
			wantCode(t, c.reason, err, c.want)
			if got := d.Violations(); len(got) != c.violations {
				t.Errorf("%s: violations %q, want %d", c.reason, got, c.violations)
			}
			wantLeft := 1
			if c.id == "v" && c.want == codes.OK {
				wantLeft = 0
			}
			if left := len(d.Volumes()); left != wantLeft {
				t.Errorf("%s: %d volumes are left, want %d", c.reason, left, wantLeft)
			}
		})
	}
}

func TestValidateVolumeCapabilities(t *testing.T) {
	cases := map[string]struct {
		reason    string
		req       *csi.ValidateVolumeCapabilitiesRequest
		want      codes.Code
		confirmed bool
	}{
		"Confirmed": {
			reason:    "a complete capability is confirmed",
			req:       &csi.ValidateVolumeCapabilitiesRequest{VolumeId: "vol-a", VolumeCapabilities: []*csi.VolumeCapability{writer()}, VolumeContext: map[string]string{"name": "a"}},
			confirmed: true,
		},
		"ForeignContext": {
			reason: "the context of another volume is not confirmed",
			req:    &csi.ValidateVolumeCapabilitiesRequest{VolumeId: "vol-a", VolumeCapabilities: []*csi.VolumeCapability{writer()}, VolumeContext: map[string]string{"name": "b"}},
		},
		"NoCapabilities": {reason: "capabilities are required", req: &csi.ValidateVolumeCapabilitiesRequest{VolumeId: "vol-a"}, want: codes.InvalidArgument},
		"NoID":           {reason: "the ID is required", req: &csi.ValidateVolumeCapabilitiesRequest{VolumeCapabilities: []*csi.VolumeCapability{writer()}}, want: codes.InvalidArgument},
		"Unknown":        {reason: "the volume must exist", req: &csi.ValidateVolumeCapabilitiesRequest{VolumeId: "x", VolumeCapabilities: []*csi.VolumeCapability{writer()}}, want: codes.NotFound},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			d := csitest.New(csitest.Options{})
			mustCreate(t, d, "a")
			reply, err := controller(d).ValidateVolumeCapabilities(t.Context(), c.req)
			wantCode(t, c.reason, err, c.want)
			if got := reply.GetConfirmed() != nil; got != c.confirmed {
				t.Errorf("%s: confirmed is %v, message %q", c.reason, got, reply.GetMessage())
			}
		})
	}
}

// listAll pages through all volumes, calling between after each page.
func listAll(ctx context.Context, d *csitest.Driver, size int32, between func()) (ids []string, pages int, err error) {
	token := ""
	for {
		reply, err := controller(d).ListVolumes(ctx, &csi.ListVolumesRequest{MaxEntries: size, StartingToken: token})
		if err != nil {
			return ids, pages, err
		}
		pages++
		for _, e := range reply.GetEntries() {
			ids = append(ids, e.GetVolume().GetVolumeId())
		}
		if token = reply.GetNextToken(); token == "" {
			return ids, pages, nil
		}
		between()
	}
}

func TestListVolumesPages(t *testing.T) {
	for size, wantPages := range map[int32]int{0: 1, 1: 5, 2: 3, 3: 2, 5: 1, 9: 1} {
		t.Run(fmt.Sprintf("Size%d", size), func(t *testing.T) {
			d := csitest.New(csitest.Options{})
			mustCreate(t, d, "c", "a", "e", "b", "d")
			ids, pages, err := listAll(t.Context(), d, size, func() {})
			if err != nil {
				t.Fatalf("ListVolumes: %v", err)
			}
			if diff := cmp.Diff([]string{"vol-a", "vol-b", "vol-c", "vol-d", "vol-e"}, ids); diff != "" {
				t.Errorf("volumes (-want +got):\n%s", diff)
			}
			if pages != wantPages {
				t.Errorf("got %d pages, want %d", pages, wantPages)
			}
		})
	}
}

// Volumes that exist throughout are listed once, whatever comes and goes.
func TestListVolumesWhileTheyChange(t *testing.T) {
	d := csitest.New(csitest.Options{})
	mustCreate(t, d, "a", "b", "c", "d")
	step := 0
	ids, _, err := listAll(t.Context(), d, 2, func() {
		if step++; step == 1 {
			d.RemoveVolume("vol-b") // the last one of the page before
			mustCreate(t, d, "a2")  // before the place of the token
		}
	})
	if err != nil {
		t.Fatalf("ListVolumes: %v", err)
	}
	if diff := cmp.Diff([]string{"vol-a", "vol-b", "vol-c", "vol-d"}, ids); diff != "" {
		t.Errorf("volumes (-want +got):\n%s", diff)
	}
}

func TestListVolumesChecks(t *testing.T) {
	d := csitest.New(csitest.Options{})
	_, err := controller(d).ListVolumes(t.Context(), &csi.ListVolumesRequest{StartingToken: "nonsense"})
	wantCode(t, "a foreign token", err, codes.Aborted)
	_, err = controller(d).ListVolumes(t.Context(), &csi.ListVolumesRequest{MaxEntries: -1})
	wantCode(t, "a negative page size", err, codes.InvalidArgument)
	d.SetController()
	_, err = controller(d).ListVolumes(t.Context(), &csi.ListVolumesRequest{})
	wantCode(t, "listing is not announced any more", err, codes.Unimplemented)
}

func TestVolumeStatusTellsNodes(t *testing.T) {
	d := csitest.New(csitest.Options{})
	d.AddVolume(csitest.Volume{ID: "v", Nodes: []string{"n2", "n1"}})
	want := []string{"n1", "n2"}
	list, err := controller(d).ListVolumes(t.Context(), &csi.ListVolumesRequest{})
	if err != nil {
		t.Fatalf("ListVolumes: %v", err)
	}
	if diff := cmp.Diff(want, list.GetEntries()[0].GetStatus().GetPublishedNodeIds()); diff != "" {
		t.Errorf("nodes in the list (-want +got):\n%s", diff)
	}
	one, err := controller(d).ControllerGetVolume(t.Context(), &csi.ControllerGetVolumeRequest{VolumeId: "v"})
	if err != nil {
		t.Fatalf("ControllerGetVolume: %v", err)
	}
	if diff := cmp.Diff(want, one.GetStatus().GetPublishedNodeIds()); diff != "" {
		t.Errorf("nodes of the volume (-want +got):\n%s", diff)
	}
	_, err = controller(d).ControllerGetVolume(t.Context(), &csi.ControllerGetVolumeRequest{VolumeId: "w"})
	wantCode(t, "a volume that does not exist", err, codes.NotFound)
}

func TestGetCapacity(t *testing.T) {
	d := csitest.New(csitest.Options{Capacity: 3 * gib})
	mustCreate(t, d, "a")
	reply, err := controller(d).GetCapacity(t.Context(), &csi.GetCapacityRequest{})
	if err != nil {
		t.Fatalf("GetCapacity: %v", err)
	}
	if reply.GetAvailableCapacity() != 2*gib || reply.GetMaximumVolumeSize().GetValue() != 2*gib {
		t.Errorf("capacity %v, want 2 GiB free", reply)
	}
	_, err = controller(d).GetCapacity(t.Context(), &csi.GetCapacityRequest{VolumeCapabilities: []*csi.VolumeCapability{{}}})
	wantCode(t, "an incomplete capability", err, codes.InvalidArgument)
}

func TestControllerExpandVolume(t *testing.T) {
	cases := map[string]struct {
		reason   string
		id       string
		capacity *csi.CapacityRange
		want     codes.Code
		size     int64
	}{
		"Grow":    {reason: "the volume grows", id: "vol-a", capacity: &csi.CapacityRange{RequiredBytes: 2 * gib}, size: 2 * gib},
		"Never":   {reason: "a volume never shrinks", id: "vol-a", capacity: &csi.CapacityRange{RequiredBytes: 5}, size: gib},
		"Limit":   {reason: "a limit below the size cannot be met", id: "vol-a", capacity: &csi.CapacityRange{LimitBytes: 5}, want: codes.OutOfRange},
		"Full":    {reason: "the driver has 4 GiB", id: "vol-a", capacity: &csi.CapacityRange{RequiredBytes: 5 * gib}, want: codes.ResourceExhausted},
		"NoRange": {reason: "the range is required", id: "vol-a", want: codes.InvalidArgument},
		"Unknown": {reason: "the volume must exist", id: "x", capacity: &csi.CapacityRange{RequiredBytes: 5}, want: codes.NotFound},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			d := csitest.New(csitest.Options{Capacity: 4 * gib})
			mustCreate(t, d, "a")
			reply, err := controller(d).ControllerExpandVolume(t.Context(), &csi.ControllerExpandVolumeRequest{VolumeId: c.id, CapacityRange: c.capacity})
			wantCode(t, c.reason, err, c.want)
			if reply.GetCapacityBytes() != c.size {
				t.Errorf("%s: size %d, want %d", c.reason, reply.GetCapacityBytes(), c.size)
			}
			if c.want == codes.OK && (d.Volumes()[0].Capacity != c.size || !reply.GetNodeExpansionRequired()) {
				t.Errorf("%s: volume %+v, reply %v", c.reason, d.Volumes()[0], reply)
			}
		})
	}
}

func TestControllerModifyVolume(t *testing.T) {
	d := csitest.New(csitest.Options{MutableParameters: []string{"iops"}})
	mustCreate(t, d, "a")
	modify := func(key string) error {
		_, err := controller(d).ControllerModifyVolume(t.Context(), &csi.ControllerModifyVolumeRequest{
			VolumeId: "vol-a", MutableParameters: map[string]string{key: "9"},
		})
		return err
	}
	wantCode(t, "a listed parameter", modify("iops"), codes.OK)
	wantCode(t, "an unlisted parameter", modify("color"), codes.InvalidArgument)
	if diff := cmp.Diff(map[string]string{"iops": "9"}, d.Volumes()[0].Mutable); diff != "" {
		t.Errorf("mutable parameters (-want +got):\n%s", diff)
	}
}
