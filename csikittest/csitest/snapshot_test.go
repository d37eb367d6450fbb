package csitest_test

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/longshore-csi/longshore/csikittest/csitest"
)

// withSnapshots are the options of a driver with snapshots and group snapshots.
func withSnapshots() csitest.Options {
	return csitest.Options{Controller: append(csitest.AllController(), csitest.AllSnapshots()...), GroupController: csitest.AllGroupController()}
}

func groups(d *csitest.Driver) csi.GroupControllerClient {
	return csi.NewGroupControllerClient(d.Conn())
}

func snapshotOf(name, volume string) *csi.CreateSnapshotRequest {
	return &csi.CreateSnapshotRequest{Name: name, SourceVolumeId: volume}
}

// snapshot takes a snapshot of vol-a.
func snapshot(name string) step {
	return step{"snapshot " + name, func(ctx context.Context, d *csitest.Driver) error {
		_, err := controller(d).CreateSnapshot(ctx, snapshotOf(name, "vol-a"))
		return err
	}}
}

func dropSnapshot(name string) step {
	return step{"delete snapshot " + name, func(ctx context.Context, d *csitest.Driver) error {
		_, err := controller(d).DeleteSnapshot(ctx, &csi.DeleteSnapshotRequest{SnapshotId: "snap-" + name})
		return err
	}}
}

func groupSnapshot(name string, volumes ...string) step {
	return step{"group snapshot " + name, func(ctx context.Context, d *csitest.Driver) error {
		_, err := groups(d).CreateVolumeGroupSnapshot(ctx, &csi.CreateVolumeGroupSnapshotRequest{Name: name, SourceVolumeIds: volumes})
		return err
	}}
}

func dropGroupSnapshot(name string, members ...string) step {
	return step{"delete group snapshot " + name, func(ctx context.Context, d *csitest.Driver) error {
		_, err := groups(d).DeleteVolumeGroupSnapshot(ctx, &csi.DeleteVolumeGroupSnapshotRequest{GroupSnapshotId: "group-" + name, SnapshotIds: members})
		return err
	}}
}

func restore(name, snapshot string) step {
	return step{"restore " + snapshot, func(ctx context.Context, d *csitest.Driver) error {
		_, err := controller(d).CreateVolume(ctx, changed(create(name), func(r *csi.CreateVolumeRequest) { r.VolumeContentSource = restoreOf(snapshot) }))
		return err
	}}
}

// play takes steps, of which the last answers with a code.
func play(t *testing.T, d *csitest.Driver, reason string, want codes.Code, steps ...step) {
	t.Helper()
	for i, s := range steps {
		err := s.call(t.Context(), d)
		if i < len(steps)-1 && err != nil {
			t.Fatalf("%s: %s: %v", reason, s.name, err)
		}
		if i == len(steps)-1 {
			wantCode(t, reason+": "+s.name, err, want)
		}
	}
}

// What the calls for snapshots and groups answer: CSI spec v1.13, "CreateSnapshot Errors" and those of the other calls.
func TestSnapshotCalls(t *testing.T) {
	t.Parallel()
	of := func(name, volume string) step {
		return step{"snapshot " + name, func(ctx context.Context, d *csitest.Driver) error {
			_, err := controller(d).CreateSnapshot(ctx, snapshotOf(name, volume))
			return err
		}}
	}
	get := func(id string) step {
		return step{"get " + id, func(ctx context.Context, d *csitest.Driver) error {
			_, err := controller(d).GetSnapshot(ctx, &csi.GetSnapshotRequest{SnapshotId: id})
			return err
		}}
	}
	getGroup := func(id string, members ...string) step {
		return step{"get " + id, func(ctx context.Context, d *csitest.Driver) error {
			_, err := groups(d).GetVolumeGroupSnapshot(ctx, &csi.GetVolumeGroupSnapshotRequest{GroupSnapshotId: id, SnapshotIds: members})
			return err
		}}
	}
	other := step{"create b", func(ctx context.Context, d *csitest.Driver) error {
		_, err := controller(d).CreateVolume(ctx, create("b"))
		return err
	}}
	parameters := step{"group snapshot g with parameters", func(ctx context.Context, d *csitest.Driver) error {
		_, err := groups(d).CreateVolumeGroupSnapshot(ctx, &csi.CreateVolumeGroupSnapshotRequest{Name: "g", SourceVolumeIds: []string{"vol-a"}, Parameters: map[string]string{"a": "b"}})
		return err
	}}
	inUse := func(o *csitest.Options) { o.RestoredInUse = true }
	cases := map[string]struct {
		reason  string
		options func(*csitest.Options)
		steps   []step
		want    codes.Code
		left    int // snapshots
		violate bool
	}{
		"NoName":     {reason: "A name is REQUIRED.", steps: []step{made(), of("", "vol-a")}, want: codes.InvalidArgument},
		"NoSource":   {reason: "So is a source.", steps: []step{made(), of("s", "")}, want: codes.InvalidArgument},
		"NoVolume":   {reason: "The source exists.", steps: []step{of("s", "vol-a")}, want: codes.NotFound},
		"Again":      {reason: "A name is one snapshot.", steps: []step{made(), snapshot("s"), snapshot("s")}, want: codes.OK, left: 1},
		"OfAnother":  {reason: "It is of one volume.", steps: []step{made(), other, snapshot("s"), of("s", "vol-b")}, want: codes.AlreadyExists, left: 1},
		"SourceGone": {reason: "A snapshot outlives its volume.", steps: []step{made(), snapshot("s"), remove(), snapshot("s")}, want: codes.OK, left: 1},
		"DeleteNone": {reason: "What is not there is deleted.", steps: []step{dropSnapshot("s")}, want: codes.OK},
		"DeleteNoID": {reason: "An ID is REQUIRED.", steps: []step{{"delete", func(ctx context.Context, d *csitest.Driver) error {
			_, err := controller(d).DeleteSnapshot(ctx, &csi.DeleteSnapshotRequest{})
			return err
		}}}, want: codes.InvalidArgument},
		"Restored":   {reason: "Volumes are independent of their snapshot.", steps: []step{made(), snapshot("s"), restore("c", "snap-s"), dropSnapshot("s")}, want: codes.OK},
		"InUse":      {reason: "Unless they are not.", options: inUse, steps: []step{made(), snapshot("s"), restore("c", "snap-s"), dropSnapshot("s")}, want: codes.FailedPrecondition, left: 1},
		"InUseOther": {reason: "That is about the restored one.", options: inUse, steps: []step{made(), snapshot("s"), snapshot("u"), restore("c", "snap-s"), dropSnapshot("u")}, want: codes.OK, left: 1},
		"InUseNoMore": {reason: "The volume is gone.", options: inUse, steps: []step{made(), snapshot("s"), restore("a2", "snap-s"), {"delete a2", func(ctx context.Context, d *csitest.Driver) error {
			_, err := controller(d).DeleteVolume(ctx, &csi.DeleteVolumeRequest{VolumeId: "vol-a2"})
			return err
		}}, dropSnapshot("s")}, want: codes.OK},
		"GetNone":      {reason: "There is no such snapshot.", steps: []step{get("snap-s")}, want: codes.NotFound},
		"GetNoID":      {reason: "An ID is REQUIRED.", steps: []step{get("")}, want: codes.InvalidArgument},
		"GroupNoName":  {reason: "A name is REQUIRED.", steps: []step{made(), groupSnapshot("", "vol-a")}, want: codes.InvalidArgument},
		"GroupEmpty":   {reason: "So are volumes.", steps: []step{made(), groupSnapshot("g")}, want: codes.InvalidArgument},
		"GroupTwice":   {reason: "Each volume has one snapshot.", steps: []step{made(), groupSnapshot("g", "vol-a", "vol-a")}, want: codes.InvalidArgument},
		"GroupNoID":    {reason: "Each volume has an ID.", steps: []step{made(), groupSnapshot("g", "vol-a", "")}, want: codes.InvalidArgument},
		"GroupPartly":  {reason: "All snapshots are taken, or none.", steps: []step{made(), groupSnapshot("g", "vol-a", "vol-b")}, want: codes.NotFound},
		"GroupAgain":   {reason: "The order does not count.", steps: []step{made(), other, groupSnapshot("g", "vol-a", "vol-b"), groupSnapshot("g", "vol-b", "vol-a")}, want: codes.OK, left: 2},
		"GroupFewer":   {reason: "The volumes do.", steps: []step{made(), other, groupSnapshot("g", "vol-a", "vol-b"), groupSnapshot("g", "vol-a")}, want: codes.AlreadyExists, left: 2},
		"GroupOther":   {reason: "So do the parameters.", steps: []step{made(), groupSnapshot("g", "vol-a"), parameters}, want: codes.AlreadyExists, left: 1},
		"GroupDelete":  {reason: "Members go with it.", steps: []step{made(), snapshot("s"), groupSnapshot("g", "vol-a"), dropGroupSnapshot("g", "snap-g@vol-a")}, want: codes.OK, left: 1},
		"GroupWrong":   {reason: "The members are those.", steps: []step{made(), groupSnapshot("g", "vol-a"), dropGroupSnapshot("g", "snap-s")}, want: codes.InvalidArgument, left: 1},
		"GroupNone":    {reason: "What is not there is deleted.", steps: []step{dropGroupSnapshot("g")}, want: codes.OK},
		"GroupInUse":   {reason: "A member is in use.", options: inUse, steps: []step{made(), other, groupSnapshot("g", "vol-a", "vol-b"), restore("c", "snap-g@vol-b"), dropGroupSnapshot("g", "snap-g@vol-b", "snap-g@vol-a")}, want: codes.FailedPrecondition, left: 2},
		"GroupGet":     {reason: "The members are those.", steps: []step{made(), groupSnapshot("g", "vol-a"), getGroup("group-g", "snap-g@vol-a")}, want: codes.OK, left: 1},
		"GroupGetFew":  {reason: "None is another list.", steps: []step{made(), groupSnapshot("g", "vol-a"), getGroup("group-g")}, want: codes.InvalidArgument, left: 1},
		"GroupGetNone": {reason: "There is no such group.", steps: []step{getGroup("group-g")}, want: codes.NotFound},
		"GroupGetNoID": {reason: "An ID is REQUIRED.", steps: []step{getGroup("")}, want: codes.InvalidArgument},
		"Member":       {reason: "The CO SHALL NOT delete it alone.", steps: []step{made(), groupSnapshot("g", "vol-a"), dropSnapshot("g@vol-a")}, want: codes.InvalidArgument, left: 1, violate: true},
		"NoSnapshots":  {reason: "The default has none.", options: func(o *csitest.Options) { o.Controller = nil }, steps: []step{made(), snapshot("s")}, want: codes.Unimplemented},
		"NoGroups":     {reason: "Nor groups.", options: func(o *csitest.Options) { o.GroupController = nil }, steps: []step{made(), groupSnapshot("g", "vol-a")}, want: codes.Unimplemented},
		"NotReady":     {reason: "It cannot be restored yet.", options: func(o *csitest.Options) { o.SnapshotReadyAfter = -1 }, steps: []step{made(), snapshot("s"), restore("c", "snap-s")}, want: codes.FailedPrecondition, left: 1},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o := withSnapshots()
			if tc.options != nil {
				tc.options(&o)
			}
			d := csitest.New(o)
			play(t, d, tc.reason, tc.want, tc.steps...)
			if got := d.Snapshots(); len(got) != tc.left {
				t.Errorf("%s: %d snapshots are left, want %d: %+v", tc.reason, len(got), tc.left, got)
			}
			if got := d.Violations(); len(got) > 0 != tc.violate {
				t.Errorf("%s: violations %q", tc.reason, got)
			}
		})
	}
}

// A driver announces its group controller, if it has one.
func TestGroupControllerIsAnnounced(t *testing.T) {
	t.Parallel()
	announced := func(d *csitest.Driver) (service bool) {
		reply, err := csi.NewIdentityClient(d.Conn()).GetPluginCapabilities(t.Context(), &csi.GetPluginCapabilitiesRequest{})
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range reply.GetCapabilities() {
			service = service || c.GetService().GetType() == csi.PluginCapability_Service_GROUP_CONTROLLER_SERVICE
		}
		return service
	}
	d := csitest.New(withSnapshots())
	reply, err := groups(d).GroupControllerGetCapabilities(t.Context(), &csi.GroupControllerGetCapabilitiesRequest{})
	if err != nil || len(reply.GetCapabilities()) != 1 || !announced(d) {
		t.Errorf("capabilities %v, error %v, announced %v", reply, err, announced(d))
	}
	d.SetGroupController()
	_, err = groups(d).GroupControllerGetCapabilities(t.Context(), &csi.GroupControllerGetCapabilitiesRequest{})
	wantCode(t, "no group controller any more", err, codes.Unimplemented)
	if announced(csitest.New(csitest.Options{})) {
		t.Error("the default announces a group controller")
	}
}

// What the answers about a snapshot have.
func TestSnapshotIsReported(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		for name, without := range map[string]bool{"Time": false, "NoTime": true} {
			o := withSnapshots()
			o.NoCreationTime = without
			d := csitest.New(o)
			play(t, d, "a volume", codes.OK, made(), groupSnapshot("g", "vol-a"))
			req := &csi.CreateSnapshotRequest{Name: "s", SourceVolumeId: "vol-a", Parameters: map[string]string{"a": "b"}, Secrets: map[string]string{"key": "x"}}
			reply, err := controller(d).CreateSnapshot(t.Context(), req)
			if err != nil {
				t.Fatal(err)
			}
			got := reply.GetSnapshot()
			if got.GetSnapshotId() != "snap-s" || got.GetSourceVolumeId() != "vol-a" || got.GetSizeBytes() != gib || !got.GetReadyToUse() || got.GetGroupSnapshotId() != "" {
				t.Errorf("%s: reported %v", name, got)
			}
			if (got.GetCreationTime() == nil) != without || !without && !got.GetCreationTime().AsTime().Equal(time.Now()) {
				t.Errorf("%s: created at %v, now is %v", name, got.GetCreationTime(), time.Now())
			}
			want := csitest.Snapshot{ID: "snap-s", Name: "s", Size: gib, SourceVolume: "vol-a", Parameters: map[string]string{"a": "b"}}
			if !without {
				want.Created = time.Now()
			}
			if diff := cmp.Diff(want, d.Snapshots()[1]); diff != "" {
				t.Errorf("%s: state (-want +got):\n%s", name, diff)
			}
			calls := d.Calls()
			logged, ok := calls[len(calls)-1].Request.(*csi.CreateSnapshotRequest)
			if !ok || logged.GetSecrets()["key"] != "x" || logged.GetParameters()["a"] != "b" {
				t.Errorf("%s: the log has %v", name, calls[len(calls)-1])
			}
			group, err := groups(d).GetVolumeGroupSnapshot(t.Context(), &csi.GetVolumeGroupSnapshotRequest{GroupSnapshotId: "group-g", SnapshotIds: []string{"snap-g@vol-a"}})
			if err != nil {
				t.Fatal(err)
			}
			members := group.GetGroupSnapshot().GetSnapshots()
			if len(members) != 1 || members[0].GetGroupSnapshotId() != "group-g" || (group.GetGroupSnapshot().GetCreationTime() == nil) != without {
				t.Errorf("%s: group %v", name, group)
			}
		}
	})
}

// A snapshot becomes ready after a number of answers, whichever call they are to.
func TestSnapshotBecomesReady(t *testing.T) {
	t.Parallel()
	asks := map[string]func(ctx context.Context, d *csitest.Driver) (bool, error){
		"CreateSnapshot": func(ctx context.Context, d *csitest.Driver) (bool, error) {
			reply, err := controller(d).CreateSnapshot(ctx, snapshotOf("s", "vol-a"))
			return reply.GetSnapshot().GetReadyToUse(), err
		},
		"GetSnapshot": func(ctx context.Context, d *csitest.Driver) (bool, error) {
			reply, err := controller(d).GetSnapshot(ctx, &csi.GetSnapshotRequest{SnapshotId: "snap-s"})
			return reply.GetSnapshot().GetReadyToUse(), err
		},
		"ListSnapshots": func(ctx context.Context, d *csitest.Driver) (bool, error) {
			reply, err := controller(d).ListSnapshots(ctx, &csi.ListSnapshotsRequest{SnapshotId: "snap-s"})
			return len(reply.GetEntries()) == 1 && reply.GetEntries()[0].GetSnapshot().GetReadyToUse(), err
		},
		"CreateVolumeGroupSnapshot": func(ctx context.Context, d *csitest.Driver) (bool, error) {
			reply, err := groups(d).CreateVolumeGroupSnapshot(ctx, &csi.CreateVolumeGroupSnapshotRequest{Name: "g", SourceVolumeIds: []string{"vol-a"}})
			return reply.GetGroupSnapshot().GetReadyToUse() && reply.GetGroupSnapshot().GetSnapshots()[0].GetReadyToUse(), err
		},
	}
	for name, ask := range asks {
		for _, after := range []int{0, 1, 3, -1} {
			t.Run(fmt.Sprintf("%s/%d", name, after), func(t *testing.T) {
				t.Parallel()
				o := withSnapshots()
				o.SnapshotReadyAfter = after + 1 // one for the steps
				if after < 0 {
					o.SnapshotReadyAfter = after
				}
				d := csitest.New(o)
				play(t, d, "a snapshot and a group", codes.OK, made(), snapshot("s"), groupSnapshot("g", "vol-a"))
				for i := range 5 {
					ready, err := ask(t.Context(), d)
					if want := after >= 0 && i >= after; err != nil || ready != want {
						t.Errorf("answer %d: ready %v, error %v, want %v", i+1, ready, err, want)
					}
				}
			})
		}
	}
}

// A list has all snapshots, in pages, or those that the request selects.
func TestListSnapshots(t *testing.T) {
	t.Parallel()
	d := csitest.New(withSnapshots())
	mustCreate(t, d, "a", "b")
	play(t, d, "snapshots", codes.OK, snapshot("2"), snapshot("1"), groupSnapshot("g", "vol-b"))
	d.AddSnapshot(csitest.Snapshot{ID: "old", SourceVolume: "vol-gone"})
	d.AddGroupSnapshot(csitest.GroupSnapshot{ID: "group-old", Snapshots: []string{"old"}})
	everything := []string{"old", "snap-1", "snap-2", "snap-g@vol-b"}
	cases := map[string]struct {
		reason string
		req    *csi.ListSnapshotsRequest
		want   []string
		pages  int
		code   codes.Code
	}{
		"All":         {reason: "sorted, members of groups included", req: &csi.ListSnapshotsRequest{}, want: everything, pages: 1},
		"Pages":       {reason: "one page after the other", req: &csi.ListSnapshotsRequest{MaxEntries: 3}, want: everything, pages: 2},
		"Single":      {reason: "each on a page", req: &csi.ListSnapshotsRequest{MaxEntries: 1}, want: everything, pages: 4},
		"ByID":        {reason: "one", req: &csi.ListSnapshotsRequest{SnapshotId: "snap-2"}, want: []string{"snap-2"}, pages: 1},
		"ByNoID":      {reason: "an empty list is no error", req: &csi.ListSnapshotsRequest{SnapshotId: "snap-9"}, pages: 1},
		"ByVolume":    {reason: "those of a volume", req: &csi.ListSnapshotsRequest{SourceVolumeId: "vol-a", MaxEntries: 1}, want: []string{"snap-1", "snap-2"}, pages: 2},
		"ByGone":      {reason: "a volume may be gone", req: &csi.ListSnapshotsRequest{SourceVolumeId: "vol-gone"}, want: []string{"old"}, pages: 1},
		"ByBoth":      {reason: "both must match", req: &csi.ListSnapshotsRequest{SnapshotId: "snap-1", SourceVolumeId: "vol-b"}, pages: 1},
		"BadToken":    {reason: "not a token of this driver", req: &csi.ListSnapshotsRequest{StartingToken: "x"}, code: codes.Aborted},
		"NegativeMax": {reason: "a size is not negative", req: &csi.ListSnapshotsRequest{MaxEntries: -1}, code: codes.InvalidArgument},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			var got []string
			pages := 0
			for {
				reply, err := controller(d).ListSnapshots(t.Context(), tc.req)
				wantCode(t, tc.reason, err, tc.code)
				if err != nil {
					return
				}
				pages++
				for _, entry := range reply.GetEntries() {
					got = append(got, entry.GetSnapshot().GetSnapshotId())
				}
				if tc.req.StartingToken = reply.GetNextToken(); tc.req.StartingToken == "" {
					break
				}
			}
			if diff := cmp.Diff(tc.want, got); diff != "" || pages != tc.pages {
				t.Errorf("%s: %d pages, want %d (-want +got):\n%s", tc.reason, pages, tc.pages, diff)
			}
		})
	}
}

// Two calls at a time that create or delete the same are noticed; those for others are not.
func TestOverlaps(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := csitest.New(withSnapshots())
		play(t, d, "a volume", codes.OK, made())
		d.Inject(csitest.Fault{Delay: time.Second})
		calls := []step{snapshot("s"), dropSnapshot("s"), snapshot("u"), groupSnapshot("g", "vol-a"), dropGroupSnapshot("g"), remove(), made()}
		for _, s := range calls {
			go func() { _ = s.call(t.Context(), d) }()
			synctest.Wait() // the calls begin in this order
		}
		time.Sleep(2 * time.Second) // virtual
		play(t, d, "nothing is running", codes.OK, dropSnapshot("s"))
		want := []string{`DeleteSnapshot of "snap-s" during another call for it`, `DeleteVolumeGroupSnapshot of "group-g" during another call for it`, `CreateVolume of "vol-a" during another call for it`}
		if diff := cmp.Diff(want, d.Overlaps()); diff != "" {
			t.Errorf("overlaps (-want +got):\n%s", diff)
		}
	})
}

// TestSnapshotTopology has a snapshot where its volume is, and volumes of it there only.
func TestSnapshotTopology(t *testing.T) {
	ctx, zone := t.Context(), func(name string) *csi.TopologyRequirement {
		return &csi.TopologyRequirement{Requisite: []*csi.Topology{{Segments: map[string]string{"zone": name}}}}
	}
	d := csitest.New(csitest.Options{Topology: map[string]string{"zone": "a"}, SnapshotTopology: true, Controller: append(csitest.AllController(), csitest.AllSnapshots()...)})
	d.AddVolume(csitest.Volume{ID: "v", Capacity: 1, Topology: map[string]string{"zone": "b"}})
	ask := &csi.CreateSnapshotRequest{Name: "s", SourceVolumeId: "v", AccessibilityRequirements: zone("a")}
	if _, err := d.CreateSnapshot(ctx, ask); status.Code(err) != codes.ResourceExhausted {
		t.Errorf("a snapshot elsewhere: %v, want RESOURCE_EXHAUSTED", err)
	}
	ask.AccessibilityRequirements = zone("b")
	taken, err := d.CreateSnapshot(ctx, ask)
	if err != nil || taken.GetSnapshot().GetAccessibleTopology()[0].GetSegments()["zone"] != "b" {
		t.Fatalf("got %v, %v, want a snapshot in zone b", taken, err)
	}
	restore := &csi.CreateVolumeRequest{
		Name: "r", VolumeCapabilities: []*csi.VolumeCapability{{
			AccessType: &csi.VolumeCapability_Mount{Mount: &csi.VolumeCapability_MountVolume{}},
			AccessMode: &csi.VolumeCapability_AccessMode{Mode: csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER},
		}},
		VolumeContentSource: &csi.VolumeContentSource{Type: &csi.VolumeContentSource_Snapshot{
			Snapshot: &csi.VolumeContentSource_SnapshotSource{SnapshotId: taken.GetSnapshot().GetSnapshotId()},
		}},
		AccessibilityRequirements: zone("a"),
	}
	if _, err := d.CreateVolume(ctx, restore); status.Code(err) != codes.ResourceExhausted {
		t.Errorf("a volume elsewhere: %v, want RESOURCE_EXHAUSTED", err)
	}
	restore.AccessibilityRequirements = zone("b")
	if _, err := d.CreateVolume(ctx, restore); err != nil {
		t.Error(err)
	}
	other := csitest.New(csitest.Options{Controller: csitest.AllSnapshots()})
	other.AddVolume(csitest.Volume{ID: "v"})
	if _, err := other.CreateSnapshot(ctx, ask); err == nil || len(other.Violations()) != 1 {
		t.Errorf("a requirement without the capability: %v, violations %q, want one", err, other.Violations())
	}
}
