package grpcapi

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/longshore-csi/longshore/hostpathdriver/internal/volume"
)

func TestStatusOf(t *testing.T) {
	cases := map[string]struct {
		reason string
		err    error
		want   codes.Code
	}{
		"Nil":          {reason: "no error"},
		"Invalid":      {reason: "wrong argument", err: volume.ErrInvalid, want: codes.InvalidArgument},
		"NotFound":     {reason: "no such thing", err: volume.ErrNotFound, want: codes.NotFound},
		"Exists":       {reason: "another of that name", err: volume.ErrExists, want: codes.AlreadyExists},
		"Exhausted":    {reason: "no space", err: volume.ErrExhausted, want: codes.ResourceExhausted},
		"OutOfRange":   {reason: "no such size", err: volume.ErrOutOfRange, want: codes.OutOfRange},
		"InUse":        {reason: "used", err: volume.ErrInUse, want: codes.FailedPrecondition},
		"Precondition": {reason: "too early", err: volume.ErrPrecondition, want: codes.FailedPrecondition},
		"Unsteady":     {reason: "somebody writes", err: volume.ErrConcurrentWrite, want: codes.FailedPrecondition},
		"Token":        {reason: "start again", err: volume.ErrBadToken, want: codes.Aborted},
		"Busy":         {reason: "call again, although the deadline is in it", err: fmt.Errorf("%w: %w", volume.ErrBusy, context.DeadlineExceeded), want: codes.Aborted},
		"Deadline":     {reason: "out of time", err: context.DeadlineExceeded, want: codes.DeadlineExceeded},
		"Canceled":     {reason: "nobody waits", err: context.Canceled, want: codes.Canceled},
		"Other":        {reason: "the machine", err: errors.New("disk on fire"), want: codes.Internal},
		"Wrapped":      {reason: "at any depth", err: fmt.Errorf("a: %w", fmt.Errorf("b: %w", volume.ErrNotFound)), want: codes.NotFound},
		"Joined":       {reason: "an error of cleaning up does not hide the cause", err: errors.Join(volume.ErrExhausted, errors.New("clean up")), want: codes.ResourceExhausted},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			got := statusOf(c.err)
			wantCode(t, c.reason, got, c.want)
			if c.err != nil && status.Convert(got).Message() != c.err.Error() {
				t.Errorf("%s: message %q, want %q", c.reason, status.Convert(got).Message(), c.err)
			}
		})
	}
}

func controllerCapabilities(t *testing.T, c *Controller) []string {
	t.Helper()
	answer, err := c.ControllerGetCapabilities(t.Context(), &csi.ControllerGetCapabilitiesRequest{})
	if err != nil {
		t.Fatal(err)
	}
	names := []string{}
	for _, one := range answer.GetCapabilities() {
		names = append(names, one.GetRpc().GetType().String())
	}
	slices.Sort(names)
	return names
}

func TestControllerCapabilities(t *testing.T) {
	plain := []string{
		"CLONE_VOLUME", "CREATE_DELETE_SNAPSHOT", "CREATE_DELETE_VOLUME", "GET_CAPACITY", "GET_SNAPSHOT", "GET_VOLUME", "GET_VOLUME_HEALTH",
		"LIST_VOLUMES", "LIST_VOLUME_HEALTH", "SINGLE_NODE_MULTI_WRITER",
	}
	attach := append([]string{"LIST_VOLUMES_PUBLISHED_NODES", "PUBLISH_READONLY", "PUBLISH_UNPUBLISH_VOLUME"}, plain...)
	slices.Sort(attach)
	if diff := cmp.Diff(plain, controllerCapabilities(t, NewController(ControllerConfig{}))); diff != "" {
		t.Errorf("without attach (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(attach, controllerCapabilities(t, NewController(ControllerConfig{Attach: true}))); diff != "" {
		t.Errorf("with attach (-want +got):\n%s", diff)
	}
	expand := append([]string{"EXPAND_VOLUME"}, plain...)
	slices.Sort(expand)
	if diff := cmp.Diff(expand, controllerCapabilities(t, NewController(ControllerConfig{Expansion: true}))); diff != "" {
		t.Errorf("with expansion (-want +got):\n%s", diff)
	}
	list := append([]string{"LIST_SNAPSHOTS"}, plain...)
	slices.Sort(list)
	if diff := cmp.Diff(list, controllerCapabilities(t, NewController(ControllerConfig{ListSnapshots: true}))); diff != "" {
		t.Errorf("with the list of snapshots (-want +got):\n%s", diff)
	}
	modify := append([]string{"MODIFY_VOLUME"}, plain...)
	slices.Sort(modify)
	if diff := cmp.Diff(modify, controllerCapabilities(t, NewController(ControllerConfig{Modify: true}))); diff != "" {
		t.Errorf("with modification (-want +got):\n%s", diff)
	}
	without := NewController(ControllerConfig{})
	_, err := without.ControllerExpandVolume(t.Context(), &csi.ControllerExpandVolumeRequest{})
	wantCode(t, "without expansion", err, codes.Unimplemented)
	_, err = without.ControllerModifyVolume(t.Context(), &csi.ControllerModifyVolumeRequest{})
	wantCode(t, "without modification", err, codes.Unimplemented)
	_, err = without.ListSnapshots(t.Context(), &csi.ListSnapshotsRequest{})
	wantCode(t, "without the list of snapshots", err, codes.Unimplemented)
}

// TestControllerServesWhatItAnnounces calls each method with an empty
// request: what is announced refuses the argument, the rest is UNIMPLEMENTED.
func TestControllerServesWhatItAnnounces(t *testing.T) {
	for _, attach := range []bool{false, true} {
		f := newFixture(t, attach)
		announced := controllerCapabilities(t, f.Controller)
		methods := map[string][]func() error{
			"CREATE_DELETE_VOLUME": {
				func() error { _, err := f.CreateVolume(f.ctx, &csi.CreateVolumeRequest{}); return err },
				func() error { _, err := f.DeleteVolume(f.ctx, &csi.DeleteVolumeRequest{}); return err },
			},
			"PUBLISH_UNPUBLISH_VOLUME": {
				func() error {
					_, err := f.ControllerPublishVolume(f.ctx, &csi.ControllerPublishVolumeRequest{})
					return err
				},
				func() error {
					_, err := f.ControllerUnpublishVolume(f.ctx, &csi.ControllerUnpublishVolumeRequest{})
					return err
				},
			},
			"LIST_VOLUMES": {func() error { _, err := f.ListVolumes(f.ctx, &csi.ListVolumesRequest{}); return err }},
			"GET_CAPACITY": {func() error { _, err := f.GetCapacity(f.ctx, &csi.GetCapacityRequest{}); return err }},
			"GET_VOLUME":   {func() error { _, err := f.ControllerGetVolume(f.ctx, &csi.ControllerGetVolumeRequest{}); return err }},
			"CREATE_DELETE_SNAPSHOT": {
				func() error { _, err := f.CreateSnapshot(f.ctx, &csi.CreateSnapshotRequest{}); return err },
				func() error { _, err := f.DeleteSnapshot(f.ctx, &csi.DeleteSnapshotRequest{}); return err },
			},
			"GET_SNAPSHOT":   {func() error { _, err := f.GetSnapshot(f.ctx, &csi.GetSnapshotRequest{}); return err }},
			"LIST_SNAPSHOTS": {func() error { _, err := f.ListSnapshots(f.ctx, &csi.ListSnapshotsRequest{}); return err }},
			"EXPAND_VOLUME": {func() error {
				_, err := f.ControllerExpandVolume(f.ctx, &csi.ControllerExpandVolumeRequest{})
				return err
			}},
			"MODIFY_VOLUME": {func() error {
				_, err := f.ControllerModifyVolume(f.ctx, &csi.ControllerModifyVolumeRequest{})
				return err
			}},
		}
		for capability, calls := range methods {
			for i, call := range calls {
				served := status.Code(call()) != codes.Unimplemented
				if want := slices.Contains(announced, capability); served != want {
					t.Errorf("attach %t, %s, method %d: served %t, announced %t", attach, capability, i, served, want)
				}
			}
		}
	}
}

func TestNodeServesWhatItAnnounces(t *testing.T) {
	f := newFixture(t, false)
	answer, err := f.NodeGetCapabilities(f.ctx, &csi.NodeGetCapabilitiesRequest{})
	if err != nil {
		t.Fatal(err)
	}
	var announced []string
	for _, one := range answer.GetCapabilities() {
		announced = append(announced, one.GetRpc().GetType().String())
	}
	slices.Sort(announced)
	if diff := cmp.Diff([]string{"EXPAND_VOLUME", "GET_STORAGE_HEALTH", "GET_VOLUME_HEALTH", "GET_VOLUME_STATS", "SINGLE_NODE_MULTI_WRITER", "STAGE_UNSTAGE_VOLUME"}, announced); diff != "" {
		t.Errorf("capabilities (-want +got):\n%s", diff)
	}
	_, err = f.NodeExpandVolume(f.ctx, &csi.NodeExpandVolumeRequest{})
	wantCode(t, "NodeExpandVolume", err, codes.InvalidArgument)
	without := NewNode(NodeConfig{})
	if answer, err := without.NodeGetCapabilities(f.ctx, &csi.NodeGetCapabilitiesRequest{}); err != nil || len(answer.GetCapabilities()) != len(announced)-1 {
		t.Errorf("without expansion: %v, %v", answer, err)
	}
	_, err = without.NodeExpandVolume(f.ctx, &csi.NodeExpandVolumeRequest{})
	wantCode(t, "NodeExpandVolume without expansion", err, codes.Unimplemented)
	_, err = f.NodeGetVolumeHealth(f.ctx, &csi.NodeGetVolumeHealthRequest{})
	wantCode(t, "NodeGetVolumeHealth", err, codes.InvalidArgument)
}

func TestIdentity(t *testing.T) {
	identity := NewIdentity(IdentityConfig{Name: "driver.example.com", Version: "v1", Controller: true, Topology: true})
	info, err := identity.GetPluginInfo(t.Context(), &csi.GetPluginInfoRequest{})
	if err != nil || info.GetName() != "driver.example.com" || info.GetVendorVersion() != "v1" {
		t.Errorf("GetPluginInfo: %v, %v", info, err)
	}
	cases := map[string]struct {
		cfg  IdentityConfig
		want []string
	}{
		"Nothing":    {},
		"Controller": {cfg: IdentityConfig{Controller: true}, want: []string{"CONTROLLER_SERVICE"}},
		"Expansion":  {cfg: IdentityConfig{Controller: true, Expansion: true}, want: []string{"CONTROLLER_SERVICE", "ONLINE"}},
		"Snapshots":  {cfg: IdentityConfig{Snapshots: true}},
		"SnapshotsByTopology": {cfg: IdentityConfig{Snapshots: true, Topology: true}, want: []string{
			"VOLUME_ACCESSIBILITY_CONSTRAINTS", "SNAPSHOT_ACCESSIBILITY_CONSTRAINTS",
		}},
		"Groups":   {cfg: IdentityConfig{Groups: true}, want: []string{"GROUP_CONTROLLER_SERVICE"}},
		"Metadata": {cfg: IdentityConfig{Metadata: true}, want: []string{MetadataCapability.String()}},
		"Both":     {cfg: IdentityConfig{Controller: true, Topology: true}, want: []string{"CONTROLLER_SERVICE", "VOLUME_ACCESSIBILITY_CONSTRAINTS"}},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			answer, err := NewIdentity(c.cfg).GetPluginCapabilities(t.Context(), &csi.GetPluginCapabilitiesRequest{})
			var got []string
			for _, one := range answer.GetCapabilities() {
				if expansion := one.GetVolumeExpansion(); expansion != nil {
					got = append(got, expansion.GetType().String())
					continue
				}
				got = append(got, one.GetService().GetType().String())
			}
			if diff := cmp.Diff(c.want, got); err != nil || diff != "" {
				t.Errorf("%v (-want +got):\n%s", err, diff)
			}
		})
	}
}

func TestProbe(t *testing.T) {
	for name, c := range map[string]struct {
		ready func(context.Context) error
		want  bool
	}{
		"Always":   {want: true},
		"Ready":    {ready: func(context.Context) error { return nil }, want: true},
		"NotReady": {ready: func(context.Context) error { return errors.New("no disk") }},
	} {
		answer, err := NewIdentity(IdentityConfig{Ready: c.ready}).Probe(t.Context(), &csi.ProbeRequest{})
		if err != nil || answer.GetReady().GetValue() != c.want {
			t.Errorf("%s: %v, %v, want ready %t", name, answer, err, c.want)
		}
	}
}

// registrar notes what is registered.
type registrar struct{ names []string }

func (r *registrar) RegisterService(desc *grpc.ServiceDesc, _ any) {
	r.names = append(r.names, desc.ServiceName)
}

func TestRegister(t *testing.T) {
	var r registrar
	f := newFixture(t, false)
	NewIdentity(IdentityConfig{}).Register(&r)
	f.Controller.Register(&r)
	f.Node.Register(&r)
	NewGroup(GroupConfig{}).Register(&r)
	if diff := cmp.Diff([]string{"csi.v1.Identity", "csi.v1.Controller", "csi.v1.Node", "csi.v1.GroupController"}, r.names); diff != "" {
		t.Errorf("services (-want +got):\n%s", diff)
	}
}
