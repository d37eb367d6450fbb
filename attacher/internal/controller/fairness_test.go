package controller

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/longshore-csi/longshore/csikittest/kubetest"
)

// onNode puts a VolumeAttachment on a node whose ID is its name.
func onNode(node string) func(*storagev1.VolumeAttachment) {
	return func(va *storagev1.VolumeAttachment) { va.Spec.NodeName = node }
}

// TestHangingNode attaches and detaches volumes of ten nodes, beside hundreds on another one whose calls hang.
func TestHangingNode(t *testing.T) {
	tests := map[string]struct {
		reason         string
		hanging, other []func(*storagev1.VolumeAttachment)
	}{
		"Detach":       {reason: "detaching from other nodes goes on", hanging: detaching, other: detaching},
		"Attach":       {reason: "attaching to other nodes goes on", hanging: attaching, other: attaching},
		"DetachAttach": {reason: "attaching has workers of its own", hanging: detaching, other: attaching},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			alone, beside := othersDone(t, 0, tt.hanging, tt.other), othersDone(t, 500, tt.hanging, tt.other)
			if beside > 2*alone {
				t.Errorf("%s: ten operations took %v, without the calls that hang %v", tt.reason, beside, alone)
			}
		})
	}
}

var (
	attaching []func(*storagev1.VolumeAttachment)
	detaching = []func(*storagev1.VolumeAttachment){vaFinalized, vaAttached, vaDeleting}
)

// othersDone returns how long ten operations on ten nodes take, a second each, when so many on another node hang for 10 seconds and fail.
func othersDone(t *testing.T, hanging int, bad, others []func(*storagev1.VolumeAttachment)) (took time.Duration) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		objs := []runtime.Object{freshPV()}
		for i := range 11 {
			node := newCSINode(testDriver, fmt.Sprintf("node-%d", i))
			node.Name = fmt.Sprintf("node-%d", i)
			objs = append(objs, node)
		}
		for i := range hanging {
			objs = append(objs, fresh(append(bad, named(fmt.Sprintf("bad-%d", i)), onNode("node-0"))...))
		}
		b := &bench{t: t, cluster: kubetest.New(objs...), driver: &storage{}, notes: &notebook{}, workers: 10}
		call := func(node string) error {
			if node == "node-0" {
				pass(10 * time.Second)
				return status.Error(codes.DeadlineExceeded, "hung")
			}
			pass(time.Second)
			return nil
		}
		b.driver.publish = func(r *csi.ControllerPublishVolumeRequest) (*csi.ControllerPublishVolumeResponse, error) {
			return &csi.ControllerPublishVolumeResponse{}, call(r.GetNodeId())
		}
		b.driver.unpublish = func(r *csi.ControllerUnpublishVolumeRequest) error { return call(r.GetNodeId()) }
		b.start()
		defer b.stop()
		pass(time.Hour)
		began := time.Now()
		for i := range 10 {
			b.apply(fresh(append(others, named(fmt.Sprintf("other-%d", i)), onNode(fmt.Sprintf("node-%d", i+1)))...))
		}
		done := func() bool {
			for i := range 10 {
				if name := fmt.Sprintf("other-%d", i); b.exists(name) && (len(others) > 0 || !b.get(name).Status.Attached) {
					return false
				}
			}
			return true
		}
		for !done() {
			if took = time.Since(began); took > time.Minute {
				t.Fatal("waited a minute for ten operations")
			}
			pass(100 * time.Millisecond)
			synctest.Wait()
		}
		took = time.Since(began)
	})
	return took
}

// TestDetachHasItsOwnBackoff deletes an object whose attaching has failed often: the first failure of detaching is its first.
func TestDetachHasItsOwnBackoff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, freshPV(), newCSINode(testDriver, "id-1"))
		defer b.stop()
		b.driver.publish = func(*csi.ControllerPublishVolumeRequest) (*csi.ControllerPublishVolumeResponse, error) {
			return nil, status.Error(codes.Internal, "broken")
		}
		failures := 0
		b.driver.unpublish = func(*csi.ControllerUnpublishVolumeRequest) error {
			if failures++; failures < 3 {
				return status.Error(codes.Internal, "busy")
			}
			return nil
		}
		b.apply(fresh())
		pass(time.Hour)
		b.remove("va-1")
		pass(4 * time.Second)
		if b.exists("va-1") {
			t.Errorf("the volume is not detached after %d attempts in 4 seconds", failures)
		}
	})
}
