package controller

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"google.golang.org/grpc"
)

// pages is a driver that lists its snapshots two by two.
type pages struct {
	csi.ControllerClient
	snapshots []string
	stuck     bool // the token never changes
	err       error
}

// ListSnapshots implements csi.ControllerClient.
func (p *pages) ListSnapshots(_ context.Context, in *csi.ListSnapshotsRequest, _ ...grpc.CallOption) (*csi.ListSnapshotsResponse, error) {
	rest := p.snapshots
	if token := in.GetStartingToken(); token != "" && !p.stuck {
		rest = rest[slices.Index(rest, token):]
	}
	reply := &csi.ListSnapshotsResponse{}
	for _, id := range rest[:min(2, len(rest))] {
		reply.Entries = append(reply.Entries, &csi.ListSnapshotsResponse_Entry{Snapshot: &csi.Snapshot{SnapshotId: id}})
	}
	if len(rest) > 2 {
		reply.NextToken = rest[2]
	}
	return reply, p.err
}

// TestOrphans lists the snapshots of a driver again and again.
func TestOrphans(t *testing.T) {
	content := func(handle string, members ...string) record {
		r := testRecord()
		r.status.handle, r.members = handle, members
		return r
	}
	tests := map[string]struct {
		reason   string
		lists    [][]string // the snapshots of the driver at each list
		contents []record
		want     []string
		counted  bool
	}{
		"Once":    {reason: "a content may be about to name it", lists: [][]string{{"a"}}},
		"Twice":   {reason: "no content names it", lists: [][]string{{"a"}, {"a"}}, want: []string{"a"}, counted: true},
		"Another": {reason: "each once", lists: [][]string{{"a"}, {"b"}}, counted: true},
		"Gone":    {reason: "it was deleted", lists: [][]string{{"a"}, {"a"}, {}}, counted: true},
		"Named":   {reason: "contents and their members", lists: [][]string{{"a", "g", "m", "x"}, {"a", "g", "m", "x"}}, contents: []record{content("a"), content("g", "m")}, want: []string{"x"}, counted: true},
		"Pages":   {reason: "all pages count, duplicates once", lists: [][]string{{"a", "b", "c", "d", "e"}, {"e", "d", "c", "b", "a", "a"}}, contents: []record{content("c")}, want: []string{"a", "b", "d", "e"}, counted: true},
		"None":    {reason: "known to be none", lists: [][]string{{}, {}}, counted: true},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			driver := &pages{}
			o := &orphans{cfg: &Config{CSI: driver, Timeout: time.Minute}, known: slices.Values(tt.contents)}
			for _, snapshots := range tt.lists {
				driver.snapshots = snapshots
				listed, err := o.list(t.Context())
				if err != nil || len(listed) != len(snapshots) {
					t.Fatalf("listed %q of %q, error %v", listed, snapshots, err)
				}
				o.compare(t.Context(), listed)
			}
			n, counted := o.count()
			if diff := cmp.Diff(tt.want, o.found, cmpopts.EquateEmpty()); diff != "" || n != len(tt.want) || counted != tt.counted {
				t.Errorf("%s: %d, counted %v (-want +got):\n%s", tt.reason, n, counted, diff)
			}
		})
	}
}

// TestOrphansOfABadDriver gets errors in place of a list.
func TestOrphansOfABadDriver(t *testing.T) {
	for reason, driver := range map[string]*pages{
		"an error is not an empty list": {err: errors.New("broken")},
		"the list must have an end":     {snapshots: []string{"a", "b", "c"}, stuck: true},
	} {
		o := &orphans{cfg: &Config{CSI: driver, Timeout: time.Minute}, known: slices.Values([]record(nil))}
		if listed, err := o.list(t.Context()); err == nil {
			t.Errorf("%s: got %q", reason, listed)
		}
	}
}
