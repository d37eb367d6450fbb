package provisioner

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"go.uber.org/goleak"
	"google.golang.org/grpc/codes"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/longshore-csi/longshore/csikit/csiclient"
	"github.com/longshore-csi/longshore/csikit/csitest"
	"github.com/longshore-csi/longshore/csikit/kube"
	"github.com/longshore-csi/longshore/csikit/kubetest"
	"github.com/longshore-csi/longshore/csikit/leader"
	"github.com/longshore-csi/longshore/csikit/metrics"
	"github.com/longshore-csi/longshore/provisioner/internal/intents"
	"github.com/longshore-csi/longshore/provisioner/internal/kubeapitest"
	"github.com/longshore-csi/longshore/provisioner/internal/volume"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m)
}

// newClass returns a class of the test driver.
func newClass() *storagev1.StorageClass {
	return &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: "fast"}, Provisioner: csitest.DefaultName}
}

// newClaim returns a claim that wants a volume of the test driver.
func newClaim(name string) *corev1.PersistentVolumeClaim {
	class := "fast"
	return &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "team", Name: name, UID: types.UID("uid-" + name),
			Annotations: map[string]string{"volume.kubernetes.io/storage-provisioner": csitest.DefaultName},
		},
		Spec: corev1.PersistentVolumeClaimSpec{
			StorageClassName: &class,
			AccessModes:      []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			Resources: corev1.VolumeResourceRequirements{
				Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")},
			},
		},
	}
}

// process is one running instance.
type process struct {
	*instance
	session *kubetest.Session
	cancel  context.CancelFunc
	err     chan error
}

// launch starts an instance on the cluster, with the driver in the same process.
func launch(t *testing.T, name string, cluster *kubetest.Cluster, driver *csitest.Driver, o Options) *process {
	t.Helper()
	client, err := csiclient.New(csiclient.Config{Conn: driver.Conn()})
	if err != nil {
		t.Fatal(err)
	}
	session := cluster.NewSession()
	ctx, cancel := context.WithCancel(t.Context())
	p := &process{
		instance: newInstance(o, environment{kube: kubeapitest.New(session.Client()), driver: client, registry: metrics.NewRegistry(), identity: name, host: name}),
		session:  session, cancel: cancel, err: make(chan error, 1),
	}
	go func() { p.err <- p.serve(ctx, nil) }()
	return p
}

// stop ends the instance in good order.
func (p *process) stop(t *testing.T) {
	t.Helper()
	p.cancel()
	if err := <-p.err; err != nil {
		t.Errorf("instance %s ended with %v, want a good end", p.identity, err)
	}
}

// withElection returns options with leader election.
func withElection() Options {
	o := NewOptions()
	o.LeaderElection.Enabled = true
	o.LeaderElection.Namespace = "storage"
	return o
}

// pass lets virtual time pass.
func pass(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// apply stores objects, as users do.
func apply(t *testing.T, cluster *kubetest.Cluster, objs ...kube.Object) {
	t.Helper()
	for _, obj := range objs {
		if err := cluster.Apply(obj); err != nil {
			t.Fatal(err)
		}
	}
}

// makers returns who made the volumes, by claim.
func makers(cluster *kubetest.Cluster) map[string]string {
	found := map[string]string{}
	for _, obj := range cluster.Objects("persistentvolumes") {
		if pv, ok := obj.(*corev1.PersistentVolume); ok {
			found[pv.Spec.ClaimRef.Name] = pv.Spec.CSI.VolumeAttributes[volume.AttrIdentity]
		}
	}
	return found
}

// wantMaker checks who made the volume of a claim.
func wantMaker(t *testing.T, cluster *kubetest.Cluster, claim, maker string) {
	t.Helper()
	want := maker
	if maker != "" {
		want = fmt.Sprintf("%s-%s", maker, csitest.DefaultName)
	}
	if got := makers(cluster)[claim]; got != want {
		t.Errorf("the volume of claim %q was made by %q, want %q", claim, got, want)
	}
}

func TestLeaderHandsOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cluster, driver := kubetest.New(newClass()), csitest.New(csitest.Options{})
		first := launch(t, "first", cluster, driver, withElection())
		pass(time.Second)
		second := launch(t, "second", cluster, driver, withElection())
		apply(t, cluster, newClaim("a"))
		pass(10 * time.Second)
		wantMaker(t, cluster, "a", "first")

		first.stop(t)
		apply(t, cluster, newClaim("b"))
		pass(10 * time.Second)
		wantMaker(t, cluster, "b", "second")
		second.stop(t)
	})
}

// TestLostLease cuts a leader off while CreateVolume runs: it ends with an error, and its successor brings
// the same volume to its end.
func TestLostLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cluster, driver := kubetest.New(newClass()), csitest.New(csitest.Options{})
		o := withElection()
		o.CSI.Timeout = time.Minute
		first := launch(t, "first", cluster, driver, o)
		pass(time.Second)
		second := launch(t, "second", cluster, driver, o)
		driver.Inject(csitest.Fault{Method: "CreateVolume", After: true, Hang: true, Times: 1})
		apply(t, cluster, newClaim("a"))
		pass(time.Second)
		if n := len(driver.Volumes()); n != 1 {
			t.Fatalf("the driver has %d volumes, want one whose maker has not heard of it", n)
		}

		first.session.Cut()
		pass(time.Minute)
		if err := <-first.err; !errors.Is(err, leader.ErrLost) {
			t.Errorf("the leader ended with %v, want %v", err, leader.ErrLost)
		}
		wantMaker(t, cluster, "a", "second")
		if n := len(driver.Volumes()); n != 1 {
			t.Errorf("the driver has %d volumes, want 1", n)
		}
		second.stop(t)
	})
}

// TestNewCapabilities lets the driver come back with other capabilities while the outcome of CreateVolume is
// open and the claim is deleted: a new controller watches other objects, and the volume is not forgotten.
func TestNewCapabilities(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		create := csi.ControllerServiceCapability_RPC_CREATE_DELETE_VOLUME
		publish := csi.ControllerServiceCapability_RPC_PUBLISH_UNPUBLISH_VOLUME
		cluster := kubetest.New(newClass())
		driver := csitest.New(csitest.Options{Controller: []csi.ControllerServiceCapability_RPC_Type{create}})
		driver.Inject(csitest.Fault{Method: "CreateVolume", After: true, Code: codes.DeadlineExceeded, Times: 1})
		driver.Inject(csitest.Fault{Method: "CreateVolume", Code: codes.Unavailable, Times: 3})
		p := launch(t, "only", cluster, driver, NewOptions())
		apply(t, cluster, newClaim("a"))
		pass(500 * time.Millisecond)
		if got := p.shapeNow(); got {
			t.Error("VolumeAttachments are watched for a driver that attaches nothing")
		}

		driver.SetController(create, publish)
		info, err := p.driver.Wait(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if err := cluster.Remove("persistentvolumeclaims", "team", "a"); err != nil {
			t.Fatal(err)
		}
		p.driverIsBack(info)
		pass(time.Minute)
		if got := p.shapeNow(); !got {
			t.Error("VolumeAttachments are not watched for a driver that attaches")
		}
		if n := len(driver.Volumes()); n != 0 {
			t.Errorf("the driver still has %d volumes of a claim that was deleted", n)
		}
		if open := p.intents.List(); len(open) != 0 {
			t.Errorf("open intents %v, want none", open)
		}
		p.stop(t)
	})
}

// TestNewCapabilitiesAtStart lets the driver come back with other capabilities before the first lists are complete: the
// next controller takes the place of one that never worked.
func TestNewCapabilitiesAtStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		create := csi.ControllerServiceCapability_RPC_CREATE_DELETE_VOLUME
		cluster := kubetest.New(newClass(), newClaim("a"))
		cluster.Fail("", "persistentvolumes", apierrors.NewServiceUnavailable("away"), 0)
		driver := csitest.New(csitest.Options{Controller: []csi.ControllerServiceCapability_RPC_Type{create}})
		p := launch(t, "only", cluster, driver, NewOptions())
		pass(time.Minute)
		if err := p.cachesReady(t.Context()); err == nil {
			t.Error("the check of the caches succeeds before they are complete")
		}

		driver.SetController(create, csi.ControllerServiceCapability_RPC_PUBLISH_UNPUBLISH_VOLUME)
		info, err := p.driver.Wait(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		p.driverIsBack(info)
		pass(time.Minute)
		if !p.shapeNow() {
			t.Error("VolumeAttachments are not watched for a driver that attaches")
		}
		cluster.Heal()
		pass(10 * time.Minute)
		wantMaker(t, cluster, "a", "only")
		p.stop(t)
	})
}

// shapeNow reports whether VolumeAttachments are watched.
func (p *process) shapeNow() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.shape.Attachments
}

// TestCapabilitiesOfTheSameShape has a refused claim looked at again when the driver comes back.
func TestCapabilitiesOfTheSameShape(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cluster := kubetest.New(newClass())
		driver := csitest.New(csitest.Options{Controller: []csi.ControllerServiceCapability_RPC_Type{}})
		p := launch(t, "only", cluster, driver, NewOptions())
		apply(t, cluster, newClaim("a"))
		pass(time.Hour)
		wantMaker(t, cluster, "a", "")

		driver.SetController(csi.ControllerServiceCapability_RPC_CREATE_DELETE_VOLUME)
		info, err := p.driver.Wait(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		p.driverIsBack(info)
		pass(time.Second)
		wantMaker(t, cluster, "a", "only")
		p.stop(t)
	})
}

func TestWaitsForTheDriver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cluster, driver := kubetest.New(newClass(), newClaim("a")), csitest.New(csitest.Options{})
		driver.SetReady(false)
		p := launch(t, "only", cluster, driver, NewOptions())
		pass(time.Hour)
		wantMaker(t, cluster, "a", "")
		if err := p.driver.Ready(t.Context()); err == nil {
			t.Error("the check of the driver succeeds before it is ready")
		}
		driver.SetReady(true)
		pass(10 * time.Second)
		wantMaker(t, cluster, "a", "only")
		p.stop(t)
	})
}

func TestStopsWhileWaiting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		driver := csitest.New(csitest.Options{})
		driver.SetReady(false)
		waiting := launch(t, "waiting", kubetest.New(), driver, NewOptions())
		pass(time.Minute)
		waiting.stop(t)

		cluster, ready := kubetest.New(), csitest.New(csitest.Options{})
		first := launch(t, "first", cluster, ready, withElection())
		pass(time.Second)
		standby := launch(t, "standby", cluster, ready, withElection())
		pass(time.Minute)
		if standby.state().(instanceState).Controller != nil {
			t.Error("a standby works")
		}
		standby.stop(t)
		first.stop(t)
	})
}

// TestState looks at /debug/state while a volume is under way.
func TestState(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cluster, driver := kubetest.New(newClass()), csitest.New(csitest.Options{})
		p := launch(t, "only", cluster, driver, NewOptions())
		driver.Inject(csitest.Fault{Method: "CreateVolume", Code: codes.Aborted})
		apply(t, cluster, newClaim("a"))
		pass(time.Second)
		state, ok := p.state().(instanceState)
		if !ok || state.Controller == nil || len(state.Controller.UnderWay) != 1 {
			t.Fatalf("state %+v, want one volume under way", state)
		}
		if got := state.Controller.UnderWay[0]; got.Claim != "team/a" || got.Volume != "pvc-uid-a" || got.Stage != intents.Creating.String() {
			t.Errorf("volume under way %+v", got)
		}
		driver.Heal()
		pass(10 * time.Second)
		if state := p.state().(instanceState); len(state.Controller.UnderWay) != 0 {
			t.Errorf("state %+v, want nothing under way", state)
		}
		p.stop(t)
	})
}
