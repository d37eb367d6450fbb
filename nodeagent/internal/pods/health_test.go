package pods

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/longshore-csi/longshore/csikittest/kubetest"
	"github.com/longshore-csi/longshore/kubeletplugin/volume"
)

func degraded(reason, message string) corev1.VolumeHealthCondition {
	return corev1.VolumeHealthCondition{Status: corev1.VolumeHealthDegraded, Reason: reason, Message: message}
}

// TestWithHealth is which entries of a pod's status change, and when they get a new time.
func TestWithHealth(t *testing.T) {
	earlier, now := metav1.Unix(1000, 0), metav1.Unix(2000, 0)
	entry := func(name string, at metav1.Time, conditions ...corev1.VolumeHealthCondition) corev1.PodVolumeHealth {
		return corev1.PodVolumeHealth{Name: name, HealthConditions: conditions, LastTransitionTime: at}
	}
	wanted := []volume.Publication{
		{SpecName: "pv-1", PodVolumes: []string{"data", "again"}, Pod: volume.Pod{UID: "uid-a"}},
		{SpecName: "pv-2", PodVolumes: []string{"logs"}, Pod: volume.Pod{UID: "uid-a"}},
	}
	key := wanted[0].Key()
	cases := map[string]struct {
		reason   string
		before   []corev1.PodVolumeHealth
		reported map[volume.Key][]corev1.VolumeHealthCondition
		want     []corev1.PodVolumeHealth
		differs  bool
	}{
		"Nothing":   {reason: "drivers that report no health"},
		"WellFirst": {reason: "a volume that always was well has no entry", reported: map[volume.Key][]corev1.VolumeHealthCondition{key: nil}},
		"Sick": {
			reason:   "a volume has an entry under each of its names",
			reported: map[volume.Key][]corev1.VolumeHealthCondition{key: {degraded("Slow", "text")}},
			want:     []corev1.PodVolumeHealth{entry("data", now, degraded("Slow", "text")), entry("again", now, degraded("Slow", "text"))}, differs: true,
		},
		"Message": {
			reason:   "other words for the same are no change",
			before:   []corev1.PodVolumeHealth{entry("data", earlier, degraded("Slow", "text")), entry("again", earlier, degraded("Slow", "text"))},
			reported: map[volume.Key][]corev1.VolumeHealthCondition{key: {degraded("Slow", "other")}},
			want:     []corev1.PodVolumeHealth{entry("data", earlier, degraded("Slow", "text")), entry("again", earlier, degraded("Slow", "text"))},
		},
		"WellAgain": {
			reason:   "the entry stays, with the time of the change; those of other volumes stay as they are",
			before:   []corev1.PodVolumeHealth{entry("logs", earlier, degraded("Late", "")), entry("data", earlier, degraded("Slow", "")), entry("again", earlier)},
			reported: map[volume.Key][]corev1.VolumeHealthCondition{key: nil},
			want:     []corev1.PodVolumeHealth{entry("logs", earlier, degraded("Late", "")), entry("data", now), entry("again", earlier)}, differs: true,
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			got, differs := withHealth(tc.before, wanted, tc.reported, now)
			if diff := cmp.Diff(tc.want, got); diff != "" || differs != tc.differs {
				t.Errorf("%s: differs %t, want %t; -want +got:\n%s", tc.reason, differs, tc.differs, diff)
			}
		})
	}
}

// TestHealthIsWrittenOnce: neither the watch nor an API server that drops the field causes another write, and a failed one is repeated.
func TestHealthIsWrittenOnce(t *testing.T) {
	scenario(t, func(t *testing.T, b *bench) {
		var conditions []corev1.VolumeHealthCondition
		b.c.cfg.Health = func(uid types.UID) map[volume.Key][]corev1.VolumeHealthCondition {
			b.mu.Lock()
			defer b.mu.Unlock()
			return map[volume.Key][]corev1.VolumeHealthCondition{{Pod: uid, SpecName: "pv-1"}: conditions}
		}
		b.set(func() { b.published = true })
		b.add(testPod())
		b.api.ResetWrites()
		b.api.Inject(kubetest.Fault{Verb: "patch", Resource: "pods/status", Err: apierrors.NewServiceUnavailable("away"), Times: 1})
		b.set(func() { conditions = []corev1.VolumeHealthCondition{degraded("Slow", "")} })
		b.c.Wake("uid-a")
		time.Sleep(time.Minute)
		synctest.Wait()
		if p := b.pod(); len(p.Status.VolumeHealth) != 1 || len(p.Status.VolumeHealth[0].HealthConditions) != 1 || p.Status.Phase != corev1.PodRunning {
			t.Errorf("status is %+v, want the condition, and the rest as before", p.Status)
		}
		if err := b.api.Merge("pods", "ns", "a", []byte(`{"status":{"volumeHealth":null}}`)); err != nil {
			t.Fatal(err)
		}
		b.show()
		if n := len(b.api.Writes()); n != 2 {
			t.Errorf("%d writes, want the one that failed and another", n)
		}
		b.api.Inject(kubetest.Fault{Verb: "patch", Resource: "pods/status", Err: apierrors.NewConflict(schema.GroupResource{Resource: "pods"}, "a", nil), Times: 1})
		b.set(func() { conditions = nil })
		b.c.Wake("uid-a")
		synctest.Wait()
		b.set(func() {
			if log := b.logged.String(); strings.Count(log, "\n") != 1 || !strings.Contains(log, "away") {
				t.Errorf("an operator sees %q, want the failure, and no conflict", log)
			}
		})
	})
}
