package resizer

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/longshore-csi/longshore/csikit/sidecar"
	"github.com/longshore-csi/longshore/csikittest/csitest"
	"github.com/longshore-csi/longshore/csikittest/kubetest"
	"github.com/longshore-csi/longshore/csikittest/seeds"
)

var walkSteps = flag.Int("walk.steps", walkDefault, "number of steps of TestWalk, for each seed")

const (
	walkClaims  = 5
	walkPerLook = 100 // steps between two looks at what has come of everything
)

// walkClasses are the VolumeAttributesClasses with the iops that they set. The driver refuses "bad".
func walkClasses() map[string]map[string]string {
	return map[string]map[string]string{"gold": {"iops": "1000"}, "silver": {"iops": "100"}, "bad": {"color": "red"}}
}

// walk is a cluster in which users, the driver, the nodes and the API server do as they like.
type walk struct {
	t       *testing.T
	rand    *rand.Rand
	cluster *kubetest.Cluster
	driver  *csitest.Driver
	session *kubetest.Session
	open    *unfinished
	cancel  context.CancelCauseFunc
	ended   chan error
	done    map[string]int // what happened, for the log
}

// unfinished has, by volume, the operation whose outcome is not known. It lasts longer than a life of the component.
type unfinished struct {
	mu         sync.Mutex
	operations map[string]map[string]started // by volume and method
	// deleted is when the class of an operation was deleted: nobody can find out its outcome then.
	deleted map[string]time.Time
	// both counts the volumes that were expanded and modified at the same time.
	both int
}

// started is an operation that has begun.
type started struct {
	operation string
	at        time.Time
	together  bool // with the other one
}

// volumeGuard is the connection of one life of the component. It allows one call at a time for a volume, or both at the same moment, and after those whose outcome
// is not known only the same ones.
type volumeGuard struct {
	grpc.ClientConnInterface
	t    *testing.T
	open *unfinished

	mu      sync.Mutex
	running map[string]map[string]time.Time // by volume and method
}

// operation names what a call asks for.
func operation(request any) string {
	switch r := request.(type) {
	case *csi.ControllerExpandVolumeRequest:
		return fmt.Sprint("expand to ", r.GetCapacityRange().GetRequiredBytes())
	case *csi.ControllerModifyVolumeRequest:
		return fmt.Sprint("modify to ", r.GetMutableParameters())
	}
	return ""
}

// begin reports an operation that overtakes another one.
func (u *unfinished) begin(t *testing.T, id, method, operation string) {
	u.mu.Lock()
	defer u.mu.Unlock()
	now := started{operation: operation, at: time.Now()}
	if u.operations[id] == nil {
		u.operations[id] = map[string]started{}
	}
	for other, open := range u.operations[id] {
		const lag = 10 * time.Second // of the component's caches
		together := other != method && (open.at.Equal(now.at) || open.together)
		if open.operation != operation && !together && u.deleted[open.operation].Before(open.at.Add(-lag)) {
			t.Errorf("%s of %s, while the outcome of %s is not known", operation, id, open.operation)
		}
		if together {
			now.together, open.together = true, true
			u.operations[id][other] = open
		}
	}
	u.operations[id][method] = now
}

// end forgets an operation whose outcome is known.
func (u *unfinished) end(id, method string, err error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	switch status.Code(err) {
	case codes.Canceled, codes.DeadlineExceeded, codes.Unavailable, codes.Aborted, codes.ResourceExhausted:
	default:
		delete(u.operations[id], method)
	}
}

// deleteClass notes that a class is gone.
func (u *unfinished) deleteClass(name string) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.deleted[fmt.Sprint("modify to ", walkClasses()[name])] = time.Now()
}

// Invoke implements grpc.ClientConnInterface.
func (g *volumeGuard) Invoke(ctx context.Context, method string, args, reply any, opts ...grpc.CallOption) error {
	if request, ok := args.(interface{ GetVolumeId() string }); ok {
		id := request.GetVolumeId()
		g.mu.Lock()
		for other, since := range g.running[id] {
			if other == method || !since.Equal(time.Now()) {
				g.t.Errorf("%s of %s while %s is running", method, id, other)
			}
			g.open.both++
		}
		if g.running[id] == nil {
			g.running[id] = map[string]time.Time{}
		}
		g.running[id][method] = time.Now()
		g.mu.Unlock()
		defer func() {
			g.mu.Lock()
			defer g.mu.Unlock()
			delete(g.running[id], method)
		}()
		g.open.begin(g.t, id, method, operation(args))
		err := g.ClientConnInterface.Invoke(ctx, method, args, reply, opts...)
		g.open.end(id, method, err)
		return err
	}
	return g.ClientConnInterface.Invoke(ctx, method, args, reply, opts...)
}

// errCrashed ends a component as a crash does: nothing may be finished.
var errCrashed error = crashed{}

type crashed struct{}

// Error implements error.
func (crashed) Error() string { return "crashed" }

// Abort reports that running work must not be finished.
func (crashed) Abort() bool { return true }

// TestWalk expands, shrinks what has failed, and modifies at random, while driver, nodes and API server fail and the component is
// killed. Time and again everything is left to come to its end: then claim, volume and driver agree, and nothing is left over.
func TestWalk(t *testing.T) { seeds.Each(t, walkAtRandom) }

func walkAtRandom(t *testing.T, seed uint64) {
	t.Logf("SEED=%d go test -run '^TestWalk$' . -walk.steps=%d repeats this walk", seed, *walkSteps)
	synctest.Test(t, func(t *testing.T) {
		w := &walk{
			t: t, rand: rand.New(rand.NewPCG(seed, 0)), cluster: kubetest.New(), //nolint:gosec // a test wants to be repeated
			open: &unfinished{operations: map[string]map[string]started{}, deleted: map[string]time.Time{}}, done: map[string]int{},
		}
		w.driver = csitest.New(csitest.Options{MutableParameters: []string{"iops"}})
		for i := range walkClaims {
			w.add(i)
		}
		for name := range walkClasses() {
			w.addClass(name)
		}
		w.launch()
		w.growAndReclass(0)
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
		t.Logf("done: %v, both operations at once: %d", w.done, w.open.both)
	})
}

func (w *walk) must(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

func (w *walk) add(i int) {
	id := fmt.Sprint(i)
	gi := resource.MustParse("1Gi")
	w.driver.AddVolume(csitest.Volume{ID: "vol-" + id, Capacity: gi.Value()})
	w.must(w.cluster.Apply(
		&corev1.PersistentVolume{
			ObjectMeta: metav1.ObjectMeta{Name: "pv-" + id},
			Spec: corev1.PersistentVolumeSpec{
				Capacity: corev1.ResourceList{corev1.ResourceStorage: gi}, AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
				ClaimRef: &corev1.ObjectReference{Namespace: "ns", Name: "claim-" + id, UID: types.UID("uid-" + id)},
				PersistentVolumeSource: corev1.PersistentVolumeSource{
					CSI: &corev1.CSIPersistentVolumeSource{Driver: csitest.DefaultName, VolumeHandle: "vol-" + id},
				},
			},
		},
		&corev1.PersistentVolumeClaim{
			ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "claim-" + id, UID: types.UID("uid-" + id)},
			Spec: corev1.PersistentVolumeClaimSpec{
				VolumeName: "pv-" + id, AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
				Resources: corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: gi}},
			},
			Status: corev1.PersistentVolumeClaimStatus{Phase: corev1.ClaimBound, Capacity: corev1.ResourceList{corev1.ResourceStorage: gi}},
		},
	))
}

func (w *walk) addClass(name string) {
	w.must(w.cluster.Apply(&storagev1.VolumeAttributesClass{
		ObjectMeta: metav1.ObjectMeta{Name: name}, DriverName: csitest.DefaultName, Parameters: walkClasses()[name],
	}))
}

// launch begins a life of the component.
func (w *walk) launch() {
	o, err := parse("--retry-interval-max=10s", "--workers=3", "--resync-period=1m")
	w.must(err)
	guard := &volumeGuard{ClientConnInterface: w.driver.Conn(), t: w.t, open: w.open, running: map[string]map[string]time.Time{}}
	w.session = w.cluster.NewSession()
	config := inMemory(o, w.session.Client(), "host")
	config.CSI.Conn = guard
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

func (w *walk) claim(i int) *corev1.PersistentVolumeClaim {
	claim, err := w.cluster.Client().PersistentVolumeClaims("ns").Get(w.t.Context(), fmt.Sprint("claim-", i), metav1.GetOptions{})
	w.must(err)
	return claim
}

// patch merges a change into a claim, status included.
func (w *walk) patch(i int, change map[string]any) {
	data, err := json.Marshal(change)
	w.must(err)
	w.must(w.cluster.Merge("persistentvolumeclaims", "ns", fmt.Sprint("claim-", i), data))
}

// step does something at random.
func (w *walk) step() {
	i := w.rand.IntN(walkClaims)
	what := "pass"
	switch n := w.rand.IntN(100); {
	case n < 20:
		what = w.resize(i)
	case n < 33:
		what = w.reclass(i)
	case n < 35:
		w.resize(i)
		w.reclass(i)
		what = "grow and class"
	case n < 55:
		what = w.node(i)
	case n < 72:
		what = w.fault()
	case n < 80:
		what = "api fault"
		w.cluster.Inject(kubetest.Fault{Verb: "patch", Err: w.apiError(), After: w.rand.IntN(2) == 0, Times: 1 + w.rand.IntN(3)})
	case n < 84:
		what = w.toggleClass()
	case n < 86:
		what = "watches broken"
		w.cluster.BreakWatches()
	case n < 89:
		what = "node capability"
		w.driver.SetNode([][]csi.NodeServiceCapability_RPC_Type{{}, csitest.AllNode()}[w.rand.IntN(2)]...)
	case n < 95:
		crash := w.rand.IntN(3) > 0
		what = map[bool]string{true: "kill", false: "restart"}[crash]
		w.end(crash)
		w.launch()
	}
	w.done[what]++
	<-time.After([]time.Duration{0, time.Millisecond, 100 * time.Millisecond, time.Second, 3 * time.Second, 20 * time.Second}[w.rand.IntN(6)])
}

// resize asks for more, or after a failure for less: what the API server allows is more than the claim has.
func (w *walk) resize(i int) string {
	claim := w.claim(i)
	capacity, requested := claim.Status.Capacity[corev1.ResourceStorage], claim.Spec.Resources.Requests[corev1.ResourceStorage]
	size := capacity.Value() + int64(1+w.rand.IntN(4))<<20
	what := "grow"
	if size < requested.Value() {
		what = "shrink"
	}
	w.patch(i, map[string]any{"spec": map[string]any{"resources": map[string]any{"requests": map[string]any{"storage": resource.NewQuantity(size, resource.BinarySI).String()}}}})
	return what
}

// reclass asks for another class, or takes it back where the API server allows that.
func (w *walk) reclass(i int) string {
	names := []any{"gold", "silver", "bad", "gold", "silver"}
	if w.claim(i).Status.CurrentVolumeAttributesClassName == nil {
		names = append(names, nil)
	}
	w.patch(i, map[string]any{"spec": map[string]any{"volumeAttributesClassName": names[w.rand.IntN(len(names))]}})
	return "class"
}

// growAndReclass asks for more and for another class in one write, which the driver gets at the same time. At random, that is rare.
func (w *walk) growAndReclass(i int) {
	<-time.After(time.Minute) // the component knows its driver
	for _, method := range []string{"ControllerExpandVolume", "ControllerModifyVolume"} {
		w.driver.Inject(csitest.Fault{Method: method, Delay: time.Second, Times: 1})
	}
	w.patch(i, map[string]any{"spec": map[string]any{
		"resources": map[string]any{"requests": map[string]any{"storage": "2Gi"}}, "volumeAttributesClassName": "gold",
	}})
	<-time.After(time.Minute)
	if w.open.both == 0 {
		w.t.Error("the volume was not expanded and modified at the same time")
	}
}

// node does what a kubelet does next, if the claim waits for it.
func (w *walk) node(i int) string {
	claim := w.claim(i)
	state := claim.Status.AllocatedResourceStatuses[corev1.ResourceStorage]
	next := map[string]any{}
	what := "nothing on the node"
	switch {
	case state == corev1.PersistentVolumeClaimNodeResizePending && w.rand.IntN(2) == 0:
		what = "node begins"
		next["allocatedResourceStatuses"] = map[string]any{"storage": corev1.PersistentVolumeClaimNodeResizeInProgress}
	case state != corev1.PersistentVolumeClaimNodeResizePending && state != corev1.PersistentVolumeClaimNodeResizeInProgress:
		return what
	case w.rand.IntN(4) == 0:
		what = "node infeasible"
		next["allocatedResourceStatuses"] = map[string]any{"storage": corev1.PersistentVolumeClaimNodeResizeInfeasible}
	default:
		what = "node completes"
		w.complete(i, claim)
		return what
	}
	w.patch(i, map[string]any{"status": next})
	return what
}

// complete completes an expansion on the node.
func (w *walk) complete(i int, claim *corev1.PersistentVolumeClaim) {
	conditions := []corev1.PersistentVolumeClaimCondition{}
	for _, condition := range claim.Status.Conditions {
		if !strings.Contains(string(condition.Type), "Resiz") {
			conditions = append(conditions, condition)
		}
	}
	allocated := claim.Status.AllocatedResources[corev1.ResourceStorage]
	w.patch(i, map[string]any{"status": map[string]any{
		"capacity": map[string]any{"storage": allocated.String()}, "allocatedResourceStatuses": nil, "conditions": conditions,
	}})
}

func (w *walk) fault() string {
	if w.rand.IntN(8) == 0 {
		w.driver.Heal()
		w.cluster.Heal()
		return "heal"
	}
	f := csitest.Fault{
		Method: []string{"ControllerExpandVolume", "ControllerModifyVolume"}[w.rand.IntN(2)],
		Code: []codes.Code{
			codes.Internal, codes.Unavailable, codes.DeadlineExceeded, codes.Aborted, codes.ResourceExhausted, codes.FailedPrecondition, codes.OutOfRange,
		}[w.rand.IntN(7)],
		Delay: []time.Duration{0, 0, time.Second, 15 * time.Second}[w.rand.IntN(4)], Times: 1 + w.rand.IntN(3),
	}
	f.After = w.rand.IntN(2) == 0
	if f.Method == "ControllerModifyVolume" && f.Code == codes.OutOfRange {
		f.Code = codes.Unknown // the class is not applied at all: only a class that the driver refuses ends so
	}
	w.driver.Inject(f)
	return "fault"
}

func (w *walk) apiError() error {
	claims := schema.GroupResource{Resource: "persistentvolumeclaims"}
	return []error{
		apierrors.NewConflict(claims, "x", errCrashed), apierrors.NewServiceUnavailable("injected"), apierrors.NewTimeoutError("injected", 1),
		apierrors.NewForbidden(claims, "x", errCrashed), apierrors.NewInternalError(errCrashed),
	}[w.rand.IntN(5)]
}

// toggleClass deletes a class, or creates it again.
func (w *walk) toggleClass() string {
	name := []string{"gold", "silver"}[w.rand.IntN(2)]
	if err := w.cluster.Remove("volumeattributesclasses", "", name); err == nil {
		w.open.deleteClass(name)
		return "class deleted"
	}
	w.addClass(name)
	return "class created"
}

// settle lets everything come to its end, and compares.
func (w *walk) settle() {
	w.driver.Heal()
	w.cluster.Heal()
	for name := range walkClasses() {
		w.addClass(name)
	}
	for i := range walkClaims { // nobody insists on a class that the driver refuses
		if claim := w.claim(i); claim.Spec.VolumeAttributesClassName != nil && *claim.Spec.VolumeAttributesClassName == "bad" {
			w.patch(i, map[string]any{"spec": map[string]any{"volumeAttributesClassName": "gold"}})
		}
	}
	for range 20 {
		<-time.After(30 * time.Second)
		for i := range walkClaims {
			if claim := w.claim(i); strings.HasPrefix(string(claim.Status.AllocatedResourceStatuses[corev1.ResourceStorage]), "NodeResize") &&
				claim.Status.AllocatedResourceStatuses[corev1.ResourceStorage] != corev1.PersistentVolumeClaimNodeResizeInfeasible {
				w.complete(i, claim)
			}
		}
	}
	volumes := map[string]csitest.Volume{}
	for _, v := range w.driver.Volumes() {
		volumes[v.ID] = v
	}
	for i := range walkClaims {
		w.compare(w.claim(i), volumes[fmt.Sprint("vol-", i)])
	}
}

// compare reports what claim, PersistentVolume and driver disagree about, and what is left over.
func (w *walk) compare(claim *corev1.PersistentVolumeClaim, volume csitest.Volume) {
	pv, err := w.cluster.Client().PersistentVolumes().Get(w.t.Context(), claim.Spec.VolumeName, metav1.GetOptions{})
	w.must(err)
	capacity, requested := claim.Status.Capacity[corev1.ResourceStorage], claim.Spec.Resources.Requests[corev1.ResourceStorage]
	recorded := pv.Spec.Capacity[corev1.ResourceStorage]
	if capacity.Cmp(requested) < 0 || capacity.Cmp(recorded) != 0 || capacity.Value() != volume.Capacity {
		w.t.Errorf("%s: requested %v, claim %v, volume %v, driver %d", claim.Name, requested.String(), capacity.String(), recorded.String(), volume.Capacity)
	}
	if s := claim.Status; len(s.Conditions)+len(s.AllocatedResourceStatuses) > 0 || s.ModifyVolumeStatus != nil {
		w.t.Errorf("%s: left over: %+v", claim.Name, s)
	}
	for name := range pv.Annotations {
		w.t.Errorf("%s: left over: annotation %s", pv.Name, name)
	}
	if wanted, current := claim.Spec.VolumeAttributesClassName, claim.Status.CurrentVolumeAttributesClassName; current != nil {
		if wanted != nil && *wanted != *current {
			w.t.Errorf("%s: wants class %q, has %q", claim.Name, *wanted, *current)
		}
		if pv.Spec.VolumeAttributesClassName == nil || *pv.Spec.VolumeAttributesClassName != *current {
			w.t.Errorf("%s: the claim has class %q, the volume another one: %v", claim.Name, *current, pv.Spec.VolumeAttributesClassName)
		}
		if want := walkClasses()[*current]["iops"]; volume.Mutable["iops"] != want {
			w.t.Errorf("%s: class %q sets iops %q, the driver has %q", claim.Name, *current, want, volume.Mutable["iops"])
		}
	} else if wanted != nil {
		w.t.Errorf("%s: wants class %q, has none", claim.Name, *wanted)
	}
}
