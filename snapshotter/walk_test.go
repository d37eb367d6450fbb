package snapshotter

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	groupv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumegroupsnapshot/v1"
	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/klog/v2"

	"github.com/longshore-csi/longshore/csikit/sidecar"
	"github.com/longshore-csi/longshore/csikit/snapshotapi"
	"github.com/longshore-csi/longshore/csikittest/csitest"
	"github.com/longshore-csi/longshore/csikittest/kubetest"
	"github.com/longshore-csi/longshore/csikittest/seeds"
	"github.com/longshore-csi/longshore/csikittest/snapshotapitest"
)

var walkSteps = flag.Int("walk.steps", walkDefault, "number of steps of TestWalk, for each seed")

const (
	walkVolumes = 3
	walkPerLook = 50 // steps between two looks at what has come of everything
)

// walk is a cluster in which users, the snapshot-controller, the driver and the API server do as they like.
type walk struct {
	t       *testing.T
	rand    *rand.Rand
	cluster *kubetest.Cluster
	driver  *csitest.Driver
	session *kubetest.Session
	cancel  context.CancelCauseFunc
	ended   chan error
	serial  int
	// kept are the handles of snapshots whose contents are gone, and which were to stay.
	kept map[string]bool
	// taken has the names of snapshots of which the driver has said that they exist.
	taken sync.Map
	done  map[string]int // what happened, for the log
}

// errCrashed ends a component as a crash does: nothing may be finished.
var errCrashed error = crashed{}

type crashed struct{}

// Error implements error.
func (crashed) Error() string { return "crashed" }

// Abort reports that running work must not be finished.
func (crashed) Abort() bool { return true }

// TestWalk takes and deletes snapshots and group snapshots at random, while driver and API server fail and the component is killed. Time
// and again everything is left to come to its end: then the driver has the snapshots that the contents name and no other, and nothing
// is left over.
func TestWalk(t *testing.T) { seeds.Each(t, walkAtRandom) }

func walkAtRandom(t *testing.T, seed uint64) {
	t.Logf("SEED=%d go test -run '^TestWalk$' . -walk.steps=%d repeats this walk", seed, *walkSteps)
	synctest.Test(t, func(t *testing.T) {
		w := newWalk(t, rand.New(rand.NewPCG(seed, 0)), csitest.Options{SnapshotReadyAfter: 2}) //nolint:gosec // a test wants to be repeated
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
		for _, violation := range w.driver.Violations() {
			t.Errorf("against the life cycle of CSI: %s", violation)
		}
		t.Logf("done: %v", w.done)
	})
}

// newWalk returns a cluster with classes, and a driver with volumes.
func newWalk(t *testing.T, random *rand.Rand, o csitest.Options) *walk {
	t.Helper()
	w := &walk{t: t, rand: random, cluster: kubetest.New(), driver: newDriver(o), kept: map[string]bool{}, done: map[string]int{}}
	snapshotapitest.Install(w.cluster)
	for i := range walkVolumes {
		w.driver.AddVolume(csitest.Volume{ID: fmt.Sprint("vol-", i), Capacity: 1 << 30})
	}
	w.must(w.cluster.Apply(testClass(), testGroupClass(), testSecret()))
	return w
}

func (w *walk) must(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

// launch begins a life of the component.
func (w *walk) launch() {
	o, err := parse("--retry-interval-max=10s", "--worker-threads=3", "--resync-period=10m")
	w.must(err)
	w.session = w.cluster.NewSession()
	config := inMemory(o, w.session.Client(), snapshotapitest.New(w.session), "host")
	config.CSI.Conn = &snapshotGuard{ClientConnInterface: w.driver.Conn(), t: w.t, cluster: w.cluster, taken: &w.taken}
	ctx, cancel := context.WithCancelCause(klog.NewContext(context.Background(), klog.Logger{}))
	w.cancel, w.ended = cancel, make(chan error, 1)
	go func() { w.ended <- sidecar.Run(ctx, config) }()
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

// step does something at random.
func (w *walk) step() {
	what := "pass"
	switch n := w.rand.IntN(100); {
	case n < 16:
		what = w.create()
	case n < 20:
		what = w.adopt()
	case n < 26:
		what = w.createGroup()
	case n < 46:
		what = w.remove()
	case n < 66:
		what = w.fault()
	case n < 76:
		what = w.apiFault()
	case n < 79:
		what = w.toggleClass()
	case n < 82:
		what = "watches broken"
		w.cluster.BreakWatches()
	case n < 85:
		what = "capabilities"
		w.driver.SetController([][]csi.ControllerServiceCapability_RPC_Type{
			{csi.ControllerServiceCapability_RPC_CREATE_DELETE_SNAPSHOT}, allCapabilities()[:2], allCapabilities(),
		}[w.rand.IntN(3)]...)
	case n < 87:
		what = w.trouble()
	case n < 93:
		crash := w.rand.IntN(3) > 0
		what = map[bool]string{true: "kill", false: "restart"}[crash]
		w.end(crash)
		w.launch()
	}
	w.done[what]++
	<-time.After([]time.Duration{0, time.Millisecond, 100 * time.Millisecond, time.Second, 3 * time.Second, 30 * time.Second, 90 * time.Second}[w.rand.IntN(7)])
}

func (w *walk) next() string {
	w.serial++
	return fmt.Sprintf("u%d", w.serial)
}

// create makes the content of a new VolumeSnapshot as a snapshot-controller does, of which older ones add the finalizer later.
func (w *walk) create() string {
	content := testContent(w.next(), fmt.Sprint("vol-", w.rand.IntN(walkVolumes)))
	if w.rand.IntN(2) == 0 {
		content.Finalizers = nil
	}
	if w.rand.IntN(5) == 0 {
		content.Spec.DeletionPolicy = snapshotv1.VolumeSnapshotContentRetain
	}
	if w.rand.IntN(3) == 0 {
		content.Annotations = map[string]string{snapshotapi.AnnDeletionSecretName: "keys", snapshotapi.AnnDeletionSecretNamespace: "default"}
	}
	w.must(w.cluster.Apply(content))
	return "create"
}

// adopt makes the content of a snapshot that exists.
func (w *walk) adopt() string {
	id := w.next()
	w.driver.AddSnapshot(csitest.Snapshot{ID: id, ReadyAfter: w.rand.IntN(3)})
	content := testContent(id, "")
	content.Spec.Source = snapshotv1.VolumeSnapshotContentSource{SnapshotHandle: &id}
	if w.rand.IntN(2) == 0 {
		content.Spec.VolumeSnapshotRef.UID = ""
	}
	w.must(w.cluster.Apply(content))
	return "adopt"
}

func (w *walk) createGroup() string {
	content := testGroupContent(w.next(), "vol-0", fmt.Sprint("vol-", 1+w.rand.IntN(walkVolumes-1)))
	if w.rand.IntN(2) == 0 {
		content.Finalizers = nil
	}
	w.must(w.cluster.Apply(content))
	return "create group"
}

// remove deletes the VolumeSnapshot or VolumeGroupSnapshot of a content as a snapshot-controller does, now or half of it.
func (w *walk) remove() string {
	resource := []string{"volumesnapshotcontents", "volumesnapshotcontents", "volumegroupsnapshotcontents"}[w.rand.IntN(3)]
	objects := w.cluster.Objects(resource)
	if len(objects) == 0 {
		return "nothing to delete"
	}
	name := objects[w.rand.IntN(len(objects))].GetName()
	if newest := fmt.Sprintf("content-u%d", w.serial); w.rand.IntN(2) == 0 {
		for _, object := range objects {
			if strings.HasSuffix(object.GetName(), newest) {
				name = object.GetName()
			}
		}
	}
	mark := map[string]string{"volumesnapshotcontents": snapshotapi.AnnBeingDeleted}[resource]
	if mark == "" {
		mark = snapshotapi.AnnGroupBeingDeleted
	}
	patch := fmt.Appendf(nil, `{"metadata":{"annotations":{%q:"yes"}}}`, mark)
	if w.rand.IntN(3) == 0 { // as the external-snapshotter's, which replaces all annotations by those that it knew
		patch = fmt.Appendf(nil, `{"metadata":{"annotations":{%q:"yes",%q:null,%q:null}}}`, mark, snapshotapi.AnnBeingCreated, snapshotapi.AnnGroupBeingCreated)
	}
	if err := w.cluster.Merge(resource, "", name, patch); !apierrors.IsNotFound(err) {
		w.must(err) // a content that is gone meanwhile needs no more
	}
	if w.rand.IntN(5) == 0 {
		return "mark deleted"
	}
	w.delete(resource, name)
	return "delete"
}

// delete deletes a content, and notes that its snapshot is to stay, if it is.
func (w *walk) delete(resource, name string) {
	for _, object := range w.cluster.Objects(resource) {
		content, ok := object.(*snapshotv1.VolumeSnapshotContent)
		if ok && content.Name == name && content.Spec.DeletionPolicy == snapshotv1.VolumeSnapshotContentRetain {
			w.kept["snap-snapshot-"+string(content.Spec.VolumeSnapshotRef.UID)] = true
		}
	}
	if err := w.cluster.Remove(resource, "", name); !apierrors.IsNotFound(err) {
		w.must(err)
	}
}

func (w *walk) fault() string {
	if w.rand.IntN(8) == 0 {
		w.driver.Heal()
		w.cluster.Heal()
		return "heal"
	}
	methods := []string{
		"CreateSnapshot", "CreateSnapshot", "DeleteSnapshot", "GetSnapshot", "ListSnapshots",
		"CreateVolumeGroupSnapshot", "DeleteVolumeGroupSnapshot", "GetVolumeGroupSnapshot",
	}
	return w.inject(methods[w.rand.IntN(len(methods))], w.rand.IntN(3))
}

// Kinds of faults.
const (
	finalFault = iota
	uncertainFault
	lateEffect
)

// inject adds a fault of a kind to some calls of a method.
func (w *walk) inject(method string, kind int) string {
	f := csitest.Fault{
		Method: method, Delay: []time.Duration{0, 0, time.Second, 90 * time.Second}[w.rand.IntN(4)], Times: 1 + w.rand.IntN(3),
	}
	what := ""
	switch kind {
	case finalFault:
		what = "final fault"
		f.Code = []codes.Code{codes.Internal, codes.FailedPrecondition, codes.NotFound}[w.rand.IntN(3)]
		f.Match = func(request proto.Message) bool { return !w.exists(request) } // the driver does not lie
	case uncertainFault:
		what = "uncertain fault"
		f.Code, f.After = w.uncertain(), w.rand.IntN(2) == 0
	case lateEffect:
		what = "late effect"
		f.Code, f.Delay = w.uncertain(), 0
		late := time.Duration(w.rand.IntN(50)) * time.Second
		f.Match = func(request proto.Message) bool {
			go w.finishLate(request, late)
			return true
		}
	}
	w.driver.Inject(f)
	return what
}

// trouble has a snapshot deleted while it is not known whether it was taken, and while the driver answers as if it was not; in the middle the
// component may be killed.
func (w *walk) trouble() string {
	w.driver.Heal()
	method, create := "CreateSnapshot", w.create
	if w.rand.IntN(3) == 0 {
		method, create = "CreateVolumeGroupSnapshot", w.createGroup
	}
	w.inject(method, uncertainFault+w.rand.IntN(2))
	w.inject(method, finalFault)
	create()
	<-time.After(time.Duration(w.rand.IntN(3)) * time.Second)
	if w.rand.IntN(2) == 0 {
		w.end(true)
		defer w.launch()
	}
	for range 3 {
		w.remove()
	}
	return "trouble"
}

func (w *walk) uncertain() codes.Code {
	return []codes.Code{codes.Unavailable, codes.DeadlineExceeded, codes.Aborted, codes.ResourceExhausted}[w.rand.IntN(4)]
}

// exists reports whether the driver has what a request is to create.
func (w *walk) exists(request proto.Message) bool {
	switch request := request.(type) {
	case *csi.CreateSnapshotRequest:
		return slices.ContainsFunc(w.driver.Snapshots(), func(s csitest.Snapshot) bool { return s.Name == request.GetName() })
	case *csi.CreateVolumeGroupSnapshotRequest:
		return slices.ContainsFunc(w.driver.GroupSnapshots(), func(g csitest.GroupSnapshot) bool { return g.Name == request.GetName() })
	}
	return false
}

// finishLate has a call take effect after its caller has got an error, within the timeout of calls, unless the driver has found out meanwhile.
func (w *walk) finishLate(request proto.Message, late time.Duration) {
	<-time.After(late)
	named, ok := request.(interface{ GetName() string })
	if !ok {
		return
	}
	if _, taken := w.taken.Load(named.GetName()); taken {
		return
	}
	switch request := request.(type) {
	case *csi.CreateSnapshotRequest:
		_, _ = w.driver.CreateSnapshot(context.Background(), request) // whether it does is the driver's business
	case *csi.CreateVolumeGroupSnapshotRequest:
		_, _ = w.driver.CreateVolumeGroupSnapshot(context.Background(), request)
	}
}

func (w *walk) apiFault() string {
	contents := schema.GroupResource{Resource: "volumesnapshotcontents"}
	errs := []error{
		apierrors.NewConflict(contents, "x", errCrashed), apierrors.NewServiceUnavailable("injected"), apierrors.NewTimeoutError("injected", 1),
		apierrors.NewForbidden(contents, "x", errCrashed), apierrors.NewInternalError(errCrashed),
	}
	w.cluster.Inject(kubetest.Fault{
		Verb: []string{"patch", "patch", "patch", "get"}[w.rand.IntN(4)], Err: errs[w.rand.IntN(len(errs))], After: w.rand.IntN(2) == 0, Times: 1 + w.rand.IntN(3),
	})
	return "api fault"
}

// toggleClass deletes a class, or creates it again.
func (w *walk) toggleClass() string {
	if w.rand.IntN(2) == 0 && w.cluster.Remove("volumesnapshotclasses", "", "fast") == nil || w.cluster.Remove("volumegroupsnapshotclasses", "", "fast") == nil {
		return "class deleted"
	}
	w.must(w.cluster.Apply(testClass(), testGroupClass()))
	return "classes created"
}

// settle lets everything come to its end, and compares.
func (w *walk) settle() {
	w.driver.Heal()
	w.cluster.Heal()
	w.driver.SetController(allCapabilities()...)
	w.must(w.cluster.Apply(testClass(), testGroupClass()))
	for resource, mark := range map[string]string{
		"volumesnapshotcontents": snapshotapi.AnnBeingDeleted, "volumegroupsnapshotcontents": snapshotapi.AnnGroupBeingDeleted,
	} {
		for _, object := range w.cluster.Objects(resource) {
			if object.GetAnnotations()[mark] != "" {
				w.delete(resource, object.GetName())
			}
		}
	}
	<-time.After(20 * time.Minute)
	w.compareAll()
}

// compareAll reports what contents and driver disagree about, and what is left over.
func (w *walk) compareAll() {
	named := map[string]bool{}
	for _, object := range w.cluster.Objects("volumesnapshotcontents") {
		if content, ok := object.(*snapshotv1.VolumeSnapshotContent); ok {
			w.compare(content, named)
		}
	}
	for _, object := range w.cluster.Objects("volumegroupsnapshotcontents") {
		if content, ok := object.(*groupv1.VolumeGroupSnapshotContent); ok {
			w.compareGroup(content, named)
		}
	}
	for _, s := range w.driver.Snapshots() {
		if !named[s.ID] && !w.kept[s.ID] {
			w.t.Errorf("snapshot %s has no content", s.ID)
		}
		delete(named, s.ID)
	}
	for _, g := range w.driver.GroupSnapshots() {
		if !named[g.ID] {
			w.t.Errorf("group snapshot %s has no content", g.ID)
		}
		delete(named, g.ID)
	}
	for id := range named {
		w.t.Errorf("snapshot %s does not exist, but has a content", id)
	}
}

// compare reports what a content lacks, and notes the snapshot that it names.
func (w *walk) compare(content *snapshotv1.VolumeSnapshotContent, named map[string]bool) {
	w.leftOver(&content.ObjectMeta, snapshotapi.AnnBeingCreated)
	s := content.Status
	if s == nil || s.SnapshotHandle == nil || s.ReadyToUse == nil || !*s.ReadyToUse || s.CreationTime == nil || s.Error != nil {
		w.t.Errorf("%s has status %+v", content.Name, s)
		return
	}
	named[*s.SnapshotHandle] = true
}

func (w *walk) compareGroup(content *groupv1.VolumeGroupSnapshotContent, named map[string]bool) {
	w.leftOver(&content.ObjectMeta, snapshotapi.AnnGroupBeingCreated)
	s := content.Status
	if s == nil || s.VolumeGroupSnapshotHandle == nil || s.ReadyToUse == nil || !*s.ReadyToUse || s.CreationTime == nil || s.Error != nil || len(s.VolumeSnapshotInfoList) != 2 {
		w.t.Errorf("%s has status %+v", content.Name, s)
		return
	}
	named[*s.VolumeGroupSnapshotHandle] = true
	for _, info := range s.VolumeSnapshotInfoList {
		if info.ReadyToUse == nil || !*info.ReadyToUse {
			w.t.Errorf("%s has member %+v", content.Name, info)
		}
		named[info.SnapshotHandle] = true
	}
}

// leftOver reports what must not be left on a content.
func (w *walk) leftOver(meta *metav1.ObjectMeta, mark string) {
	if meta.DeletionTimestamp != nil {
		w.t.Errorf("%s is Terminating: finalizers %v, annotations %v", meta.Name, meta.Finalizers, meta.Annotations)
	}
	if meta.Annotations[mark] != "" || meta.Labels[snapshotapi.LabelBeingCreated] != "" {
		w.t.Errorf("%s has annotations %v, labels %v", meta.Name, meta.Annotations, meta.Labels)
	}
}

// contentsIn returns the contents of snapshots.
func contentsIn(cluster *kubetest.Cluster) (contents []*snapshotv1.VolumeSnapshotContent) {
	for _, object := range cluster.Objects("volumesnapshotcontents") {
		if content, ok := object.(*snapshotv1.VolumeSnapshotContent); ok {
			contents = append(contents, content)
		}
	}
	return contents
}

// contentOf returns the content of a UID, or of a handle.
func contentOf(cluster *kubetest.Cluster, match func(*snapshotv1.VolumeSnapshotContent) bool) *snapshotv1.VolumeSnapshotContent {
	contents := contentsIn(cluster)
	if at := slices.IndexFunc(contents, match); at >= 0 {
		return contents[at]
	}
	return nil
}
