package snapshotcontroller

import (
	"fmt"
	"math/rand/v2"
	"os"
	"testing"
	"testing/synctest"
	"time"

	groupv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumegroupsnapshot/v1"
	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"github.com/longshore-csi/longshore/csikit/kube"
	"github.com/longshore-csi/longshore/csikit/snapshotapi"
	"github.com/longshore-csi/longshore/csikittest/kubetest"
	"github.com/longshore-csi/longshore/csikittest/seeds"
	"github.com/longshore-csi/longshore/csikittest/snapshotapitest"
)

// copiedRestarts is how often controllers are restarted while objects are copied.
const copiedRestarts = 40

// copied returns how many snapshots a cluster has, and group snapshots of two volumes, each with its content: 2,000 objects, and a fifth of them in the tier of every
// change, where the time goes into reading them at each restart.
func copied() (snapshots, groups int) {
	if os.Getenv("LONGSHORE_EXHAUSTIVE") == "" {
		return 140, 20
	}
	return 700, 100
}

// TestCopies applies the snapshots, group snapshots and contents of a cluster in any order to another one that shares its storage, some with their status
// and some without, with clocks that differ. Users delete copies of snapshots, and both controllers are restarted and killed meanwhile. No content of the
// first cluster, and no copy of one, is deleted: csi-snapshotter deletes a snapshot only with its content.
func TestCopies(t *testing.T) { seeds.Each(t, copyAtRandom) }

func copyAtRandom(t *testing.T, seed uint64) {
	synctest.Test(t, func(t *testing.T) {
		random := rand.New(rand.NewPCG(seed, 0)) //nolint:gosec // a test wants to be repeated
		from, to := copyCluster(t, random), copyCluster(t, random)
		objs := from.usedCluster()
		for _, obj := range objs {
			from.must(from.cluster.Apply(obj))
		}
		both := []*walk{from, to}
		for _, w := range both {
			w.launch()
		}
		random.Shuffle(len(objs), func(i, j int) { objs[i], objs[j] = objs[j], objs[i] })
		for i, obj := range objs {
			to.must(to.cluster.Apply(to.copyOf(obj)))
			if i%(len(objs)/copiedRestarts) == 0 {
				<-time.After([]time.Duration{0, time.Second, 3 * time.Minute}[random.IntN(3)])
				to.removeCopy()
				w := both[random.IntN(2)]
				w.end(random.IntN(2) == 0)
				w.launch()
			}
		}
		<-time.After(time.Hour)
		for _, w := range both {
			w.end(false)
			w.checkContents(objs)
		}
		t.Logf("done: %v", to.done)
	})
}

// copyCluster returns an API server with classes and four claims.
func copyCluster(t *testing.T, random *rand.Rand) *walk {
	t.Helper()
	w := &walk{t: t, rand: random, cluster: kubetest.New(), done: map[string]int{}}
	snapshotapitest.Install(w.cluster)
	w.addClasses()
	for i := range walkClaims {
		w.addClaim(i)
	}
	return w
}

// usedCluster returns the snapshots and group snapshots of a cluster, with their contents.
func (w *walk) usedCluster() (objs []kube.Object) {
	snapshots, groups := copied()
	for i := range snapshots {
		objs = append(objs, w.usedSnapshot(fmt.Sprint("snap-", i), w.rand.IntN(2*walkClaims), nil)...)
	}
	for i := range groups {
		name := fmt.Sprint("group-", i)
		uid, ready := types.UID("uid-"+name), true
		handle, content := "handle-"+name, snapshotapi.GroupContentName(uid)
		group := &groupv1.VolumeGroupSnapshot{
			ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: uid, Finalizers: []string{snapshotapi.FinalizerGroupBound}},
			Spec: groupv1.VolumeGroupSnapshotSpec{VolumeGroupSnapshotClassName: new("delete"), Source: groupv1.VolumeGroupSnapshotSource{
				Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"half": "0"}},
			}},
			Status: &groupv1.VolumeGroupSnapshotStatus{BoundVolumeGroupSnapshotContentName: &content, ReadyToUse: &ready, CreationTime: new(metav1.Now())},
		}
		of := &groupv1.VolumeGroupSnapshotContent{
			ObjectMeta: metav1.ObjectMeta{Name: content, UID: "uid-" + types.UID(content), Finalizers: []string{snapshotapi.FinalizerGroupContent}},
			Spec: groupv1.VolumeGroupSnapshotContentSpec{
				Driver: walkDriver, DeletionPolicy: snapshotv1.VolumeSnapshotContentDelete, VolumeGroupSnapshotClassName: new("delete"),
				Source:                 groupv1.VolumeGroupSnapshotContentSource{VolumeHandles: []string{"vol-claim-0", "vol-claim-2"}},
				VolumeGroupSnapshotRef: corev1.ObjectReference{Kind: snapshotapi.KindVolumeGroupSnapshot, Namespace: "ns", Name: name, UID: uid},
			},
			Status: &groupv1.VolumeGroupSnapshotContentStatus{VolumeGroupSnapshotHandle: &handle, ReadyToUse: &ready, CreationTime: new(metav1.Now())},
		}
		objs = append(objs, group, of)
		for _, claim := range []int{0, 2} {
			member := snapshotapi.MemberSnapshotName(uid, fmt.Sprint("vol-claim-", claim))
			objs = append(objs, w.usedSnapshot(member, claim, group)...)
		}
	}
	return objs
}

// usedSnapshot returns a snapshot of a claim with its content, perhaps as a member of a group.
func (w *walk) usedSnapshot(name string, claim int, group *groupv1.VolumeGroupSnapshot) []kube.Object {
	uid, handle, ready := types.UID("uid-"+name), "handle-"+name, w.rand.IntN(4) > 0
	s := &snapshotv1.VolumeSnapshot{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: uid, Finalizers: []string{snapshotapi.FinalizerAsSource, snapshotapi.FinalizerBound}},
		Spec: snapshotv1.VolumeSnapshotSpec{
			VolumeSnapshotClassName: new("delete"), Source: snapshotv1.VolumeSnapshotSource{PersistentVolumeClaimName: new(fmt.Sprint("claim-", claim))},
		},
	}
	c := &snapshotv1.VolumeSnapshotContent{
		ObjectMeta: metav1.ObjectMeta{Name: snapshotapi.ContentName(uid), Finalizers: []string{snapshotapi.FinalizerContent}},
		Spec: snapshotv1.VolumeSnapshotContentSpec{
			Driver: walkDriver, DeletionPolicy: snapshotv1.VolumeSnapshotContentDelete, VolumeSnapshotClassName: new("delete"),
			Source:            snapshotv1.VolumeSnapshotContentSource{VolumeHandle: new(fmt.Sprint("vol-claim-", claim))},
			VolumeSnapshotRef: corev1.ObjectReference{Kind: snapshotapi.KindVolumeSnapshot, Namespace: "ns", Name: name, UID: uid},
		},
		Status: &snapshotv1.VolumeSnapshotContentStatus{SnapshotHandle: &handle, ReadyToUse: &ready, CreationTime: new(time.Now().UnixNano())},
	}
	if group != nil {
		s.Spec.VolumeSnapshotClassName, c.Spec.VolumeSnapshotClassName = nil, nil
		s.Finalizers = append(s.Finalizers, snapshotapi.FinalizerInGroup)
		s.OwnerReferences = []metav1.OwnerReference{{APIVersion: groupv1.SchemeGroupVersion.String(), Kind: snapshotapi.KindVolumeGroupSnapshot, Name: group.Name, UID: group.UID}}
		c.Name = snapshotapi.MemberContentName(group.UID, *c.Spec.Source.VolumeHandle)
		c.Annotations = map[string]string{snapshotapi.AnnVolumeGroupSnapshotHandle: "handle-" + group.Name}
		c.Status.VolumeGroupSnapshotHandle = new("handle-" + group.Name)
	}
	c.UID = "uid-" + types.UID(c.Name)
	s.Status = &snapshotv1.VolumeSnapshotStatus{BoundVolumeSnapshotContentName: &c.Name, ReadyToUse: &ready, CreationTime: new(metav1.Now())}
	return []kube.Object{s, c}
}

// copyOf returns what a backup, or kubectl apply, makes of an object in another cluster: another UID, perhaps no status and no finalizers, perhaps a
// reference without a UID, or a clock that differs.
func (w *walk) copyOf(obj kube.Object) runtime.Object {
	obj, _ = obj.DeepCopyObject().(kube.Object)
	obj.SetUID("")
	obj.SetResourceVersion("")
	if w.rand.IntN(2) == 0 {
		obj.SetFinalizers(nil)
	}
	status, noUID, skew := w.rand.IntN(2) == 0, w.rand.IntN(5) == 0, time.Duration(w.rand.Int64N(int64(2*time.Hour)))-time.Hour
	switch o := obj.(type) {
	case *snapshotv1.VolumeSnapshot:
		if !status {
			o.Status = nil
		}
	case *groupv1.VolumeGroupSnapshot:
		if !status {
			o.Status = nil
		}
	case *snapshotv1.VolumeSnapshotContent:
		*o.Status.CreationTime += int64(skew)
		if !status {
			o.Status = nil
		}
		if noUID {
			o.Spec.VolumeSnapshotRef.UID = ""
		}
	case *groupv1.VolumeGroupSnapshotContent:
		o.Status.CreationTime = new(metav1.NewTime(o.Status.CreationTime.Add(skew)))
		if !status {
			o.Status = nil
		}
		if noUID {
			o.Spec.VolumeGroupSnapshotRef.UID = ""
		}
	}
	return obj
}

// removeCopy deletes, as a user, the copy of a snapshot or of a group snapshot.
func (w *walk) removeCopy() {
	w.done[w.remove([]string{"volumesnapshots", "volumegroupsnapshots"}[w.rand.IntN(2)])]++
}

// checkContents reports contents, or copies of them, that are gone, or are going.
func (w *walk) checkContents(objs []kube.Object) {
	for _, resource := range []string{"volumesnapshotcontents", "volumegroupsnapshotcontents"} {
		there := map[string]kube.Object{}
		for _, obj := range w.cluster.Objects(resource) {
			there[obj.GetName()] = obj
		}
		for _, obj := range objs {
			_, single := obj.(*snapshotv1.VolumeSnapshotContent)
			_, group := obj.(*groupv1.VolumeGroupSnapshotContent)
			if single && resource == "volumesnapshotcontents" || group && resource == "volumegroupsnapshotcontents" {
				if found := there[obj.GetName()]; found == nil || found.GetDeletionTimestamp() != nil {
					w.t.Errorf("%s %s was deleted", resource, obj.GetName())
				}
				w.done[resource]++
			}
		}
	}
}
