package volume

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestSnapshotCheckSame(t *testing.T) {
	cases := map[string]struct {
		reason string
		change func(s *Snapshot, r *SnapshotRequest)
		err    error
	}{
		"Same":        {reason: "what was asked for", change: func(*Snapshot, *SnapshotRequest) {}},
		"OtherSource": {reason: "of another volume", change: func(_ *Snapshot, r *SnapshotRequest) { r.Source = "w" }, err: ErrExists},
		"Parameters":  {reason: "they have no effect on it", change: func(_ *Snapshot, r *SnapshotRequest) { r.Parameters = map[string]string{"a": "b"} }},
		"Member":      {reason: "it cannot be deleted alone", change: func(s *Snapshot, _ *SnapshotRequest) { s.Group = "g" }, err: ErrExists},
		"Here":        {reason: "where it is wanted", change: func(_ *Snapshot, r *SnapshotRequest) { r.Requirements.Requisite = onNode("n1", "n2") }},
		"Elsewhere":   {reason: "nobody could use it there", change: func(_ *Snapshot, r *SnapshotRequest) { r.Requirements.Requisite = onNode("n2") }, err: ErrExists},
		"Everywhere":  {reason: "a snapshot without node", change: func(s *Snapshot, r *SnapshotRequest) { s.Node, r.Requirements.Requisite = "", onNode("n2") }},
		"Filling":     {reason: "the same, only later", change: func(s *Snapshot, _ *SnapshotRequest) { s.Filling = true }},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			s, r := &Snapshot{ID: "s", Name: "snap", Source: "v", Node: "n1"}, &SnapshotRequest{Name: "snap", Source: "v"}
			c.change(s, r)
			if err := s.CheckSame(r); !errors.Is(err, c.err) {
				t.Errorf("%s: error %v, want %v", c.reason, err, c.err)
			}
		})
	}
}

func TestCheckSnapshotParameters(t *testing.T) {
	cases := map[string]struct {
		reason string
		in     map[string]string
		err    error
	}{
		"None":       {reason: "nothing wrong"},
		"Upstream":   {reason: "existing classes have it", in: map[string]string{"ignoreFailedRead": "true"}},
		"Suite":      {reason: "the storage suite of Kubernetes has it in classes", in: map[string]string{"deletionPolicy": "Delete"}},
		"Kubernetes": {reason: "what the snapshotter adds", in: map[string]string{"csi.storage.k8s.io/volumesnapshot/name": "x"}},
		"Unknown":    {reason: "a misspelt key", in: map[string]string{"ignorefailedread": "true"}, err: ErrInvalid},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			err := CheckSnapshotParameters(c.in)
			if !errors.Is(err, c.err) {
				t.Errorf("%s: error %v, want %v", c.reason, err, c.err)
			}
			if err != nil && !strings.Contains(err.Error(), "ignorefailedread") {
				t.Errorf("%s: %q does not name the key", c.reason, err)
			}
		})
	}
}

func TestSnapshotCloneSharesNothing(t *testing.T) {
	original := func() *Snapshot { return &Snapshot{ID: "s", Parameters: map[string]string{"a": "b"}} }
	s := original()
	s.Clone().Parameters["a"] = "c"
	if diff := cmp.Diff(original(), s); diff != "" {
		t.Errorf("a change of the clone reached the original (-want +got):\n%s", diff)
	}
	if id, name := (&Snapshot{ID: "s", Name: "n"}).Key(); id != "s" || name != "n" || (&Snapshot{ID: "s"}).RecordID() != "s" {
		t.Errorf("key %q %q", id, name)
	}
}
