package provisioner

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/longshore-csi/longshore/csikittest/csitest"
	"github.com/longshore-csi/longshore/csikittest/kubetest"
	"github.com/longshore-csi/longshore/csikittest/sidecartest"
	"github.com/longshore-csi/longshore/provisioner/internal/journal"
	"github.com/longshore-csi/longshore/provisioner/internal/kubeapi"
	"github.com/longshore-csi/longshore/provisioner/internal/kubeapitest"
	"github.com/longshore-csi/longshore/provisioner/internal/view"
)

// sourceInStore returns a claim in namespace store with its volume.
func sourceInStore() []runtime.Object {
	size := corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}
	return []runtime.Object{
		&corev1.PersistentVolumeClaim{
			ObjectMeta: metav1.ObjectMeta{Namespace: "store", Name: "origin", UID: "uid-origin"},
			Spec:       corev1.PersistentVolumeClaimSpec{VolumeName: "pv-origin", Resources: corev1.VolumeResourceRequirements{Requests: size}},
			Status:     corev1.PersistentVolumeClaimStatus{Phase: corev1.ClaimBound},
		},
		&corev1.PersistentVolume{
			ObjectMeta: metav1.ObjectMeta{Name: "pv-origin"},
			Spec: corev1.PersistentVolumeSpec{
				PersistentVolumeSource: corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{Driver: csitest.DefaultName, VolumeHandle: "vol-origin"}},
				ClaimRef:               &corev1.ObjectReference{Namespace: "store", Name: "origin", UID: "uid-origin"},
				Capacity:               size, PersistentVolumeReclaimPolicy: corev1.PersistentVolumeReclaimRetain,
			},
			Status: corev1.PersistentVolumeStatus{Phase: corev1.VolumeBound},
		},
	}
}

// newGrant returns a ReferenceGrant for claims of namespace team to clone those in namespace store.
func newGrant() *kubeapi.ReferenceGrant {
	return &kubeapi.ReferenceGrant{ObjectMeta: metav1.ObjectMeta{Namespace: "store", Name: "teams"}, Spec: kubeapi.ReferenceGrantSpec{
		From: []kubeapi.ReferenceGrantFrom{{Kind: "PersistentVolumeClaim", Namespace: "team"}}, To: []kubeapi.ReferenceGrantTo{{Kind: "PersistentVolumeClaim"}},
	}}
}

// TestGrantRemovedWhileCreating kills a process while it makes a copy of a claim in another namespace, and removes the
// ReferenceGrant: a check that fails must not end what may have made a volume.
func TestGrantRemovedWhileCreating(t *testing.T) {
	removeClaim := func(cluster *kubetest.Cluster) error { return cluster.Remove("persistentvolumeclaims", "team", "copy") }
	cases := map[string]struct {
		reason string
		// between is what happens before the next process starts, and then what happens while it works.
		between, then func(cluster *kubetest.Cluster) error
		// first and last are the numbers of copies that the driver has before and after that, and saved is whether the last has its PersistentVolume.
		first, last int
		saved       bool
	}{
		"ClaimGone":      {reason: "The volume is found by its record.", between: removeClaim},
		"ClaimGoneLater": {reason: "The volume is kept in mind while the claim waits.", then: removeClaim, first: 1},
		"GrantReturns": {
			reason: "The claim gets the volume that was made for it.", first: 1, last: 1, saved: true,
			then: func(cluster *kubetest.Cluster) error { return cluster.Apply(newGrant()) },
		},
	}
	for name, tc := range cases {
		for how, o := range map[string]Options{"Elected": withElection(), "Alone": NewOptions()} {
			t.Run(name+how, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					if err := o.Features.Set(GateCrossNamespace + "=true"); err != nil {
						t.Fatal(err)
					}
					o.CSI.Timeout = time.Minute
					cluster, driver := kubeapitest.NewCluster(append(sourceInStore(), newClass(), newGrant())...), csitest.New(csitest.Options{})
					driver.AddVolume(csitest.Volume{ID: "vol-origin", Capacity: 1 << 30})
					first := launch(t, "first", cluster, driver, o)
					pass(time.Second)
					driver.Inject(csitest.Fault{Method: "CreateVolume", After: true, Hang: true, Times: 1})
					claim, store := newClaim("copy"), "store"
					claim.Spec.DataSourceRef = &corev1.TypedObjectReference{Kind: view.KindClaim, Name: "origin", Namespace: &store}
					apply(t, cluster, claim)
					pass(time.Second)
					first.kill()
					if n := len(driver.Volumes()) - 1; n != 1 {
						t.Fatalf("%s\nthe driver has %d copies when the process is killed, want 1", tc.reason, n)
					}
					must(t, cluster.Remove("referencegrants", "store", "teams"))
					if tc.between != nil {
						must(t, tc.between(cluster))
					}
					second := launch(t, "second", cluster, driver, o)
					pass(2 * time.Minute)
					if n := len(driver.Volumes()) - 1; n != tc.first {
						t.Errorf("%s\nthe driver has %d copies at first, want %d", tc.reason, n, tc.first)
					}
					if tc.then != nil {
						must(t, tc.then(cluster))
					}
					pass(10 * time.Second)
					if n, saved := len(driver.Volumes())-1, makers(cluster)["copy"] != ""; n != tc.last || saved != tc.saved {
						t.Errorf("%s\nthe driver has %d copies, with a PersistentVolume: %v, want %d, %v", tc.reason, n, saved, tc.last, tc.saved)
					}
					wantNoTrace(t, cluster, tc.saved)
					second.stop(t)
					<-first.err
				})
			})
		}
	}
}

// TestGrantsWithoutWatch has a role that allows to get and list ReferenceGrants, and not to watch them: a claim is served if one allows its source, also one that comes
// later, no error is logged, and they are not listed again and again.
func TestGrantsWithoutWatch(t *testing.T) {
	for name, streams := range map[string]bool{"WatchList": true, "List": false} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				o := withElection()
				must(t, o.Features.Set(GateCrossNamespace+"=true"))
				cluster, driver := kubeapitest.NewCluster(append(sourceInStore(), newClass(), newGrant())...), csitest.New(csitest.Options{})
				driver.AddVolume(csitest.Volume{ID: "vol-origin", Capacity: 1 << 30})
				if !streams {
					cluster.Fail("watch", "referencegrants", apierrors.NewBadRequest("sendInitialEvents"), 1)
				}
				granted := sidecartest.Grant(t, cluster, append(upstreamRights("get, list, watch"), sidecartest.Right{Resource: "referencegrants", Verbs: "get, list"}))
				p := launchIn(granted.Context(t.Context()), t, "only", cluster, driver, o)
				pass(time.Minute)
				copyOf := func(name string) {
					claim, store := newClaim(name), "store"
					claim.Spec.DataSourceRef = &corev1.TypedObjectReference{Kind: view.KindClaim, Name: "origin", Namespace: &store}
					apply(t, cluster, claim)
				}
				copyOf("first")
				pass(10 * time.Minute)
				if made := makers(cluster); made["first"] == "" {
					t.Errorf("volumes %v, want that of the claim whose source a ReferenceGrant allows", made)
				}
				granted.Check(t)
				must(t, cluster.Remove("referencegrants", "store", "teams"))
				copyOf("second")
				pass(time.Minute)
				if made := makers(cluster); made["second"] != "" {
					t.Errorf("volumes %v, want none of the claim whose source no ReferenceGrant allows", made)
				}
				apply(t, cluster, newGrant())
				pass(2 * o.Retry.Max)
				if made := makers(cluster); made["second"] == "" {
					t.Errorf("volumes %v, want that of the claim whose source a ReferenceGrant allows since", made)
				}
				p.stop(t)
			})
		})
	}
}

// must fails the test with an error.
func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// wantNoTrace checks that no volume is recorded to be in progress, and that the source is free, unless a claim has a volume that it is not bound to yet.
func wantNoTrace(t *testing.T, cluster *kubetest.Cluster, unbound bool) {
	t.Helper()
	for _, object := range append(cluster.Objects("leases"), cluster.Objects("persistentvolumeclaims")...) {
		if text := object.GetAnnotations()[journal.Annotation]; strings.Contains(text, "uid-copy") {
			t.Errorf("%q has the record %s", object.GetName(), text)
		}
		if object.GetName() == "origin" && (len(object.GetFinalizers()) > 0) != unbound {
			t.Errorf("the source has the finalizers %q, want some: %v", object.GetFinalizers(), unbound)
		}
	}
}
