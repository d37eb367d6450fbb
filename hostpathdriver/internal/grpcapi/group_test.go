package grpcapi

import (
	"context"
	"strings"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/longshore-csi/longshore/hostpathdriver/internal/volume"
)

func TestGroupCapabilities(t *testing.T) {
	answer, err := NewGroup(GroupConfig{}).GroupControllerGetCapabilities(t.Context(), &csi.GroupControllerGetCapabilitiesRequest{})
	if err != nil || len(answer.GetCapabilities()) != 1 ||
		answer.GetCapabilities()[0].GetRpc().GetType() != csi.GroupControllerServiceCapability_RPC_CREATE_DELETE_GET_VOLUME_GROUP_SNAPSHOT {
		t.Errorf("capabilities %v, %v", answer, err)
	}
}

func TestGroupAnswers(t *testing.T) {
	s, _ := newShelf()
	g := NewGroup(GroupConfig{Service: s})
	want := &csi.VolumeGroupSnapshot{
		GroupSnapshotId: "g1", CreationTime: timestamppb.New(moment()), ReadyToUse: true,
		Snapshots: []*csi.Snapshot{{
			SnapshotId: "s3", SourceVolumeId: "v2", GroupSnapshotId: "g1", CreationTime: timestamppb.New(moment()), ReadyToUse: true,
		}},
	}
	created, err := g.CreateVolumeGroupSnapshot(t.Context(), &csi.CreateVolumeGroupSnapshotRequest{
		Name: "group", SourceVolumeIds: []string{"v2"}, Parameters: map[string]string{"a": "b"},
	})
	if diff := cmp.Diff(want, created.GetGroupSnapshot(), protocmp.Transform()); err != nil || diff != "" {
		t.Errorf("create: %v (-want +got):\n%s", err, diff)
	}
	asked := volume.GroupRequest{Name: "group", Sources: []volume.ID{"v2"}, Parameters: map[string]string{"a": "b"}}
	if diff := cmp.Diff(asked, s.group); diff != "" {
		t.Errorf("request (-want +got):\n%s", diff)
	}

	s.snapshots[2].Filling = true
	want.ReadyToUse, want.Snapshots[0].ReadyToUse = false, false
	found, err := g.GetVolumeGroupSnapshot(t.Context(), &csi.GetVolumeGroupSnapshotRequest{GroupSnapshotId: "g1", SnapshotIds: []string{"s3"}})
	if diff := cmp.Diff(want, found.GetGroupSnapshot(), protocmp.Transform()); err != nil || diff != "" {
		t.Errorf("get: %v (-want +got):\n%s", err, diff)
	}

	_, err = g.DeleteVolumeGroupSnapshot(t.Context(), &csi.DeleteVolumeGroupSnapshotRequest{GroupSnapshotId: "g1", SnapshotIds: []string{"s3"}})
	if diff := cmp.Diff([]volume.ID{"g1", "s3"}, s.deleted); err != nil || diff != "" {
		t.Errorf("delete: %v (-want +got):\n%s", err, diff)
	}
}

func TestGroupCodes(t *testing.T) {
	create := func(name string, sources ...string) func(context.Context, *Group) error {
		return func(ctx context.Context, g *Group) error {
			_, err := g.CreateVolumeGroupSnapshot(ctx, &csi.CreateVolumeGroupSnapshotRequest{Name: name, SourceVolumeIds: sources})
			return err
		}
	}
	remove := func(id string, members ...string) func(context.Context, *Group) error {
		return func(ctx context.Context, g *Group) error {
			_, err := g.DeleteVolumeGroupSnapshot(ctx, &csi.DeleteVolumeGroupSnapshotRequest{GroupSnapshotId: id, SnapshotIds: members})
			return err
		}
	}
	get := func(id string, members ...string) func(context.Context, *Group) error {
		return func(ctx context.Context, g *Group) error {
			_, err := g.GetVolumeGroupSnapshot(ctx, &csi.GetVolumeGroupSnapshotRequest{GroupSnapshotId: id, SnapshotIds: members})
			return err
		}
	}
	cases := map[string]struct {
		reason string
		fail   error
		call   func(context.Context, *Group) error
		want   codes.Code
	}{
		"Create":          {reason: "nothing wrong", call: create("group", "v1", "v2")},
		"CreateNoName":    {reason: "required", call: create("", "v1"), want: codes.InvalidArgument},
		"CreateLongName":  {reason: "129 bytes", call: create(strings.Repeat("n", 129), "v1"), want: codes.InvalidArgument},
		"CreateNoSources": {reason: "required", call: create("group"), want: codes.InvalidArgument},
		"CreateNoSource":  {reason: "none may be empty", call: create("group", "v1", ""), want: codes.InvalidArgument},
		"CreatePath":      {reason: "never a path", call: create("group", "../v1"), want: codes.InvalidArgument},
		"CreateUnknown":   {reason: "no such volume", fail: volume.ErrNotFound, call: create("group", "v9"), want: codes.NotFound},
		"CreateExists":    {reason: "of other volumes", fail: volume.ErrExists, call: create("group", "v1"), want: codes.AlreadyExists},
		"CreateTogether":  {reason: "not of one moment", fail: volume.ErrPrecondition, call: create("group", "v1"), want: codes.FailedPrecondition},
		"CreateInUse":     {reason: "somebody writes", fail: volume.ErrConcurrentWrite, call: create("group", "v1"), want: codes.FailedPrecondition},
		"CreateFull":      {reason: "no space", fail: volume.ErrExhausted, call: create("group", "v1"), want: codes.ResourceExhausted},
		"Delete":          {reason: "nothing wrong", call: remove("g1", "s3")},
		"DeleteNoID":      {reason: "required", call: remove(""), want: codes.InvalidArgument},
		"DeleteUnknown":   {reason: "whatever the list says", call: remove("g9")},
		"DeletePath":      {reason: "never a path", call: remove("g1", "../s3"), want: codes.InvalidArgument},
		"DeleteInUse":     {reason: "something is made of it", fail: volume.ErrInUse, call: remove("g1", "s3"), want: codes.FailedPrecondition},
		"Get":             {reason: "nothing wrong", call: get("g1", "s3")},
		"GetNoID":         {reason: "required", call: get(""), want: codes.InvalidArgument},
		"GetNoMembers":    {reason: "an empty list is another list", call: get("g1"), want: codes.InvalidArgument},
		"GetOtherMembers": {reason: "another list", call: get("g1", "s1", "s3"), want: codes.InvalidArgument},
		"GetUnknown":      {reason: "no such group", call: get("g9"), want: codes.NotFound},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			s, _ := newShelf()
			s.fail = tc.fail
			wantCode(t, tc.reason, tc.call(t.Context(), NewGroup(GroupConfig{Service: s})), tc.want)
		})
	}
}
