package snapshotcontroller

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/klog/v2"

	"github.com/longshore-csi/longshore/csikit/component"
	"github.com/longshore-csi/longshore/csikittest/sidecartest"
)

// TestRequests counts what a snapshot costs that csi-snapshotter reports within a second, and its deletion: 8 requests. A driver that takes
// longer costs a write of the status and two events more. With those of csi-snapshotter (4, see its TestRequests) there are 12.
func TestRequests(t *testing.T) {
	tests := map[string]struct {
		reason string
		late   time.Duration
		want   map[string]int
	}{
		"Quick": {"one write of the status", 0, map[string]int{
			"patch volumesnapshots": 2, "patch volumesnapshots/status": 1, "patch persistentvolumeclaims": 2,
			"create volumesnapshotcontents": 1, "patch volumesnapshotcontents": 1, "delete volumesnapshotcontents": 1,
		}},
		"Slow": {"users see that the driver is at it", 10 * time.Second, map[string]int{
			"patch volumesnapshots": 2, "patch volumesnapshots/status": 2, "patch persistentvolumeclaims": 2,
			"create volumesnapshotcontents": 1, "patch volumesnapshotcontents": 1, "delete volumesnapshotcontents": 1, "create events": 2,
		}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newCluster(t)
				o, err := parse()
				w.must(err)
				count := sidecartest.Count(w.cluster)
				ctx, cancel := context.WithCancel(klog.NewContext(context.Background(), klog.Logger{}))
				ended := make(chan error, 1)
				go func() { ended <- component.Run(ctx, o.component(inMemory(w.cluster.Client(), "host-1"))) }()
				<-time.After(time.Minute)

				w.must(w.cluster.Apply(snapshotOf("s", "claim-0")))
				<-time.After(100*time.Millisecond + tt.late)
				w.must(w.cluster.Merge("volumesnapshotcontents", "", "snapcontent-s",
					[]byte(`{"status":{"snapshotHandle":"h","creationTime":1700000000000000000,"readyToUse":true}}`)))
				<-time.After(time.Minute)
				w.must(w.cluster.Remove("volumesnapshots", "ns", "s"))
				<-time.After(time.Second)
				w.must(w.cluster.Merge("volumesnapshotcontents", "", "snapcontent-s", []byte(`{"metadata":{"finalizers":null}}`)))
				<-time.After(time.Hour)
				if left := len(w.cluster.Objects("volumesnapshots")) + len(w.cluster.Objects("volumesnapshotcontents")); left > 0 {
					t.Errorf("%d objects are left", left)
				}
				cancel()
				w.must(<-ended)
				if diff := cmp.Diff(tt.want, count()); diff != "" {
					t.Errorf("%s (-want +got):\n%s", tt.reason, diff)
				}
			})
		})
	}
}
