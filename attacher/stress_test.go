package attacher

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/klog/v2"

	"github.com/longshore-csi/longshore/csikit/csiclient"
	"github.com/longshore-csi/longshore/csikit/sidecar"
	"github.com/longshore-csi/longshore/csikittest/csitest"
	"github.com/longshore-csi/longshore/csikittest/kubetest"
	"github.com/longshore-csi/longshore/csikittest/seeds"
)

const (
	stressVolumes = 6
	stressNodes   = 4
	stressSteps   = 150

	// newFormat is what some IDs of nodes end in.
	newFormat = "-new"
)

// world is a cluster in which everything goes wrong now and then.
type world struct {
	t       *testing.T
	rand    *rand.Rand
	cluster *kubetest.Cluster
	driver  *csitest.Driver
	calls   *callGuard

	lost    bool // the driver does not announce its capabilities
	session *kubetest.Session
	running *life
	cancel  context.CancelCauseFunc
	ended   chan error
}

// life is one life of the attacher. The controller is nil while the driver is not known.
type life struct {
	driver     *csiclient.Client
	controller atomic.Pointer[sidecar.Controller]
}

// callGuard is a connection that allows one call at a time per volume and node.
type callGuard struct {
	grpc.ClientConnInterface
	t *testing.T
	// check sees each request before the driver does. nil: no check.
	check func(method string, request onNode)

	mu      sync.Mutex
	running map[string]string
}

// onNode is a request about a volume on a node.
type onNode interface {
	GetVolumeId() string
	GetNodeId() string
}

// Invoke implements grpc.ClientConnInterface.
func (g *callGuard) Invoke(ctx context.Context, method string, args, reply any, opts ...grpc.CallOption) error {
	if request, ok := args.(onNode); ok {
		if g.check != nil {
			g.check(method, request)
		}
		key := request.GetVolumeId() + " on " + request.GetNodeId()
		g.mu.Lock()
		if other, busy := g.running[key]; busy {
			g.t.Errorf("%s of %s while %s is running", method, key, other)
		}
		g.running[key] = method
		g.mu.Unlock()
		defer func() {
			g.mu.Lock()
			delete(g.running, key)
			g.mu.Unlock()
		}()
	}
	return g.ClientConnInterface.Invoke(ctx, method, args, reply, opts...)
}

// pass lets virtual time pass.
func pass(d time.Duration) { <-time.After(d) }

// errKilled ends a component as a crash does: nothing may be finished.
var errKilled error = killed{}

type killed struct{}

func (killed) Error() string { return "killed" }
func (killed) Abort() bool   { return true }

func newWorld(t *testing.T, seed uint64) *world {
	t.Helper()
	driver := csitest.New(csitest.Options{Name: driverName})
	w := &world{
		t: t, rand: rand.New(rand.NewPCG(seed, 0)), cluster: kubetest.New(), driver: driver, //nolint:gosec // a test wants to be repeated
		calls: &callGuard{ClientConnInterface: driver.Conn(), t: t, running: map[string]string{}},
	}
	for i := range stressNodes {
		w.register(i)
	}
	for i := range stressVolumes {
		driver.AddVolume(csitest.Volume{ID: fmt.Sprintf("vol-%d", i)})
		w.addPV(i)
	}
	return w
}

func (w *world) must(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) register(node int) {
	csiNode := testCSINode()
	csiNode.Name, csiNode.Spec.Drivers[0].NodeID = fmt.Sprintf("node-%d", node), fmt.Sprintf("id-%d", node)
	w.must(w.cluster.Apply(csiNode))
}

// renumber registers a node under another ID than before: the format of the driver's IDs has changed.
func (w *world) renumber(node int) {
	csiNode := testCSINode()
	csiNode.Name, csiNode.Spec.Drivers[0].NodeID = fmt.Sprintf("node-%d", node), fmt.Sprintf("id-%d%s", node, newFormat)
	w.must(w.cluster.Apply(csiNode))
}

func (w *world) addPV(volume int) {
	pv := testPV()
	pv.Name, pv.Spec.CSI.VolumeHandle = fmt.Sprintf("pv-%d", volume), fmt.Sprintf("vol-%d", volume)
	pv.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadWriteMany}
	w.must(w.cluster.Apply(pv))
}

// launch begins a life of the component.
func (w *world) launch() {
	o, err := parse("--retry-interval-max=10s", "--reconcile-sync=30s", "--leader-election", "--worker-threads=3")
	w.must(err)
	w.session = w.cluster.NewSession()
	config := inMemory(o, w.session.Client(), fmt.Sprint(w.rand.Int()))
	config.CSI.Conn = w.calls
	config.New = w.observe(config.New)
	ctx, cancel := context.WithCancelCause(klog.NewContext(context.Background(), klog.Logger{}))
	w.cancel, w.ended = cancel, make(chan error, 1)
	go func() { w.ended <- sidecar.Run(ctx, config) }()
}

// observe remembers the controller, and the connection of it to the driver.
func (w *world) observe(newWork func(context.Context, sidecar.Environment) (sidecar.Work, error)) func(context.Context, sidecar.Environment) (sidecar.Work, error) {
	life := &life{}
	w.running = life
	return func(ctx context.Context, env sidecar.Environment) (sidecar.Work, error) {
		work, err := newWork(ctx, env)
		newController := work.NewController
		work.NewController = func() sidecar.Controller {
			controller := newController()
			life.controller.Store(&controller)
			return controller
		}
		life.driver = env.CSI
		return work, err
	}
}

// end ends it, in good order or not.
func (w *world) end(crash bool) {
	if crash {
		w.session.Cut()
		w.cancel(errKilled)
		<-w.ended
		return
	}
	w.cancel(nil)
	w.must(<-w.ended)
}

// step does something at random.
func (w *world) step() {
	volume, node := w.rand.IntN(stressVolumes), w.rand.IntN(stressNodes)
	name := fmt.Sprintf("va-%d-%d", volume, node)
	switch n := w.rand.IntN(100); {
	case n < 40:
		w.create(name, volume, node)
	case n < 70:
		w.ignoreNotFound(w.cluster.Remove("volumeattachments", "", name))
	case n < 80:
		w.driver.Inject(csitest.Fault{
			Code: w.code(), After: w.rand.IntN(2) == 0, Delay: w.pause(), Times: 1 + w.rand.IntN(3),
			Method: []string{"ControllerPublishVolume", "ControllerUnpublishVolume", "ListVolumes"}[w.rand.IntN(3)],
		})
	case n < 87:
		w.cluster.Inject(kubetest.Fault{Verb: "patch", Err: w.apiError(), After: w.rand.IntN(2) == 0, Times: 1 + w.rand.IntN(3)})
	case n < 90:
		w.ignoreNotFound(w.cluster.Remove("csinodes", "", fmt.Sprintf("node-%d", node)))
	case n < 93:
		w.register(node)
	case n < 94:
		w.renumber(node)
	case n < 95:
		w.cluster.BreakWatches()
	case n < 97:
		w.setLost(!w.lost)
		if w.rand.IntN(2) == 0 {
			w.reconnect()
		}
	default:
		w.end(w.rand.IntN(2) == 0)
		w.launch()
	}
	pass(w.pause())
}

// setLost takes the capabilities from the driver, or gives them back.
func (w *world) setLost(lost bool) {
	w.lost = lost
	if lost {
		w.driver.SetController()
		return
	}
	w.driver.SetController(csitest.AllController()...)
}

// reconnect does what the component does when its connection to the driver is a new one.
func (w *world) reconnect() {
	if controller := w.running.controller.Load(); controller != nil {
		ctx := klog.NewContext(w.t.Context(), klog.Logger{})
		_, err := w.running.driver.Wait(ctx)
		w.must(err)
		(*controller).DriverChanged(ctx)
	}
}

// checkCall reports a volume that is taken away from a node while its VolumeAttachment is attached.
func (w *world) checkCall(method string, request onNode) {
	if !strings.HasSuffix(method, "/ControllerUnpublishVolume") {
		return
	}
	name := attachmentName(request.GetVolumeId(), request.GetNodeId())
	for _, obj := range w.cluster.Objects("volumeattachments") {
		va, ok := obj.(*storagev1.VolumeAttachment)
		if ok && va.Name == name && va.Status.Attached && va.DeletionTimestamp == nil {
			w.t.Errorf("%s is taken away from node ID %s while it is attached", name, request.GetNodeId())
		}
	}
}

// attachmentName returns the name of the VolumeAttachment for a volume and the ID of a node.
func attachmentName(volume, node string) string {
	return "va-" + volume[len("vol-"):] + "-" + strings.TrimSuffix(node[len("id-"):], newFormat)
}

// checkWrite compares a write with what the driver has attached at that moment: no VolumeAttachment is marked attached
// without a call, and none loses its finalizer while its volume is attached.
func (w *world) checkWrite(write kubetest.Write) {
	before, ok := write.Before.(*storagev1.VolumeAttachment)
	if !ok || write.Err != nil {
		return
	}
	published := slices.Contains(w.published(), before.Name)
	after, _ := write.Object.(*storagev1.VolumeAttachment)
	if after != nil && !before.Status.Attached && after.Status.Attached && !published {
		w.t.Errorf("%s is marked attached, the driver has not attached it", before.Name)
	}
	if len(before.Finalizers) > 0 && (after == nil || len(after.Finalizers) == 0) && published {
		w.t.Errorf("%s has lost its finalizer, the driver has attached it", before.Name)
	}
}

func (w *world) create(name string, volume, node int) {
	if slices.Contains(w.attachments(), name) {
		return
	}
	va := testVA(name)
	va.Spec.NodeName = fmt.Sprintf("node-%d", node)
	va.Spec.Source.PersistentVolumeName = new(fmt.Sprintf("pv-%d", volume))
	w.must(w.cluster.Apply(va))
}

func (w *world) ignoreNotFound(err error) {
	if !apierrors.IsNotFound(err) {
		w.must(err)
	}
}

func (w *world) pause() time.Duration { return time.Duration(w.rand.IntN(1500)) * time.Millisecond }

func (w *world) code() codes.Code {
	return []codes.Code{codes.Internal, codes.DeadlineExceeded, codes.Unavailable, codes.Aborted}[w.rand.IntN(4)]
}

func (w *world) apiError() error {
	return []error{
		apierrors.NewConflict(schema.GroupResource{}, "", errors.New("injected")),
		apierrors.NewServiceUnavailable("injected"),
		apierrors.NewTimeoutError("injected", 1),
	}[w.rand.IntN(3)]
}

// attachments returns the names of all VolumeAttachments.
func (w *world) attachments() []string {
	var names []string
	for _, obj := range w.cluster.Objects("volumeattachments") {
		names = append(names, obj.GetName())
	}
	slices.Sort(names)
	return names
}

// published returns what the driver has attached, by the names of VolumeAttachments.
func (w *world) published() []string {
	var names []string
	for _, volume := range w.driver.Volumes() {
		for _, node := range volume.Nodes {
			names = append(names, attachmentName(volume.ID, node))
		}
	}
	slices.Sort(names)
	return names
}

// calm repairs everything and waits until nothing is left to do.
func (w *world) calm() {
	w.driver.Heal()
	w.cluster.Heal()
	w.setLost(false)
	for i := range stressNodes {
		w.register(i)
	}
	pass(10 * time.Minute)
}

// check compares what is wanted with what there is.
func (w *world) check(when string) {
	w.t.Helper()
	for _, obj := range w.cluster.Objects("volumeattachments") {
		va, err := w.session.Client().VolumeAttachments().Get(w.t.Context(), obj.GetName(), metav1.GetOptions{})
		w.must(err)
		if va.DeletionTimestamp != nil || !va.Status.Attached || va.Status.AttachError != nil {
			w.t.Errorf("%s: VolumeAttachment %s is not in order: %+v", when, va.Name, va)
		}
	}
	if want, got := w.attachments(), w.published(); !slices.Equal(want, got) {
		w.t.Errorf("%s: VolumeAttachments %q, attached by the driver %q", when, want, got)
	}
}

// TestStress lets the component live through random faults, crashes and orders, and checks that
// everything comes right in the end: what is wanted is attached, nothing else is, nothing stays behind.
func TestStress(t *testing.T) {
	seeds.Each(t, func(t *testing.T, seed uint64) {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t, seed)
			w.cluster.Observe(w.checkWrite)
			w.calls.check = w.checkCall
			w.launch()
			w.create("va-0-0", 0, 0) // a driver that never attached a volume may mark the first ones attached
			pass(time.Minute)
			for range 2 {
				for range stressSteps {
					w.step()
				}
				w.calm()
				w.check("after the storm")
			}
			for i := range stressVolumes {
				w.must(w.cluster.Remove("persistentvolumes", "", fmt.Sprintf("pv-%d", i)))
			}
			for _, name := range w.attachments() {
				w.must(w.cluster.Remove("volumeattachments", "", name))
			}
			w.calm()
			w.check("in the end")
			if left := len(w.cluster.Objects("persistentvolumes")) + len(w.attachments()); left > 0 {
				t.Errorf("%d objects stay behind", left)
			}
			w.end(false)
		})
	})
}
