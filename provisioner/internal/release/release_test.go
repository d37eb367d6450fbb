package release

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/longshore-csi/longshore/csikittest/csitest"
	"github.com/longshore-csi/longshore/csikittest/kubetest"
	"github.com/longshore-csi/longshore/provisioner/internal/volume"
)

// counts returns the counters, and the counts of the histograms, that are not zero, as lines of text.
func (r *rig) counts() []string {
	r.t.Helper()
	families, err := r.registry.Gather()
	if err != nil {
		r.t.Fatal(err)
	}
	var lines []string
	for _, family := range families {
		for _, metric := range family.GetMetric() {
			var labels []string
			for _, label := range metric.GetLabel() {
				labels = append(labels, label.GetName()+"="+label.GetValue())
			}
			n := metric.GetCounter().GetValue() + float64(metric.GetHistogram().GetSampleCount())
			if n > 0 {
				lines = append(lines, fmt.Sprintf("%s{%s} %v", family.GetName(), strings.Join(labels, ","), n))
			}
		}
	}
	slices.Sort(lines)
	return lines
}

// TestMetrics counts and times deletions.
func TestMetrics(t *testing.T) {
	const volumes = "controller_persistentvolume_delete_"
	for code, want := range map[codes.Code][]string{
		codes.OK:       {volumes + "duration_seconds{class=fast} 1", volumes + "total{class=fast} 1"},
		codes.Internal: {volumes + "failed_total{class=fast} 1"},
	} {
		onRig(t, func(t *testing.T, r *rig) {
			r.driver.Inject(csitest.Fault{Method: "DeleteVolume", Code: code, Times: 1})
			if _, err := r.reconcile(quiet(t), "pvc-uid-1"); (err != nil) != (code != codes.OK) {
				t.Errorf("error %v after %v", err, code)
			}
			if diff := cmp.Diff(want, r.counts()); diff != "" {
				t.Errorf("counts after %v (-want +got):\n%s", code, diff)
			}
			if gone := len(r.changed); gone != len(want)-1 {
				t.Errorf("%d volumes are gone after %v", gone, code)
			}
		}, releasedPV(), newClass())
	}
}

// TestChanged looks at the volumes of ours about which something is to be done, and forgets those that are gone.
func TestChanged(t *testing.T) {
	foreign := releasedPV(annotated(volume.AnnProvisionedBy, "other"))
	next := releasedPV()
	next.UID = "pv-2"
	cases := map[string]struct {
		reason        string
		before, after *corev1.PersistentVolume
		// begun says that the deletion of the volume has begun.
		begun, waits, kept bool
	}{
		"Released":  {reason: "A volume of ours is looked at.", after: releasedPV(), waits: true},
		"Used":      {reason: "Nothing is to be done about a volume in use, as most are.", after: newPV()},
		"UsedBegun": {reason: "Something was: the deletion of the volume has begun.", after: newPV(), begun: true, waits: true, kept: true},
		"Foreign":   {reason: "Volumes of other drivers are dropped at the door.", after: foreign},
		"Changed":   {reason: "What was done to a volume is remembered while it shows.", before: newPV(), after: newPV(), begun: true, waits: true, kept: true},
		"Gone":      {reason: "A volume that is gone needs no notes.", before: newPV(), begun: true},
		"Replaced":  {reason: "The notes about a volume are not about its successor.", before: newPV(), after: next, begun: true, waits: true},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			onRig(t, func(t *testing.T, r *rig) {
				if tc.begun {
					r.records.Change("pv-1", func(known *record) { known.deleted = true })
				}
				r.Changed(tc.before, tc.after)
				if waits, kept := r.State().Waiting == 1, r.records.Len() == 1; waits != tc.waits || kept != tc.kept {
					t.Errorf("%s\nit is looked at: %t, want %t; its record is kept: %t, want %t", tc.reason, waits, tc.waits, kept, tc.kept)
				}
			})
		})
	}
}

// TestNothingIsNotedTooLate lets the end of a volume be announced in the middle of the work on it: notes that are made afterwards must not stay for good.
func TestNothingIsNotedTooLate(t *testing.T) {
	now := metav1.Now()
	for verb, change := range map[string]func(*corev1.PersistentVolume){
		"patch": func(pv *corev1.PersistentVolume) {
			pv.DeletionTimestamp, pv.Finalizers = &now, []string{volume.Finalizer}
		},
		"delete": func(pv *corev1.PersistentVolume) { pv.Finalizers = nil },
	} {
		onRig(t, func(t *testing.T, r *rig) {
			r.cluster.Inject(kubetest.Fault{Verb: verb, Resource: "persistentvolumes", After: true, Times: 1, Do: r.watchesCatchUp})
			r.step("pvc-uid-1")
			r.watchesCatchUp()
			if n := r.records.Len(); n > 0 {
				t.Errorf("%d records stay after the %s that ends the object", n, verb)
			}
		}, releasedPV(change))
	}
}

// TestAttachmentChanged looks at a volume of ours that was detached.
func TestAttachmentChanged(t *testing.T) {
	foreign := newPV()
	foreign.Annotations[volume.AnnProvisionedBy] = "other"
	cases := map[string]struct {
		reason        string
		before, after *storagev1.VolumeAttachment
		pv            *corev1.PersistentVolume
		want          int
	}{
		"Detached":        {reason: "The volume may wait for that.", before: attachmentOf("n"), pv: newPV(), want: 1},
		"Attached":        {reason: "A new attachment lets nothing go on.", after: attachmentOf("n"), pv: newPV()},
		"DetachedForeign": {reason: "Attachments of other drivers are none of ours.", before: attachmentOf("n"), pv: foreign},
		"DetachedInline":  {reason: "Attachments of inline volumes have no PersistentVolume.", before: &storagev1.VolumeAttachment{}, pv: newPV()},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			onRig(t, func(t *testing.T, r *rig) {
				r.AttachmentChanged(tc.before, tc.after)
				if got := r.State().Waiting; got != tc.want {
					t.Errorf("%s\n%d volumes are looked at, want %d", tc.reason, got, tc.want)
				}
			}, tc.pv)
		})
	}
}
