package claim

import (
	"context"
	"fmt"
	"maps"
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
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/longshore-csi/longshore/csikit/kube"
	"github.com/longshore-csi/longshore/csikit/leader"
	"github.com/longshore-csi/longshore/csikittest/csitest"
	"github.com/longshore-csi/longshore/csikittest/kubetest"
	"github.com/longshore-csi/longshore/csikittest/reconciletest"
	"github.com/longshore-csi/longshore/csikittest/seeds"
	"github.com/longshore-csi/longshore/provisioner/internal/journal"
	"github.com/longshore-csi/longshore/provisioner/internal/kubeapitest"
	"github.com/longshore-csi/longshore/provisioner/internal/kubeapitest/fixtures"
	"github.com/longshore-csi/longshore/provisioner/internal/view"
)

// chaos plays users, the controller manager, a bad driver and a bad API server against one controller.
type chaos struct {
	t       *testing.T
	random  *rand.Rand
	cluster *kubetest.Cluster
	driver  *csitest.Driver
	// made counts the claims, and names them; shared counts the writes of the journal.
	made, shared int
	// args are what the processes of live are started with.
	args map[string]string

	mu sync.Mutex
	// late has the requests, by volume name, that the driver is still working on although their callers have given up.
	late map[string]*csi.CreateVolumeRequest
}

// TestChaos does 150 random things, then lets everything heal: each claim that is left has exactly
// one volume, and the driver has no other. The driver may end a call in any way; what it does not do is to report a
// failure in answer to the first attempt for a volume and make that volume all the same.
func TestChaos(t *testing.T) {
	seeds.Each(t, func(t *testing.T, seed uint64) {
		synctest.Test(t, func(t *testing.T) { playChaos(t, rand.New(rand.NewPCG(seed, 0))) })
	})
}

// TestChaosKills is TestChaos with a process that is killed now and then, or ends as it is asked to: the next one goes on from the records, which an elected one
// that ends hands over while its calls are running.
func TestChaosKills(t *testing.T) {
	for name, elected := range map[string]bool{"Elected": true, "Alone": false} {
		t.Run(name, func(t *testing.T) {
			seeds.Each(t, func(t *testing.T, seed uint64) {
				synctest.Test(t, func(t *testing.T) { playKills(t, elected, rand.New(rand.NewPCG(seed, 0))) })
			})
		})
	}
}

// life is one process.
type life struct {
	session *kubetest.Session
	conn    *cutConn
	stop    context.CancelCauseFunc
	ended   chan error
	// resigned is closed when another process may begin.
	resigned chan struct{}
}

// cutConn is the connection of a process to the driver, which a test can cut: then nothing reaches the driver, and no answer
// comes back.
type cutConn struct {
	grpc.ClientConnInterface
	cut atomic.Bool
}

// Invoke implements grpc.ClientConnInterface.
func (c *cutConn) Invoke(ctx context.Context, method string, args, reply any, opts ...grpc.CallOption) error {
	lost := status.Error(codes.Unavailable, "the connection is cut")
	if c.cut.Load() {
		return lost
	}
	if err := c.ClientConnInterface.Invoke(ctx, method, args, reply, opts...); !c.cut.Load() {
		return err
	}
	return lost
}

// live starts a process.
func (g *chaos) live(ctx context.Context, self process) *life {
	g.t.Helper()
	ctx, stop := context.WithCancelCause(ctx)
	l := &life{session: g.cluster.NewSession(), conn: &cutConn{ClientConnInterface: g.driver.Conn()}, stop: stop, ended: make(chan error, 1), resigned: make(chan struct{})}
	resign := sync.OnceFunc(func() { close(l.resigned) })
	if self.term != (journal.Term{}) {
		self.resign = resign
	}
	go func() {
		defer resign()
		l.ended <- runAs(ctx, &reconciletest.Env{Kube: l.session.Client(), Conn: l.conn, Driver: g.driver, Cluster: g.cluster, Args: g.args}, self)
	}()
	return l
}

// kill ends a process without giving it any chance to finish its work. What it still tries has no effect.
func (l *life) kill() {
	l.session.Cut()
	l.conn.cut.Store(true)
	l.stop(leader.ErrLost)
}

// end asks a process to end, and waits until another one may begin.
func (l *life) end() {
	l.stop(context.Canceled)
	<-l.resigned
}

// playKills plays one game with several processes.
func playKills(t *testing.T, elected bool, random *rand.Rand) {
	t.Helper()
	g := &chaos{t: t, random: random, cluster: kubeapitest.NewCluster(fixtures.Class()), driver: csitest.New(csitest.Options{})}
	g.heal()
	ctx := klog.NewContext(t.Context(), klog.Logger{})
	self := process{identity: "life-0"}
	if elected {
		self.term = journal.Term{Lease: "election"}
	}
	lives := []*life{g.live(ctx, self)}
	for range 150 {
		g.move()
		time.Sleep(time.Duration(random.IntN(20000)) * time.Millisecond)
		if random.IntN(4) == 0 {
			if last := lives[len(lives)-1]; random.IntN(2) == 0 {
				last.kill()
			} else {
				last.end()
			}
			self.identity = fmt.Sprint("life-", len(lives))
			if elected {
				self.term.Transitions++
			}
			lives = append(lives, g.live(ctx, self))
		}
		g.manage()
	}
	g.heal()
	for range 30 { // long enough for the longest pause
		time.Sleep(time.Minute)
		g.manage()
	}
	g.check()
	last := lives[len(lives)-1]
	last.stop(context.Canceled)
	for i, l := range lives {
		if err := <-l.ended; err != nil && l == last {
			t.Errorf("process %d ended with %v", i, err)
		}
	}
	for _, object := range append(g.cluster.Objects("leases"), g.cluster.Objects("persistentvolumeclaims")...) {
		if hasRecords(object) {
			t.Errorf("records are left: %v", object.GetAnnotations())
		}
	}
}

// playChaos plays one game.
func playChaos(t *testing.T, random *rand.Rand) {
	t.Helper()
	g := &chaos{t: t, random: random, cluster: kubeapitest.NewCluster(fixtures.Class()), driver: csitest.New(csitest.Options{})}
	g.heal()
	ctx, cancel := context.WithCancel(klog.NewContext(t.Context(), klog.Logger{}))
	ended := make(chan error, 1)
	go func() {
		ended <- runController(ctx, &reconciletest.Env{Kube: g.cluster.Client(), Conn: g.driver.Conn(), Driver: g.driver, Cluster: g.cluster})
	}()
	for range 150 {
		g.move()
		time.Sleep(time.Duration(random.IntN(20000)) * time.Millisecond)
		g.manage()
	}
	g.heal()
	for range 30 { // long enough for the longest pause
		time.Sleep(time.Minute)
		g.manage()
	}
	g.check()
	cancel()
	if err := <-ended; err != nil {
		t.Errorf("the controller ended with %v", err)
	}
}

// move does one random thing.
func (g *chaos) move() {
	switch g.random.IntN(10) {
	case 0, 1, 2:
		g.create()
	case 3, 4:
		g.deleteAny("persistentvolumeclaims")
	case 5:
		g.deleteAny("persistentvolumes")
	case 6:
		g.driver.Inject(g.driverFault())
	case 7:
		g.cluster.Inject(g.apiFault())
	case 8:
		g.cluster.BreakWatches()
	case 9:
		g.heal()
	}
}

// create makes a claim.
func (g *chaos) create() {
	g.made++
	claim := fixtures.Claim()
	claim.Name, claim.ResourceVersion = fmt.Sprintf("claim-%d", g.made), ""
	claim.UID = types.UID(claim.Name)
	if source := g.pickBound(); source != "" && g.random.IntN(2) == 0 {
		claim.Spec.DataSource = &corev1.TypedLocalObjectReference{Kind: view.KindClaim, Name: source}
	}
	g.apply(claim)
}

// pickBound returns the name of a random claim that is bound.
func (g *chaos) pickBound() string {
	var bound []string
	for _, obj := range g.cluster.Objects("persistentvolumeclaims") {
		if claim, ok := obj.(*corev1.PersistentVolumeClaim); ok && claim.Status.Phase == corev1.ClaimBound {
			bound = append(bound, claim.Name)
		}
	}
	if len(bound) == 0 {
		return ""
	}
	return bound[g.random.IntN(len(bound))]
}

// apply stores an object.
func (g *chaos) apply(obj kube.Object) {
	if err := g.cluster.Apply(obj); err != nil {
		g.t.Fatal(err)
	}
}

// deleteAny deletes a random object, unless the controller is faster.
func (g *chaos) deleteAny(resource string) {
	objs := g.cluster.Objects(resource)
	if len(objs) == 0 {
		return
	}
	obj := objs[g.random.IntN(len(objs))]
	if err := g.cluster.Remove(resource, obj.GetNamespace(), obj.GetName()); err != nil && !apierrors.IsNotFound(err) {
		g.t.Fatal(err)
	}
}

// The codes by which the driver ends a call: they say that it has failed, or nothing about its outcome.
var (
	failures = []codes.Code{codes.Internal, codes.InvalidArgument, codes.ResourceExhausted, codes.PermissionDenied, codes.OutOfRange, codes.AlreadyExists, codes.Unknown}
	unknowns = []codes.Code{codes.DeadlineExceeded, codes.Unavailable, codes.Aborted, codes.Canceled}
)

// driverFault returns something that goes wrong in the driver.
func (g *chaos) driverFault() csitest.Fault {
	fault := csitest.Fault{Times: 1 + g.random.IntN(5), Method: []string{"CreateVolume", "DeleteVolume"}[g.random.IntN(2)]}
	switch g.random.IntN(4) {
	case 0:
		fault.Code = failures[g.random.IntN(len(failures))]
		return fault
	case 1:
		fault.Method, fault.Code = "CreateVolume", unknowns[g.random.IntN(len(unknowns))]
		fault.Match = g.makeLate(time.Duration(1+g.random.IntN(90)) * time.Second)
		return fault
	}
	fault.After, fault.Code = g.random.IntN(2) == 0, unknowns[g.random.IntN(len(unknowns))]
	switch g.random.IntN(3) {
	case 0:
		fault.Hang = true
	case 1:
		fault.Delay = time.Duration(g.random.IntN(9)) * time.Second
	}
	return fault
}

// makeLate returns the condition of a fault: the driver ends the call, and makes the volume some time later.
func (g *chaos) makeLate(after time.Duration) func(proto.Message) bool {
	return func(request proto.Message) bool {
		create, ok := request.(*csi.CreateVolumeRequest)
		if !ok || g.volumeExists(create.GetName()) {
			return false
		}
		g.mu.Lock()
		defer g.mu.Unlock()
		if _, ok := g.late[create.GetName()]; !ok {
			g.late[create.GetName()] = proto.CloneOf(create)
			time.AfterFunc(after, func() { g.finishLate(create.GetName()) })
		}
		return true
	}
}

// volumeExists reports whether the driver has a volume of that name.
func (g *chaos) volumeExists(name string) bool {
	return slices.ContainsFunc(g.driver.Volumes(), func(v csitest.Volume) bool { return v.Name == name })
}

// finishLate ends the work on a volume, which the driver may or may not be able to make by now.
func (g *chaos) finishLate(name string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if request, ok := g.late[name]; ok {
		_, _ = g.driver.CreateVolume(context.Background(), request)
		delete(g.late, name)
	}
}

// answersLate returns the condition of a fault with a code: the request is for a volume that the driver still works on, and
// it is the turn of that code. No code means anything then.
func (g *chaos) answersLate(code codes.Code) func(proto.Message) bool {
	all := slices.Concat(failures, unknowns)
	return func(request proto.Message) bool {
		create, ok := request.(*csi.CreateVolumeRequest)
		if !ok {
			return false
		}
		g.mu.Lock()
		defer g.mu.Unlock()
		_, late := g.late[create.GetName()]
		return late && all[int(time.Now().Unix()/3)%len(all)] == code
	}
}

// heal ends all faults, and what the driver still works on. What stays is how it answers meanwhile.
func (g *chaos) heal() {
	g.mu.Lock()
	names := slices.Collect(maps.Keys(g.late))
	if g.late == nil {
		g.late = map[string]*csi.CreateVolumeRequest{}
	}
	g.mu.Unlock()
	for _, name := range names {
		g.finishLate(name)
	}
	g.cluster.Heal()
	g.driver.Heal()
	for _, code := range slices.Concat(failures, unknowns) {
		g.driver.Inject(csitest.Fault{Method: "CreateVolume", Code: code, Match: g.answersLate(code)})
	}
}

// ofHalf matches the requests about the volumes of one half of the claims.
func ofHalf(half string) func(proto.Message) bool {
	return func(request proto.Message) bool {
		create, ok := request.(*csi.CreateVolumeRequest)
		return ok && strings.HasSuffix(create.GetName(), half)
	}
}

// apiFault returns something that goes wrong on the way to the API server.
func (g *chaos) apiFault() kubetest.Fault {
	fault := kubetest.Fault{Times: 1 + g.random.IntN(5), After: g.random.IntN(2) == 0}
	fault.Verb = []string{"create", "patch", "delete", "get", "update"}[g.random.IntN(5)]
	fault.Resource = []string{"persistentvolumes", "persistentvolumeclaims"}[g.random.IntN(2)]
	fault.Err = []error{
		apierrors.NewServiceUnavailable("away"),
		apierrors.NewInternalError(context.DeadlineExceeded),
		apierrors.NewTooManyRequests("busy", 1),
	}[g.random.IntN(3)]
	return fault
}

// manage does what the controller manager does: it binds claims, and releases volumes whose claim is gone.
func (g *chaos) manage() {
	claims := map[types.UID]*corev1.PersistentVolumeClaim{}
	for _, obj := range g.cluster.Objects("persistentvolumeclaims") {
		if claim, ok := obj.(*corev1.PersistentVolumeClaim); ok {
			claims[claim.UID] = claim
		}
	}
	for _, obj := range g.cluster.Objects("persistentvolumes") {
		pv, ok := obj.(*corev1.PersistentVolume)
		if !ok {
			continue
		}
		claim := claims[pv.Spec.ClaimRef.UID]
		switch {
		case claim == nil && pv.Status.Phase != corev1.VolumeReleased:
			g.merge("persistentvolumes", pv, `{"status":{"phase":"Released"}}`)
		case claim != nil && pv.Status.Phase != corev1.VolumeBound:
			g.merge("persistentvolumes", pv, `{"status":{"phase":"Bound"}}`)
			g.merge("persistentvolumeclaims", claim, fmt.Sprintf(`{"spec":{"volumeName":%q},"status":{"phase":"Bound"}}`, pv.Name))
		}
	}
}

// merge changes an object that the controller may have changed, or removed, since it was read.
func (g *chaos) merge(resource string, obj kube.Object, patch string) {
	if err := g.cluster.Merge(resource, obj.GetNamespace(), obj.GetName(), []byte(patch)); err != nil && !apierrors.IsNotFound(err) {
		g.t.Fatal(err)
	}
}

// exists reports whether there is a claim of that name.
func (g *chaos) exists(name string) bool {
	return slices.ContainsFunc(g.cluster.Objects("persistentvolumeclaims"), func(obj kube.Object) bool { return obj.GetName() == name })
}

// check compares claims, PersistentVolumes and volumes of the driver. No claim is kept for its clones any more.
func (g *chaos) check() {
	wanted, orphans := map[string]bool{}, map[string]bool{}
	for _, obj := range g.cluster.Objects("persistentvolumeclaims") {
		claim, _ := obj.(*corev1.PersistentVolumeClaim)
		name := "pvc-" + string(claim.UID)
		wanted[name] = true
		if source := claim.Spec.DataSource; source != nil && !g.exists(source.Name) {
			orphans[name] = true
		}
		if slices.Contains(claim.Finalizers, view.FinalizerClone) {
			g.t.Errorf("claim %q is kept for nothing", claim.Name)
		}
	}
	for _, obj := range g.cluster.Objects("persistentvolumes") {
		if !wanted[obj.GetName()] {
			g.t.Errorf("PersistentVolume %q is left over", obj.GetName())
		}
	}
	held := map[string]bool{}
	for _, v := range g.driver.Volumes() {
		held[v.Name] = true
		if !wanted[v.Name] {
			g.t.Errorf("volume %q is leaked", v.Name)
		}
	}
	for name := range wanted {
		if !held[name] && !orphans[name] {
			g.t.Errorf("claim of volume %q has none", name)
		}
	}
	for _, violation := range g.driver.Violations() {
		g.t.Errorf("against the life cycle of CSI: %s", violation)
	}
}
