package controller

import (
	"context"
	"encoding/json"
	"fmt"
	"testing"
	"time"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/longshore-csi/longshore/csikit/kube"
	"github.com/longshore-csi/longshore/csikit/snapshotapi"
	"github.com/longshore-csi/longshore/csikittest/kubetest"
	"github.com/longshore-csi/longshore/csikittest/snapshotapitest"
)

// filled is a Controller whose caches have a number of snapshots with their contents, which are of node "away" and not of "here".
func filled(t *testing.T, number int) (*Controller, *prometheus.Registry) {
	t.Helper()
	cluster, reg := kubetest.New(), prometheus.NewRegistry()
	snapshotapitest.Install(cluster)
	c := New(Config{
		Kube: cluster.Client(), Snapshots: snapshotapitest.New(cluster), Distributed: true, Workers: 1, KubeTimeout: time.Minute,
		Operations: NewOperations(prometheus.NewRegistry()), Report: NewReport(reg),
	})
	var err error
	if c.singles.queue, err = c.newQueue(QueueSnapshots, c.singles.reconcile, c.singles.inputs); err != nil {
		t.Fatal(err)
	}
	if c.claimQueue, err = c.newQueue(QueueClaims, c.reconcileClaim, nil); err != nil {
		t.Fatal(err)
	}
	var objs []runtime.Object
	for _, name := range []string{"away", "here"} {
		objs = append(objs, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}, &storagev1.CSINode{
			ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: storagev1.CSINodeSpec{Drivers: []storagev1.CSINodeDriver{{Name: "hostpath.csi.k8s.io"}}},
		})
	}
	for i := range number {
		s, of := &snapshotv1.VolumeSnapshot{}, &snapshotv1.VolumeSnapshotContent{}
		for text, obj := range map[string]any{sentSnapshot: s, sentContent: of} {
			if err := json.Unmarshal(fmt.Appendf(nil, text, i), obj); err != nil {
				t.Fatal(err)
			}
		}
		of.Labels = map[string]string{snapshotapi.LabelManagedBy: "away"}
		objs = append(objs, s, of)
	}
	if err := cluster.Apply(objs...); err != nil {
		t.Fatal(err)
	}
	for _, run := range []func(context.Context) error{c.snapshots.Run, c.contents.Run, c.nodes.nodes.Run, c.nodes.csiNodes.Run} {
		go func() { _ = run(t.Context()) }()
	}
	if err := kube.WaitAllSynced(t.Context(), c.snapshots, c.contents, c.nodes.nodes, c.nodes.csiNodes); err != nil {
		t.Fatal(err)
	}
	c.cfg.Report.begin()
	for s := range c.snapshots.All() {
		c.cfg.Report.note(c.singles, keyOf(s), ownerOfSnapshot(s), c.singles.contentsOf(keyOf(s)))
	}
	return c, reg
}

// What a scrape of the metrics, and a change of a node, cost is the same for few and for many snapshots: none is decoded.
func TestCost(t *testing.T) {
	allocations := map[string][]float64{}
	for _, number := range []int{10, 1000} {
		c, reg := filled(t, number)
		measure := func(what string, do func()) {
			allocations[what] = append(allocations[what], testing.AllocsPerRun(20, do))
		}
		measure("scrape", func() {
			families, err := reg.Gather()
			if err != nil || len(families) == 0 {
				t.Fatalf("%d families, %v", len(families), err)
			}
		})
		measure("a node has got a driver", func() { c.nodesChanged(map[nodeDriver]bool{{"here", "hostpath.csi.k8s.io"}: true}) })
		measure("a node has got another driver", func() { c.nodesChanged(map[nodeDriver]bool{{"away", "other"}: true}) })
		measure("labels of a node", func() { c.nodesChanged(map[nodeDriver]bool{{"here", ""}: true}) })
	}
	for what, each := range allocations {
		t.Logf("%s: %v allocations", what, each)
		if each[1] > each[0]+10 {
			t.Errorf("%s: %v allocations with 10 snapshots, %v with 1,000", what, each[0], each[1])
		}
	}
}
