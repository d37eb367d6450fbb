package controller

import (
	"context"
	"fmt"
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
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/longshore-csi/longshore/csikit/events"
	"github.com/longshore-csi/longshore/csikit/flagset"
	"github.com/longshore-csi/longshore/csikit/kube"
	"github.com/longshore-csi/longshore/csikittest/kubetest"
)

// slow is a driver whose calls take as long as these fields say.
type slow struct {
	csi.ControllerClient
	expand, modify time.Duration
}

// ControllerExpandVolume implements csi.ControllerClient.
func (d slow) ControllerExpandVolume(_ context.Context, request *csi.ControllerExpandVolumeRequest, _ ...grpc.CallOption) (*csi.ControllerExpandVolumeResponse, error) {
	time.Sleep(d.expand)
	return &csi.ControllerExpandVolumeResponse{CapacityBytes: request.GetCapacityRange().GetRequiredBytes()}, nil
}

// ControllerModifyVolume implements csi.ControllerClient.
func (d slow) ControllerModifyVolume(context.Context, *csi.ControllerModifyVolumeRequest, ...grpc.CallOption) (*csi.ControllerModifyVolumeResponse, error) {
	time.Sleep(d.modify)
	return &csi.ControllerModifyVolumeResponse{}, nil
}

// addBound adds a claim of 1Gi that asks for a size and a class, and its volume.
func addBound(t *testing.T, cluster *kubetest.Cluster, name, requested string, class *string) {
	t.Helper()
	uid := types.UID("uid-" + name)
	claim := &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: uid},
		Spec: corev1.PersistentVolumeClaimSpec{
			VolumeName: "pv-" + name, Resources: corev1.VolumeResourceRequirements{Requests: list(requested)}, VolumeAttributesClassName: class,
		},
		Status: corev1.PersistentVolumeClaimStatus{Phase: corev1.ClaimBound, Capacity: list("1Gi")},
	}
	pv := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "pv-" + name}, Spec: corev1.PersistentVolumeSpec{
		Capacity: list("1Gi"), AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
		ClaimRef:               &corev1.ObjectReference{Namespace: "ns", Name: name, UID: uid},
		PersistentVolumeSource: corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{Driver: testDriver, VolumeHandle: "vol-" + name}},
	}}
	if err := cluster.Apply(claim, pv); err != nil {
		t.Fatal(err)
	}
}

// runAgainst runs a controller with two workers until the end of the test.
func runAgainst(t *testing.T, cluster *kubetest.Cluster, driver csi.ControllerClient) *Controller {
	t.Helper()
	c := New(Config{
		Driver: testDriver, Kube: cluster.Client(), CSI: driver, Features: func() Features { return Features{Expand: true, Modify: true} },
		Events: events.Discard{}, Secrets: kube.NewSecretCache(cluster.Client(), nil), Workers: 2, Retry: flagset.Retry{Start: time.Second, Max: time.Minute},
		ResizeTimeout: time.Minute, ModifyTimeout: time.Hour, KubeTimeout: time.Second, AttributesClasses: true,
	})
	ctx, stop := context.WithCancel(klog.NewContext(t.Context(), klog.Logger{}))
	ended := make(chan error, 1)
	go func() { ended <- c.Run(ctx) }()
	t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return c
}

// TestExpandBesideModify has a fleet that gets another class, which takes hours, and one volume that is full.
func TestExpandBesideModify(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cluster := kubetest.New(&storagev1.VolumeAttributesClass{ObjectMeta: metav1.ObjectMeta{Name: "gold"}, DriverName: testDriver, Parameters: map[string]string{"iops": "4000"}})
		for i := range 20 {
			addBound(t, cluster, fmt.Sprintf("fleet-%02d", i), "1Gi", new("gold"))
		}
		runAgainst(t, cluster, slow{modify: 50 * time.Minute})
		time.Sleep(time.Second)
		addBound(t, cluster, "full", "2Gi", nil)
		addBound(t, cluster, "both", "2Gi", new("gold"))
		time.Sleep(time.Second)
		for _, name := range []string{"full", "both"} {
			claim, err := cluster.Client().PersistentVolumeClaims("ns").Get(t.Context(), name, metav1.GetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			if capacity := storage(claim.Status.Capacity); capacity.String() != "2Gi" {
				t.Errorf("claim %s has %s a second after it asked for 2Gi", name, capacity.String())
			}
		}
	})
}

// merging is a driver that makes one change of its storage of the calls for a volume that come within two seconds, and refuses another one within six hours, as
// aws-ebs-csi-driver does.
type merging struct {
	csi.ControllerClient
	mu      sync.Mutex
	change  *change
	changes []time.Time
}

type change struct {
	done chan struct{}
	err  error
}

func (d *merging) join() error {
	d.mu.Lock()
	now := d.change
	if now == nil {
		now = &change{done: make(chan struct{})}
		d.change = now
		time.AfterFunc(2*time.Second, func() {
			d.mu.Lock()
			defer d.mu.Unlock()
			if n := len(d.changes); n > 0 && time.Since(d.changes[n-1]) < 6*time.Hour {
				now.err = status.Error(codes.Internal, "VolumeModificationRateExceeded")
			} else {
				d.changes = append(d.changes, time.Now())
			}
			d.change = nil
			close(now.done)
		})
	}
	d.mu.Unlock()
	<-now.done
	return now.err
}

// ControllerExpandVolume implements csi.ControllerClient.
func (d *merging) ControllerExpandVolume(_ context.Context, request *csi.ControllerExpandVolumeRequest, _ ...grpc.CallOption) (*csi.ControllerExpandVolumeResponse, error) {
	return &csi.ControllerExpandVolumeResponse{CapacityBytes: request.GetCapacityRange().GetRequiredBytes()}, d.join()
}

// ControllerModifyVolume implements csi.ControllerClient.
func (d *merging) ControllerModifyVolume(context.Context, *csi.ControllerModifyVolumeRequest, ...grpc.CallOption) (*csi.ControllerModifyVolumeResponse, error) {
	return &csi.ControllerModifyVolumeResponse{}, d.join()
}

// TestOneChangeForBoth has size and class changed together, twice: the storage is changed once for both, also after the driver has refused them for hours.
func TestOneChangeForBoth(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cluster := kubetest.New()
		for _, name := range []string{"gold", "silver"} {
			if err := cluster.Apply(&storagev1.VolumeAttributesClass{ObjectMeta: metav1.ObjectMeta{Name: name}, DriverName: testDriver, Parameters: map[string]string{"tier": name}}); err != nil {
				t.Fatal(err)
			}
		}
		addBound(t, cluster, "data", "2Gi", new("gold"))
		driver := &merging{}
		runAgainst(t, cluster, driver)
		time.Sleep(time.Minute)
		claims := cluster.Client().PersistentVolumeClaims("ns")
		again := []byte(`{"spec":{"volumeAttributesClassName":"silver","resources":{"requests":{"storage":"3Gi"}}}}`)
		if _, err := claims.Patch(t.Context(), "data", types.StrategicMergePatchType, again, metav1.PatchOptions{}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(7 * time.Hour)
		claim, err := claims.Get(t.Context(), "data", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if capacity := storage(claim.Status.Capacity); capacity.String() != "3Gi" || currentClass(claim) != "silver" || len(driver.changes) != 2 {
			t.Errorf("seven hours later: %s of class %q, the storage was changed at %v", capacity.String(), currentClass(claim), driver.changes)
		}
	})
}

// TestForgetsDeletedClaims keeps nothing of a claim that is deleted during an operation.
func TestForgetsDeletedClaims(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cluster := kubetest.New()
		addBound(t, cluster, "data", "2Gi", nil)
		c := runAgainst(t, cluster, slow{expand: 5 * time.Second})
		time.Sleep(time.Second)
		if err := cluster.Remove("persistentvolumeclaims", "ns", "data"); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Hour)
		c.memory.mu.Lock()
		defer c.memory.mu.Unlock()
		if len(c.memory.claims) > 0 {
			t.Errorf("an hour after the claim was deleted: %v", c.memory.claims)
		}
	})
}
