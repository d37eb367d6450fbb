package snapshotcontroller

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	groupv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumegroupsnapshot/v1"
	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/longshore-csi/longshore/csikit/component"
	"github.com/longshore-csi/longshore/csikit/kube"
	"github.com/longshore-csi/longshore/csikit/snapshotapi"
	"github.com/longshore-csi/longshore/csikittest/kubetest"
	"github.com/longshore-csi/longshore/csikittest/sidecartest"
	"github.com/longshore-csi/longshore/csikittest/snapshotapitest"
)

// startHTTP runs a controller with a real HTTP listener.
func startHTTP(t *testing.T, cluster *kubetest.Cluster, args ...string) *sidecartest.Running {
	t.Helper()
	o, err := parse(append(args, "--http-endpoint="+sidecartest.AnyPort)...)
	if err != nil {
		t.Fatal(err)
	}
	return sidecartest.StartComponent(t, func(ctx context.Context) error {
		return component.Run(ctx, o.component(inMemory(cluster.Client(), "host-1")))
	})
}

// newCluster returns an API server with classes and claims.
func newCluster(t *testing.T) *walk {
	t.Helper()
	w := &walk{t: t, cluster: kubetest.New(), storage: map[string]string{}, done: map[string]int{}}
	snapshotapitest.Install(w.cluster)
	w.addClasses()
	for i := range walkClaims {
		w.addClaim(i)
	}
	return w
}

func snapshotOf(name, claim string) *snapshotv1.VolumeSnapshot {
	return &snapshotv1.VolumeSnapshot{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID(name)},
		Spec:       snapshotv1.VolumeSnapshotSpec{VolumeSnapshotClassName: new("delete"), Source: snapshotv1.VolumeSnapshotSource{PersistentVolumeClaimName: &claim}},
	}
}

// boundContent returns the content of a snapshot that does not exist or, if group is not empty, that of the snapshot "adopted", a member of a group that
// does not exist.
func boundContent(name, group string) *snapshotv1.VolumeSnapshotContent {
	content := &snapshotv1.VolumeSnapshotContent{
		ObjectMeta: metav1.ObjectMeta{Name: name, Finalizers: []string{snapshotapi.FinalizerContent}},
		Spec: snapshotv1.VolumeSnapshotContentSpec{
			Driver: walkDriver, DeletionPolicy: snapshotv1.VolumeSnapshotContentDelete, Source: snapshotv1.VolumeSnapshotContentSource{SnapshotHandle: &name},
			VolumeSnapshotRef: corev1.ObjectReference{Namespace: "ns", Name: "gone", UID: "gone"},
		},
		Status: &snapshotv1.VolumeSnapshotContentStatus{SnapshotHandle: &name, ReadyToUse: new(true)},
	}
	if group != "" {
		content.Spec.VolumeSnapshotRef = corev1.ObjectReference{Namespace: "ns", Name: "adopted"}
		content.Status.VolumeGroupSnapshotHandle = &group
	}
	return content
}

// TestHTTP takes a snapshot that gets ready, one that fails, one whose claim does not exist and a group snapshot, adds contents that lack what
// they belong to, deletes a snapshot, and compares what is served with that and with docs/metrics.md.
func TestHTTP(t *testing.T) {
	w := newCluster(t)
	r := startHTTP(t, w.cluster, "--leader-election", "--leader-election-namespace=ns")
	group := &groupv1.VolumeGroupSnapshot{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "group"}, Spec: groupv1.VolumeGroupSnapshotSpec{
		VolumeGroupSnapshotClassName: new("delete"), Source: groupv1.VolumeGroupSnapshotSource{Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"half": "0"}}},
	}}
	adopted := snapshotOf("adopted", "")
	adopted.Spec.Source = snapshotv1.VolumeSnapshotSource{VolumeSnapshotContentName: new("member")}
	w.must(w.cluster.Apply(
		snapshotOf("good", "claim-0"), snapshotOf("bad", "claim-1"), snapshotOf("lonely", "none"), group,
		boundContent("left", ""), boundContent("member", "no-such-group"), adopted,
	))
	r.Eventually("create the contents", func() bool {
		return len(w.cluster.Objects("volumesnapshotcontents")) == 4 && len(w.cluster.Objects("volumegroupsnapshotcontents")) == 1
	})
	w.must(w.cluster.Merge("volumesnapshotcontents", "", "snapcontent-good",
		[]byte(`{"status":{"snapshotHandle":"s","creationTime":1700000000000000000,"readyToUse":true}}`)))
	w.must(w.cluster.Merge("volumesnapshotcontents", "", "snapcontent-bad", []byte(`{"status":{"readyToUse":false,"error":{"message":"broken"}}}`)))
	r.Serves(
		`snapshot_controller_operation_total_seconds_count{driver_name="d.example",operation_name="CreateSnapshotAndReady",operation_status="success",snapshot_type="dynamic"} 1`,
		`snapshot_controller_operation_total_seconds_count{driver_name="d.example",operation_name="CreateSnapshotAndReady",operation_status="success",snapshot_type="pre-provisioned"} 1`,
		`snapshot_controller_operation_total_seconds_count{driver_name="d.example",operation_name="CreateSnapshotAndReady",operation_status="failure",snapshot_type="dynamic"} 1`,
		`snapshot_controller_operation_total_seconds_count{driver_name="unknown",operation_name="CreateSnapshotAndReady",operation_status="failure",snapshot_type="dynamic"} 1`,
		`snapshot_controller_snapshots{state="ready"} 2`, `snapshot_controller_snapshots{state="failed"} 2`, `snapshot_controller_snapshots{state="deleting"} 0`,
		`snapshot_controller_dangling_contents{deletion_policy="Delete",driver_name="d.example",problem="no_snapshot"} 1`,
		`snapshot_controller_dangling_contents{deletion_policy="Delete",driver_name="d.example",problem="no_group"} 1`,
		`workqueue_adds_total{name="snapshot-controller-snapshot"}`, `workqueue_adds_total{name="snapshot-controller-claim"}`,
		`workqueue_oldest_item_age_seconds{name="snapshot-controller-group-snapshot"}`, `leader_election_master_status{name="snapshot-controller-leader"} 1`,
	)
	w.must(w.cluster.Remove("volumesnapshots", "ns", "good"))
	r.Serves(`snapshot_controller_snapshots{state="deleting"} 1`)
	r.Eventually("delete the content", func() bool { // a finalizer that is missing earlier is put on again
		return slices.ContainsFunc(w.cluster.Objects("volumesnapshotcontents"), func(o kube.Object) bool { return o.GetDeletionTimestamp() != nil })
	})
	w.must(w.cluster.Merge("volumesnapshotcontents", "", "snapcontent-good", []byte(`{"metadata":{"finalizers":null}}`)))
	r.Serves(`operation_name="DeleteSnapshot",operation_status="success",snapshot_type="dynamic"} 1`, `snapshot_controller_snapshots{state="deleting"} 0`)
	w.must(w.cluster.Remove("volumesnapshotcontents", "", "snapcontent-bad"))
	w.must(w.cluster.Merge("volumesnapshotcontents", "", "snapcontent-bad", []byte(`{"metadata":{"finalizers":null}}`)))
	r.Serves(`snapshot_controller_snapshots{state="content_missing"} 1`)

	for _, path := range []string{"/healthz", "/livez", "/readyz", "/healthz/leader-election"} {
		if code, body := r.Get(path); code != http.StatusOK {
			t.Errorf("%s: %d %s", path, code, body)
		}
	}
	var state struct {
		Leading   bool
		Snapshots struct {
			Queues  []struct{ Name string }
			Waiting []struct{ Snapshot, Content, Error string }
		}
	}
	_, body := r.Get("/debug/state")
	if err := json.Unmarshal([]byte(body), &state); err != nil || !state.Leading || len(state.Snapshots.Queues) < 2 || len(state.Snapshots.Waiting) != 2 ||
		state.Snapshots.Waiting[0].Snapshot != "ns/bad" || state.Snapshots.Waiting[1].Error == "" {
		t.Errorf("/debug/state: error %v in %s", err, body)
	}
	r.CheckMetrics("docs/metrics.md")
	r.Stop()
}

// TestReady serves HTTP before the kinds are installed: /readyz says what is missing, /livez is well, and no metric claims anything about
// snapshots.
func TestReady(t *testing.T) {
	w := newCluster(t)
	w.cluster.SetServed(snapshotapi.Group, false)
	r := startHTTP(t, w.cluster, "--retry-crd-interval-max=1s")
	r.Eventually("report the missing kinds", func() bool {
		code, body := r.Get("/readyz")
		return code != http.StatusOK && strings.Contains(body, "[-]crds failed") && strings.Contains(body, "install their CustomResourceDefinitions")
	})
	if code, body := r.Get("/livez"); code != http.StatusOK {
		t.Errorf("/livez: %d %s", code, body)
	}
	if _, metrics := r.Get("/metrics"); strings.Contains(metrics, "snapshot_controller_snapshots{") {
		t.Errorf("nothing is known of snapshots, but served is:\n%s", metrics)
	}
	w.cluster.SetServed(snapshotapi.Group, true)
	r.Eventually("get ready", func() bool { code, _ := r.Get("/readyz"); return code == http.StatusOK })
	r.Eventually("count snapshots", func() bool {
		_, metrics := r.Get("/metrics")
		return strings.Contains(metrics, `snapshot_controller_snapshots{state="ready"} 0`)
	})
	r.Stop()
}

// TestOptionsAreChecked runs with options that are not valid.
func TestOptionsAreChecked(t *testing.T) {
	o, err := parse("--worker-threads=0")
	if err != nil {
		t.Fatal(err)
	}
	if err := Run(t.Context(), o); err == nil || !strings.Contains(err.Error(), "--worker-threads=0") {
		t.Errorf("got %v, want an error that names the flag", err)
	}
}

// TestDefaultClassIsNotSeen creates a second default class whose watch brings nothing, and then snapshots that name no class: what the cache has is one class.
func TestDefaultClassIsNotSeen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newCluster(t)
		kinds := map[string]string{"volumesnapshotclasses": snapshotapi.AnnDefaultClass, "volumegroupsnapshotclasses": snapshotapi.AnnGroupDefaultClass}
		markDefault := func(class string) {
			for resource, annotation := range kinds {
				w.must(w.cluster.Merge(resource, "", class, fmt.Appendf(nil, `{"metadata":{"annotations":{%q:"true"}}}`, annotation)))
			}
		}
		markDefault("delete")
		stop := w.run()
		w.blind("volumesnapshotclasses", "volumegroupsnapshotclasses")
		markDefault("retain")
		single := snapshotOf("s", "claim-0")
		single.Spec.VolumeSnapshotClassName = nil
		w.must(w.cluster.Apply(single, &groupv1.VolumeGroupSnapshot{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "g"}, Spec: groupv1.VolumeGroupSnapshotSpec{
			Source: groupv1.VolumeGroupSnapshotSource{Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"half": "0"}}},
		}}))
		<-time.After(time.Minute)
		for _, resource := range []string{"volumesnapshots", "volumegroupsnapshots"} {
			object, err := json.Marshal(w.cluster.Objects(resource))
			w.must(err)
			if !strings.Contains(string(object), "2 default snapshot classes were found") || strings.Contains(string(object), "ClassName") {
				t.Errorf("%s with two default classes: %s", resource, object)
			}
		}
		stop()
	})
}

// TestPolicyIsNotSeen edits the policy of a content, whose watch brings nothing, and then deletes the snapshot: the content says Delete in the cache, and is marked already, so that nothing but
// its deletion is left to do.
func TestPolicyIsNotSeen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newCluster(t)
		stop := w.run()
		s := snapshotOf("s", "claim-0")
		s.UID = "uid-s"
		w.must(w.cluster.Apply(s))
		<-time.After(time.Minute)
		const content = "snapcontent-uid-s"
		w.must(w.cluster.Merge("volumesnapshotcontents", "", content, fmt.Appendf(nil, `{"metadata":{"annotations":{%q:"yes"}}}`, snapshotapi.AnnBeingDeleted)))
		<-time.After(time.Minute)
		w.blind("volumesnapshotcontents")
		w.must(w.cluster.Merge("volumesnapshotcontents", "", content, []byte(`{"spec":{"deletionPolicy":"Retain"}}`)))
		w.must(w.cluster.Remove("volumesnapshots", "ns", "s"))
		<-time.After(time.Minute)
		if left := w.cluster.Objects("volumesnapshotcontents"); len(left) != 1 || left[0].(metav1.Object).GetDeletionTimestamp() != nil {
			t.Errorf("a content that is to be retained now was deleted: %+v", left)
		}
		stop()
	})
}

// run starts the component, and gives it time to know the cluster. The function that it returns ends it.
func (w *walk) run() (stop func()) {
	o, err := parse()
	w.must(err)
	ctx, cancel := context.WithCancel(klog.NewContext(context.Background(), klog.Logger{}))
	ended := make(chan error, 1)
	go func() { ended <- component.Run(ctx, o.component(inMemory(w.cluster.Client(), "host-1"))) }()
	<-time.After(time.Minute)
	return func() {
		cancel()
		w.must(<-ended)
	}
}

// blind lets no watch of these kinds bring anything from now on.
func (w *walk) blind(resources ...string) {
	for _, resource := range resources {
		w.cluster.Inject(kubetest.Fault{Verb: "watch", Resource: resource, Hang: true})
	}
	w.cluster.BreakWatches()
	<-time.After(time.Minute)
}
