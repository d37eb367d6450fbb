package healthmonitor

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/longshore-csi/longshore/csikittest/kubetest"
	"github.com/longshore-csi/longshore/csikittest/sidecartest"
)

func rights() []sidecartest.Right {
	return []sidecartest.Right{
		{Resource: "persistentvolumes", Verbs: "list, watch", Why: "the volumes to read"},
		{Resource: "persistentvolumeclaims", Verbs: "list, watch", Why: "the claims to report to"},
		{Resource: "persistentvolumeclaims/status", Verbs: "patch", Why: "optional: `healthStatus`, of Kubernetes 1.37 with the feature gate CSIVolumeHealth"},
		{Resource: "pods", Verbs: "list, watch", Why: "optional: events on pods, and `--enable-node-watcher`"},
		{Resource: "nodes", Verbs: "list, watch", Why: "optional: `--enable-node-watcher`"},
		{Resource: "events", Verbs: "create, list, patch", Why: "optional: events; they are listed once at the start, so that a restart does not repeat them"},
		{Group: "coordination.k8s.io", Resource: "leases", Verbs: "create, get, update, watch", Why: "`--leader-election`; a Role in the namespace of the pod is enough"},
	}
}

func TestRightsDoc(t *testing.T) {
	sidecartest.RightsDocument(t, "csi-external-health-monitor-controller", rights(), "", `
The role of the external-health-monitor 0.18 has no right to write the status of claims: events and metrics are complete without it. Pods of the cluster are not
listed before a volume is abnormal or, with `+"`--enable-node-watcher`"+`, a node is down.
`)
}

// notReady returns a node that has not been ready for longer than the watcher waits.
func notReady(name string) *corev1.Node {
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}, Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{{
		Type: corev1.NodeReady, Status: corev1.ConditionUnknown, LastTransitionTime: metav1.NewTime(time.Now().Add(-time.Hour)),
	}}}}
}

// abnormalBed has a volume with a problem, and a pod that uses it on a node that is down.
func abnormalBed(t *testing.T) *bed {
	t.Helper()
	b := newBed(t, []csi.ControllerServiceCapability_RPC_Type{getHealth, listHealth}, "data")
	b.driver.SetHealth("vol-data", problem(csi.VolumeHealthErrorType_DEGRADED, "PathLost"))
	if err := b.cluster.Apply(testPod("user", "data", "node-1"), notReady("node-1")); err != nil {
		t.Fatal(err)
	}
	return b
}

// TestRights uses everything that asks the API server for something, and compares what was asked with the table.
func TestRights(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := abnormalBed(t)
		used := sidecartest.Record(b.cluster)
		first := b.launch(quiet(), "host-1", "--leader-election", "--leader-election-namespace=ns", "--enable-node-watcher")
		second := b.launch(quiet(), "host-2", "--leader-election", "--leader-election-namespace=ns", "--enable-node-watcher") // it waits for the Lease
		pass(time.Minute)
		if got := b.claim("data").Status.HealthStatus; got == nil || b.events("VolumeConditionAbnormal") != 2 || b.events("NodeFailed") != 1 {
			t.Errorf("status %v, %d events on claim and pod, %d about the node; want one, 2, 1", got, b.events("VolumeConditionAbnormal"), b.events("NodeFailed"))
		}
		b.driver.SetHealth("vol-data")
		pass(10 * time.Minute)
		b.driver.SetHealth("vol-data", problem(csi.VolumeHealthErrorType_DEGRADED, "PathLost")) // the same event again
		pass(10 * time.Minute)
		first()
		second()
		used.Compare(t, rights())
	})
}

// TestOptionalRights works without the rights that are optional, and without the API server's knowledge of what they are for.
func TestOptionalRights(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := abnormalBed(t)
		for _, resource := range []string{"persistentvolumeclaims/status", "pods", "nodes"} {
			b.cluster.Inject(kubetest.Fault{Resource: resource, Err: apierrors.NewForbidden(schema.GroupResource{Resource: resource}, "", errors.New("it is not granted"))})
		}
		b.cluster.Inject(kubetest.Fault{Verb: "list", Resource: "events", Err: apierrors.NewForbidden(schema.GroupResource{Resource: "events"}, "", errors.New("it is not granted"))})
		stop := b.launch(quiet(), "host-1", "--enable-node-watcher")
		pass(10 * time.Minute)
		if got := b.claim("data").Status.HealthStatus; got != nil || b.events("VolumeConditionAbnormal") != 1 {
			t.Errorf("status %v and %d events, want none and 1", got, b.events("VolumeConditionAbnormal"))
		}
		stop()
	})
}

// TestPodsUnavailable has an API server that cannot list pods: claims get their events and status, and pods their events later.
func TestPodsUnavailable(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := abnormalBed(t)
		b.cluster.Inject(kubetest.Fault{Resource: "pods", Err: apierrors.NewInternalError(errors.New("broken"))})
		stop := b.launch(quiet(), "host-1")
		pass(10 * time.Minute)
		if got := b.claim("data").Status.HealthStatus; got == nil || b.events("VolumeConditionAbnormal") != 1 {
			t.Errorf("status %v and %d events, want one and 1", got, b.events("VolumeConditionAbnormal"))
		}
		b.cluster.Heal()
		pass(10 * time.Minute)
		if got := b.events("VolumeConditionAbnormal"); got != 2 {
			t.Errorf("%d events on claim and pod when pods can be listed, want 2", got)
		}
		stop()
	})
}

// TestUpstreamRights works for ten minutes with the rights of the component that is replaced, those of the manifests of Kubernetes' csi-hostpath: all events are
// written, no error is logged, and no kind is listed or watched again and again.
func TestUpstreamRights(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := abnormalBed(t)
		granted := sidecartest.Grant(t, b.cluster, []sidecartest.Right{
			{Resource: "persistentvolumes", Verbs: "get, list, watch"},
			{Resource: "persistentvolumeclaims", Verbs: "get, list, watch"},
			{Resource: "nodes", Verbs: "get, list, watch"},
			{Resource: "pods", Verbs: "get, list, watch"},
			{Resource: "events", Verbs: "get, list, watch, create, patch"},
			{Resource: "leases", Verbs: "get, watch, list, delete, update, create"},
		})
		stop := b.launch(granted.Context(context.Background()), "host-1", "--leader-election", "--leader-election-namespace=ns", "--enable-node-watcher")
		pass(10 * time.Minute)
		if b.events("VolumeConditionAbnormal") != 2 || b.events("NodeFailed") != 1 {
			t.Errorf("%d events on claim and pod, %d about the node; want 2, 1", b.events("VolumeConditionAbnormal"), b.events("NodeFailed"))
		}
		granted.Check(t)
		if got := granted.Requests()["patch persistentvolumeclaims/status"]; got != 1 {
			t.Errorf("%d attempts to write the status, which is not granted, want 1", got)
		}
		stop()
	})
}
