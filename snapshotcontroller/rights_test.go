package snapshotcontroller

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	groupv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumegroupsnapshot/v1"
	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/klog/v2"

	"github.com/longshore-csi/longshore/csikit/component"
	"github.com/longshore-csi/longshore/csikit/snapshotapi"
	"github.com/longshore-csi/longshore/csikittest/commandtest"
	"github.com/longshore-csi/longshore/csikittest/kubetest"
	"github.com/longshore-csi/longshore/csikittest/sidecartest"
	"github.com/longshore-csi/longshore/csikittest/snapshotapitest"
)

func rights() []sidecartest.Right {
	const s, g = snapshotapi.Group, snapshotapi.GroupSnapshotGroup
	return []sidecartest.Right{
		{Resource: "persistentvolumes", Verbs: "list, watch", Why: "the volume of a claim"},
		{Resource: "persistentvolumeclaims", Verbs: "list, patch, watch", Why: "what a snapshot is taken of, and its finalizer"},
		{Resource: "events", Verbs: "create, patch", Why: "events on snapshots"},
		{Group: s, Resource: "volumesnapshotclasses", Verbs: "list, watch", Why: "driver, deletion policy and secret of new snapshots"},
		{Group: s, Resource: "volumesnapshots", Verbs: "create, delete, get, list, patch, watch", Why: "snapshots; `create` and `delete` for members of groups"},
		{Group: s, Resource: "volumesnapshots/status", Verbs: "patch", Why: "what the driver reports"},
		{Group: s, Resource: "volumesnapshotcontents", Verbs: "create, delete, get, list, patch, watch", Why: "what csi-snapshotter works on"},
		{Group: s, Resource: "volumesnapshotcontents/status", Verbs: "patch", Why: "the first status of members of groups"},
		{Group: g, Resource: "volumegroupsnapshotclasses", Verbs: "list, watch", Why: "group snapshots"},
		{Group: g, Resource: "volumegroupsnapshots", Verbs: "get, list, patch, watch", Why: "group snapshots"},
		{Group: g, Resource: "volumegroupsnapshots/status", Verbs: "patch", Why: "group snapshots"},
		{Group: g, Resource: "volumegroupsnapshotcontents", Verbs: "create, delete, get, list, patch, watch", Why: "group snapshots"},
		{Resource: "nodes", Verbs: "list, watch", Why: "`--enable-distributed-snapshotting`"},
		{Group: "storage.k8s.io", Resource: "csinodes", Verbs: "list, watch", Why: "optional: the same, to choose nodes that have the driver; without it, any node that can reach the volume"},
		{Group: "coordination.k8s.io", Resource: "leases", Verbs: "create, get, update, watch", Why: "`--leader-election`; a Role in the namespace of the pod is enough"},
	}
}

func TestRightsDoc(t *testing.T) {
	var table, rules strings.Builder
	for _, r := range rights() {
		fmt.Fprintf(&table, "| %s | %s | %s | %s |\n", r.Group, r.Resource, r.Verbs, r.Why)
		fmt.Fprintf(&rules, "- {apiGroups: [%q], resources: [%s], verbs: [%s]}\n", r.Group, r.Resource, r.Verbs)
	}
	commandtest.Golden(t, "docs/rbac.md", "# Rights that snapshot-controller needs\n\n"+
		"The role of the replaced snapshot-controller is enough: it has `get` and `update` of claims instead of `patch`, and they are used where\n"+
		"`patch` is refused. Where the role does not allow to watch the kinds of group snapshots, nothing is done about these, the log says so, and the API server is\n"+
		"asked again every five minutes. This page is generated from the test that watches the requests, by `go test -run TestRightsDoc . -rewrite`.\n\n| API group | Resource | Verbs | For |\n|---|---|---|---|\n"+table.String()+
		"\nAs a ClusterRole with everything:\n\n```yaml\napiVersion: rbac.authorization.k8s.io/v1\nkind: ClusterRole\nmetadata:\n"+
		"  name: snapshot-controller\nrules:\n"+rules.String()+"```\n")
}

// TestRights uses everything that asks the API server for something, and compares what was asked with the table.
func TestRights(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &walk{t: t, rand: rand.New(rand.NewPCG(1, 0)), cluster: kubetest.New(), storage: map[string]string{}, done: map[string]int{}} //nolint:gosec // a test
		snapshotapitest.Install(w.cluster)
		used := sidecartest.Record(w.cluster)
		w.addClasses()
		for i := range walkClaims {
			w.addClaim(i)
		}
		w.must(w.cluster.Apply(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}}))
		begin := func(host string) (stop func()) {
			o, err := parse("--leader-election", "--enable-distributed-snapshotting")
			w.must(err)
			ctx, cancel := context.WithCancel(klog.NewContext(context.Background(), klog.Logger{}))
			ended := make(chan error, 1)
			go func() { ended <- component.Run(ctx, o.component(inMemory(w.cluster.Client(), host))) }()
			return func() { cancel(); w.must(<-ended) }
		}
		first := begin("host-1")
		<-time.After(time.Minute)
		second := begin("host-2") // it waits for the Lease
		w.take()
		for range 6 {
			w.takeGroup() // of either class
		}
		for range 10 {
			<-time.After(time.Second)
			w.play()
		}
		for _, resource := range []string{"volumegroupsnapshots", "volumesnapshots"} {
			for _, obj := range w.cluster.Objects(resource) {
				w.must(w.cluster.Remove(resource, obj.GetNamespace(), obj.GetName()))
				<-time.After(time.Second)
			}
		}
		w.orphans()
		for range 10 {
			<-time.After(time.Second)
			w.play()
		}
		absent := "absent"
		w.must(w.cluster.Apply(&snapshotv1.VolumeSnapshot{
			ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "of-absent"},
			Spec:       snapshotv1.VolumeSnapshotSpec{VolumeSnapshotClassName: w.class(), Source: snapshotv1.VolumeSnapshotSource{PersistentVolumeClaimName: &absent}},
		}))
		<-time.After(20 * time.Minute) // that its claim is missing is counted in the event
		first()
		second()
		used.Compare(t, rights())
	})
}

// TestRoleThatUpdatesClaims: with the role of the external-snapshotter, which may not patch claims, snapshots are taken and claims released.
func TestRoleThatUpdatesClaims(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &walk{t: t, rand: rand.New(rand.NewPCG(1, 0)), cluster: kubetest.New(), storage: map[string]string{}, done: map[string]int{}} //nolint:gosec // a test
		snapshotapitest.Install(w.cluster)
		w.addClasses()
		for i := range walkClaims {
			w.addClaim(i)
		}
		w.cluster.Fail("patch", "persistentvolumeclaims", apierrors.NewForbidden(schema.GroupResource{Resource: "persistentvolumeclaims"}, "", nil), 0)
		o, err := parse()
		w.must(err)
		ctx, cancel := context.WithCancel(klog.NewContext(context.Background(), klog.Logger{}))
		ended := make(chan error, 1)
		go func() { ended <- component.Run(ctx, o.component(inMemory(w.cluster.Client(), "host"))) }()
		<-time.After(time.Second)
		w.take()
		<-time.After(time.Second)
		protected := func() (count int) {
			for _, claim := range w.cluster.Objects("persistentvolumeclaims") {
				if slices.Contains(claim.GetFinalizers(), snapshotapi.FinalizerClaim) {
					count++
				}
			}
			return count
		}
		if contents := len(w.cluster.Objects("volumesnapshotcontents")); contents != 1 || protected() != 1 {
			t.Errorf("before the driver answers there are %d contents and %d protected claims, want 1 and 1", contents, protected())
		}
		for range 20 {
			<-time.After(time.Second)
			w.play()
		}
		if protected() != 0 {
			t.Error("the claim is not released")
		}
		patches := 0
		for _, write := range w.cluster.Writes() {
			if write.Verb == "patch" && write.Resource == "persistentvolumeclaims" {
				patches++
			}
		}
		if patches != 1 {
			t.Errorf("the claim was patched %d times, want once: then it is known that this is refused", patches)
		}
		cancel()
		w.must(<-ended)
	})
}

// orphans adds what makes the controller ask the API server: contents whose snapshots do not exist, and snapshots whose contents do not.
func (w *walk) orphans() {
	ref := corev1.ObjectReference{Namespace: "ns", Name: "gone", UID: "gone"}
	now := new(metav1.Now())
	content := &snapshotv1.VolumeSnapshotContent{
		ObjectMeta: metav1.ObjectMeta{Name: "orphan", Finalizers: []string{snapshotapi.FinalizerContent}, DeletionTimestamp: now},
		Spec: snapshotv1.VolumeSnapshotContentSpec{
			Driver: walkDriver, DeletionPolicy: "Delete", VolumeSnapshotRef: ref, Source: snapshotv1.VolumeSnapshotContentSource{SnapshotHandle: new("x")},
		},
	}
	snapshot := &snapshotv1.VolumeSnapshot{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "lonely", Finalizers: []string{snapshotapi.FinalizerBound}, DeletionTimestamp: now},
		Spec:       snapshotv1.VolumeSnapshotSpec{Source: snapshotv1.VolumeSnapshotSource{VolumeSnapshotContentName: new("none")}},
	}
	group := groupOf("lonely", snapshotapi.FinalizerGroupBound, now)
	w.must(w.cluster.Apply(content, snapshot, group, groupContentOf(ref, now)))
}

func groupOf(name, finalizer string, deleted *metav1.Time) *groupv1.VolumeGroupSnapshot {
	return &groupv1.VolumeGroupSnapshot{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, Finalizers: []string{finalizer}, DeletionTimestamp: deleted},
		Spec:       groupv1.VolumeGroupSnapshotSpec{Source: groupv1.VolumeGroupSnapshotSource{VolumeGroupSnapshotContentName: new("none")}},
	}
}

func groupContentOf(ref corev1.ObjectReference, deleted *metav1.Time) *groupv1.VolumeGroupSnapshotContent {
	return &groupv1.VolumeGroupSnapshotContent{
		ObjectMeta: metav1.ObjectMeta{Name: "orphan", Finalizers: []string{snapshotapi.FinalizerGroupContent}, DeletionTimestamp: deleted},
		Spec: groupv1.VolumeGroupSnapshotContentSpec{
			Driver: walkDriver, DeletionPolicy: "Delete", VolumeGroupSnapshotRef: ref,
			Source: groupv1.VolumeGroupSnapshotContentSource{VolumeHandles: []string{"x"}},
		},
	}
}

// upstreamRights are those of the newest manifests of snapshot-controller; the rule about nodes is a comment there, for distributed mode.
func upstreamRights(distributed bool) []sidecartest.Right {
	rights := []sidecartest.Right{
		{Resource: "persistentvolumes", Verbs: "get, list, watch"},
		{Resource: "persistentvolumeclaims", Verbs: "get, list, watch, update"},
		{Resource: "events", Verbs: "list, watch, create, update, patch"},
		{Resource: "volumesnapshotclasses", Verbs: "get, list, watch"},
		{Resource: "volumesnapshotcontents", Verbs: "create, get, list, watch, update, delete, patch"},
		{Resource: "volumesnapshotcontents/status", Verbs: "patch"},
		{Resource: "volumesnapshots", Verbs: "create, get, list, watch, update, patch, delete"},
		{Resource: "volumesnapshots/status", Verbs: "update, patch"},
		{Resource: "volumegroupsnapshotclasses", Verbs: "get, list, watch"},
		{Resource: "volumegroupsnapshotcontents", Verbs: "create, get, list, watch, update, delete, patch"},
		{Resource: "volumegroupsnapshotcontents/status", Verbs: "patch"},
		{Resource: "volumegroupsnapshots", Verbs: "get, list, watch, update, patch"},
		{Resource: "volumegroupsnapshots/status", Verbs: "update, patch"},
		{Resource: "leases", Verbs: "get, watch, list, delete, update, create"},
	}
	if distributed {
		rights = append(rights, sidecartest.Right{Resource: "nodes", Verbs: "get, list, watch"})
	}
	return rights
}

// olderRights are those of manifests from before there were group snapshots.
func olderRights() []sidecartest.Right {
	return slices.DeleteFunc(upstreamRights(false), func(r sidecartest.Right) bool { return strings.HasPrefix(r.Resource, "volumegroup") })
}

// TestUpstreamRights works for ten minutes with the rights of the component that is replaced, and with older ones: a snapshot, and a group snapshot where the role
// allows it, get their contents, no error is logged, and no kind is listed or watched again and again: CSINodes may be neither. Then everything is granted, and the
// group snapshot gets its content.
func TestUpstreamRights(t *testing.T) {
	kinds := []string{"volumegroupsnapshots", "volumegroupsnapshotcontents", "volumegroupsnapshotclasses"}
	listed := olderRights()
	for _, kind := range kinds {
		listed = append(listed, sidecartest.Right{Resource: kind, Verbs: "get, list"})
	}
	tests := map[string]struct {
		reason      string
		rights      []sidecartest.Right
		prepare     func(*kubetest.Cluster)
		distributed bool
		groups      int
	}{
		"Newest":      {reason: "everything is granted", rights: upstreamRights(false), groups: 1},
		"Distributed": {reason: "CSINodes may not be read", rights: upstreamRights(true), distributed: true, groups: 1},
		"Older":       {reason: "group snapshots may not be read", rights: olderRights()},
		"NoDiscovery": {reason: "nor may the kinds of the API server be", rights: olderRights(), prepare: func(cluster *kubetest.Cluster) {
			cluster.Fail("get", snapshotapi.GroupSnapshotGroup, apierrors.NewForbidden(schema.GroupResource{}, "", nil), 0)
		}},
		"NoWatch": {reason: "group snapshots may only be listed, and the list gets old", rights: listed, prepare: func(cluster *kubetest.Cluster) {
			for _, kind := range kinds { // a server that cannot stream lists
				cluster.Fail("watch", kind, apierrors.NewBadRequest("sendInitialEvents"), 1)
			}
		}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := &walk{t: t, rand: rand.New(rand.NewPCG(1, 0)), cluster: kubetest.New(), storage: map[string]string{}, done: map[string]int{}} //nolint:gosec // a test
				snapshotapitest.Install(w.cluster)
				w.addClasses()
				for i := range walkClaims {
					w.addClaim(i)
				}
				w.must(w.cluster.Apply(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}}))
				if tt.prepare != nil {
					tt.prepare(w.cluster)
				}
				granted := sidecartest.Grant(t, w.cluster, tt.rights)
				o, err := parse("--leader-election", fmt.Sprint("--enable-distributed-snapshotting=", tt.distributed))
				w.must(err)
				ctx, cancel := context.WithCancel(granted.Context(context.Background()))
				ended := make(chan error, 1)
				go func() { ended <- component.Run(ctx, o.component(inMemory(w.cluster.Client(), "host"))) }()
				<-time.After(time.Minute)
				w.take()
				w.takeGroup()
				<-time.After(9 * time.Minute)
				if n := len(w.cluster.Objects("volumesnapshotcontents")); n != 1 {
					t.Errorf("%s: there are %d contents, want 1", tt.reason, n)
				}
				if n := len(w.cluster.Objects("volumegroupsnapshotcontents")); n != tt.groups {
					t.Errorf("%s: there are %d contents of group snapshots, want %d", tt.reason, n, tt.groups)
				}
				granted.Check(t)
				w.cluster.Heal()
				<-time.After(6 * time.Minute)
				if n := len(w.cluster.Objects("volumegroupsnapshotcontents")); n != 1 {
					t.Errorf("%s: when everything is granted, there are %d contents of group snapshots, want 1", tt.reason, n)
				}
				cancel()
				w.must(<-ended)
			})
		})
	}
}
