package nodeinfo

import (
	"context"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/longshore-csi/longshore/csikittest/kubetest"
)

func degraded(reason, message string) storagev1.StorageHealthCondition {
	return storagev1.StorageHealthCondition{Status: storagev1.StorageDegraded, Reason: reason, Message: message}
}

// health lists the conditions of the CSINode.
func (w *world) health() []string {
	w.t.Helper()
	var all []string
	for _, h := range w.csiNode().Status.StorageHealth {
		for _, c := range h.HealthConditions {
			all = append(all, h.Name+" "+string(c.Status)+" "+c.Reason+" "+c.Message)
		}
	}
	return all
}

// TestWriteHealth writes what has changed, in the status alone, and leaves other drivers' entries.
func TestWriteHealth(t *testing.T) {
	block := corev1.PersistentVolumeBlock
	ofBlocks := degraded("Slow", "")
	ofBlocks.VolumeMode = &block
	steps := []struct {
		reason     string
		driver     string
		conditions []storagev1.StorageHealthCondition
		conflicts  int
		writes     []string
		want       []string
	}{
		{reason: "a driver that is well has no entry", driver: "d"},
		{reason: "a problem", driver: "d", conditions: []storagev1.StorageHealthCondition{degraded("Slow", "2 paths")},
			writes: []string{"update csinodes/status"}, want: []string{"d StorageDegraded Slow 2 paths"}},
		{reason: "a message alone", driver: "d", conditions: []storagev1.StorageHealthCondition{degraded("Slow", "1 path")}, want: []string{"d StorageDegraded Slow 2 paths"}},
		{reason: "another driver", driver: "e", conditions: []storagev1.StorageHealthCondition{degraded("Hot", "")}, conflicts: 2,
			writes: []string{"update csinodes/status refused", "update csinodes/status refused", "update csinodes/status"},
			want:   []string{"d StorageDegraded Slow 2 paths", "e StorageDegraded Hot "}},
		{reason: "another mode is another condition", driver: "d", conditions: []storagev1.StorageHealthCondition{ofBlocks},
			writes: []string{"update csinodes/status"}, want: []string{"d StorageDegraded Slow ", "e StorageDegraded Hot "}},
		{reason: "a second one", driver: "d", conditions: []storagev1.StorageHealthCondition{degraded("Late", ""), ofBlocks},
			writes: []string{"update csinodes/status"}, want: []string{"d StorageDegraded Late ", "d StorageDegraded Slow ", "e StorageDegraded Hot "}},
		{reason: "the order does not count", driver: "d", conditions: []storagev1.StorageHealthCondition{ofBlocks, degraded("Late", "")},
			want: []string{"d StorageDegraded Late ", "d StorageDegraded Slow ", "e StorageDegraded Hot "}},
		{reason: "it is over", driver: "d", writes: []string{"update csinodes/status"}, want: []string{"e StorageDegraded Hot "}},
	}
	story(t, nil, func(t *testing.T, w *world) {
		w.install(driverD())
		w.takeWrites()
		for _, s := range steps {
			conflict := apierrors.NewConflict(schema.GroupResource{Resource: "csinodes"}, nodeName, nil)
			if s.conflicts > 0 {
				w.c.Inject(kubetest.Fault{Verb: "update", Resource: "csinodes/status", Err: conflict, Times: s.conflicts})
			}
			if err := w.w.WriteHealth(t.Context(), s.driver, s.conditions); err != nil {
				t.Errorf("%s: %v", s.reason, err)
			}
			if diff := cmp.Diff(s.writes, w.takeWrites()); diff != "" {
				t.Errorf("%s: writes, -want +got:\n%s", s.reason, diff)
			}
			if diff := cmp.Diff(s.want, w.health()); diff != "" {
				t.Errorf("%s: conditions, -want +got:\n%s", s.reason, diff)
			}
		}
		w.expectIDs("d.example=id-1")
	})
}

// TestWriteHealthRefused: an API server without the subresource, or whose feature gate is off, is asked once a call; without a CSINode it is not.
func TestWriteHealthRefused(t *testing.T) {
	story(t, nil, func(t *testing.T, w *world) {
		conditions := []storagev1.StorageHealthCondition{degraded("Slow", "")}
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		if err := w.w.WriteHealth(ctx, "d", conditions); err != nil {
			t.Errorf("without a CSINode: %v", err)
		}
		w.install(driverD())
		w.takeWrites()
		for name, refusal := range map[string]error{
			"NotFound":  apierrors.NewNotFound(schema.GroupResource{Resource: "csinodes"}, nodeName),
			"Forbidden": apierrors.NewForbidden(schema.GroupResource{Resource: "csinodes"}, nodeName, nil),
		} {
			w.c.Inject(kubetest.Fault{Verb: "update", Resource: "csinodes/status", Err: refusal, Times: 1})
			if err := w.w.WriteHealth(ctx, "d", conditions); apierrors.ReasonForError(err) != apierrors.ReasonForError(refusal) {
				t.Errorf("%s: got %v", name, err)
			}
			w.expectWrites("update csinodes/status refused")
		}
	})
}
