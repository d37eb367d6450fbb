package grpcapi

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/longshore-csi/longshore/hostpathdriver/internal/volume"
)

// shelf keeps snapshots, groups and one kind of volume in memory. It answers
// what it is told, and remembers what it was asked.
type shelf struct {
	volume.Services

	snapshots []*volume.Snapshot
	groups    []*volume.Group
	// fail is the answer to every call.
	fail error

	snapshot volume.SnapshotRequest
	group    volume.GroupRequest
	created  volume.CreateRequest
	list     volume.SnapshotListRequest
	deleted  []volume.ID
}

func (s *shelf) Create(_ context.Context, req *volume.CreateRequest) (*volume.Volume, error) {
	s.created = *req
	return &volume.Volume{ID: "v", Source: req.Source}, s.fail
}

func (s *shelf) CreateSnapshot(_ context.Context, req *volume.SnapshotRequest) (*volume.Snapshot, error) {
	s.snapshot = *req
	if s.fail != nil {
		return nil, s.fail
	}
	return s.snapshots[0], nil
}

func (s *shelf) DeleteSnapshot(_ context.Context, id volume.ID) error {
	s.deleted = append(s.deleted, id)
	return s.fail
}

func (s *shelf) GetSnapshot(_ context.Context, id volume.ID) (*volume.Snapshot, error) {
	at := slices.IndexFunc(s.snapshots, func(one *volume.Snapshot) bool { return one.ID == id })
	if at < 0 {
		return nil, fmt.Errorf("snapshot %q: %w", id, volume.ErrNotFound)
	}
	return s.snapshots[at], s.fail
}

func (s *shelf) ListSnapshots(_ context.Context, req volume.SnapshotListRequest) (*volume.SnapshotPage, error) {
	s.list = req
	page := &volume.SnapshotPage{Next: "more"}
	for _, one := range s.snapshots {
		if req.Source == "" || one.Source == req.Source {
			page.Snapshots = append(page.Snapshots, one)
		}
	}
	return page, s.fail
}

func (s *shelf) CreateGroup(_ context.Context, req *volume.GroupRequest) (*volume.Group, error) {
	s.group = *req
	if s.fail != nil {
		return nil, s.fail
	}
	return s.groups[0], nil
}

func (s *shelf) DeleteGroup(_ context.Context, id volume.ID, members []volume.ID) error {
	s.deleted = append(append(s.deleted, id), members...)
	return s.fail
}

func (s *shelf) GetGroup(_ context.Context, id volume.ID, members []volume.ID) (*volume.Group, error) {
	if s.fail != nil || id != s.groups[0].ID {
		return nil, fmt.Errorf("group %q: %w", id, errors.Join(s.fail, volume.ErrNotFound))
	}
	return s.groups[0], s.groups[0].CheckMembers(members)
}

// moment is when everything on the shelf was made.
func moment() time.Time { return time.Date(2026, 11, 21, 6, 0, 0, 5, time.UTC) }

func newShelf() (*shelf, *Controller) {
	snapshots := []*volume.Snapshot{
		{ID: "s1", Source: "v1", Size: 1 << 30, Created: moment(), Node: testNode},
		{ID: "s2", Source: "v1", Created: moment(), Filling: true},
		{ID: "s3", Source: "v2", Created: moment(), Group: "g1"},
	}
	s := &shelf{
		snapshots: snapshots,
		groups:    []*volume.Group{{ID: "g1", Created: moment(), Members: []volume.ID{"s3"}, Snapshots: snapshots[2:]}},
	}
	return s, NewController(ControllerConfig{Service: s, Snapshots: s, ListSnapshots: true})
}

func cloneOf(id string) *csi.VolumeContentSource {
	return &csi.VolumeContentSource{Type: &csi.VolumeContentSource_Volume{Volume: &csi.VolumeContentSource_VolumeSource{VolumeId: id}}}
}

func restoreOf(id string) *csi.VolumeContentSource {
	return &csi.VolumeContentSource{Type: &csi.VolumeContentSource_Snapshot{Snapshot: &csi.VolumeContentSource_SnapshotSource{SnapshotId: id}}}
}

func segments(node string) []*csi.Topology {
	return []*csi.Topology{{Segments: map[string]string{volume.TopologyKey: node}}}
}

func TestCreateSnapshotAnswer(t *testing.T) {
	s, c := newShelf()
	got, err := c.CreateSnapshot(t.Context(), &csi.CreateSnapshotRequest{
		Name: "snap", SourceVolumeId: "v1", Parameters: map[string]string{"a": "b"},
		AccessibilityRequirements: &csi.TopologyRequirement{Requisite: segments(testNode)},
	})
	if err != nil {
		t.Fatal(err)
	}
	want := &csi.CreateSnapshotResponse{Snapshot: &csi.Snapshot{
		SnapshotId: "s1", SourceVolumeId: "v1", SizeBytes: 1 << 30, CreationTime: timestamppb.New(moment()), ReadyToUse: true,
		AccessibleTopology: segments(testNode),
	}}
	if diff := cmp.Diff(want, got, protocmp.Transform()); diff != "" {
		t.Errorf("answer (-want +got):\n%s", diff)
	}
	asked := volume.SnapshotRequest{
		Name: "snap", Source: "v1", Parameters: map[string]string{"a": "b"},
		Requirements: volume.Requirements{Requisite: []volume.Segment{{volume.TopologyKey: testNode}}, Preferred: []volume.Segment{}},
	}
	if diff := cmp.Diff(asked, s.snapshot); diff != "" {
		t.Errorf("request (-want +got):\n%s", diff)
	}
}

func TestSnapshotCodes(t *testing.T) {
	long := strings.Repeat("n", 129)
	create := func(name, source string) func(context.Context, *Controller) error {
		return func(ctx context.Context, c *Controller) error {
			_, err := c.CreateSnapshot(ctx, &csi.CreateSnapshotRequest{Name: name, SourceVolumeId: source})
			return err
		}
	}
	remove := func(id string) func(context.Context, *Controller) error {
		return func(ctx context.Context, c *Controller) error {
			_, err := c.DeleteSnapshot(ctx, &csi.DeleteSnapshotRequest{SnapshotId: id})
			return err
		}
	}
	get := func(id string) func(context.Context, *Controller) error {
		return func(ctx context.Context, c *Controller) error {
			_, err := c.GetSnapshot(ctx, &csi.GetSnapshotRequest{SnapshotId: id})
			return err
		}
	}
	list := func(req *csi.ListSnapshotsRequest) func(context.Context, *Controller) error {
		return func(ctx context.Context, c *Controller) error {
			_, err := c.ListSnapshots(ctx, req)
			return err
		}
	}
	cases := map[string]struct {
		reason string
		fail   error
		call   func(context.Context, *Controller) error
		want   codes.Code
	}{
		"Create":            {reason: "nothing wrong", call: create("snap", "v1")},
		"CreateNoName":      {reason: "required", call: create("", "v1"), want: codes.InvalidArgument},
		"CreateLongName":    {reason: "129 bytes", call: create(long, "v1"), want: codes.InvalidArgument},
		"CreateNoSource":    {reason: "required", call: create("snap", ""), want: codes.InvalidArgument},
		"CreatePath":        {reason: "never a path", call: create("snap", "../v1"), want: codes.InvalidArgument},
		"CreateUnknown":     {reason: "no such volume", fail: volume.ErrNotFound, call: create("snap", "v1"), want: codes.NotFound},
		"CreateExists":      {reason: "of another volume", fail: volume.ErrExists, call: create("snap", "v1"), want: codes.AlreadyExists},
		"CreateFull":        {reason: "no space", fail: volume.ErrExhausted, call: create("snap", "v1"), want: codes.ResourceExhausted},
		"CreateUnfinished":  {reason: "call again", fail: volume.ErrBusy, call: create("snap", "v1"), want: codes.Aborted},
		"Delete":            {reason: "nothing wrong", call: remove("s1")},
		"DeleteNoID":        {reason: "required", call: remove(""), want: codes.InvalidArgument},
		"DeletePath":        {reason: "never a path", call: remove("../s1"), want: codes.InvalidArgument},
		"DeleteMember":      {reason: "it goes with its group", fail: volume.ErrInvalid, call: remove("s3"), want: codes.InvalidArgument},
		"DeleteInUse":       {reason: "something is made of it", fail: volume.ErrInUse, call: remove("s1"), want: codes.FailedPrecondition},
		"Get":               {reason: "nothing wrong", call: get("s1")},
		"GetUnready":        {reason: "it is there", call: get("s2")},
		"GetNoID":           {reason: "upstream answers NOT_FOUND", call: get(""), want: codes.InvalidArgument},
		"GetPath":           {reason: "never a path", call: get("../s1"), want: codes.InvalidArgument},
		"GetUnknown":        {reason: "no such snapshot", call: get("s9"), want: codes.NotFound},
		"List":              {reason: "nothing wrong", call: list(&csi.ListSnapshotsRequest{})},
		"ListNegative":      {reason: "a negative maximum", call: list(&csi.ListSnapshotsRequest{MaxEntries: -1}), want: codes.InvalidArgument},
		"ListNegativeOfOne": {reason: "whatever is listed", call: list(&csi.ListSnapshotsRequest{MaxEntries: -1, SnapshotId: "s1"}), want: codes.InvalidArgument},
		"ListToken":         {reason: "a foreign token", fail: volume.ErrBadToken, call: list(&csi.ListSnapshotsRequest{StartingToken: "x"}), want: codes.Aborted},
		"ListTokenOfOne":    {reason: "one has no second page", call: list(&csi.ListSnapshotsRequest{StartingToken: "x", SnapshotId: "s1"}), want: codes.Aborted},
		"ListOneFails":      {reason: "no answer is not an empty list", fail: volume.ErrBusy, call: list(&csi.ListSnapshotsRequest{SnapshotId: "s1"}), want: codes.Aborted},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			s, c := newShelf()
			s.fail = tc.fail
			wantCode(t, tc.reason, tc.call(t.Context(), c), tc.want)
		})
	}
}

func TestListSnapshots(t *testing.T) {
	cases := map[string]struct {
		reason string
		req    *csi.ListSnapshotsRequest
		want   []string
		next   string
	}{
		"All":           {reason: "ready or not", req: &csi.ListSnapshotsRequest{}, want: []string{"s1", "s2", "s3"}, next: "more"},
		"Source":        {reason: "upstream lists one only", req: &csi.ListSnapshotsRequest{SourceVolumeId: "v1"}, want: []string{"s1", "s2"}, next: "more"},
		"UnknownSource": {reason: "of no volume", req: &csi.ListSnapshotsRequest{SourceVolumeId: "../v9"}, next: "more"},
		"One":           {reason: "this one", req: &csi.ListSnapshotsRequest{SnapshotId: "s2", MaxEntries: 1}, want: []string{"s2"}},
		"OneOfSource":   {reason: "both fit", req: &csi.ListSnapshotsRequest{SnapshotId: "s2", SourceVolumeId: "v1"}, want: []string{"s2"}},
		"OneElsewhere":  {reason: "both must fit", req: &csi.ListSnapshotsRequest{SnapshotId: "s2", SourceVolumeId: "v2"}},
		"Unknown":       {reason: "an empty list is no error", req: &csi.ListSnapshotsRequest{SnapshotId: "s9"}},
		"Impossible":    {reason: "there is none with such an id", req: &csi.ListSnapshotsRequest{SnapshotId: "../s1"}},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			_, c := newShelf()
			page, err := c.ListSnapshots(t.Context(), tc.req)
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, entry := range page.GetEntries() {
				got = append(got, entry.GetSnapshot().GetSnapshotId())
				if ready := entry.GetSnapshot().GetReadyToUse(); ready == (entry.GetSnapshot().GetSnapshotId() == "s2") {
					t.Errorf("%s: ready to use %t: %v", tc.reason, ready, entry)
				}
			}
			if diff := cmp.Diff(tc.want, got); diff != "" || page.GetNextToken() != tc.next {
				t.Errorf("%s: next %q (-want +got):\n%s", tc.reason, page.GetNextToken(), diff)
			}
		})
	}
	s, c := newShelf()
	if _, err := c.ListSnapshots(t.Context(), &csi.ListSnapshotsRequest{StartingToken: "t", MaxEntries: 2, SourceVolumeId: "v1"}); err != nil {
		t.Fatal(err)
	}
	want := volume.SnapshotListRequest{ListRequest: volume.ListRequest{Token: "t", Max: 2}, Source: "v1"}
	if diff := cmp.Diff(want, s.list); diff != "" {
		t.Errorf("request (-want +got):\n%s", diff)
	}
}

func TestVolumeContentSource(t *testing.T) {
	cases := map[string]struct {
		reason  string
		in      *csi.VolumeContentSource
		without bool
		want    *volume.Source
		code    codes.Code
	}{
		"None":        {reason: "an empty volume"},
		"Snapshot":    {reason: "a restore", in: restoreOf("s1"), want: &volume.Source{Snapshot: "s1"}},
		"Volume":      {reason: "a clone", in: cloneOf("v1"), want: &volume.Source{Volume: "v1"}},
		"Nothing":     {reason: "neither", in: &csi.VolumeContentSource{}, code: codes.InvalidArgument},
		"NoSnapshot":  {reason: "the id is required", in: restoreOf(""), code: codes.InvalidArgument},
		"NoVolume":    {reason: "the id is required", in: cloneOf(""), code: codes.InvalidArgument},
		"NilVolume":   {reason: "the id is required", in: &csi.VolumeContentSource{Type: &csi.VolumeContentSource_Volume{}}, code: codes.InvalidArgument},
		"Path":        {reason: "never a path", in: restoreOf("../s1"), code: codes.InvalidArgument},
		"Unannounced": {reason: "a driver without clones", in: cloneOf("v1"), without: true, code: codes.InvalidArgument},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			s, c := newShelf()
			if tc.without {
				c.sources = []sourceFrom{fromSnapshot}
			}
			req := createRequest("pvc-1")
			req.VolumeContentSource = tc.in
			got, err := c.CreateVolume(t.Context(), req)
			wantCode(t, tc.reason, err, tc.code)
			if err != nil {
				return
			}
			if diff := cmp.Diff(tc.want, s.created.Source); diff != "" {
				t.Errorf("%s: request (-want +got):\n%s", tc.reason, diff)
			}
			if diff := cmp.Diff(tc.in, got.GetVolume().GetContentSource(), protocmp.Transform()); diff != "" {
				t.Errorf("%s: answer (-want +got):\n%s", tc.reason, diff)
			}
		})
	}
}
