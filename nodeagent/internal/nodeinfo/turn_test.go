package nodeinfo

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
)

// TestFailingDriverBlocksNoOther: while the Node cannot be patched for one driver, another one registers.
func TestFailingDriverBlocksNoOther(t *testing.T) {
	story(t, nil, func(t *testing.T, w *world) {
		e := Driver{Name: "e.example", NodeID: "n"}
		w.install(e) // its node ID is on the Node already
		w.c.Fail("patch", "nodes", apierrors.NewInternalError(context.Canceled), 0)
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
		defer cancel()
		done := make(chan error, 1)
		go func() { done <- w.w.Install(ctx, driverD()) }()
		synctest.Wait()
		start := time.Now()
		e.MaxVolumes = 5
		w.install(e)
		if took := time.Since(start); took > 10*time.Second {
			t.Errorf("the registration of another driver took %v", took)
		}
		if err := <-done; err == nil {
			t.Error("the Node could not be patched, but the driver is installed")
		}
	})
}

// TestRestoreGoesOn: a Node that cannot be patched for one driver does not end the care for the CSINode.
func TestRestoreGoesOn(t *testing.T) {
	story(t, nil, func(t *testing.T, w *world) {
		w.install(driverD())
		if err := w.c.Merge("nodes", "", nodeName, []byte(`{"metadata":{"labels":null}}`)); err != nil {
			t.Fatal(err)
		}
		w.c.Fail("patch", "nodes", apierrors.NewInternalError(context.Canceled), 0)
		defer w.run()()
		time.Sleep(10 * time.Minute)
		if err := w.c.Remove("csinodes", "", nodeName); err != nil {
			t.Fatal(err)
		}
		time.Sleep(10 * time.Minute)
		w.expectIDs("d.example=id-1")
	})
}

// TestNoMigratedPlugins: the annotation promises that in-tree volumes are mounted through their CSI drivers, which this
// agent does not do. One that a kubelet has left is removed.
func TestNoMigratedPlugins(t *testing.T) {
	story(t, nil, func(t *testing.T, w *world) {
		w.install(driverD())
		if _, ok := w.csiNode().Annotations[corev1.MigratedPluginsAnnotationKey]; ok {
			t.Errorf("annotations of a new CSINode: %v", w.csiNode().Annotations)
		}
		left := &storagev1.CSINode{}
		left.Name, left.Annotations = nodeName, map[string]string{corev1.MigratedPluginsAnnotationKey: "kubernetes.io/aws-ebs", "x": "y"}
		if err := w.c.Apply(left); err != nil {
			t.Fatal(err)
		}
		w.install(driverD())
		got := w.csiNode().Annotations
		if _, ok := got[corev1.MigratedPluginsAnnotationKey]; ok || got["x"] != "y" {
			t.Errorf("annotations of a CSINode that a kubelet has left: %v", got)
		}
	})
}
