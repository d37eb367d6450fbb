package snapshotter

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/klog/v2"

	"github.com/longshore-csi/longshore/csikit/sidecar"
	"github.com/longshore-csi/longshore/csikit/snapshotapi"
	"github.com/longshore-csi/longshore/csikittest/csitest"
	"github.com/longshore-csi/longshore/csikittest/kubetest"
	"github.com/longshore-csi/longshore/csikittest/sidecartest"
	"github.com/longshore-csi/longshore/csikittest/snapshotapitest"
)

func rights() []sidecartest.Right {
	const groups = "groupsnapshot.storage.k8s.io"
	return []sidecartest.Right{
		{Group: snapshotapi.Group, Resource: "volumesnapshotcontents", Verbs: "list, patch, watch", Why: "what to take and to delete"},
		{Group: snapshotapi.Group, Resource: "volumesnapshotcontents/status", Verbs: "patch", Why: "what was taken, and errors"},
		{Group: snapshotapi.Group, Resource: "volumesnapshotclasses", Verbs: "list, watch", Why: "parameters of a new snapshot"},
		{Group: "coordination.k8s.io", Resource: "leases", Verbs: "create, get, update, watch", Why: "`--leader-election`; a Role in the namespace of the pod is enough"},
		{Group: groups, Resource: "volumegroupsnapshotcontents", Verbs: "list, patch, watch", Why: "optional: drivers with group snapshots"},
		{Group: groups, Resource: "volumegroupsnapshotcontents/status", Verbs: "patch", Why: "optional: the same"},
		{Group: groups, Resource: "volumegroupsnapshotclasses", Verbs: "list, watch", Why: "optional: the same"},
		{Resource: "secrets", Verbs: "get", Why: "optional: classes that name secrets; a Role in the namespace of the secrets is enough"},
		{Resource: "events", Verbs: "create, patch", Why: "optional: events on contents"},
	}
}

func TestRightsDoc(t *testing.T) {
	sidecartest.RightsDocument(t, "csi-snapshotter", rights(), "VolumeSnapshotClass or a VolumeSnapshotContent", `
The kinds of group snapshots are read when the driver announces CREATE_DELETE_GET_VOLUME_GROUP_SNAPSHOT and the API server has them, and
never with `+"`--feature-gates=CSIVolumeGroupSnapshot=false`"+`. To find out whether it has them, /apis/groupsnapshot.storage.k8s.io is read, which every
service account may do, or, where discovery is restricted, one object of each kind is listed. Where the role does not allow to watch the kinds, group snapshots are
not taken or deleted, the log says so, and the API server is asked again every five minutes.
`)
}

// bed is a cluster and a driver for components in virtual time.
type bed struct {
	t       *testing.T
	cluster *kubetest.Cluster
	driver  *csitest.Driver
}

func newBed(t *testing.T) *bed {
	t.Helper()
	return &bed{t: t, cluster: newCluster(t), driver: withVolumes(newDriver(csitest.Options{}))}
}

// launch begins a component; stop ends it in good order.
func (b *bed) launch(host string) (stop func()) {
	b.t.Helper()
	return b.launchIn(klog.NewContext(context.Background(), klog.Logger{}), host)
}

// launchIn is launch with a context that has the logger.
func (b *bed) launchIn(ctx context.Context, host string) (stop func()) {
	b.t.Helper()
	o, err := parse("--leader-election", "--retry-interval-max=10s")
	if err != nil {
		b.t.Fatal(err)
	}
	config := inMemory(o, b.cluster.Client(), snapshotapitest.New(b.cluster), host)
	config.CSI.Conn = b.driver.Conn()
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- sidecar.Run(ctx, config) }()
	return func() {
		b.t.Helper()
		cancel()
		if err := <-ended; err != nil {
			b.t.Error(err)
		}
	}
}

// pass lets virtual time pass.
func pass(d time.Duration) { <-time.After(d) }

// take asks for a snapshot with a secret, and for a group snapshot.
func (b *bed) take() {
	b.t.Helper()
	content := testContent("u1", "vol-1")
	content.Annotations = map[string]string{snapshotapi.AnnDeletionSecretName: "keys", snapshotapi.AnnDeletionSecretNamespace: "default"}
	if err := b.cluster.Apply(content, testContent("u2", "vol-2"), testGroupContent("g1", "vol-1", "vol-2")); err != nil {
		b.t.Fatal(err)
	}
}

// taken returns the handles of the snapshots and group snapshots that there are.
func (b *bed) taken() string {
	var ids []string
	for _, s := range b.driver.Snapshots() {
		if s.Group == "" {
			ids = append(ids, s.ID)
		}
	}
	for _, g := range b.driver.GroupSnapshots() {
		ids = append(ids, g.ID)
	}
	slices.Sort(ids)
	return strings.Join(ids, " ")
}

// TestRights uses everything that asks the API server for something, and compares what was asked with the table.
func TestRights(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBed(t)
		b.driver.Inject(csitest.Fault{Method: "CreateSnapshot", Code: 13, Times: 20}) // for the sake of an event, and of its repetition
		used := sidecartest.Record(b.cluster)
		first := b.launch("host-1")
		b.take()
		pass(20 * time.Minute)
		second := b.launch("host-2") // it waits for the Lease
		pass(time.Minute)
		if got, want := b.taken(), "group-groupsnapshot-g1 snap-snapshot-u1 snap-snapshot-u2"; got != want {
			t.Errorf("taken: %s, want %s", got, want)
		}
		first()
		second()
		used.Compare(t, rights())
	})
}

// TestOptionalRights works with the rights that are not optional: only what needs the missing right is not done.
func TestOptionalRights(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBed(t)
		for _, r := range rights() {
			if !strings.HasPrefix(r.Why, "optional") {
				continue
			}
			for verb := range strings.SplitSeq(r.Verbs, ", ") {
				b.cluster.Inject(kubetest.Fault{
					Verb: verb, Resource: r.Resource,
					Err: apierrors.NewForbidden(schema.GroupResource{Group: r.Group, Resource: r.Resource}, "", fmt.Errorf("%s is not granted", verb)),
				})
			}
		}
		stop := b.launch("host-1")
		b.take()
		pass(time.Minute)
		if got, want := b.taken(), "snap-snapshot-u2"; got != want {
			t.Errorf("with the rights that are not optional: %s, want %s", got, want)
		}
		stop()
	})
}

// upstreamRights are those of the newest manifests of csi-snapshotter, where secrets are a comment.
func upstreamRights() []sidecartest.Right {
	return []sidecartest.Right{
		{Resource: "events", Verbs: "list, watch, create, update, patch"},
		{Resource: "volumesnapshotclasses", Verbs: "get, list, watch"},
		{Resource: "volumesnapshotcontents", Verbs: "get, list, watch, update, patch"},
		{Resource: "volumesnapshotcontents/status", Verbs: "update, patch"},
		{Resource: "volumegroupsnapshotclasses", Verbs: "get, list, watch"},
		{Resource: "volumegroupsnapshotcontents", Verbs: "get, list, watch, update, patch"},
		{Resource: "volumegroupsnapshotcontents/status", Verbs: "update, patch"},
		{Resource: "leases", Verbs: "get, watch, list, delete, update, create"},
	}
}

// olderRights are those of manifests from before there were group snapshots.
func olderRights() []sidecartest.Right {
	return slices.DeleteFunc(upstreamRights(), func(r sidecartest.Right) bool { return strings.HasPrefix(r.Resource, "volumegroup") })
}

// TestUpstreamRights works for ten minutes with the rights of the component that is replaced, and with older ones: a snapshot is taken, and a group snapshot where the
// role allows it, no error is logged, and no kind is listed or watched again and again. Then everything is granted, and the group snapshot is taken.
func TestUpstreamRights(t *testing.T) {
	const single, both = "snap-snapshot-u2", "group-groupsnapshot-g1 snap-snapshot-u2"
	tests := map[string]struct {
		reason  string
		rights  []sidecartest.Right
		prepare func(*kubetest.Cluster)
		taken   string
	}{
		"Newest": {reason: "everything is granted", rights: upstreamRights(), taken: both},
		"Older":  {reason: "group snapshots may not be read", rights: olderRights(), taken: single},
		"NoDiscovery": {reason: "nor may the kinds of the API server be", rights: olderRights(), taken: single, prepare: func(cluster *kubetest.Cluster) {
			cluster.Fail("get", snapshotapi.GroupSnapshotGroup, apierrors.NewForbidden(schema.GroupResource{}, "", nil), 0)
		}},
		"NoWatch": {reason: "group snapshots may only be listed, and the list gets old", taken: single, rights: append(olderRights(),
			sidecartest.Right{Resource: "volumegroupsnapshotclasses", Verbs: "get, list"}, sidecartest.Right{Resource: "volumegroupsnapshotcontents", Verbs: "get, list"},
		), prepare: func(cluster *kubetest.Cluster) {
			for _, resource := range []string{"volumegroupsnapshotclasses", "volumegroupsnapshotcontents"} { // a server that cannot stream lists
				cluster.Fail("watch", resource, apierrors.NewBadRequest("sendInitialEvents"), 1)
			}
		}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newBed(t)
				if tt.prepare != nil {
					tt.prepare(b.cluster)
				}
				granted := sidecartest.Grant(t, b.cluster, tt.rights)
				stop := b.launchIn(granted.Context(context.Background()), "host-1")
				pass(time.Minute)
				if err := b.cluster.Apply(testContent("u2", "vol-2"), testGroupContent("g1", "vol-1", "vol-2")); err != nil {
					t.Fatal(err)
				}
				pass(9 * time.Minute)
				if got := b.taken(); got != tt.taken {
					t.Errorf("%s: taken: %s, want %s", tt.reason, got, tt.taken)
				}
				granted.Check(t)
				b.cluster.Heal()
				pass(6 * time.Minute)
				if got := b.taken(); got != both {
					t.Errorf("%s: when everything is granted, taken: %s, want %s", tt.reason, got, both)
				}
				stop()
			})
		})
	}
}
