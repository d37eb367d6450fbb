package snapshotcontroller

import (
	"context"
	"encoding/json"
	"flag"
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
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	"k8s.io/utils/ptr"

	"github.com/longshore-csi/longshore/csikit/component"
	"github.com/longshore-csi/longshore/csikit/kube"
	"github.com/longshore-csi/longshore/csikit/snapshotapi"
	"github.com/longshore-csi/longshore/csikittest/kubetest"
	"github.com/longshore-csi/longshore/csikittest/seeds"
	"github.com/longshore-csi/longshore/csikittest/snapshotapitest"
)

var walkSteps = flag.Int("walk.steps", walkDefault, "number of steps of TestWalk, for each seed")

const (
	walkClaims  = 4
	walkPerLook = 100 // steps between two looks at what has come of everything
	walkDriver  = "d.example"
)

// walk is a cluster in which users, csi-snapshotter and the API server do as they like.
type walk struct {
	t       *testing.T
	rand    *rand.Rand
	cluster *kubetest.Cluster
	session *kubetest.Session
	cancel  context.CancelCauseFunc
	ended   chan error
	serial  int
	// storage has the snapshots of the driver, by name of the content, with the volume; uncertain those that it may still be taking.
	storage map[string]string
	done    map[string]int // what happened, for the log
}

// errCrashed ends a component as a crash does: nothing may be finished.
var errCrashed error = crashed{}

type crashed struct{}

// Error implements error.
func (crashed) Error() string { return "crashed" }

// Abort reports that running work must not be finished.
func (crashed) Abort() bool { return true }

// TestWalk takes, restores and deletes snapshots and group snapshots at random, while csi-snapshotter is late, fails and does not know,
// the API server fails, and the controller is killed. Time and again everything is left to come to its end: then snapshots and contents
// agree, nothing is Terminating, the driver has no snapshot without a content, and no claim has the finalizer.
func TestWalk(t *testing.T) { seeds.Each(t, walkAtRandom) }

func walkAtRandom(t *testing.T, seed uint64) {
	t.Logf("SEED=%d go test -run '^TestWalk$' . -walk.steps=%d repeats this walk", seed, *walkSteps)
	synctest.Test(t, func(t *testing.T) {
		w := &walk{
			t: t, rand: rand.New(rand.NewPCG(seed, 0)), cluster: kubetest.New(), //nolint:gosec // a test wants to be repeated
			storage: map[string]string{}, done: map[string]int{},
		}
		snapshotapitest.Install(w.cluster)
		w.addClasses()
		for i := range walkClaims {
			w.addClaim(i)
		}
		w.launch()
		for i := range *walkSteps {
			w.step()
			if (i+1)%walkPerLook == 0 {
				w.settle()
			}
			if t.Failed() {
				t.Logf("after step %d of seed %d", i, seed)
				break
			}
		}
		w.end(false)
		t.Logf("done: %v", w.done)
	})
}

func (w *walk) must(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

func (w *walk) addClasses() {
	for name, policy := range map[string]snapshotv1.DeletionPolicy{"delete": "Delete", "retain": "Retain"} {
		w.must(w.cluster.Apply(
			&snapshotv1.VolumeSnapshotClass{ObjectMeta: metav1.ObjectMeta{Name: name}, Driver: walkDriver, DeletionPolicy: policy},
			&groupv1.VolumeGroupSnapshotClass{ObjectMeta: metav1.ObjectMeta{Name: name}, Driver: walkDriver, DeletionPolicy: policy},
		))
	}
}

func (w *walk) addClaim(i int) {
	name := fmt.Sprint("claim-", i)
	uid := types.UID("uid-" + name)
	w.must(w.cluster.Apply(
		&corev1.PersistentVolume{
			ObjectMeta: metav1.ObjectMeta{Name: "pv-" + name},
			Spec: corev1.PersistentVolumeSpec{
				ClaimRef:               &corev1.ObjectReference{Namespace: "ns", Name: name, UID: uid},
				PersistentVolumeSource: corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{Driver: walkDriver, VolumeHandle: "vol-" + name}},
			},
		},
		&corev1.PersistentVolumeClaim{
			ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: uid, Labels: map[string]string{"half": fmt.Sprint(i % 2)}},
			Spec:       corev1.PersistentVolumeClaimSpec{VolumeName: "pv-" + name}, Status: corev1.PersistentVolumeClaimStatus{Phase: corev1.ClaimBound},
		},
	))
}

// launch begins a life of the component.
func (w *walk) launch() {
	o, err := parse("--retry-interval-max=10s", "--worker-threads=3", "--resync-period=0")
	w.must(err)
	w.session = w.cluster.NewSession()
	ctx, cancel := context.WithCancelCause(klog.NewContext(context.Background(), klog.Logger{}))
	w.cancel, w.ended = cancel, make(chan error, 1)
	go func() { w.ended <- component.Run(ctx, o.component(inMemory(w.session.Client(), "host"))) }()
}

// end ends it, in good order or not.
func (w *walk) end(crash bool) {
	if crash {
		w.session.Cut()
		w.cancel(errCrashed)
		<-w.ended
		return
	}
	w.cancel(nil)
	w.must(<-w.ended)
}

// merge merges a change into an object, status included, if it is there.
func (w *walk) merge(resource string, obj kube.Object, change map[string]any) {
	data, err := json.Marshal(change)
	w.must(err)
	if err := w.cluster.Merge(resource, obj.GetNamespace(), obj.GetName(), data); err != nil && !apierrors.IsNotFound(err) {
		w.t.Error(err)
	}
}

// one returns an object of a resource at random, nil if there is none.
func (w *walk) one(resource string) kube.Object {
	objs := w.cluster.Objects(resource)
	if len(objs) == 0 {
		return nil
	}
	return objs[w.rand.IntN(len(objs))]
}

// step does something at random.
func (w *walk) step() {
	what := "pass"
	switch n := w.rand.IntN(100); {
	case n < 14:
		what = w.take()
	case n < 18:
		what = w.takeGroup()
	case n < 28:
		what = w.remove("volumesnapshots")
	case n < 31:
		what = w.remove("volumegroupsnapshots")
	case n < 33:
		what = w.vanish([]string{"volumesnapshots", "volumegroupsnapshots"}[w.rand.IntN(2)])
	case n < 36:
		what = w.restore()
	case n < 71:
		what = w.snapshotter(false)
	case n < 78:
		what = "api fault"
		done := w.rand.IntN(2) == 0
		w.cluster.Inject(kubetest.Fault{
			Verb: []string{"patch", "create", "delete", "get"}[w.rand.IntN(4)], Err: w.apiError(done), After: done, Times: 1 + w.rand.IntN(3),
		})
	case n < 80:
		what = "watches broken"
		w.cluster.BreakWatches()
	case n < 83:
		what = w.toggleClass()
	case n < 90:
		crash := w.rand.IntN(3) > 0
		what = map[bool]string{true: "kill", false: "restart"}[crash]
		w.end(crash)
		w.launch()
	case n < 93:
		what = "kill at a write"
		session := w.session
		w.cluster.Inject(kubetest.Fault{Verb: []string{"patch", "create", "delete"}[w.rand.IntN(3)], After: w.rand.IntN(2) == 0, Times: 1, Do: session.Cut, Err: kubetest.ErrCut})
		<-time.After(10 * time.Second)
		w.cluster.Heal()
		w.end(true)
		w.launch()
	}
	w.done[what]++
	<-time.After([]time.Duration{0, time.Millisecond, 100 * time.Millisecond, time.Second, 3 * time.Second, 20 * time.Second}[w.rand.IntN(6)])
}

// class returns the name of a class.
func (w *walk) class() *string { return new([]string{"delete", "delete", "retain"}[w.rand.IntN(3)]) }

func (w *walk) take() string {
	w.serial++
	claim := fmt.Sprint("claim-", w.rand.IntN(walkClaims))
	w.must(w.cluster.Apply(&snapshotv1.VolumeSnapshot{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: fmt.Sprint("snap-", w.serial)},
		Spec:       snapshotv1.VolumeSnapshotSpec{VolumeSnapshotClassName: w.class(), Source: snapshotv1.VolumeSnapshotSource{PersistentVolumeClaimName: &claim}},
	}))
	return "take"
}

func (w *walk) takeGroup() string {
	w.serial++
	w.must(w.cluster.Apply(&groupv1.VolumeGroupSnapshot{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: fmt.Sprint("group-", w.serial)},
		Spec: groupv1.VolumeGroupSnapshotSpec{VolumeGroupSnapshotClassName: w.class(), Source: groupv1.VolumeGroupSnapshotSource{
			Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"half": fmt.Sprint(w.rand.IntN(2))}},
		}},
	}))
	return "take group"
}

func (w *walk) remove(resource string) string {
	obj := w.one(resource)
	if obj == nil {
		return "nothing to delete"
	}
	if err := w.cluster.Remove(resource, obj.GetNamespace(), obj.GetName()); err != nil && !apierrors.IsNotFound(err) {
		w.t.Error(err)
	}
	return "delete " + resource
}

// vanish is remove with an API server that has read the object before its finalizers were put on it.
func (w *walk) vanish(resource string) string {
	obj := w.one(resource)
	if obj == nil || obj.GetDeletionTimestamp() != nil || len(obj.GetOwnerReferences()) > 0 { // members are created with finalizers
		return "nothing to vanish"
	}
	w.must(w.cluster.Drop(resource, obj.GetNamespace(), obj.GetName()))
	return "vanish " + resource
}

// restore begins to restore a claim, or ends that.
func (w *walk) restore() string {
	for _, obj := range w.cluster.Objects("persistentvolumeclaims") {
		if claim, ok := obj.(*corev1.PersistentVolumeClaim); ok && claim.Status.Phase == corev1.ClaimPending {
			w.must(w.cluster.Remove("persistentvolumeclaims", claim.Namespace, claim.Name))
			return "restore ended"
		}
	}
	s := w.one("volumesnapshots")
	if s == nil {
		return "nothing to restore"
	}
	w.must(w.cluster.Apply(&corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "restored"},
		Spec: corev1.PersistentVolumeClaimSpec{DataSource: &corev1.TypedLocalObjectReference{
			APIGroup: new(snapshotapi.Group), Kind: snapshotapi.KindVolumeSnapshot, Name: s.GetName(),
		}},
		Status: corev1.PersistentVolumeClaimStatus{Phase: corev1.ClaimPending},
	}))
	return "restore"
}

// apiError returns an error of the API server. One that has done what it was asked for does not refuse it.
func (w *walk) apiError(done bool) error {
	things := schema.GroupResource{Resource: "things"}
	errs := []error{
		apierrors.NewServiceUnavailable("injected"), apierrors.NewTimeoutError("injected", 1), apierrors.NewInternalError(errCrashed),
		apierrors.NewConflict(things, "x", errCrashed), apierrors.NewForbidden(things, "x", errCrashed),
	}
	if done {
		errs = errs[:3]
	}
	return errs[w.rand.IntN(len(errs))]
}

// toggleClass deletes a class, or creates it again.
func (w *walk) toggleClass() string {
	if err := w.cluster.Remove("volumesnapshotclasses", "", "retain"); err == nil {
		return "class deleted"
	}
	w.addClasses()
	return "class created"
}

// snapshotter plays the csi-snapshotters: one step for one content.
func (w *walk) snapshotter(success bool) string {
	if w.rand.IntN(4) == 0 {
		if obj, ok := w.one("volumegroupsnapshotcontents").(*groupv1.VolumeGroupSnapshotContent); ok {
			return "group " + w.groupContent(obj, success)
		}
	}
	if obj, ok := w.one("volumesnapshotcontents").(*snapshotv1.VolumeSnapshotContent); ok {
		return w.content(obj, success)
	}
	return "no content"
}

// content makes a step for a content, in the order of csi-snapshotter.
func (w *walk) content(content *snapshotv1.VolumeSnapshotContent, success bool) string {
	status := content.Status
	if status == nil {
		status = &snapshotv1.VolumeSnapshotContentStatus{}
	}
	creating := content.Annotations[snapshotapi.AnnBeingCreated] != ""
	member := content.Annotations[snapshotapi.AnnVolumeGroupSnapshotHandle] != ""
	patch := func(change map[string]any) { w.merge("volumesnapshotcontents", content, change) }
	mark := func(value any) map[string]any {
		return map[string]any{"annotations": map[string]any{snapshotapi.AnnBeingCreated: value}}
	}
	switch {
	case content.DeletionTimestamp != nil && !creating:
		if content.Annotations[snapshotapi.AnnBeingDeleted] == "" {
			return "not marked"
		}
		if !success && w.rand.IntN(3) == 0 {
			patch(map[string]any{"status": map[string]any{"error": map[string]any{"message": "cannot delete"}}})
			return "delete fails"
		}
		delete(w.storage, content.Name) // or it is retained, and no business of the cluster any more
		patch(map[string]any{"metadata": map[string]any{"finalizers": nil}})
		return "deleted"
	case member && status.SnapshotHandle == nil:
		return "member without status"
	case member:
		patch(map[string]any{"status": map[string]any{"readyToUse": true}})
		return "member ready"
	case status.SnapshotHandle != nil:
		patch(map[string]any{"metadata": mark(nil), "status": map[string]any{"readyToUse": true}})
		return "ready"
	case !creating:
		if len(content.Finalizers) == 0 {
			w.t.Errorf("%s has no finalizer while the driver is asked", content.Name)
		}
		patch(map[string]any{"metadata": mark("yes")})
		return "asked"
	}
	w.checkProtected(*content.Spec.Source.VolumeHandle)
	return w.answer(content, success, patch, mark)
}

// answer is an answer of the driver to CreateSnapshot.
func (w *walk) answer(content *snapshotv1.VolumeSnapshotContent, success bool, patch func(map[string]any), mark func(any) map[string]any) string {
	n := w.rand.IntN(4)
	switch {
	case success || n < 2:
		w.storage[content.Name] = *content.Spec.Source.VolumeHandle
		patch(map[string]any{"metadata": mark(nil), "status": map[string]any{
			"snapshotHandle": "snap-" + content.Name, "creationTime": 1700000000000000000, "restoreSize": 1024, "readyToUse": n == 0, "error": nil,
		}})
		return "created"
	case n == 2:
		patch(map[string]any{"status": map[string]any{"readyToUse": false, "error": map[string]any{"message": "rpc error: code = DeadlineExceeded"}}})
		if w.rand.IntN(2) == 0 {
			w.storage[content.Name] = *content.Spec.Source.VolumeHandle // it has been taken all the same
		}
		return "uncertain"
	}
	if w.storage[content.Name] == "" { // what exists is found again
		patch(map[string]any{"metadata": mark(nil), "status": map[string]any{"readyToUse": false, "error": map[string]any{"message": "rpc error: code = Internal"}}})
	}
	return "refused"
}

// checkProtected reports a claim that is not protected while the driver may be taking a snapshot of its volume.
func (w *walk) checkProtected(handle string) {
	for _, obj := range w.cluster.Objects("persistentvolumeclaims") {
		if "vol-"+obj.GetName() == handle && !slices.Contains(obj.GetFinalizers(), snapshotapi.FinalizerClaim) {
			w.t.Errorf("%s is not protected while a snapshot of %s is being taken", obj.GetName(), handle)
		}
	}
}

// groupContent makes a step for a group content.
func (w *walk) groupContent(content *groupv1.VolumeGroupSnapshotContent, success bool) string {
	patch := func(change map[string]any) { w.merge("volumegroupsnapshotcontents", content, change) }
	created := content.Status != nil && content.Status.VolumeGroupSnapshotHandle != nil
	switch {
	case content.DeletionTimestamp != nil:
		if content.Annotations[snapshotapi.AnnGroupBeingDeleted] == "" {
			return "not marked"
		}
		patch(map[string]any{"metadata": map[string]any{"finalizers": nil}})
		return "deleted"
	case created:
		patch(map[string]any{"status": map[string]any{"readyToUse": true}})
		return "ready"
	case !success && w.rand.IntN(3) == 0:
		patch(map[string]any{"status": map[string]any{"readyToUse": false, "error": map[string]any{"message": "rpc error: code = Internal"}}})
		return "refused"
	}
	var list []any
	for _, handle := range content.Spec.Source.VolumeHandles {
		w.checkProtected(handle)
		list = append(list, map[string]any{"volumeHandle": handle, "snapshotHandle": "snap-" + content.Name + handle, "readyToUse": w.rand.IntN(2) == 0})
	}
	patch(map[string]any{"status": map[string]any{
		"volumeGroupSnapshotHandle": "handle-" + content.Name, "readyToUse": w.rand.IntN(2) == 0, "error": nil, "volumeSnapshotInfoList": list,
	}})
	return "created"
}

// play lets csi-snapshotter make a step for each content, with success.
func (w *walk) play() {
	for _, obj := range w.cluster.Objects("volumesnapshotcontents") {
		if content, ok := obj.(*snapshotv1.VolumeSnapshotContent); ok {
			w.content(content, true)
		}
	}
	for _, obj := range w.cluster.Objects("volumegroupsnapshotcontents") {
		if content, ok := obj.(*groupv1.VolumeGroupSnapshotContent); ok {
			w.groupContent(content, true)
		}
	}
}

// settle lets everything come to its end, and compares.
func (w *walk) settle() {
	w.cluster.Heal()
	w.addClasses()
	w.removeRetained()
	w.collectGarbage()
	for _, obj := range w.cluster.Objects("persistentvolumeclaims") {
		if obj.GetName() == "restored" {
			w.must(w.cluster.Remove("persistentvolumeclaims", "ns", "restored"))
		}
	}
	for range 30 {
		w.play()
		<-time.After(11 * time.Second)
	}
	w.compare()
	for _, resource := range []string{"volumesnapshots", "volumegroupsnapshots"} {
		for len(w.cluster.Objects(resource)) > 8 && w.rand.IntN(20) > 0 { // few objects meet more often
			w.remove(resource)
		}
	}
}

// isMember reports whether a snapshot waits for the deletion of its group snapshot.
func (w *walk) isMember(obj kube.Object) bool {
	for _, owner := range obj.GetOwnerReferences() {
		for _, group := range w.cluster.Objects("volumegroupsnapshots") {
			if group.GetUID() == owner.UID && group.GetDeletionTimestamp() == nil {
				return true
			}
		}
	}
	return false
}

// removeRetained deletes, as an admin, contents that were retained.
func (w *walk) removeRetained() {
	for _, obj := range w.cluster.Objects("volumesnapshotcontents") {
		content, ok := obj.(*snapshotv1.VolumeSnapshotContent)
		if ok && content.Spec.DeletionPolicy == snapshotv1.VolumeSnapshotContentRetain && !w.exists("volumesnapshots", content.Spec.VolumeSnapshotRef.UID) {
			w.must(w.cluster.Remove("volumesnapshotcontents", "", content.Name))
		}
	}
	for _, obj := range w.cluster.Objects("volumegroupsnapshotcontents") {
		content, ok := obj.(*groupv1.VolumeGroupSnapshotContent)
		if ok && content.Spec.DeletionPolicy == snapshotv1.VolumeSnapshotContentRetain && !w.exists("volumegroupsnapshots", content.Spec.VolumeGroupSnapshotRef.UID) {
			w.must(w.cluster.Remove("volumegroupsnapshotcontents", "", content.Name))
		}
	}
}

// collectGarbage deletes members whose group snapshot is gone, as kube-controller-manager does.
func (w *walk) collectGarbage() {
	for _, obj := range w.cluster.Objects("volumesnapshots") {
		for _, owner := range obj.GetOwnerReferences() {
			if !w.exists("volumegroupsnapshots", owner.UID) {
				w.must(w.cluster.Remove("volumesnapshots", obj.GetNamespace(), obj.GetName()))
			}
		}
	}
}

func (w *walk) exists(resource string, uid types.UID) bool {
	return slices.ContainsFunc(w.cluster.Objects(resource), func(obj kube.Object) bool { return obj.GetUID() == uid })
}

// removeReported deletes, as an admin, a content whose owner has vanished while no controller was there to see it: an event says that it is there.
func (w *walk) removeReported(resource string, content kube.Object) {
	for _, obj := range w.cluster.Objects("events") {
		if e, ok := obj.(*corev1.Event); ok && e.InvolvedObject.UID == content.GetUID() && strings.HasSuffix(e.Reason, "ContentWithoutSnapshot") {
			w.must(w.cluster.Remove(resource, "", content.GetName()))
			w.done["orphan reported"]++
			return
		}
	}
	w.t.Errorf("content %s has no owner, and no event says so", content.GetName())
}

// compare reports what snapshots, contents, claims and driver disagree about, and what is left over.
func (w *walk) compare() {
	contents := map[string]*snapshotv1.VolumeSnapshotContent{}
	for _, resource := range []string{"volumesnapshots", "volumesnapshotcontents", "volumegroupsnapshots", "volumegroupsnapshotcontents"} {
		for _, obj := range w.cluster.Objects(resource) {
			if obj.GetDeletionTimestamp() != nil && !w.isMember(obj) {
				w.t.Errorf("%s %s is Terminating, with finalizers %v", resource, obj.GetName(), obj.GetFinalizers())
			}
			switch content := obj.(type) {
			case *snapshotv1.VolumeSnapshotContent:
				contents[content.Name] = content
			case *groupv1.VolumeGroupSnapshotContent:
				if content.Spec.DeletionPolicy == snapshotv1.VolumeSnapshotContentDelete && !w.exists("volumegroupsnapshots", content.Spec.VolumeGroupSnapshotRef.UID) {
					w.removeReported("volumegroupsnapshotcontents", content)
				}
			}
		}
	}
	owned := map[string]bool{}
	for _, obj := range w.cluster.Objects("volumesnapshots") {
		s, ok := obj.(*snapshotv1.VolumeSnapshot)
		if !ok {
			continue
		}
		if s.Status == nil || s.Status.BoundVolumeSnapshotContentName == nil || !ptr.Deref(s.Status.ReadyToUse, false) || s.Status.Error != nil {
			w.t.Errorf("snapshot %s is not ready: %+v", s.Name, s.Status)
			continue
		}
		content := contents[*s.Status.BoundVolumeSnapshotContentName]
		if content == nil || content.Spec.VolumeSnapshotRef.UID != s.UID {
			w.t.Errorf("snapshot %s and content %s are not bound to each other", s.Name, *s.Status.BoundVolumeSnapshotContentName)
			continue
		}
		owned[content.Name] = true
	}
	for name, content := range contents {
		if !owned[name] && content.Spec.DeletionPolicy == snapshotv1.VolumeSnapshotContentDelete {
			w.removeReported("volumesnapshotcontents", content)
		}
	}
	for name := range w.storage {
		if contents[name] == nil {
			w.t.Errorf("the driver has a snapshot of content %s, which does not exist", name)
		}
	}
	for _, obj := range w.cluster.Objects("volumegroupsnapshots") {
		if group, ok := obj.(*groupv1.VolumeGroupSnapshot); ok && (group.Status == nil || !ptr.Deref(group.Status.ReadyToUse, false) || group.Status.Error != nil) {
			w.t.Errorf("group snapshot %s is not ready: %+v", group.Name, group.Status)
		}
	}
	for _, obj := range w.cluster.Objects("persistentvolumeclaims") {
		if slices.Contains(obj.GetFinalizers(), snapshotapi.FinalizerClaim) {
			w.t.Errorf("claim %s has the finalizer", obj.GetName())
		}
	}
}
