package controller

import (
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/longshore-csi/longshore/csikittest/kubetest"
)

// TestLostCapabilityKeepsFinalizers: the driver restarts without PUBLISH_UNPUBLISH_VOLUME for 15 s. No attached volume
// loses its finalizer, no VolumeAttachment is marked attached without a call, and all are detached in the end.
func TestLostCapabilityKeepsFinalizers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, freshPV(), newCSINode(testDriver, "id-1"))
		defer b.stop()
		b.apply(fresh(named("attached")), fresh(named("deleted")))
		pass(time.Second)

		b.lost.Store(true)
		b.DriverChanged(b.ctx)
		b.apply(fresh(named("waiting")))
		b.remove("deleted")
		pass(15 * time.Second)
		for _, name := range []string{"attached", "deleted"} {
			if va := b.get(name); !hasFinalizer(va, testFinalizer) || !va.Status.Attached {
				t.Errorf("%s: finalizers %q, attached %t, want them unchanged", name, va.Finalizers, va.Status.Attached)
			}
		}
		if va := b.get("waiting"); va.Status.Attached {
			t.Error("waiting: marked attached without a call")
		} else if va.Status.AttachError == nil || !strings.Contains(va.Status.AttachError.Message, "PUBLISH_UNPUBLISH_VOLUME") {
			t.Errorf("waiting: attachError %v, want one that names the capability", va.Status.AttachError)
		}
		if err := b.AttachLost(); err == nil {
			t.Error("the loss is not reported")
		}

		b.lost.Store(false)
		b.DriverChanged(b.ctx)
		pass(time.Minute)
		if b.exists("deleted") {
			t.Error("deleted: was not detached when the capability was back")
		}
		if va := b.get("waiting"); !va.Status.Attached || !hasFinalizer(va, testFinalizer) {
			t.Errorf("waiting: attached %t, finalizers %q after the capability was back", va.Status.Attached, va.Finalizers)
		}
		if err := b.AttachLost(); err != nil {
			t.Errorf("the capability is back, but reported is: %v", err)
		}
	})
}

// TestEvidenceOfCalls starts a process whose driver does not announce PUBLISH_UNPUBLISH_VOLUME: it marks volumes attached
// only if nothing in the API says that volumes of the driver were attached by calls.
func TestEvidenceOfCalls(t *testing.T) {
	foreign := func(va *storagev1.VolumeAttachment) { va.Spec.Attacher = "other" }
	tests := map[string]struct {
		reason string
		objs   []runtime.Object
		mark   bool
	}{
		"Nothing":   {reason: "the driver never attached", objs: []runtime.Object{freshPV()}, mark: true},
		"Marked":    {reason: "an earlier mark is no call", objs: []runtime.Object{freshPV(), fresh(named("old"), vaAttached)}, mark: true},
		"Foreign":   {reason: "other drivers attach", objs: []runtime.Object{freshPV(), fresh(named("old"), vaFinalized, vaAttached, foreign)}, mark: true},
		"Finalizer": {reason: "a volume is attached by a call", objs: []runtime.Object{freshPV(), fresh(named("old"), vaFinalized, vaAttached)}},
		"Uncertain": {reason: "a call may have been made", objs: []runtime.Object{freshPV(), fresh(named("old"), vaFinalized)}},
		"Handle":    {reason: "the finalizer was removed by hand", objs: []runtime.Object{freshPV(), fresh(named("old"), vaAttached, vaAnnotated(AnnotationVolumeHandle, "vol-1"))}},
		"NodeID":    {reason: "attached by the external-attacher", objs: []runtime.Object{freshPV(), fresh(named("old"), vaAttached, vaAnnotated(AnnotationNodeID, "id-1"))}},
		"Volume":    {reason: "the volume was attached once", objs: []runtime.Object{freshPV(pvFinalized)}},
		"OtherVolume": {
			reason: "another volume of the driver was attached once",
			objs:   []runtime.Object{freshPV(), freshPV(pvFinalized, func(pv *corev1.PersistentVolume) { pv.Name = "pv-2" })},
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				objs := append(tt.objs, newCSINode(testDriver, "id-1"), fresh())
				b := &bench{t: t, cluster: kubetest.New(objs...), driver: &storage{}, notes: &notebook{}}
				b.lost.Store(true)
				b.start()
				defer b.stop()
				pass(time.Minute)
				if got := b.get("va-1").Status.Attached; got != tt.mark {
					t.Errorf("%s: marked attached %t, want %t", tt.reason, got, tt.mark)
				}
				if err := b.AttachLost(); (err == nil) != tt.mark {
					t.Errorf("%s: reported %v", tt.reason, err)
				}
			})
		})
	}
}

// TestShared has two controllers, one after the other, of which only the first sees the driver attach.
func TestShared(t *testing.T) {
	publish := true
	config := Config{
		Driver: testDriver, Kube: kubetest.New().Client(), Registerer: prometheus.NewRegistry(), Features: func() Features { return Features{Publish: publish} },
	}
	config.Shared = NewShared(config)
	if err := New(config).AttachLost(); err != nil {
		t.Errorf("the driver attaches: %v", err)
	}
	publish = false
	if err := New(config).AttachLost(); !errors.Is(err, errPublishLost) {
		t.Errorf("got %v, want %v", err, errPublishLost)
	}
}
