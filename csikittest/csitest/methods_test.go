package csitest_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/longshore-csi/longshore/csikittest/csitest"
)

// method is one call that succeeds on a driver in which volume vol-a is at the step before.
type method struct {
	before []step
	call   func(context.Context, *csitest.Driver) error
	// shows reports whether the call has had its effect on vol-a, effect whether it has had another one; nil for calls without one.
	shows  func(csitest.Volume, bool) bool
	effect func(*csitest.Driver) bool
}

func of(s step) func(context.Context, *csitest.Driver) error { return s.call }

// methods are all methods of the driver except those that return its capabilities.
func methods() map[string]method {
	exists := func(_ csitest.Volume, found bool) bool { return found }
	gone := func(_ csitest.Volume, found bool) bool { return !found }
	return map[string]method{
		"CreateVolume": {
			call: func(ctx context.Context, d *csitest.Driver) error {
				_, err := controller(d).CreateVolume(ctx, create("a"))
				return err
			},
			shows: exists,
		},
		"DeleteVolume":              {before: []step{made()}, call: of(remove()), shows: gone},
		"ControllerPublishVolume":   {before: []step{made()}, call: of(attach("node-1")), shows: func(v csitest.Volume, _ bool) bool { return len(v.Nodes) == 1 }},
		"ControllerUnpublishVolume": {before: []step{made(), attach("node-1")}, call: of(detach("node-1")), shows: func(v csitest.Volume, found bool) bool { return found && len(v.Nodes) == 0 }},
		"NodeStageVolume":           {before: []step{made(), attach("node-1")}, call: of(stage("/stage")), shows: func(v csitest.Volume, _ bool) bool { return len(v.Staged) == 1 }},
		"NodeUnstageVolume":         {before: []step{made(), attach("node-1"), stage("/stage")}, call: of(unstage("/stage")), shows: func(v csitest.Volume, found bool) bool { return found && len(v.Staged) == 0 }},
		"NodePublishVolume":         {before: []step{made(), attach("node-1"), stage("/stage")}, call: of(publish("/pod")), shows: func(v csitest.Volume, _ bool) bool { return len(v.Published) == 1 }},
		"NodeUnpublishVolume":       {before: []step{made(), attach("node-1"), stage("/stage"), publish("/pod")}, call: of(unpublish("/pod")), shows: func(v csitest.Volume, found bool) bool { return found && len(v.Published) == 0 }},
		"ControllerExpandVolume": {
			before: []step{made()},
			call: func(ctx context.Context, d *csitest.Driver) error {
				_, err := controller(d).ControllerExpandVolume(ctx, &csi.ControllerExpandVolumeRequest{VolumeId: "vol-a", CapacityRange: &csi.CapacityRange{RequiredBytes: 9 * gib}})
				return err
			},
			shows: func(v csitest.Volume, _ bool) bool { return v.Capacity == 9*gib },
		},
		"ControllerModifyVolume": {
			before: []step{made()},
			call: func(ctx context.Context, d *csitest.Driver) error {
				_, err := controller(d).ControllerModifyVolume(ctx, &csi.ControllerModifyVolumeRequest{VolumeId: "vol-a", MutableParameters: map[string]string{"iops": "9"}})
				return err
			},
			shows: func(v csitest.Volume, _ bool) bool { return v.Mutable["iops"] == "9" },
		},
		"ControllerGetVolume": {before: []step{made()}, call: func(ctx context.Context, d *csitest.Driver) error {
			_, err := controller(d).ControllerGetVolume(ctx, &csi.ControllerGetVolumeRequest{VolumeId: "vol-a"})
			return err
		}},
		"ListVolumes": {call: func(ctx context.Context, d *csitest.Driver) error {
			_, err := controller(d).ListVolumes(ctx, &csi.ListVolumesRequest{})
			return err
		}},
		"GetCapacity": {call: func(ctx context.Context, d *csitest.Driver) error {
			_, err := controller(d).GetCapacity(ctx, &csi.GetCapacityRequest{})
			return err
		}},
		"ValidateVolumeCapabilities": {before: []step{made()}, call: func(ctx context.Context, d *csitest.Driver) error {
			_, err := controller(d).ValidateVolumeCapabilities(ctx, &csi.ValidateVolumeCapabilitiesRequest{VolumeId: "vol-a", VolumeCapabilities: []*csi.VolumeCapability{writer()}})
			return err
		}},
		"NodeGetInfo": {call: func(ctx context.Context, d *csitest.Driver) error {
			_, err := node(d).NodeGetInfo(ctx, &csi.NodeGetInfoRequest{})
			return err
		}},
		"NodeGetVolumeStats": {before: []step{made(), attach("node-1"), stage("/stage"), publish("/pod")}, call: func(ctx context.Context, d *csitest.Driver) error {
			_, err := node(d).NodeGetVolumeStats(ctx, &csi.NodeGetVolumeStatsRequest{VolumeId: "vol-a", VolumePath: "/pod"})
			return err
		}},
		"NodeExpandVolume": {before: []step{made(), attach("node-1"), stage("/stage"), publish("/pod")}, call: func(ctx context.Context, d *csitest.Driver) error {
			_, err := node(d).NodeExpandVolume(ctx, &csi.NodeExpandVolumeRequest{VolumeId: "vol-a", VolumePath: "/pod"})
			return err
		}},
		"CreateSnapshot": {before: []step{made()}, call: of(snapshot("s")), effect: func(d *csitest.Driver) bool { return len(d.Snapshots()) == 1 }},
		"DeleteSnapshot": {before: []step{made(), snapshot("s")}, call: of(dropSnapshot("s")), effect: func(d *csitest.Driver) bool { return len(d.Snapshots()) == 0 }},
		"GetSnapshot": {before: []step{made(), snapshot("s")}, call: func(ctx context.Context, d *csitest.Driver) error {
			_, err := controller(d).GetSnapshot(ctx, &csi.GetSnapshotRequest{SnapshotId: "snap-s"})
			return err
		}},
		"ListSnapshots": {before: []step{made(), snapshot("s")}, call: func(ctx context.Context, d *csitest.Driver) error {
			_, err := controller(d).ListSnapshots(ctx, &csi.ListSnapshotsRequest{})
			return err
		}},
		"CreateVolumeGroupSnapshot": {before: []step{made()}, call: of(groupSnapshot("g", "vol-a")), effect: func(d *csitest.Driver) bool { return len(d.GroupSnapshots()) == 1 && len(d.Snapshots()) == 1 }},
		"DeleteVolumeGroupSnapshot": {
			before: []step{made(), groupSnapshot("g", "vol-a")}, call: of(dropGroupSnapshot("g", "snap-g@vol-a")),
			effect: func(d *csitest.Driver) bool { return len(d.GroupSnapshots())+len(d.Snapshots()) == 0 },
		},
		"GetVolumeGroupSnapshot": {before: []step{made(), groupSnapshot("g", "vol-a")}, call: func(ctx context.Context, d *csitest.Driver) error {
			_, err := groups(d).GetVolumeGroupSnapshot(ctx, &csi.GetVolumeGroupSnapshotRequest{GroupSnapshotId: "group-g", SnapshotIds: []string{"snap-g@vol-a"}})
			return err
		}},
		"Probe": {call: func(ctx context.Context, d *csitest.Driver) error {
			_, err := csi.NewIdentityClient(d.Conn()).Probe(ctx, &csi.ProbeRequest{})
			return err
		}},
		"GetPluginInfo": {call: func(ctx context.Context, d *csitest.Driver) error {
			_, err := csi.NewIdentityClient(d.Conn()).GetPluginInfo(ctx, &csi.GetPluginInfoRequest{})
			return err
		}},
	}
}

func made() step {
	return step{"create", func(ctx context.Context, d *csitest.Driver) error {
		_, err := controller(d).CreateVolume(ctx, create("a"))
		return err
	}}
}

// prepare returns a driver at the step before the method.
func (m method) prepare(t *testing.T) *csitest.Driver {
	t.Helper()
	d := csitest.New(withSnapshots())
	for _, s := range m.before {
		if err := s.call(t.Context(), d); err != nil {
			t.Fatalf("%s: %v", s.name, err)
		}
	}
	d.ResetCalls()
	return d
}

// hasEffect reports whether shown has something to report.
func (m method) hasEffect() bool { return m.shows != nil || m.effect != nil }

func (m method) shown(d *csitest.Driver) bool {
	if m.effect != nil {
		return m.effect(d)
	}
	for _, v := range d.Volumes() {
		if v.ID == "vol-a" {
			return m.shows(v, true)
		}
	}
	return m.shows(csitest.Volume{}, false)
}

func TestFaultsOfEveryMethod(t *testing.T) {
	t.Parallel()
	const soon, late = 2 * time.Second, 30 * time.Second // both virtual
	cases := map[string]struct {
		reason string
		fault  csitest.Fault
		want   codes.Code
		effect bool
		took   time.Duration
	}{
		"None":       {reason: "Without a fault the call is served.", want: codes.OK, effect: true},
		"Other":      {reason: "Faults of other methods do not concern it.", fault: csitest.Fault{Method: "NoSuchMethod", Code: codes.Internal}, want: codes.OK, effect: true},
		"Refused":    {reason: "A call that fails has no effect.", fault: csitest.Fault{Code: codes.ResourceExhausted}, want: codes.ResourceExhausted},
		"After":      {reason: "The effect is there, and its caller does not know.", fault: csitest.Fault{Code: codes.Unavailable, After: true}, want: codes.Unavailable, effect: true},
		"Slow":       {reason: "A slow call is a good call.", fault: csitest.Fault{Delay: soon}, want: codes.OK, effect: true, took: soon},
		"SlowError":  {reason: "A fault may come late.", fault: csitest.Fault{Delay: soon, Code: codes.Aborted}, want: codes.Aborted, took: soon},
		"TooSlow":    {reason: "The deadline ends the call, and nothing happens later.", fault: csitest.Fault{Delay: time.Hour}, want: codes.DeadlineExceeded, took: late},
		"Hang":       {reason: "So it does with one that hangs.", fault: csitest.Fault{Hang: true}, want: codes.DeadlineExceeded, took: late},
		"HangAfter":  {reason: "A call may time out although its work is done.", fault: csitest.Fault{Hang: true, After: true}, want: codes.DeadlineExceeded, effect: true, took: late},
		"DelayAfter": {reason: "A late answer is an answer.", fault: csitest.Fault{Delay: soon, After: true}, want: codes.OK, effect: true, took: soon},
	}
	for name, m := range methods() {
		for caseName, tc := range cases {
			t.Run(name+"/"+caseName, func(t *testing.T) {
				t.Parallel()
				synctest.Test(t, func(t *testing.T) {
					d := m.prepare(t)
					fault := tc.fault
					if fault.Method == "" {
						fault.Method = name
					}
					d.Inject(fault)
					ctx, cancel := context.WithTimeout(t.Context(), late)
					defer cancel()
					began := time.Now()
					err := m.call(ctx, d)
					wantCode(t, tc.reason, err, tc.want)
					if took := time.Since(began); took != tc.took {
						t.Errorf("%s: took %v, want %v", tc.reason, took, tc.took)
					}
					if m.hasEffect() && m.shown(d) != tc.effect {
						t.Errorf("%s: effect is %t, want %t", tc.reason, !tc.effect, tc.effect)
					}
					calls := d.Calls()
					if len(calls) != 1 || calls[0].Method != name || !calls[0].Done || calls[0].Code != tc.want || calls[0].Node != "node-1" {
						t.Errorf("%s: the log has %+v", tc.reason, calls)
					}
				})
			})
		}
	}
}

// Whatever a caller could not learn, it learns by asking again: each method is idempotent.
func TestEveryMethodMayBeRepeated(t *testing.T) {
	t.Parallel()
	for name, m := range methods() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := m.prepare(t)
			d.Inject(csitest.Fault{Method: name, Code: codes.DeadlineExceeded, After: true, Times: 1})
			wantCode(t, "the answer is lost", m.call(t.Context(), d), codes.DeadlineExceeded)
			before, snapshots, groups := d.Volumes(), d.Snapshots(), d.GroupSnapshots()
			for range 2 {
				if err := m.call(t.Context(), d); err != nil {
					t.Errorf("again: %v", err)
				}
			}
			if diff := cmp.Diff(before, d.Volumes()); diff != "" {
				t.Errorf("a repetition changes something (-lost +again):\n%s", diff)
			}
			if diff := cmp.Diff(snapshots, d.Snapshots()) + cmp.Diff(groups, d.GroupSnapshots()); diff != "" {
				t.Errorf("a repetition changes a snapshot (-lost +again):\n%s", diff)
			}
			if got := append(d.Violations(), d.Overlaps()...); len(got) > 0 {
				t.Errorf("a repetition is no violation, got %q", got)
			}
		})
	}
}

// Which capability each method needs by the specification; a driver that does not announce it answers UNIMPLEMENTED.
func TestMethodsNeedTheirCapabilities(t *testing.T) {
	t.Parallel()
	type rpc = csi.ControllerServiceCapability_RPC_Type
	needs := map[string]rpc{
		"CreateVolume":              csi.ControllerServiceCapability_RPC_CREATE_DELETE_VOLUME,
		"DeleteVolume":              csi.ControllerServiceCapability_RPC_CREATE_DELETE_VOLUME,
		"ControllerPublishVolume":   csi.ControllerServiceCapability_RPC_PUBLISH_UNPUBLISH_VOLUME,
		"ControllerUnpublishVolume": csi.ControllerServiceCapability_RPC_PUBLISH_UNPUBLISH_VOLUME,
		"ListVolumes":               csi.ControllerServiceCapability_RPC_LIST_VOLUMES,
		"GetCapacity":               csi.ControllerServiceCapability_RPC_GET_CAPACITY,
		"ControllerGetVolume":       csi.ControllerServiceCapability_RPC_GET_VOLUME,
		"ControllerExpandVolume":    csi.ControllerServiceCapability_RPC_EXPAND_VOLUME,
		"ControllerModifyVolume":    csi.ControllerServiceCapability_RPC_MODIFY_VOLUME,
		"CreateSnapshot":            csi.ControllerServiceCapability_RPC_CREATE_DELETE_SNAPSHOT,
		"DeleteSnapshot":            csi.ControllerServiceCapability_RPC_CREATE_DELETE_SNAPSHOT,
		"ListSnapshots":             csi.ControllerServiceCapability_RPC_LIST_SNAPSHOTS,
		"GetSnapshot":               csi.ControllerServiceCapability_RPC_GET_SNAPSHOT,
	}
	for name, m := range methods() {
		capability, needed := needs[name]
		if !needed {
			continue
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := m.prepare(t)
			var others []rpc
			for _, c := range withSnapshots().Controller {
				if c != capability {
					others = append(others, c)
				}
			}
			d.SetController(others...)
			wantCode(t, "without "+capability.String(), m.call(t.Context(), d), codes.Unimplemented)
			if m.hasEffect() && m.shown(d) {
				t.Error("it has had its effect nevertheless")
			}
			d.SetController(capability)
			wantCode(t, "with nothing else", m.call(t.Context(), d), codes.OK)
		})
	}
}

// The texts of injected errors are those that a component shows to its users.
func TestFaultTexts(t *testing.T) {
	t.Parallel()
	for message, want := range map[string]string{"": "injected Internal", "disk is on fire": "disk is on fire"} {
		d := csitest.New(csitest.Options{})
		d.Inject(csitest.Fault{Method: "Probe", Code: codes.Internal, Message: message})
		_, err := csi.NewIdentityClient(d.Conn()).Probe(t.Context(), &csi.ProbeRequest{})
		if got := status.Convert(err).Message(); got != want {
			t.Errorf("message %q: got %q, want %q", message, got, want)
		}
		if calls := d.Calls(); calls[0].Message != want {
			t.Errorf("message %q: the log has %q", message, calls[0].Message)
		}
	}
}

// Of several faults the first that fits acts; when it is used up, the next one does.
func TestFaultsActInTheirOrder(t *testing.T) {
	t.Parallel()
	d := csitest.New(csitest.Options{})
	d.Inject(csitest.Fault{Method: "DeleteVolume", Code: codes.DataLoss})
	d.Inject(csitest.Fault{Method: "Probe", Code: codes.Internal, Times: 2})
	d.Inject(csitest.Fault{Code: codes.Aborted, Times: 1})
	d.Inject(csitest.Fault{Method: "Probe", Code: codes.Unavailable, Times: 1})
	var got []codes.Code
	for range 5 {
		_, err := csi.NewIdentityClient(d.Conn()).Probe(t.Context(), &csi.ProbeRequest{})
		got = append(got, status.Code(err))
	}
	if diff := cmp.Diff([]codes.Code{codes.Internal, codes.Internal, codes.Aborted, codes.Unavailable, codes.OK}, got); diff != "" {
		t.Errorf("codes (-want +got):\n%s", diff)
	}
}

// A caller that is cancelled gets what gRPC says of it, not a fault.
func TestCancelledCall(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := csitest.New(csitest.Options{})
		d.Inject(csitest.Fault{Hang: true})
		ctx, cancel := context.WithCancelCause(t.Context())
		done := make(chan error)
		go func() { done <- made().call(ctx, d) }()
		synctest.Wait()
		if calls := d.Calls(); len(calls) != 1 || calls[0].Done {
			t.Errorf("the call is running, the log has %+v", calls)
		}
		cancel(errors.New("no more"))
		wantCode(t, "the caller has gone", <-done, codes.Canceled)
	})
}
