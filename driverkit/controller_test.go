package driverkit_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/longshore-csi/longshore/driverkit"
	"github.com/longshore-csi/longshore/driverkit/internal/testarray"
)

// five has the five functions that every driver has, and no further part.
type five struct{ backend }

// TestCapabilitiesFollow compares what is announced by a driver with every part, and by one with the five functions.
func TestCapabilitiesFollow(t *testing.T) {
	b := prepareBench(t, func(o *driverkit.Options) {
		o.TopologyKeys, o.Topology = []string{"zone"}, driverkit.Segments{"zone": "a"}
	})
	announced := func() []string {
		var all []string
		plugin, err := b.GetPluginCapabilities(ctxOf(t), &csi.GetPluginCapabilitiesRequest{})
		wantCode(t, "plugin capabilities", err, codes.OK)
		for _, c := range plugin.GetCapabilities() {
			all = append(all, strings.TrimSpace(c.GetService().GetType().String()+" "+c.GetVolumeExpansion().GetType().String()))
		}
		controller, err := b.ControllerGetCapabilities(ctxOf(t), &csi.ControllerGetCapabilitiesRequest{})
		wantCode(t, "controller capabilities", err, codes.OK)
		for _, c := range controller.GetCapabilities() {
			all = append(all, c.GetRpc().GetType().String())
		}
		node, err := b.NodeGetCapabilities(ctxOf(t), &csi.NodeGetCapabilitiesRequest{})
		wantCode(t, "node capabilities", err, codes.OK)
		for _, c := range node.GetCapabilities() {
			all = append(all, "node "+c.GetRpc().GetType().String())
		}
		return all
	}
	basic := []string{
		"CONTROLLER_SERVICE UNKNOWN", "VOLUME_ACCESSIBILITY_CONSTRAINTS UNKNOWN", "CREATE_DELETE_VOLUME", "SINGLE_NODE_MULTI_WRITER", "GET_VOLUME",
		"node STAGE_UNSTAGE_VOLUME", "node GET_VOLUME_STATS", "node SINGLE_NODE_MULTI_WRITER", "node GET_VOLUME_HEALTH",
	}
	more := []string{
		"SNAPSHOT_ACCESSIBILITY_CONSTRAINTS UNKNOWN", "UNKNOWN ONLINE", "PUBLISH_UNPUBLISH_VOLUME", "PUBLISH_READONLY", "LIST_VOLUMES",
		"LIST_VOLUMES_PUBLISHED_NODES", "GET_CAPACITY", "EXPAND_VOLUME", "MODIFY_VOLUME", "CLONE_VOLUME", "CREATE_DELETE_SNAPSHOT", "GET_SNAPSHOT",
		"LIST_SNAPSHOTS", "GET_VOLUME_HEALTH", "LIST_VOLUME_HEALTH", "GROUP_CONTROLLER_SERVICE UNKNOWN", "node EXPAND_VOLUME",
	}
	b.start(five{b.array})
	if got, want := sorted(announced()), sorted(basic); !slices.Equal(got, want) {
		t.Errorf("five functions announce\n%q, want\n%q", got, want)
	}
	_, err := b.ControllerPublishVolume(ctxOf(t), &csi.ControllerPublishVolumeRequest{})
	wantCode(t, "attach", err, codes.Unimplemented)
	_, err = b.ListSnapshots(ctxOf(t), &csi.ListSnapshotsRequest{})
	wantCode(t, "list snapshots", err, codes.Unimplemented)
	b.restart()
	if got, want := sorted(announced()), sorted(slices.Concat(basic, more)); !slices.Equal(got, want) {
		t.Errorf("all interfaces announce\n%q, want\n%q", got, want)
	}
}

func sorted(list []string) []string { return slices.Sorted(slices.Values(list)) }

// TestInvalidRequests sends requests that break one rule each: the error names the field.
func TestInvalidRequests(t *testing.T) {
	b := newBench(t, nil)
	ctx := ctxOf(t)
	create := func(change func(*csi.CreateVolumeRequest)) error {
		req := createRequest("pvc-1")
		change(req)
		_, err := b.CreateVolume(ctx, req)
		return err
	}
	stage := func(change func(*csi.NodeStageVolumeRequest)) error {
		req := b.stageRequest(&csi.Volume{VolumeId: "v"})
		change(req)
		_, err := b.NodeStageVolume(ctx, req)
		return err
	}
	for field, err := range map[string]error{
		"name: is required":         create(func(r *csi.CreateVolumeRequest) { r.Name = "" }),
		"name: 129 bytes":           create(func(r *csi.CreateVolumeRequest) { r.Name = strings.Repeat("n", 129) }),
		"control character at byte": create(func(r *csi.CreateVolumeRequest) { r.Name = "pvc\x00" }),
		"volume_capabilities":       create(func(r *csi.CreateVolumeRequest) { r.VolumeCapabilities = nil }),
		"access_type: is required":  create(func(r *csi.CreateVolumeRequest) { r.VolumeCapabilities[0].AccessType = nil }),
		"access_mode: is required":  create(func(r *csi.CreateVolumeRequest) { r.VolumeCapabilities[0].AccessMode = nil }),
		"serves one node at a time": create(func(r *csi.CreateVolumeRequest) {
			r.VolumeCapabilities[0].AccessMode.Mode = csi.VolumeCapability_AccessMode_Mode(driverkit.MultiNodeMultiWriter)
		}),
		"access_mode: 42":              create(func(r *csi.CreateVolumeRequest) { r.VolumeCapabilities[0].AccessMode.Mode = 42 }),
		"must not be negative":         create(func(r *csi.CreateVolumeRequest) { r.CapacityRange.RequiredBytes = -1 }),
		"is above limit_bytes":         create(func(r *csi.CreateVolumeRequest) { r.CapacityRange.LimitBytes = 1 }),
		"volume_content_source":        create(func(r *csi.CreateVolumeRequest) { r.VolumeContentSource = &csi.VolumeContentSource{} }),
		"snapshot_id: is required":     create(func(r *csi.CreateVolumeRequest) { r.VolumeContentSource = snapshotSource("") }),
		"staging_target_path: is":      stage(func(r *csi.NodeStageVolumeRequest) { r.StagingTargetPath = "" }),
		`must be absolute, without`:    stage(func(r *csi.NodeStageVolumeRequest) { r.StagingTargetPath = "/a/../b" }),
		"driver's directory":           stage(func(r *csi.NodeStageVolumeRequest) { r.StagingTargetPath = b.path("state/x") }),
		"volume_id: is required":       stage(func(r *csi.NodeStageVolumeRequest) { r.VolumeId = "" }),
		"VOLUME_MOUNT_GROUP is not":    stage(func(r *csi.NodeStageVolumeRequest) { r.VolumeCapability.GetMount().VolumeMountGroup = "7" }),
		"max_entries: -1":              lastError(b.ListVolumes(ctx, &csi.ListVolumesRequest{MaxEntries: -1})),
		"capacity_range: is":           lastError(b.ControllerExpandVolume(ctx, &csi.ControllerExpandVolumeRequest{VolumeId: "v"})),
		"source_volume_id: is":         lastError(b.CreateSnapshot(ctx, &csi.CreateSnapshotRequest{Name: "s"})),
		`ephemeral="yes": must be`:     lastError(b.NodePublishVolume(ctx, inlineRequest(b, "yes"))),
		`mutable_parameters: size="7"`: lastError(b.CreateVolume(ctx, &csi.CreateVolumeRequest{Name: "x", VolumeCapabilities: createRequest("").VolumeCapabilities, MutableParameters: map[string]string{"size": "7"}})),
	} {
		if status.Code(err) != codes.InvalidArgument || !strings.Contains(err.Error(), field) {
			t.Errorf("%q: got %v, want INVALID_ARGUMENT", field, err)
		}
	}
}

func lastError[T any](_ T, err error) error { return err }

func snapshotSource(id string) *csi.VolumeContentSource {
	return &csi.VolumeContentSource{Type: &csi.VolumeContentSource_Snapshot{Snapshot: &csi.VolumeContentSource_SnapshotSource{SnapshotId: id}}}
}

func inlineRequest(b *bench, ephemeral string) *csi.NodePublishVolumeRequest {
	req := b.publishRequest(&csi.Volume{VolumeId: "csi-1"}, "pod-1")
	req.StagingTargetPath, req.VolumeContext = "", map[string]string{"csi.storage.k8s.io/ephemeral": ephemeral, "size": "4194304"}
	return req
}

// TestSameName compares a volume that exists with what a repeated CreateVolume asks for.
func TestSameName(t *testing.T) {
	b := newBench(t, nil)
	first := b.create("pvc-1")
	snapshot, err := b.CreateSnapshot(ctxOf(t), &csi.CreateSnapshotRequest{Name: "s", SourceVolumeId: first.GetVolumeId()})
	wantCode(t, "snapshot", err, codes.OK)
	if again := b.create("pvc-1"); again.GetVolumeId() != first.GetVolumeId() {
		t.Errorf("the same again: %q, want %q", again.GetVolumeId(), first.GetVolumeId())
	}
	for what, change := range map[string]func(*csi.CreateVolumeRequest){
		"a larger volume":  func(r *csi.CreateVolumeRequest) { r.CapacityRange.RequiredBytes = 8 << 20 },
		"a smaller limit":  func(r *csi.CreateVolumeRequest) { r.CapacityRange = &csi.CapacityRange{LimitBytes: 1 << 20} },
		"another source":   func(r *csi.CreateVolumeRequest) { r.VolumeContentSource = snapshotSource("snap-9") },
		"a first snapshot": func(r *csi.CreateVolumeRequest) { r.Name = "pvc-2"; r.VolumeContentSource = snapshotSource("snap-9") },
	} {
		req := createRequest("pvc-1")
		change(req)
		want := codes.AlreadyExists
		switch what {
		case "another source":
			want = codes.OK // The array's volume is empty, which the array does not remember: no source is no contradiction.
		case "a first snapshot":
			want = codes.NotFound
		}
		_, err := b.CreateVolume(ctxOf(t), req)
		wantCode(t, what, err, want)
	}
	restored := createRequest("pvc-3")
	restored.VolumeContentSource = snapshotSource(snapshot.GetSnapshot().GetSnapshotId())
	_, err = b.CreateVolume(ctxOf(t), restored)
	wantCode(t, "restore", err, codes.OK)
	_, err = b.CreateVolume(ctxOf(t), createRequest("pvc-3"))
	wantCode(t, "the same name without a source", err, codes.AlreadyExists)
	_, err = b.CreateSnapshot(ctxOf(t), &csi.CreateSnapshotRequest{Name: "s", SourceVolumeId: b.create("pvc-4").GetVolumeId()})
	wantCode(t, "a snapshot's name with another source", err, codes.AlreadyExists)
}

// slow is a driver whose Create and Delete wait.
type slow struct {
	backend

	began, goOn chan struct{}
}

func (s slow) Create(ctx context.Context, req *driverkit.CreateRequest) (*driverkit.Volume, error) {
	s.wait(ctx)
	return s.backend.Create(ctx, req)
}

func (s slow) Delete(ctx context.Context, req *driverkit.DeleteRequest) error {
	s.wait(ctx)
	return s.backend.Delete(ctx, req)
}

// wait says that the call has begun, and waits. A call whose client has given up is not waited for: it may get the lock all the same.
func (s slow) wait(ctx context.Context) {
	if ctx.Err() != nil {
		return
	}
	select {
	case s.began <- struct{}{}:
		<-s.goOn
	case <-ctx.Done():
	}
}

// TestCallsWait has calls about one object wait for each other, within their deadlines, and calls about others not.
func TestCallsWait(t *testing.T) {
	b := prepareBench(t, nil)
	backend := slow{b.array, make(chan struct{}), make(chan struct{})}
	b.start(backend)
	create := func(name string) chan string {
		id := make(chan string, 1)
		go func() {
			created, err := b.CreateVolume(ctxOf(t), createRequest(name))
			if err != nil {
				t.Errorf("create %q: %v", name, err)
			}
			id <- created.GetVolume().GetVolumeId()
		}()
		return id
	}
	first := create("pvc-1")
	<-backend.began
	second := create("pvc-1")
	other := create("pvc-2")
	<-backend.began // It is that of pvc-2: the second call about pvc-1 waits.
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	_, err := b.CreateVolume(ctx, createRequest("pvc-1"))
	if code := status.Code(err); code != codes.DeadlineExceeded && code != codes.Aborted { // The client's own, or the driver's answer if that is quicker.
		t.Errorf("a call whose deadline passes while it waits: %v", err)
	}
	select {
	case <-backend.began:
		t.Error("two calls about pvc-1 run at once")
	default:
	}
	backend.goOn <- struct{}{}
	backend.goOn <- struct{}{}
	<-backend.began
	backend.goOn <- struct{}{}
	id := <-first
	if again := <-second; again != id || <-other == id {
		t.Errorf("pvc-1 is %q and %q", id, again)
	}
	deleted := make(chan error, 1)
	go func() {
		_, err := b.DeleteVolume(ctxOf(t), &csi.DeleteVolumeRequest{VolumeId: id})
		deleted <- err
	}()
	<-backend.began // The deletion runs; a creation finds the volume, and waits until it is gone.
	third := create("pvc-1")
	<-backend.began
	backend.goOn <- struct{}{}
	backend.goOn <- struct{}{}
	wantCode(t, "delete", <-deleted, codes.OK)
	select {
	case <-backend.began: // The creation found a volume that was deleted meanwhile, and creates another.
		backend.goOn <- struct{}{}
	case again := <-third:
		third <- again
	}
	again := <-third
	_, err = b.ControllerGetVolume(ctxOf(t), &csi.ControllerGetVolumeRequest{VolumeId: again})
	wantCode(t, "the volume that was created beside a deletion", err, codes.OK)
}

// refusing is a driver that quotes the secrets in its errors.
type refusing struct{ *testarray.Array }

func (refusing) Create(_ context.Context, req *driverkit.CreateRequest) (*driverkit.Volume, error) {
	return nil, fmt.Errorf("login as %s with password %s, not %q: %v %+v: %w", req.Secrets["user"], req.Secrets["password"], req.Secrets["newer password"], req.Secrets, *req, driverkit.ErrUnauthenticated)
}

func (refusing) ListSnapshots(_ context.Context, req *driverkit.ListSnapshotsRequest) (*driverkit.Page[*driverkit.Snapshot], error) {
	return nil, fmt.Errorf("password %s: %w", req.Secrets["password"], driverkit.ErrUnauthenticated)
}

// TestSecrets looks for secrets in what a CO sees.
func TestSecrets(t *testing.T) {
	b := prepareBench(t, nil)
	b.start(refusing{b.array})
	req := createRequest("pvc-1")
	req.Secrets = map[string]string{"user": "me", "password": "swordfish", "older password": "swordf", "newer password": "swordfish-\"2\"", "p": "fish"}
	_, err := b.CreateVolume(ctxOf(t), req)
	wantCode(t, "wrong password", err, codes.Unauthenticated)
	if strings.Contains(err.Error(), "swordf") || strings.Contains(err.Error(), "fish") || strings.Contains(err.Error(), `2\"`) || !strings.Contains(err.Error(), "password ***stripped***") {
		t.Errorf("got %v, want no secret", err)
	}
	_, err = b.ListSnapshots(ctxOf(t), &csi.ListSnapshotsRequest{Secrets: req.GetSecrets()})
	wantCode(t, "list snapshots with the wrong password", err, codes.Unauthenticated)
}

// placedSnapshots makes snapshots that can be restored in zone a.
type placedSnapshots struct{ *testarray.Array }

func (p placedSnapshots) CreateSnapshot(ctx context.Context, req *driverkit.CreateSnapshotRequest) (*driverkit.Snapshot, error) {
	offers := []driverkit.Segments{{"zone": "a"}}
	if _, err := req.Topology.Choose(offers); err != nil && req.Name != "careless" {
		return nil, err
	}
	made, err := p.Array.CreateSnapshot(ctx, req)
	if err == nil {
		made.Topology = offers
	}
	return made, err
}

// TestSnapshotTopology asks for snapshots that can be restored somewhere.
func TestSnapshotTopology(t *testing.T) {
	b := prepareBench(t, nil)
	b.start(placedSnapshots{b.array})
	v := b.create("pvc-1")
	snapshot := func(name, zone string) error {
		_, err := b.CreateSnapshot(ctxOf(t), &csi.CreateSnapshotRequest{
			Name: name, SourceVolumeId: v.GetVolumeId(),
			AccessibilityRequirements: &csi.TopologyRequirement{Requisite: []*csi.Topology{{Segments: map[string]string{"zone": zone}}}},
		})
		return err
	}
	wantCode(t, "in the zone of the volume", snapshot("s-1", "a"), codes.OK)
	wantCode(t, "in another zone", snapshot("s-2", "b"), codes.ResourceExhausted)
	wantCode(t, "in another zone, of a driver that does not look", snapshot("careless", "b"), codes.AlreadyExists)
}

// TestPages reads lists in pages, across restarts, and while entries come and go.
func TestPages(t *testing.T) {
	b := newBench(t, nil)
	var want []string
	for i := range 7 {
		want = append(want, b.create(fmt.Sprintf("pvc-%d", i)).GetVolumeId())
	}
	var got []string
	token := ""
	for page := 0; page == 0 || token != ""; page++ {
		answer, err := b.ListVolumes(ctxOf(t), &csi.ListVolumesRequest{MaxEntries: 2, StartingToken: token})
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range answer.GetEntries() {
			got = append(got, e.GetVolume().GetVolumeId())
		}
		token = answer.GetNextToken()
		if page == 1 {
			_, err := b.DeleteVolume(ctxOf(t), &csi.DeleteVolumeRequest{VolumeId: want[3]}) // The token names it.
			wantCode(t, "delete", err, codes.OK)
			b.create("pvc-late")
			want = append(want, "vol-000008")
		}
		b.restart()
	}
	if !slices.Equal(got, want) {
		t.Errorf("pages have %q, want %q", got, want)
	}
	for _, bad := range []string{"bad", "YWZ0ZXI6", "7"} {
		_, err := b.ListVolumes(ctxOf(t), &csi.ListVolumesRequest{StartingToken: bad})
		wantCode(t, "token "+bad, err, codes.Aborted)
	}
}

// TestAttach attaches a volume to one node at a time.
func TestAttach(t *testing.T) {
	b := newBench(t, nil)
	v := b.create("pvc-1")
	attach := func(node string) error {
		_, err := b.ControllerPublishVolume(ctxOf(t), &csi.ControllerPublishVolumeRequest{
			VolumeId: v.GetVolumeId(), NodeId: node, VolumeCapability: mountCapability(), VolumeContext: v.GetVolumeContext(),
		})
		return err
	}
	wantCode(t, "attach", attach("node-1"), codes.OK)
	wantCode(t, "attach again", attach("node-1"), codes.OK)
	wantCode(t, "attach to an unknown node", attach("node-9"), codes.FailedPrecondition)
	wantCode(t, "attach to another node", attach("node-2"), codes.FailedPrecondition)
	list, err := b.ListVolumes(ctxOf(t), &csi.ListVolumesRequest{})
	if got := list.GetEntries(); err != nil || len(got) != 1 || !slices.Equal(got[0].GetStatus().GetPublishedNodeIds(), []string{"node-1"}) {
		t.Errorf("list: %v, %v, want the node", list, err)
	}
	one, err := b.ControllerGetVolume(ctxOf(t), &csi.ControllerGetVolumeRequest{VolumeId: v.GetVolumeId()})
	if err != nil || !slices.Equal(one.GetStatus().GetPublishedNodeIds(), []string{"node-1"}) {
		t.Errorf("get: %v, %v, want the node", one, err)
	}
	_, err = b.DeleteVolume(ctxOf(t), &csi.DeleteVolumeRequest{VolumeId: v.GetVolumeId()})
	wantCode(t, "delete an attached volume", err, codes.FailedPrecondition)
	for range 2 {
		_, err = b.ControllerUnpublishVolume(ctxOf(t), &csi.ControllerUnpublishVolumeRequest{VolumeId: v.GetVolumeId()})
		wantCode(t, "detach", err, codes.OK)
	}
	wantCode(t, "attach to another node after that", attach("node-2"), codes.OK)
	_, err = b.ControllerUnpublishVolume(ctxOf(t), &csi.ControllerUnpublishVolumeRequest{VolumeId: "vol-gone", NodeId: "node-1"})
	wantCode(t, "detach a volume that does not exist", err, codes.OK)
}

// expands keeps the last request of ExpandOnNode.
type expands struct {
	*testarray.Array

	last *driverkit.NodeExpandRequest
}

func (e *expands) ExpandOnNode(ctx context.Context, req *driverkit.NodeExpandRequest) (*driverkit.NodeExpanded, error) {
	e.last = req
	return e.Array.ExpandOnNode(ctx, req)
}

// TestExpand expands a volume on both sides.
func TestExpand(t *testing.T) {
	b := prepareBench(t, nil)
	backend := &expands{Array: b.array}
	b.start(backend)
	v := b.create("pvc-1")
	_, err := b.NodeStageVolume(ctxOf(t), b.stageRequest(v))
	wantCode(t, "stage", err, codes.OK)
	size := &csi.CapacityRange{RequiredBytes: 16 << 20}
	expanded, err := b.ControllerExpandVolume(ctxOf(t), &csi.ControllerExpandVolumeRequest{VolumeId: v.GetVolumeId(), CapacityRange: size})
	if err != nil || expanded.GetCapacityBytes() != 16<<20 || !expanded.GetNodeExpansionRequired() {
		t.Errorf("expand: %v, %v, want 16 MiB and the node's part", expanded, err)
	}
	onNode := &csi.NodeExpandVolumeRequest{VolumeId: v.GetVolumeId(), VolumePath: b.path("staging"), CapacityRange: size}
	_, err = b.NodeExpandVolume(ctxOf(t), onNode)
	wantCode(t, "expand on the node", err, codes.OK)
	if got, want := backend.last.PublishContext["lun"], v.GetVolumeContext()["lun"]; got != want || want == "" {
		t.Errorf("expand on the node: publish context has lun %q, want that of the stage, %q", got, want)
	}
	usage, err := b.NodeGetVolumeStats(ctxOf(t), &csi.NodeGetVolumeStatsRequest{VolumeId: v.GetVolumeId(), VolumePath: b.path("staging")})
	if err != nil || usage.GetUsage()[0].GetTotal() != 16<<20 {
		t.Errorf("usage: %v, %v, want 16 MiB in total", usage, err)
	}
	onNode.VolumePath = b.path("elsewhere")
	_, err = b.NodeExpandVolume(ctxOf(t), onNode)
	wantCode(t, "expand where it is not", err, codes.NotFound)
	_, err = b.ControllerModifyVolume(ctxOf(t), &csi.ControllerModifyVolumeRequest{VolumeId: v.GetVolumeId(), MutableParameters: map[string]string{"iops": "7"}})
	wantCode(t, "modify", err, codes.OK)
}

// TestExpandOnNodeAlone expands with a driver that has no Expand: the node does it all.
func TestExpandOnNodeAlone(t *testing.T) {
	b := prepareBench(t, nil)
	b.parts = func(d *driverkit.Driver) { d.Expand = nil }
	backend := &expands{Array: b.array}
	b.start(backend)
	plugin, err := b.GetPluginCapabilities(ctxOf(t), &csi.GetPluginCapabilitiesRequest{})
	wantCode(t, "plugin capabilities", err, codes.OK)
	if !slices.ContainsFunc(plugin.GetCapabilities(), func(c *csi.PluginCapability) bool { return c.GetVolumeExpansion() != nil }) {
		t.Errorf("plugin capabilities %v, want VolumeExpansion", plugin)
	}
	node, err := b.NodeGetCapabilities(ctxOf(t), &csi.NodeGetCapabilitiesRequest{})
	wantCode(t, "node capabilities", err, codes.OK)
	if !strings.Contains(node.String(), "EXPAND_VOLUME") {
		t.Errorf("node capabilities %v, want EXPAND_VOLUME", node)
	}
	controller, err := b.ControllerGetCapabilities(ctxOf(t), &csi.ControllerGetCapabilitiesRequest{})
	wantCode(t, "controller capabilities", err, codes.OK)
	if strings.Contains(controller.String(), "EXPAND_VOLUME") {
		t.Errorf("controller capabilities %v have EXPAND_VOLUME", controller)
	}
	v, size := b.create("pvc-1"), &csi.CapacityRange{RequiredBytes: 16 << 20, LimitBytes: 32 << 20}
	_, err = b.ControllerExpandVolume(ctxOf(t), &csi.ControllerExpandVolumeRequest{VolumeId: v.GetVolumeId(), CapacityRange: size})
	wantCode(t, "expand in the controller", err, codes.Unimplemented)
	wantCode(t, "stage", b.stage(v), codes.OK)
	expanded, err := b.NodeExpandVolume(ctxOf(t), &csi.NodeExpandVolumeRequest{VolumeId: v.GetVolumeId(), VolumePath: b.path("staging"), CapacityRange: size})
	if err != nil || expanded.GetCapacityBytes() != v.GetCapacityBytes() {
		t.Errorf("expand: %v, %v, want the size that the driver has", expanded, err)
	}
	if got, want := backend.last.Size, (driverkit.Range{Required: 16 << 20, Limit: 32 << 20}); got != want {
		t.Errorf("the driver was asked for %+v, want %+v", got, want)
	}
}

// TestNodeWaitsForDeletion has no node stage a volume that is being deleted in the same process.
func TestNodeWaitsForDeletion(t *testing.T) {
	b := prepareBench(t, nil)
	backend := slow{b.array, make(chan struct{}), make(chan struct{})}
	b.start(backend)
	created := make(chan *csi.Volume)
	go func() { created <- b.create("pvc-1") }()
	<-backend.began
	backend.goOn <- struct{}{}
	v := <-created
	deleted := make(chan error, 1)
	go func() { deleted <- b.delete(v) }()
	<-backend.began
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	_, err := b.NodeStageVolume(ctx, b.stageRequest(v))
	if code := status.Code(err); code != codes.DeadlineExceeded && code != codes.Aborted { // As in TestCallsWait.
		t.Errorf("stage a volume that is being deleted: %v", err)
	}
	backend.goOn <- struct{}{}
	wantCode(t, "delete", <-deleted, codes.OK)
	wantCode(t, "stage after the deletion", b.stage(v), codes.NotFound)
}

// TestGroups makes snapshots of several volumes at once.
func TestGroups(t *testing.T) {
	b := newBench(t, nil)
	one, two := b.create("pvc-1").GetVolumeId(), b.create("pvc-2").GetVolumeId()
	create := func(volumes ...string) (*csi.VolumeGroupSnapshot, error) {
		made, err := b.CreateVolumeGroupSnapshot(ctxOf(t), &csi.CreateVolumeGroupSnapshotRequest{Name: "g", SourceVolumeIds: volumes})
		return made.GetGroupSnapshot(), err
	}
	_, err := create()
	wantCode(t, "no volume", err, codes.InvalidArgument)
	_, err = create(one, "vol-gone")
	wantCode(t, "a volume that does not exist", err, codes.NotFound)
	made, err := create(two, one)
	wantCode(t, "create", err, codes.OK)
	again, err := create(one, two)
	if err != nil || again.GetGroupSnapshotId() != made.GetGroupSnapshotId() || len(again.GetSnapshots()) != 2 || again.GetSnapshots()[0].GetGroupSnapshotId() != made.GetGroupSnapshotId() {
		t.Errorf("create again: %v, %v, want %v", again, err, made)
	}
	_, err = create(one)
	wantCode(t, "the same name with other volumes", err, codes.AlreadyExists)
	members := []string{made.GetSnapshots()[1].GetSnapshotId(), made.GetSnapshots()[0].GetSnapshotId()}
	id := made.GetGroupSnapshotId()
	single, err := b.GetSnapshot(ctxOf(t), &csi.GetSnapshotRequest{SnapshotId: members[0]})
	if err != nil || single.GetSnapshot().GetGroupSnapshotId() != id {
		t.Errorf("a member by itself: %v, %v, want that of group %q", single, err, id)
	}
	_, err = b.DeleteSnapshot(ctxOf(t), &csi.DeleteSnapshotRequest{SnapshotId: members[0]})
	wantCode(t, "delete a member by itself", err, codes.InvalidArgument)
	_, err = b.GetVolumeGroupSnapshot(ctxOf(t), &csi.GetVolumeGroupSnapshotRequest{GroupSnapshotId: id, SnapshotIds: members})
	wantCode(t, "get", err, codes.OK)
	_, err = b.GetVolumeGroupSnapshot(ctxOf(t), &csi.GetVolumeGroupSnapshotRequest{GroupSnapshotId: id, SnapshotIds: members[:1]})
	wantCode(t, "get with other members", err, codes.InvalidArgument)
	_, err = b.DeleteVolumeGroupSnapshot(ctxOf(t), &csi.DeleteVolumeGroupSnapshotRequest{GroupSnapshotId: id, SnapshotIds: members[:1]})
	wantCode(t, "delete with other members", err, codes.InvalidArgument)
	half, err := b.array.GetGroupSnapshot(t.Context(), &driverkit.GetGroupSnapshotRequest{ID: id})
	if err != nil {
		t.Fatal(err)
	}
	half.Snapshots = half.Snapshots[:1] // An interrupted deletion has deleted the other one.
	for range 2 {
		_, err = b.DeleteVolumeGroupSnapshot(ctxOf(t), &csi.DeleteVolumeGroupSnapshotRequest{GroupSnapshotId: id, SnapshotIds: members})
		wantCode(t, "delete", err, codes.OK)
	}
	_, err = b.GetVolumeGroupSnapshot(ctxOf(t), &csi.GetVolumeGroupSnapshotRequest{GroupSnapshotId: id, SnapshotIds: members})
	wantCode(t, "get after the deletion", err, codes.NotFound)
}

// TestHealth reports problems that the array knows, and mounts that are gone.
func TestHealth(t *testing.T) {
	b := newBench(t, nil)
	var ids []string
	for i := range 5 {
		ids = append(ids, b.create(fmt.Sprintf("pvc-%d", i)).GetVolumeId())
	}
	for _, id := range []string{ids[1], ids[2], ids[4]} {
		b.array.Break(id, driverkit.Condition{Severity: driverkit.Degraded, Reason: "DiskFailed", Message: "one of two mirrors is gone"})
	}
	one, err := b.ControllerGetVolumeHealth(ctxOf(t), &csi.ControllerGetVolumeHealthRequest{VolumeId: ids[1]})
	if err != nil || one.GetVolumeHealth().GetHealthStatuses()[0].GetReason() != "DiskFailed" {
		t.Errorf("health: %v, %v", one, err)
	}
	_, err = b.ControllerGetVolumeHealth(ctxOf(t), &csi.ControllerGetVolumeHealthRequest{VolumeId: "vol-gone"})
	wantCode(t, "health of a volume that does not exist", err, codes.NotFound)
	var got []string
	for token, page := "", 0; page == 0 || token != ""; page++ {
		list, err := b.ControllerListVolumeHealth(ctxOf(t), &csi.ControllerListVolumeHealthRequest{MaxEntries: 2, StartingToken: token})
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range list.GetEntries() {
			got = append(got, e.GetVolumeId())
		}
		token = list.GetNextToken()
	}
	if want := []string{ids[1], ids[2], ids[4]}; !slices.Equal(got, want) {
		t.Errorf("listed are %q, want %q", got, want)
	}
	v := b.create("pvc-0")
	wantCode(t, "stage", b.stage(v), codes.OK)
	onNode := func() int {
		health, err := b.NodeGetVolumeHealth(ctxOf(t), &csi.NodeGetVolumeHealthRequest{VolumeId: v.GetVolumeId()})
		wantCode(t, "health on the node", err, codes.OK)
		return len(health.GetVolumeHealth().GetHealthStatuses())
	}
	if n := onNode(); n != 0 {
		t.Errorf("%d problems of a staged volume", n)
	}
	b.mounts.Reboot()
	if n := onNode(); n != 1 {
		t.Errorf("%d problems of a volume whose mount is gone, want one", n)
	}
}

// choosy is a driver that knows in which ways a volume can be used.
type choosy struct{ *testarray.Array }

func (choosy) Validate(_ context.Context, req *driverkit.ValidateRequest) error {
	switch {
	case req.Parameters["broken"] != "":
		return fmt.Errorf("login with %s: %w", req.Secrets["password"], driverkit.ErrUnavailable)
	case req.Capabilities[0].Block || req.MutableParameters["tier"] != "":
		return fmt.Errorf("volume %q is a directory, says %s: %w", req.ID, req.Secrets["password"], driverkit.ErrInvalid)
	}
	return nil
}

// TestValidate asks the driver.
func TestValidate(t *testing.T) {
	b := prepareBench(t, nil)
	b.start(choosy{b.array})
	v := b.create("pvc-1")
	for name, tc := range map[string]struct {
		capability          *csi.VolumeCapability
		parameters, mutable map[string]string
		confirmed           bool
		code                codes.Code
	}{
		"Mount":   {capability: mountCapability(), confirmed: true},
		"Block":   {capability: blockCapability()},
		"Mutable": {capability: mountCapability(), mutable: map[string]string{"tier": "fast"}},
		"Broken":  {capability: mountCapability(), parameters: map[string]string{"broken": "yes"}, code: codes.Unavailable},
	} {
		answer, err := b.ValidateVolumeCapabilities(ctxOf(t), &csi.ValidateVolumeCapabilitiesRequest{
			VolumeId: v.GetVolumeId(), VolumeCapabilities: []*csi.VolumeCapability{tc.capability}, Parameters: tc.parameters, MutableParameters: tc.mutable,
			Secrets: map[string]string{"password": "hunter2"},
		})
		wantCode(t, name, err, tc.code)
		if confirmed := answer.GetConfirmed() != nil; confirmed != tc.confirmed || err == nil && !confirmed && answer.GetMessage() == "" {
			t.Errorf("%s: %v, want confirmed %t, or a message", name, answer, tc.confirmed)
		}
		if strings.Contains(answer.GetMessage()+fmt.Sprint(err), "hunter2") {
			t.Errorf("%s: a secret is in %v, %v", name, answer, err)
		}
	}
}

// TestCopiesOfOneSource has several calls copy one volume: they run beside each other, and a deletion waits for all of them.
func TestCopiesOfOneSource(t *testing.T) {
	const copies = 3
	var inside sync.WaitGroup
	armed, deleted := make(chan struct{}), make(chan struct{})
	b := newBench(t, func(o *driverkit.Options) {
		o.FaultPoint = func(_ context.Context, point string) {
			select {
			case <-armed:
			default:
				return
			}
			switch point {
			case "CreateVolume:called", "CreateSnapshot:called":
				inside.Done()
				inside.Wait() // for the others
			case "CreateVolume:done", "CreateSnapshot:done":
				select {
				case <-deleted:
					t.Error("the source was deleted while it was being copied")
				default:
				}
			case "DeleteVolume:called":
				close(deleted)
			}
		}
	})
	source := b.create("source")
	inside.Add(copies + 1)
	close(armed)
	var calls sync.WaitGroup
	for n := range copies {
		calls.Go(func() {
			r := createRequest(fmt.Sprint("clone-", n))
			r.VolumeContentSource = &csi.VolumeContentSource{Type: &csi.VolumeContentSource_Volume{Volume: &csi.VolumeContentSource_VolumeSource{VolumeId: source.GetVolumeId()}}}
			_, err := b.CreateVolume(ctxOf(t), r)
			wantCode(t, "clone", err, codes.OK)
		})
	}
	calls.Go(func() {
		_, err := b.CreateSnapshot(ctxOf(t), &csi.CreateSnapshotRequest{Name: "snapshot", SourceVolumeId: source.GetVolumeId()})
		wantCode(t, "snapshot", err, codes.OK)
	})
	inside.Wait()
	wantCode(t, "delete the source", b.delete(source), codes.OK)
	calls.Wait()
}

// quoting is a driver whose errors quote the volume context, as that of a library does.
type quoting struct{ *testarray.Array }

func (quoting) Stage(_ context.Context, req *driverkit.StageRequest) (*driverkit.Staged, error) {
	return nil, fmt.Errorf("exchange tokens %s: token %s is refused: %w", req.VolumeContext["csi.storage.k8s.io/serviceAccount.tokens"], "eyJhbGciOi.first", driverkit.ErrUnauthenticated)
}

// TestTokensAreStripped has no token of a service account in an error, whether Kubernetes sends it with the volume context or as a secret.
func TestTokensAreStripped(t *testing.T) {
	b := prepareBench(t, nil)
	b.start(quoting{b.array})
	v := b.create("pvc-1")
	tokens := map[string]string{"csi.storage.k8s.io/serviceAccount.tokens": `{"first.example.com":{"token":"eyJhbGciOi.first","expirationTimestamp":"2030-01-01T00:00:00Z"},"second":{"token":"eyJhbGciOi.second"}}`}
	inContext, inSecrets := b.stageRequest(v), b.stageRequest(v)
	inContext.VolumeContext, inSecrets.Secrets = tokens, tokens
	for _, r := range []*csi.NodeStageVolumeRequest{inContext, inSecrets} {
		_, err := b.NodeStageVolume(ctxOf(t), r)
		wantCode(t, "stage", err, codes.Unauthenticated)
		if strings.Contains(err.Error(), "eyJ") || !strings.Contains(err.Error(), "token ***stripped*** is refused") {
			t.Errorf("got %v, want no token", err)
		}
	}
}

// TestLargestPage: a CO that does not limit a page has no message that is too large for it.
func TestLargestPage(t *testing.T) {
	const volumes, most = 1001, 1000
	b := newBench(t, nil)
	for n := range volumes {
		if _, err := b.array.Create(t.Context(), &driverkit.CreateRequest{Name: fmt.Sprint("pvc-", n), Size: driverkit.Range{Required: 1 << 20}}); err != nil {
			t.Fatal(err)
		}
	}
	for _, limit := range []int32{0, most + 500} {
		first, err := b.ListVolumes(ctxOf(t), &csi.ListVolumesRequest{MaxEntries: limit})
		wantCode(t, "list", err, codes.OK)
		rest, err := b.ListVolumes(ctxOf(t), &csi.ListVolumesRequest{MaxEntries: limit, StartingToken: first.GetNextToken()})
		wantCode(t, "list the rest", err, codes.OK)
		if len(first.GetEntries()) != most || first.GetNextToken() == "" || len(rest.GetEntries()) != volumes-most || rest.GetNextToken() != "" {
			t.Errorf("max_entries %d: %d entries, then %d, want %d and %d", limit, len(first.GetEntries()), len(rest.GetEntries()), most, volumes-most)
		}
	}
}
