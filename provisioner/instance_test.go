package provisioner

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/longshore-csi/longshore/csikit/kube"
	"github.com/longshore-csi/longshore/csikit/sidecar"
	"github.com/longshore-csi/longshore/csikittest/csitest"
	"github.com/longshore-csi/longshore/csikittest/kubetest"
	"github.com/longshore-csi/longshore/provisioner/internal/claim"
	"github.com/longshore-csi/longshore/provisioner/internal/journal"
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

// process is one running instance, with the session that it has now.
type process struct {
	identity string
	client   *kubetest.Session
	// silent says that the process and its driver hear nothing of each other any more.
	silent atomic.Bool
	cancel context.CancelFunc
	err    chan error

	env  sidecar.Environment
	work sidecar.Work
	now  atomic.Pointer[session]
}

// launch starts an instance on the cluster, with the driver in the same process.
func launch(t *testing.T, name string, cluster *kubetest.Cluster, driver *csitest.Driver, o Options) *process {
	t.Helper()
	return launchIn(t.Context(), t, name, cluster, driver, o)
}

// launchIn is launch with the context that the instance gets, which has its logger.
func launchIn(ctx context.Context, t *testing.T, name string, cluster *kubetest.Cluster, driver *csitest.Driver, o Options) *process {
	t.Helper()
	p := &process{identity: name, client: cluster.NewSession(), err: make(chan error, 1)}
	config := o.sidecar(connections{kube: kubeapitest.New(p.client.Client()), host: name, identity: name})
	config.CSI.Conn, config.CSI.Interceptors = driver.Conn(), []grpc.UnaryClientInterceptor{p.intercept}
	p.observe(&config)
	ctx, p.cancel = context.WithCancel(ctx)
	go func() { p.err <- sidecar.Run(ctx, config) }()
	return p
}

// observe has the process remember its environment and its session.
func (p *process) observe(config *sidecar.Config) {
	newWork := config.New
	config.New = func(ctx context.Context, env sidecar.Environment) (sidecar.Work, error) {
		work, err := newWork(ctx, env)
		p.env, p.work = env, work
		newController := work.NewController
		work.NewController = func() sidecar.Controller {
			controller := newController()
			now, _ := controller.(*session)
			p.now.Store(now)
			return controller
		}
		return work, err
	}
}

// driverChanged reads the capabilities again, as for a driver that has come back.
func (p *process) driverChanged(t *testing.T) {
	t.Helper()
	info, err := p.env.CSI.Wait(t.Context())
	if err == nil {
		err = p.work.DriverChanged(t.Context(), info)
	}
	if err != nil {
		t.Fatal(err)
	}
	p.now.Load().DriverChanged(t.Context())
}

// watchesAttachments reports whether VolumeAttachments are watched.
func (p *process) watchesAttachments() bool {
	s := p.now.Load()
	if s == nil {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.made.shape.Attachments
}

// underWay returns the volumes that /debug/state shows.
func (p *process) underWay() []claim.VolumeState {
	now, _ := p.now.Load().State().(state)
	return now.UnderWay
}

// intercept loses calls and answers once the process is killed.
func (p *process) intercept(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, call grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	lost := status.Error(codes.Unavailable, "the process is killed")
	if p.silent.Load() {
		return lost
	}
	if err := call(ctx, method, req, reply, cc, opts...); !p.silent.Load() {
		return err
	}
	return lost
}

// kill ends the instance without giving it any chance to finish its work.
func (p *process) kill() {
	p.client.Cut()
	p.silent.Store(true)
	p.cancel()
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
		cluster, driver := kubeapitest.NewCluster(newClass()), csitest.New(csitest.Options{})
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

// TestTooShort has an instance elected, and end before it has taken over the records of the leader before: that is still the next leader's predecessor, so that the volume in doubt is settled.
func TestTooShort(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cluster, driver := kubeapitest.NewCluster(newClass()), csitest.New(csitest.Options{})
		driver.Inject(csitest.Fault{Method: "CreateVolume", After: true, Code: codes.DeadlineExceeded, Times: 1})
		first := launch(t, "first", cluster, driver, withElection())
		pass(time.Second)
		apply(t, cluster, newClaim("a"))
		pass(100 * time.Millisecond)
		first.stop(t)
		if n := len(driver.Volumes()); n != 1 {
			t.Fatalf("the driver has %d volumes, want one in doubt", n)
		}

		second := launch(t, "second", cluster, driver, withElection())
		cluster.Inject(kubetest.Fault{Verb: "get", Resource: "leases", Name: "test-csi-longshore-example-journal", Do: second.cancel, Err: apierrors.NewServiceUnavailable("away")})
		pass(10 * time.Second)
		second.stop(t)
		cluster.Heal()
		if err := cluster.Remove("persistentvolumeclaims", "team", "a"); err != nil {
			t.Fatal(err)
		}

		third := launch(t, "third", cluster, driver, withElection())
		pass(time.Minute)
		if n := len(driver.Volumes()); n != 0 {
			t.Errorf("the driver has %d volumes, want none: their claim is gone", n)
		}
		third.stop(t)
	})
}

// TestLostLease cuts a leader off while CreateVolume runs: its successor brings the same volume to its end, and it waits for the
// next election.
func TestLostLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cluster, driver := kubeapitest.NewCluster(newClass()), csitest.New(csitest.Options{})
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

		first.client.Cut()
		pass(time.Minute)
		wantMaker(t, cluster, "a", "second")
		if n := len(driver.Volumes()); n != 1 {
			t.Errorf("the driver has %d volumes, want 1", n)
		}
		first.stop(t)
		second.stop(t)
	})
}

// TestElectedAgain takes the Lease from a leader that has a volume in doubt. Meanwhile another leader provisions the claim, with another volume, and the claim is
// deleted, whose volume is kept. When the first leads again it must not go on as if nothing had happened: nothing is deleted.
func TestElectedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cluster, driver, o := kubeapitest.NewCluster(newClass()), csitest.New(csitest.Options{}), withElection()
		p := launch(t, "first", cluster, driver, o)
		pass(time.Second)
		driver.Inject(csitest.Fault{Method: "CreateVolume", After: true, Code: codes.DeadlineExceeded})
		apply(t, cluster, newClaim("a"))
		pass(time.Second)
		holder := func(name string, transitions int) {
			patch := fmt.Sprintf(`{"spec":{"holderIdentity":%q,"leaseDurationSeconds":3600,"leaseTransitions":%d,"renewTime":%q}}`, name, transitions, time.Now().UTC().Format("2006-01-02T15:04:05.000000Z"))
			if err := cluster.Merge("leases", "storage", "test-csi-longshore-example", []byte(patch)); err != nil {
				t.Fatal(err)
			}
		}
		holder("thief", 1)
		pass(time.Minute)
		if p.now.Load().State() != nil {
			t.Error("an instance without the Lease works")
		}
		if err := cluster.Remove("persistentvolumeclaims", "team", "a"); err != nil {
			t.Fatal(err)
		}
		driver.Heal()
		driver.ResetCalls()
		holder("", 1)
		pass(2 * time.Hour)
		for _, call := range driver.Calls() {
			if call.Method == "CreateVolume" || call.Method == "DeleteVolume" {
				t.Errorf("call %s, want none about a volume that another leader may have provisioned", call.Method)
			}
		}
		if got := p.underWay(); len(got) != 1 || got[0].Stage != string(journal.Reported) {
			t.Errorf("under way %+v, want the volume to be reported", got)
		}
		apply(t, cluster, newClaim("b"))
		pass(time.Second)
		wantMaker(t, cluster, "b", "first")
		p.stop(t)
	})
}

// TestKilled kills a process around a CreateVolume, with an election and without. The next one must leave no volume behind,
// and no record.
func TestKilled(t *testing.T) {
	gone := func(t *testing.T, cluster *kubetest.Cluster) {
		t.Helper()
		if err := errors.Join(cluster.Remove("persistentvolumeclaims", "team", "a"), cluster.Remove("storageclasses", "", "fast"), cluster.Remove("secrets", "team", "login")); err != nil {
			t.Fatal(err)
		}
	}
	cases := map[string]struct {
		reason string
		faults []csitest.Fault
		// after is the time from the claim to the death, and between what happens before the next process starts.
		after   time.Duration
		between func(t *testing.T, cluster *kubetest.Cluster)
		// volumes is how many there are in the end, and calls how often they were asked for in all.
		volumes, calls int
	}{
		"Wanted": {
			reason: "A claim that is still there gets the volume that was made for it.",
			faults: []csitest.Fault{{Method: "CreateVolume", After: true, Hang: true, Times: 1}}, after: time.Second, volumes: 1, calls: 2,
		},
		"ClaimGone": {
			reason: "The volume of a claim that is gone, with its class and its secret, is found and deleted.",
			faults: []csitest.Fault{{Method: "CreateVolume", After: true, Hang: true, Times: 1}}, after: time.Second, between: gone, calls: 2,
		},
		"Saved": {
			reason: "A volume that has its PersistentVolume is not asked for again, although its record is still there.",
			after:  time.Millisecond, volumes: 1, calls: 1,
		},
	}
	for name, tc := range cases {
		for how, o := range map[string]Options{"Elected": withElection(), "Alone": NewOptions(), "ElectedMigrated": withElection(), "AloneMigrated": NewOptions()} {
			t.Run(name+how, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					class, claim, name, zone := newClass(), newClaim("a"), csitest.DefaultName, "zone"
					if strings.HasSuffix(how, "Migrated") {
						name, zone = "ebs.csi.aws.com", "topology.ebs.csi.aws.com/zone"
						class.Provisioner = "kubernetes.io/aws-ebs"
						claim.Annotations = map[string]string{"volume.kubernetes.io/storage-provisioner": class.Provisioner, volume.AnnMigratedTo: name}
					}
					class.Parameters = map[string]string{"csi.storage.k8s.io/provisioner-secret-name": "login", "csi.storage.k8s.io/provisioner-secret-namespace": "team"}
					secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "login"}, Data: map[string][]byte{"password": []byte("hunter2")}}
					node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1", Labels: map[string]string{zone: "us-east-1a"}}}
					registered := &storagev1.CSINode{ObjectMeta: metav1.ObjectMeta{Name: "n1"}, Spec: storagev1.CSINodeSpec{
						Drivers: []storagev1.CSINodeDriver{{Name: name, NodeID: "n1", TopologyKeys: []string{zone}}},
					}}
					cluster := kubeapitest.NewCluster(class, secret, node, registered)
					driver := csitest.New(csitest.Options{Name: name, NodeID: "n1", Topology: map[string]string{zone: "us-east-1a"}})
					o.CSI.Timeout = time.Minute
					first := launch(t, "first", cluster, driver, o)
					pass(time.Second)
					for _, fault := range tc.faults {
						driver.Inject(fault)
					}
					apply(t, cluster, claim)
					pass(tc.after)
					if n := len(driver.Volumes()); n != 1 {
						t.Fatalf("%s\nthe driver has %d volumes when the leader is killed, want 1", tc.reason, n)
					}
					first.kill()
					if tc.between != nil {
						tc.between(t, cluster)
					}
					second := launch(t, "second", cluster, driver, o)
					pass(2 * time.Minute)
					if n, saved := len(driver.Volumes()), len(cluster.Objects("persistentvolumes")); n != tc.volumes || saved != tc.volumes {
						t.Errorf("%s\nthe driver has %d volumes, the API %d, want %d", tc.reason, n, saved, tc.volumes)
					}
					calls := 0
					for _, call := range driver.Calls() {
						if call.Method == "CreateVolume" {
							calls++
						}
					}
					if calls != tc.calls {
						t.Errorf("%s\n%d calls of CreateVolume, want %d", tc.reason, calls, tc.calls)
					}
					for _, object := range append(cluster.Objects("leases"), cluster.Objects("persistentvolumeclaims")...) {
						if text := object.GetAnnotations()[journal.Annotation]; strings.Contains(text, "uid-a") || strings.Contains(text, "hunter2") {
							t.Errorf("%s\n%q has %s", tc.reason, object.GetName(), text)
						}
					}
					if n := len(cluster.Objects("persistentvolumeclaims")); n != tc.volumes {
						t.Errorf("%s\n%d claims are left, want %d", tc.reason, n, tc.volumes)
					}
					second.stop(t)
					<-first.err
				})
			})
		}
	}
}

// TestHandedOver ends a leader in good order while a call runs: the call may end, and the next leader does not repeat it.
func TestHandedOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cluster, driver, o := kubeapitest.NewCluster(newClass()), csitest.New(csitest.Options{}), withElection()
		o.CSI.Timeout = time.Minute
		first := launch(t, "first", cluster, driver, o)
		pass(time.Second)
		second := launch(t, "second", cluster, driver, o)
		pass(10 * time.Second)
		driver.Inject(csitest.Fault{Method: "CreateVolume", Delay: 10 * time.Second, Times: 1})
		apply(t, cluster, newClaim("a"))
		pass(5 * time.Second)
		first.stop(t)
		pass(time.Minute)
		wantMaker(t, cluster, "a", "first")
		calls := 0
		for _, call := range driver.Calls() {
			if call.Method == "CreateVolume" {
				calls++
			}
		}
		if calls != 1 {
			t.Errorf("%d calls of CreateVolume, want 1", calls)
		}
		second.stop(t)
	})
}

// TestStandbyIsWarm ends the leader when lists and watches of claims take a minute to begin: the instance that waited knows
// them already. Where the driver has other capabilities by then, other objects must be watched.
func TestStandbyIsWarm(t *testing.T) {
	create, publish := csi.ControllerServiceCapability_RPC_CREATE_DELETE_VOLUME, csi.ControllerServiceCapability_RPC_PUBLISH_UNPUBLISH_VOLUME
	for name, tc := range map[string]struct {
		reason   string
		reshaped bool
		want     int
	}{
		"Same":  {reason: "The view of the standby serves.", want: 2},
		"Other": {reason: "A view of another shape does not.", reshaped: true, want: 1},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				cluster := kubeapitest.NewCluster(newClass())
				driver := csitest.New(csitest.Options{Controller: []csi.ControllerServiceCapability_RPC_Type{create}})
				first := launch(t, "first", cluster, driver, withElection())
				pass(time.Second)
				second := launch(t, "second", cluster, driver, withElection())
				apply(t, cluster, newClaim("a"))
				pass(10 * time.Second)
				for _, verb := range []string{"list", "watch"} {
					cluster.Inject(kubetest.Fault{Verb: verb, Resource: "persistentvolumeclaims", Delay: time.Minute})
				}
				if tc.reshaped {
					driver.SetController(create, publish)
					second.driverChanged(t)
				}
				first.stop(t)
				apply(t, cluster, newClaim("b"))
				pass(5 * time.Second)
				if got := len(cluster.Objects("persistentvolumes")); got != tc.want {
					t.Errorf("%s: %d PersistentVolumes, want %d", tc.reason, got, tc.want)
				}
				pass(5 * time.Minute)
				if got := len(cluster.Objects("persistentvolumes")); got != 2 || second.watchesAttachments() != tc.reshaped {
					t.Errorf("%s: in the end %d PersistentVolumes, want 2; VolumeAttachments watched: %t", tc.reason, got, second.watchesAttachments())
				}
				second.stop(t)
			})
		})
	}
}

// TestNewCapabilities lets the driver come back with other capabilities while the outcome of CreateVolume is
// open and the claim is deleted: a new controller watches other objects, and the volume is not forgotten.
func TestNewCapabilities(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		create := csi.ControllerServiceCapability_RPC_CREATE_DELETE_VOLUME
		publish := csi.ControllerServiceCapability_RPC_PUBLISH_UNPUBLISH_VOLUME
		cluster := kubeapitest.NewCluster(newClass())
		driver := csitest.New(csitest.Options{Controller: []csi.ControllerServiceCapability_RPC_Type{create}})
		driver.Inject(csitest.Fault{Method: "CreateVolume", After: true, Code: codes.DeadlineExceeded, Times: 1})
		driver.Inject(csitest.Fault{Method: "CreateVolume", Code: codes.Unavailable, Times: 3})
		p := launch(t, "only", cluster, driver, NewOptions())
		apply(t, cluster, newClaim("a"))
		pass(500 * time.Millisecond)
		if got := p.watchesAttachments(); got {
			t.Error("VolumeAttachments are watched for a driver that attaches nothing")
		}

		driver.SetController(create, publish)
		if err := cluster.Remove("persistentvolumeclaims", "team", "a"); err != nil {
			t.Fatal(err)
		}
		p.driverChanged(t)
		pass(time.Minute)
		if got := p.watchesAttachments(); !got {
			t.Error("VolumeAttachments are not watched for a driver that attaches")
		}
		if n := len(driver.Volumes()); n != 0 {
			t.Errorf("the driver still has %d volumes of a claim that was deleted", n)
		}
		if open := p.underWay(); len(open) != 0 {
			t.Errorf("under way %v, want nothing", open)
		}
		p.stop(t)
	})
}

// TestNewCapabilitiesAtStart lets the driver come back with other capabilities before the first lists are complete: the
// next controller takes the place of one that never worked.
func TestNewCapabilitiesAtStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		create := csi.ControllerServiceCapability_RPC_CREATE_DELETE_VOLUME
		cluster := kubeapitest.NewCluster(newClass(), newClaim("a"))
		cluster.Fail("", "persistentvolumes", apierrors.NewServiceUnavailable("away"), 0)
		driver := csitest.New(csitest.Options{Controller: []csi.ControllerServiceCapability_RPC_Type{create}})
		p := launch(t, "only", cluster, driver, NewOptions())
		pass(time.Minute)
		if err := p.now.Load().Synced(); err == nil || !strings.Contains(err.Error(), "PersistentVolume") {
			t.Errorf("the check of the caches says %v before they are complete", err)
		}

		driver.SetController(create, csi.ControllerServiceCapability_RPC_PUBLISH_UNPUBLISH_VOLUME)
		p.driverChanged(t)
		pass(time.Minute)
		if !p.watchesAttachments() {
			t.Error("VolumeAttachments are not watched for a driver that attaches")
		}
		cluster.Heal()
		pass(10 * time.Minute)
		wantMaker(t, cluster, "a", "only")
		p.stop(t)
	})
}

// TestCapabilitiesOfTheSameShape has a refused claim looked at again when the driver comes back.
func TestCapabilitiesOfTheSameShape(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cluster := kubeapitest.NewCluster(newClass())
		driver := csitest.New(csitest.Options{Controller: []csi.ControllerServiceCapability_RPC_Type{}})
		p := launch(t, "only", cluster, driver, NewOptions())
		apply(t, cluster, newClaim("a"))
		pass(time.Hour)
		wantMaker(t, cluster, "a", "")

		driver.SetController(csi.ControllerServiceCapability_RPC_CREATE_DELETE_VOLUME)
		p.driverChanged(t)
		pass(time.Second)
		wantMaker(t, cluster, "a", "only")
		p.stop(t)
	})
}

func TestWaitsForTheDriver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cluster, driver := kubeapitest.NewCluster(newClass(), newClaim("a")), csitest.New(csitest.Options{})
		driver.SetReady(false)
		p := launch(t, "only", cluster, driver, NewOptions())
		pass(time.Hour)
		wantMaker(t, cluster, "a", "")
		driver.SetReady(true)
		pass(10 * time.Second)
		wantMaker(t, cluster, "a", "only")
		p.stop(t)
	})
}

// TestHalfStarted has a driver that announces its controller and does not answer for it yet: nothing is made, and nothing counts as not supported.
func TestHalfStarted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cluster, driver := kubeapitest.NewCluster(newClass(), newClaim("a")), csitest.New(csitest.Options{})
		driver.Inject(csitest.Fault{Method: "ControllerGetCapabilities", Code: codes.Unimplemented, Message: "starting"})
		p := launch(t, "only", cluster, driver, NewOptions())
		pass(time.Hour)
		wantMaker(t, cluster, "a", "")
		driver.Heal()
		pass(10 * time.Second)
		wantMaker(t, cluster, "a", "only")
		p.stop(t)
	})
}

func TestStopsWhileWaiting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		driver := csitest.New(csitest.Options{})
		driver.SetReady(false)
		waiting := launch(t, "waiting", kubeapitest.NewCluster(), driver, NewOptions())
		pass(time.Minute)
		waiting.stop(t)

		cluster, ready := kubeapitest.NewCluster(), csitest.New(csitest.Options{})
		first := launch(t, "first", cluster, ready, withElection())
		pass(time.Second)
		standby := launch(t, "standby", cluster, ready, withElection())
		pass(time.Minute)
		if standby.now.Load().State() != nil {
			t.Error("a standby works")
		}
		standby.stop(t)
		first.stop(t)
	})
}

// TestState looks at /debug/state while a volume is under way.
func TestState(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cluster, driver := kubeapitest.NewCluster(newClass()), csitest.New(csitest.Options{})
		p := launch(t, "only", cluster, driver, NewOptions())
		driver.Inject(csitest.Fault{Method: "CreateVolume", Code: codes.Aborted})
		apply(t, cluster, newClaim("a"))
		pass(time.Second)
		if n := len(p.underWay()); n != 1 {
			t.Fatalf("%d volumes under way, want one", n)
		}
		if got := p.underWay()[0]; got.Claim != "team/a" || got.Volume != "pvc-uid-a" || got.Stage != string(journal.Creating) {
			t.Errorf("volume under way %+v", got)
		}
		driver.Heal()
		pass(10 * time.Second)
		if got := p.underWay(); len(got) != 0 {
			t.Errorf("under way %+v, want nothing", got)
		}
		p.stop(t)
	})
}
