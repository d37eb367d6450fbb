package controller

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/longshore-csi/longshore/csikit/events"
	"github.com/longshore-csi/longshore/csikit/flagset"
	"github.com/longshore-csi/longshore/csikit/kube"
	"github.com/longshore-csi/longshore/csikittest/kubetest"
)

// answers is a driver with a fixed answer to ControllerExpandVolume.
type answers struct {
	csi.ControllerClient
	capacity     int64
	nodeRequired bool
}

// ControllerExpandVolume implements csi.ControllerClient.
func (a answers) ControllerExpandVolume(context.Context, *csi.ControllerExpandVolumeRequest, ...grpc.CallOption) (*csi.ControllerExpandVolumeResponse, error) {
	return &csi.ControllerExpandVolumeResponse{CapacityBytes: a.capacity, NodeExpansionRequired: a.nodeRequired}, nil
}

// TestCapacityIsTheDrivers never records more than the driver says, nor takes less for success (upstream: external-resizer #474 records
// the request although the driver has kept the former capacity, #226 a capacity of 0).
func TestCapacityIsTheDrivers(t *testing.T) {
	tests := map[string]struct {
		reason                string
		answer                answers
		claim, pv, allocated  string
		status                corev1.ClaimResourceStatus
		failed                bool
		preResize, notRequire string
	}{
		"Exact":     {reason: "what was asked for", answer: answers{capacity: 2 << 30}, claim: "2Gi", pv: "2Gi", allocated: "2Gi", notRequire: "true"},
		"Larger":    {reason: "a driver that rounds up", answer: answers{capacity: 3 << 30}, claim: "3Gi", pv: "3Gi", allocated: "3Gi", notRequire: "true"},
		"LargerFS":  {reason: "the node expands to what the driver has", answer: answers{capacity: 3 << 30, nodeRequired: true}, claim: "1Gi", pv: "3Gi", allocated: "3Gi", status: nodePending, preResize: "1Gi"},
		"Unchanged": {reason: "a driver that has done nothing", answer: answers{capacity: 1 << 30}, claim: "1Gi", pv: "1Gi", allocated: "2Gi", status: inProgress, failed: true},
		"Zero":      {reason: "a driver that does not fill in the answer", claim: "1Gi", pv: "1Gi", allocated: "2Gi", status: inProgress, failed: true},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				claim, pv := expandAgainst(t, tt.answer)
				status := claim.Status
				capacity, allocated, recorded := storage(status.Capacity), storage(status.AllocatedResources), storage(pv.Spec.Capacity)
				if capacity.String() != tt.claim || allocated.String() != tt.allocated || recorded.String() != tt.pv || resizeStatus(claim) != tt.status {
					t.Errorf("%s: claim %v, allocated %v, volume %v, status %q", tt.reason, capacity.String(), allocated.String(), recorded.String(), resizeStatus(claim))
				}
				if failed := hasCondition(claim, corev1.PersistentVolumeClaimControllerResizeError); failed != tt.failed {
					t.Errorf("%s: conditions %+v, want an error: %t", tt.reason, status.Conditions, tt.failed)
				}
				if pv.Annotations[AnnotationPreResize] != tt.preResize || claim.Annotations[AnnotationNodeNotRequired] != tt.notRequire {
					t.Errorf("%s: annotations %v of the volume, %v of the claim", tt.reason, pv.Annotations, claim.Annotations)
				}
			})
		})
	}
}

// upTo is a driver that answers with success to each size, and has no more than a most.
type upTo struct {
	csi.ControllerClient
	most int64
}

// ControllerExpandVolume implements csi.ControllerClient.
func (d upTo) ControllerExpandVolume(_ context.Context, request *csi.ControllerExpandVolumeRequest, _ ...grpc.CallOption) (*csi.ControllerExpandVolumeResponse, error) {
	if size := request.GetCapacityRange().GetRequiredBytes(); size <= d.most {
		return &csi.ControllerExpandVolumeResponse{CapacityBytes: size}, nil
	}
	return &csi.ControllerExpandVolumeResponse{CapacityBytes: 1 << 30}, nil
}

// TestLoweredAfterSmaller has a driver that answers with success and less than was asked for: nothing is in progress then, so that the user may lower the
// request to what the driver can do (KEP-1790).
func TestLoweredAfterSmaller(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		claim, pv := expandAgainst(t, upTo{most: 3 << 29}, func(cluster *kubetest.Cluster) {
			lowered := []byte(`{"spec":{"resources":{"requests":{"storage":"1536Mi"}}}}`)
			if _, err := cluster.Client().PersistentVolumeClaims("ns").Patch(t.Context(), "data", types.StrategicMergePatchType, lowered, metav1.PatchOptions{}); err != nil {
				t.Fatal(err)
			}
		})
		if capacity, recorded := storage(claim.Status.Capacity), storage(pv.Spec.Capacity); capacity.String() != "1536Mi" || recorded.String() != "1536Mi" {
			t.Errorf("claim %s, volume %s, status %q; want 1536Mi", capacity.String(), recorded.String(), resizeStatus(claim))
		}
	})
}

// expandAgainst asks for 2Gi instead of 1Gi, makes further changes, a minute after the other, and returns claim and volume after that.
func expandAgainst(t *testing.T, driver csi.ControllerClient, changes ...func(*kubetest.Cluster)) (*corev1.PersistentVolumeClaim, *corev1.PersistentVolume) {
	t.Helper()
	cluster := kubetest.New(
		&corev1.PersistentVolumeClaim{
			ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "data", UID: "uid"},
			Spec:       corev1.PersistentVolumeClaimSpec{VolumeName: "pv", Resources: corev1.VolumeResourceRequirements{Requests: list("2Gi")}},
			Status:     corev1.PersistentVolumeClaimStatus{Phase: corev1.ClaimBound, Capacity: list("1Gi")},
		},
		&corev1.PersistentVolume{
			ObjectMeta: metav1.ObjectMeta{Name: "pv"},
			Spec: corev1.PersistentVolumeSpec{
				Capacity: list("1Gi"), AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
				ClaimRef: &corev1.ObjectReference{Namespace: "ns", Name: "data", UID: "uid"},
				PersistentVolumeSource: corev1.PersistentVolumeSource{
					CSI: &corev1.CSIPersistentVolumeSource{Driver: testDriver, VolumeHandle: "vol"},
				},
			},
		},
	)
	c := New(Config{
		Driver: testDriver, Kube: cluster.Client(), CSI: driver, Features: func() Features { return Features{Expand: true} },
		Events: events.Discard{}, Secrets: kube.NewSecretCache(cluster.Client(), nil), Workers: 1, Retry: flagset.Retry{Start: time.Hour, Max: time.Hour},
		ResizeTimeout: time.Second, ModifyTimeout: time.Second, KubeTimeout: time.Second, AnnotatePreResize: true,
	})
	ctx, stop := context.WithCancel(klog.NewContext(t.Context(), klog.Logger{}))
	ended := make(chan error, 1)
	go func() { ended <- c.Run(ctx) }()
	time.Sleep(time.Minute)
	for _, change := range changes {
		change(cluster)
		time.Sleep(time.Minute)
	}
	stop()
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	claim, err := cluster.Client().PersistentVolumeClaims("ns").Get(t.Context(), "data", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	pv, err := cluster.Client().PersistentVolumes().Get(t.Context(), "pv", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return claim, pv
}
