package attacher

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/longshore-csi/longshore/csikit/sidecar"
	"github.com/longshore-csi/longshore/csikittest/csitest"
	"github.com/longshore-csi/longshore/csikittest/kubetest"
	"github.com/longshore-csi/longshore/csikittest/sidecartest"
)

func rights() []sidecartest.Right {
	return []sidecartest.Right{
		{Resource: "persistentvolumes", Verbs: "get, list, patch, watch", Why: "the volume and its finalizer"},
		{Group: "storage.k8s.io", Resource: "volumeattachments", Verbs: "list, patch, watch", Why: "what to attach, finalizer and annotations"},
		{Group: "storage.k8s.io", Resource: "volumeattachments/status", Verbs: "patch", Why: "the outcome"},
		{Group: "storage.k8s.io", Resource: "csinodes", Verbs: "list, watch", Why: "node IDs"},
		{Group: "coordination.k8s.io", Resource: "leases", Verbs: "create, get, update, watch", Why: "`--leader-election`; a Role in the namespace of the pod is enough"},
		{Resource: "secrets", Verbs: "get", Why: "optional: drivers with `controllerPublishSecretRef`; a Role in the namespace of the secrets is enough"},
		{Resource: "events", Verbs: "create, patch", Why: "optional: events on VolumeAttachments (namespace `default`) and claims"},
		{Resource: "nodes", Verbs: "get", Why: "optional: nodes whose driver is published by annotation only"},
	}
}

func TestRightsDoc(t *testing.T) {
	sidecartest.RightsDocument(t, name, rights(), "PersistentVolume or VolumeAttachment", "")
}

// TestRights uses everything that asks the API server for something, and compares what was asked with
// the table.
func TestRights(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1)
		used := sidecartest.Record(w.cluster)
		secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "keys"}}
		pv := testPV()
		pv.Spec.CSI.ControllerPublishSecretRef = &corev1.SecretReference{Namespace: "default", Name: "keys"}
		va, stray, orphan := testVA("va-1"), testVA("va-2"), testVA("va-3")
		va.Spec.NodeName, stray.Spec.NodeName = "node-1", "no-such-node"
		orphan.Spec.Source.PersistentVolumeName = new("no-such-volume")
		w.must(w.cluster.Apply(secret, pv, va, stray, orphan))
		w.launch()
		pass(time.Minute)
		leader := *w
		w.launch() // it waits for the Lease
		pass(time.Minute)
		w.end(false)
		w.session, w.cancel, w.ended, w.running = leader.session, leader.cancel, leader.ended, leader.running
		w.must(w.cluster.Remove("volumeattachments", "", "va-1"))
		pass(time.Minute)
		w.end(false)

		used.Compare(t, rights())
	})
}

// upstreamRights are those of the newest manifests of external-attacher, which have no rule for events and secrets.
func upstreamRights() []sidecartest.Right {
	return []sidecartest.Right{
		{Resource: "persistentvolumes", Verbs: "get, list, watch, patch"},
		{Resource: "csinodes", Verbs: "get, list, watch"},
		{Resource: "volumeattachments", Verbs: "get, list, watch, patch"},
		{Resource: "volumeattachments/status", Verbs: "patch"},
		{Resource: "leases", Verbs: "get, watch, list, delete, update, create"},
	}
}

// TestUpstreamRights works for ten minutes with the rights of the component that is replaced: a volume is attached and detached, no error is logged, and no kind is
// listed or watched again and again.
func TestUpstreamRights(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cluster, driver := kubetest.New(testCSINode(), testPV()), newDriver(csitest.Options{})
		granted := sidecartest.Grant(t, cluster, upstreamRights())
		o, err := parse("--leader-election")
		if err != nil {
			t.Fatal(err)
		}
		config := inMemory(o, cluster.Client(), "host-1")
		config.CSI.Conn = driver.Conn()
		ctx, cancel := context.WithCancel(granted.Context(context.Background()))
		ended := make(chan error, 1)
		go func() { ended <- sidecar.Run(ctx, config) }()
		if err := cluster.Apply(testVA("va-1")); err != nil {
			t.Fatal(err)
		}
		pass(5 * time.Minute)
		if va, ok := cluster.Objects("volumeattachments")[0].(*storagev1.VolumeAttachment); !ok || !va.Status.Attached {
			t.Error("the volume is not attached")
		}
		if err := cluster.Remove("volumeattachments", "", "va-1"); err != nil {
			t.Fatal(err)
		}
		pass(5 * time.Minute)
		if left := cluster.Objects("volumeattachments"); len(left) > 0 {
			t.Errorf("the volume is not detached: %v", left)
		}
		granted.Check(t)
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}
