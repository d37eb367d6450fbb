package csitest_test

import (
	"context"
	"fmt"
	"sync"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/longshore-csi/longshore/csikittest/csitest"
)

func topologyOf(segments ...map[string]string) []*csi.Topology {
	list := make([]*csi.Topology, 0, len(segments))
	for _, s := range segments {
		list = append(list, &csi.Topology{Segments: s})
	}
	return list
}

// Where a volume is made: CSI spec v1.13, "TopologyRequirement".
func TestTopologyOfNewVolumes(t *testing.T) {
	t.Parallel()
	a, b, here := map[string]string{"zone": "a"}, map[string]string{"zone": "b"}, map[string]string{"zone": "here"}
	cases := map[string]struct {
		reason string
		driver map[string]string
		need   *csi.TopologyRequirement
		want   map[string]string
	}{
		"NoTopology":    {reason: "A driver without topology makes volumes for everywhere.", need: &csi.TopologyRequirement{Requisite: topologyOf(a)}},
		"NoRequirement": {reason: "Without a requirement it is the segment of the node.", driver: here, want: here},
		"Empty":         {reason: "An empty requirement is none.", driver: here, need: &csi.TopologyRequirement{}, want: here},
		"Requisite":     {reason: "One of the requisite ones must do.", driver: here, need: &csi.TopologyRequirement{Requisite: topologyOf(b, a)}, want: b},
		"Preferred":     {reason: "The first that is preferred is the best.", driver: here, need: &csi.TopologyRequirement{Requisite: topologyOf(a, b), Preferred: topologyOf(b, a)}, want: b},
		"OnlyPreferred": {reason: "A preference may stand alone.", driver: here, need: &csi.TopologyRequirement{Preferred: topologyOf(a)}, want: a},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := csitest.New(csitest.Options{Topology: tc.driver})
			req := create("a")
			req.AccessibilityRequirements = tc.need
			reply, err := controller(d).CreateVolume(t.Context(), req)
			if err != nil {
				t.Fatal(err)
			}
			var got map[string]string
			for _, segment := range reply.GetVolume().GetAccessibleTopology() {
				got = segment.GetSegments()
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("%s (-want +got):\n%s", tc.reason, diff)
			}
			if again, err := controller(d).CreateVolume(t.Context(), req); err != nil || again.GetVolume().GetVolumeId() != reply.GetVolume().GetVolumeId() {
				t.Errorf("the same request again: %v, %v", again, err)
			}
		})
	}
}

// What a driver has left is what it says, whatever was made, grown and deleted.
func TestCapacityIsAccountedFor(t *testing.T) {
	t.Parallel()
	d := csitest.New(csitest.Options{Capacity: 10 * gib})
	sized := func(name string, size int64) func() error {
		return func() error {
			req := create(name)
			req.CapacityRange = &csi.CapacityRange{RequiredBytes: size * gib}
			_, err := controller(d).CreateVolume(t.Context(), req)
			return err
		}
	}
	grown := func(name string, size int64) func() error {
		return func() error {
			_, err := controller(d).ControllerExpandVolume(t.Context(), &csi.ControllerExpandVolumeRequest{
				VolumeId: "vol-" + name, CapacityRange: &csi.CapacityRange{RequiredBytes: size * gib},
			})
			return err
		}
	}
	deleted := func(name string) func() error {
		return func() error {
			_, err := controller(d).DeleteVolume(t.Context(), &csi.DeleteVolumeRequest{VolumeId: "vol-" + name})
			return err
		}
	}
	steps := []struct {
		reason string
		do     func() error
		want   codes.Code
		left   int64
	}{
		{"a first volume", sized("a", 4), codes.OK, 6},
		{"the same again takes nothing", sized("a", 4), codes.OK, 6},
		{"too much is refused and takes nothing", sized("b", 7), codes.ResourceExhausted, 6},
		{"exactly the free capacity", sized("b", 6), codes.OK, 0},
		{"nothing is left, not a byte", sized("c", 1), codes.ResourceExhausted, 0},
		{"nor for growth", grown("a", 5), codes.ResourceExhausted, 0},
		{"growth to what it has is none", grown("a", 4), codes.OK, 0},
		{"nor is growth to less, which never shrinks", grown("a", 1), codes.OK, 0},
		{"deletion frees capacity", deleted("b"), codes.OK, 6},
		{"once", deleted("b"), codes.OK, 6},
		{"growth takes the difference", grown("a", 9), codes.OK, 1},
		{"all capacity is free at the end", deleted("a"), codes.OK, 10},
	}
	for _, s := range steps {
		wantCode(t, s.reason, s.do(), s.want)
		reply, err := controller(d).GetCapacity(t.Context(), &csi.GetCapacityRequest{})
		if err != nil || reply.GetAvailableCapacity() != s.left*gib || reply.GetMaximumVolumeSize().GetValue() != s.left*gib {
			t.Errorf("%s: %v, %v; want %d GiB left", s.reason, reply, err, s.left)
		}
	}
}

// Callers that race for the same volumes get what they could have got one after the other.
func TestConcurrentCallers(t *testing.T) {
	t.Parallel()
	const callers, volumes = 16, 4
	d := csitest.New(csitest.Options{})
	var group sync.WaitGroup
	attached := make(chan string, callers*volumes)
	for i := range callers {
		group.Go(func() {
			for j := range volumes {
				name := fmt.Sprint("v-", j)
				if _, err := controller(d).CreateVolume(t.Context(), create(name)); err != nil {
					t.Errorf("create %s: %v", name, err)
				}
				_, err := controller(d).ControllerPublishVolume(t.Context(), &csi.ControllerPublishVolumeRequest{
					VolumeId: "vol-" + name, NodeId: fmt.Sprint("node-", i), VolumeCapability: writer(),
				})
				switch status.Code(err) {
				case codes.OK:
					attached <- name
				case codes.FailedPrecondition: // another node has it
				default:
					t.Errorf("attach %s: %v", name, err)
				}
			}
		})
	}
	group.Wait()
	if len(attached) != volumes {
		t.Errorf("%d attachments of %d volumes for one writer each", len(attached), volumes)
	}
	if got := d.Volumes(); len(got) != volumes {
		t.Errorf("%d volumes, want %d: a name is one volume", len(got), volumes)
	}
	if calls := d.Calls(); len(calls) != 2*callers*volumes {
		t.Errorf("%d calls in the log, want %d", len(calls), 2*callers*volumes)
	}
	if got := d.Violations(); len(got) > 0 {
		t.Errorf("violations: %q", got)
	}
}

// Faults, log and life cycle are the same over a socket as in process.
func TestFaultsOverASocket(t *testing.T) {
	t.Parallel()
	d := csitest.New(csitest.Options{})
	conn, err := grpc.NewClient(d.Serve(t), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	client := csi.NewControllerClient(conn)
	steps := []struct {
		reason string
		fault  csitest.Fault
		call   func(context.Context) error
		want   codes.Code
	}{
		{reason: "an injected error", fault: csitest.Fault{Code: codes.DataLoss, Times: 1}, want: codes.DataLoss, call: func(ctx context.Context) error {
			_, err := client.CreateVolume(ctx, create("a"))
			return err
		}},
		{reason: "it is used up", want: codes.OK, call: func(ctx context.Context) error {
			_, err := client.CreateVolume(ctx, create("a"))
			return err
		}},
		{reason: "the effect comes first", fault: csitest.Fault{Method: "DeleteVolume", Code: codes.Unavailable, After: true, Times: 1}, want: codes.Unavailable, call: func(ctx context.Context) error {
			_, err := client.DeleteVolume(ctx, &csi.DeleteVolumeRequest{VolumeId: "vol-a"})
			return err
		}},
		{reason: "so the volume is gone", want: codes.NotFound, call: func(ctx context.Context) error {
			_, err := client.ControllerGetVolume(ctx, &csi.ControllerGetVolumeRequest{VolumeId: "vol-a"})
			return err
		}},
	}
	for i, s := range steps {
		if s.fault.Code != codes.OK {
			d.Inject(s.fault)
		}
		wantCode(t, s.reason, s.call(t.Context()), s.want)
		if calls := d.Calls(); len(calls) != i+1 || calls[i].Code != s.want {
			t.Errorf("%s: the log has %+v", s.reason, calls)
		}
	}
}

// AddVolume takes the state as given, and the life cycle continues from it.
func TestAddedVolume(t *testing.T) {
	t.Parallel()
	d := csitest.New(csitest.Options{})
	d.AddVolume(csitest.Volume{
		ID: "vol-a", Nodes: []string{"node-1"},
		Staged:    []csitest.Mount{{Node: "node-1", Path: "/stage"}},
		Published: []csitest.Mount{{Node: "node-1", Path: "/b", ReadOnly: true}, {Node: "node-1", Path: "/a"}},
	})
	want := csitest.Volume{
		ID: "vol-a", Capacity: csitest.DefaultVolumeSize, Nodes: []string{"node-1"},
		Staged:    []csitest.Mount{{Node: "node-1", Path: "/stage"}},
		Published: []csitest.Mount{{Node: "node-1", Path: "/a"}, {Node: "node-1", Path: "/b", ReadOnly: true}},
	}
	if diff := cmp.Diff([]csitest.Volume{want}, d.Volumes()); diff != "" {
		t.Errorf("volumes (-want +got):\n%s", diff)
	}
	for _, s := range []step{publish("/a"), unpublish("/a"), unpublish("/b"), unstage("/stage"), detach("node-1"), remove()} {
		if err := s.call(t.Context(), d); err != nil {
			t.Errorf("%s: %v", s.name, err)
		}
	}
	if got := d.Violations(); len(got) > 0 || len(d.Volumes()) > 0 {
		t.Errorf("at the end: violations %q, volumes %+v", got, d.Volumes())
	}
}
