package snapshotter

import (
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/longshore-csi/longshore/csikit/snapshotapi"
	"github.com/longshore-csi/longshore/csikittest/csitest"
	"github.com/longshore-csi/longshore/csikittest/sidecartest"
)

// TestRequests counts what a snapshot and its deletion cost at the API server: 4 requests. With those of snapshot-controller (8, see its
// TestRequests) there are 12. A driver that needs longer costs one more.
func TestRequests(t *testing.T) {
	tests := map[string]struct {
		reason     string
		readyAfter int
		want       map[string]int
	}{
		"Quick": {"three patches, and one for the finalizer", 0, map[string]int{"patch volumesnapshotcontents": 3, "patch volumesnapshotcontents/status": 1}},
		"Slow":  {"no request while it is not ready", 5, map[string]int{"patch volumesnapshotcontents": 3, "patch volumesnapshotcontents/status": 2}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWalk(t, rand.New(rand.NewPCG(1, 0)), csitest.Options{SnapshotReadyAfter: tt.readyAfter}) //nolint:gosec // nothing is random here
				count := sidecartest.Count(w.cluster)
				w.launch()
				content := testContent("u1", "vol-0")
				w.must(w.cluster.Apply(content))
				<-time.After(time.Hour)
				w.compareAll()
				w.must(w.cluster.Merge("volumesnapshotcontents", "", content.Name, []byte(`{"metadata":{"annotations":{"`+snapshotapi.AnnBeingDeleted+`":"yes"}}}`)))
				w.must(w.cluster.Remove("volumesnapshotcontents", "", content.Name))
				<-time.After(time.Hour)
				w.end(false)
				if left := len(w.cluster.Objects("volumesnapshotcontents")) + len(w.driver.Snapshots()); left > 0 {
					t.Errorf("%d objects are left", left)
				}
				if diff := cmp.Diff(tt.want, count()); diff != "" {
					t.Errorf("%s (-want +got):\n%s", tt.reason, diff)
				}
			})
		})
	}
}
