package bench

import (
	"context"
	"fmt"
	"testing"
	"time"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/longshore-csi/longshore/csikit/snapshotapi"
	"github.com/longshore-csi/longshore/e2e/testbed"
)

// snapshotsPerClaim is the number of snapshots of each claim of which the memory is read: daily ones of some weeks.
const snapshotsPerClaim = 20

// rememberSnapshots reads the memory of both pairs in turn, in a cluster of its own with so many snapshots, which are ready: at the peak of
// their start, and when they have been quiet for a while.
func rememberSnapshots(b *testing.B, both [2]snapshotPair, objects int) {
	b.Helper()
	c := newSnapshotContest(b, testbed.OwnCluster(b, 1, testbed.WithoutSnapshotPair), objects/snapshotsPerClaim+1)
	c.perClaim = snapshotsPerClaim
	c.createReady(objects)
	// A Go program that is idle collects garbage every 2 minutes: a longer time may show less.
	quiet := time.Duration(benchSetting(b, "QUIET", 30)) * time.Second
	var seen [2]map[string]*memory
	for b.Loop() {
		for i, p := range both {
			if seen[i] == nil {
				seen[i] = map[string]*memory{testbed.SnapshotPair()[0]: {}, testbed.SnapshotPair()[1]: {}}
			}
			c.rememberPair(p, quiet, seen[i])
		}
	}
	var figures [2][]figure
	for i := range both {
		for _, name := range testbed.SnapshotPair() {
			for _, f := range seen[i][name].figures() {
				figures[i] = append(figures[i], figure{name + "-" + f.unit, f.value})
			}
		}
	}
	compare(b, figures[0], figures[1])
}

// rememberPair reads the memory of one pair once it has taken and deleted one more snapshot, and has been quiet.
func (c *snapshotContest) rememberPair(p snapshotPair, quiet time.Duration, seen map[string]*memory) {
	c.b.Helper()
	pair := c.startPair(p, map[string]string{testbed.SnapshotPair()[0]: c.kubeconfig, testbed.SnapshotPair()[1]: c.kubeconfig})
	defer pair.end()
	settle := time.NewTimer(quiet)
	defer settle.Stop()
	select {
	case <-settle.C:
	case <-c.b.Context().Done():
	}
	for name, cmd := range pair.cmds {
		m := seen[name]
		m.peak = append(m.peak, procMiB(c.b, cmd.Process.Pid, "VmHWM"))
		m.settled = append(m.settled, procMiB(c.b, cmd.Process.Pid, "VmRSS"))
		m.settledAnonymous = append(m.settledAnonymous, procMiB(c.b, cmd.Process.Pid, "RssAnon"))
	}
}

// createReady creates snapshots as they are when they are ready, with their contents.
func (c *snapshotContest) createReady(n int) {
	c.b.Helper()
	began := time.Now()
	c.must(each(c.b.Context(), n, c.createReadySnapshot))
	c.kept = n
	fmt.Printf("created %d snapshots in %s\n", n, time.Since(began).Round(time.Second))
}

func (c *snapshotContest) createReadySnapshot(ctx context.Context, i int) error {
	snapshots, contents := c.api.VolumeSnapshots(c.warm.Namespace), c.api.VolumeSnapshotContents()
	claim := claimName(i / c.perClaim)
	s, err := snapshots.Create(ctx, &snapshotv1.VolumeSnapshot{
		ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("ready-%d", i), Finalizers: []string{snapshotapi.FinalizerAsSource, snapshotapi.FinalizerBound}},
		Spec: snapshotv1.VolumeSnapshotSpec{
			VolumeSnapshotClassName: &c.class, Source: snapshotv1.VolumeSnapshotSource{PersistentVolumeClaimName: &claim},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	var labels map[string]string
	if c.onNodes > 0 {
		labels = map[string]string{snapshotapi.LabelManagedBy: snapshotNode(i)}
	}
	content, err := contents.Create(ctx, &snapshotv1.VolumeSnapshotContent{
		ObjectMeta: metav1.ObjectMeta{Name: snapshotapi.ContentName(s.UID), Labels: labels, Finalizers: []string{snapshotapi.FinalizerContent}},
		Spec: snapshotv1.VolumeSnapshotContentSpec{
			VolumeSnapshotRef: corev1.ObjectReference{
				Kind: "VolumeSnapshot", APIVersion: "snapshot.storage.k8s.io/v1", Namespace: s.Namespace, Name: s.Name, UID: s.UID, ResourceVersion: s.ResourceVersion,
			},
			Driver: c.name, DeletionPolicy: snapshotv1.VolumeSnapshotContentDelete, VolumeSnapshotClassName: &c.class,
			Source:           snapshotv1.VolumeSnapshotContentSource{VolumeHandle: new("vol-pvc-" + claim)},
			SourceVolumeMode: new(corev1.PersistentVolumeFilesystem),
		},
	}, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	now := metav1.Now()
	content.Status = &snapshotv1.VolumeSnapshotContentStatus{
		SnapshotHandle: new("snap-snapshot-" + string(s.UID)), CreationTime: new(now.UnixNano()), RestoreSize: new(int64(16 << 20)), ReadyToUse: new(true),
	}
	if _, err := contents.UpdateStatus(ctx, content, metav1.UpdateOptions{}); err != nil {
		return err
	}
	size := resource.MustParse("16Mi")
	s.Status = &snapshotv1.VolumeSnapshotStatus{
		BoundVolumeSnapshotContentName: &content.Name, CreationTime: &now, ReadyToUse: new(true), RestoreSize: &size,
	}
	_, err = snapshots.UpdateStatus(ctx, s, metav1.UpdateOptions{})
	return err
}
