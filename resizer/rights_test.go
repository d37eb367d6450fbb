package resizer

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/klog/v2"

	"github.com/longshore-csi/longshore/csikit/sidecar"
	"github.com/longshore-csi/longshore/csikittest/csitest"
	"github.com/longshore-csi/longshore/csikittest/kubetest"
	"github.com/longshore-csi/longshore/csikittest/sidecartest"
)

func rights() []sidecartest.Right {
	return []sidecartest.Right{
		{Resource: "persistentvolumes", Verbs: "list, patch, watch", Why: "the volume, its capacity and its VolumeAttributesClass"},
		{Resource: "persistentvolumeclaims", Verbs: "list, watch", Why: "what to expand and to modify"},
		{Resource: "persistentvolumeclaims/status", Verbs: "patch", Why: "progress and outcome"},
		{Group: "coordination.k8s.io", Resource: "leases", Verbs: "create, get, update, watch", Why: "`--leader-election`; a Role in the namespace of the pod is enough"},
		{Group: "storage.k8s.io", Resource: "volumeattributesclasses", Verbs: "list, watch", Why: "optional: claims with a VolumeAttributesClass"},
		{Group: "storage.k8s.io", Resource: "volumeattachments", Verbs: "list, watch", Why: "optional: drivers that expand volumes only while they are not in use"},
		{Resource: "pods", Verbs: "list, watch", Why: "optional: the same"},
		{Resource: "secrets", Verbs: "get", Why: "optional: drivers with `controllerExpandSecretRef`; a Role in the namespace of the secrets is enough"},
		{Resource: "events", Verbs: "create, patch", Why: "optional: events on claims"},
	}
}

func TestRightsDoc(t *testing.T) {
	sidecartest.RightsDocument(t, "csi-resizer", rights(), "PersistentVolume", `
The optional kinds are read only when a claim needs them; VolumeAttributesClasses that may not be watched are read by `+"`get`"+`. Pods and attachments of the whole cluster are not listed before a driver has
refused to expand a volume in use, and never with `+"`--handle-volume-inuse-error=false`"+`. A driver that announces offline expansion alone
is not asked while the volume is in use.
`)
}

// bed is a cluster and a driver for components in virtual time.
type bed struct {
	t       *testing.T
	cluster *kubetest.Cluster
	driver  *csitest.Driver
}

// launch begins a component; stop ends it in good order.
func (b *bed) launch(host string) (stop func()) {
	b.t.Helper()
	return b.launchIn(klog.NewContext(context.Background(), klog.Logger{}), host)
}

// launchIn is launch with a context that has the logger.
func (b *bed) launchIn(ctx context.Context, host string) (stop func()) {
	b.t.Helper()
	o, err := parse("--leader-election", "--retry-interval-max=10s")
	if err != nil {
		b.t.Fatal(err)
	}
	config := inMemory(o, b.cluster.Client(), host)
	config.CSI.Conn = b.driver.Conn()
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- sidecar.Run(ctx, config) }()
	return func() {
		b.t.Helper()
		cancel()
		if err := <-ended; err != nil {
			b.t.Error(err)
		}
	}
}

// pass lets virtual time pass.
func pass(d time.Duration) { <-time.After(d) }

// newBed has a driver that expands volumes only while they are not in use, and a claim with a secret, a class, a pod and an attachment.
func newBed(t *testing.T) *bed {
	t.Helper()
	b := &bed{t: t, cluster: kubetest.New(testClass()), driver: newDriver(csitest.Options{OfflineExpansion: true}, "data")}
	pv, claim := testPV("data"), testClaim("data", twoGi)
	pv.Spec.CSI.ControllerExpandSecretRef = &corev1.SecretReference{Namespace: "default", Name: "keys"}
	claim.Spec.VolumeAttributesClassName = new("gold")
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "user"},
		Spec: corev1.PodSpec{Volumes: []corev1.Volume{{VolumeSource: corev1.VolumeSource{
			PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "data"},
		}}}},
	}
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "keys"}}
	if err := b.cluster.Apply(pv, claim, pod, secret); err != nil {
		t.Fatal(err)
	}
	return b
}

// outcome returns the capacity and the class that the claim has.
func (b *bed) outcome() string {
	for _, object := range b.cluster.Objects("persistentvolumeclaims") {
		if claim, ok := object.(*corev1.PersistentVolumeClaim); ok {
			class := ""
			if name := claim.Status.CurrentVolumeAttributesClassName; name != nil {
				class = *name
			}
			return claim.Status.Capacity.Storage().String() + " " + class
		}
	}
	return "no claim"
}

// TestRights uses everything that asks the API server for something, and compares what was asked with the table.
func TestRights(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBed(t)
		used := sidecartest.Record(b.cluster)
		first := b.launch("host-1")
		pass(time.Minute)
		if got := b.outcome(); got != "1Gi gold" {
			t.Errorf("while the volume is in use: %s, want 1Gi gold", got)
		}
		second := b.launch("host-2") // it waits for the Lease
		pass(time.Minute)
		if err := b.cluster.Remove("pods", "default", "user"); err != nil {
			t.Fatal(err)
		}
		pass(time.Minute)
		if got := b.outcome(); got != "2Gi gold" {
			t.Errorf("when the volume is not in use: %s, want 2Gi gold", got)
		}
		first()
		second()

		used.Compare(t, rights())
	})
}

// TestOptionalRights works with the rights that are not optional: the driver's answer decides whether a volume in use is expanded, and
// only what needs the missing right is not done.
func TestOptionalRights(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBed(t)
		for _, r := range rights() {
			if !strings.HasPrefix(r.Why, "optional") || r.Resource == "secrets" {
				continue
			}
			b.cluster.Inject(kubetest.Fault{
				Resource: r.Resource, Err: apierrors.NewForbidden(schema.GroupResource{Group: r.Group, Resource: r.Resource}, "", errors.New("it is not granted")),
			})
		}
		stop := b.launch("host-1")
		pass(time.Minute)
		if got := b.outcome(); got != "2Gi " {
			t.Errorf("with the rights that are not optional: %s, want 2Gi and no class", got)
		}
		stop()
	})
}

// upstreamRights are those of the newest manifests of external-resizer, where secrets are a comment, with these verbs for VolumeAttributesClasses.
func upstreamRights(classes string) []sidecartest.Right {
	return []sidecartest.Right{
		{Resource: "persistentvolumes", Verbs: "get, list, watch, patch"},
		{Resource: "persistentvolumeclaims", Verbs: "get, list, watch"},
		{Resource: "pods", Verbs: "get, list, watch"},
		{Resource: "persistentvolumeclaims/status", Verbs: "patch"},
		{Resource: "events", Verbs: "list, watch, create, update, patch"},
		{Resource: "volumeattributesclasses", Verbs: classes},
		{Resource: "leases", Verbs: "get, watch, list, delete, update, create"},
	}
}

// TestUpstreamRights works for ten minutes with the rights of the component that is replaced: a volume that no pod uses is expanded, and
// gets its class wherever that may be read. No error is logged, and no kind is listed or watched again and again: VolumeAttachments may be neither.
func TestUpstreamRights(t *testing.T) {
	for name, classes := range map[string]string{"Newest": "get, list, watch", "List": "get, list", "Get": "get"} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newBed(t)
				pv := testPV("data")
				pv.ResourceVersion, pv.Spec.CSI.ControllerExpandSecretRef = "", nil
				if err := errors.Join(b.cluster.Apply(pv), b.cluster.Remove("pods", "default", "user")); err != nil {
					t.Fatal(err)
				}
				granted := sidecartest.Grant(t, b.cluster, upstreamRights(classes))
				stop := b.launchIn(granted.Context(context.Background()), "host-1")
				pass(10 * time.Minute)
				if got := b.outcome(); got != "2Gi gold" {
					t.Errorf("after ten minutes: %s, want 2Gi gold", got)
				}
				granted.Check(t)
				stop()
			})
		})
	}
}

// TestClassReadOnce has a driver that refuses a class which the role allows to get, and not to watch. It is read once in the reconciliation that calls the driver, and
// once in that which finds the time of the next attempt, for three decisions in each.
func TestClassReadOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBed(t)
		b.driver.Inject(csitest.Fault{Method: "ControllerModifyVolume", Code: codes.Internal})
		granted := sidecartest.Grant(t, b.cluster, append(upstreamRights("get"), sidecartest.Right{Resource: "secrets", Verbs: "get"}))
		stop := b.launchIn(granted.Context(context.Background()), "host-1")
		pass(10 * time.Minute)
		calls := 0
		for _, call := range b.driver.Calls() {
			if call.Method == "ControllerModifyVolume" {
				calls++
			}
		}
		if reads := granted.Requests()["get volumeattributesclasses"]; calls < 10 || reads < calls || reads > 2*calls+calls/10 {
			t.Errorf("%d reads of the class for %d calls, want two for each of many", reads, calls)
		}
		stop()
	})
}
