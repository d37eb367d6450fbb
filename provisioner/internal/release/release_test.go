package release

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/longshore-csi/longshore/csikittest/csitest"
	"github.com/longshore-csi/longshore/csikittest/kubetest"
	"github.com/longshore-csi/longshore/provisioner/internal/kubeapitest/fixtures"
	"github.com/longshore-csi/longshore/provisioner/internal/volume"
)

// TestMetrics counts and times deletions.
func TestMetrics(t *testing.T) {
	const volumes = "controller_persistentvolume_delete_"
	for code, want := range map[codes.Code][]string{
		codes.OK:       {volumes + "duration_seconds{class=fast} 1", volumes + "total{class=fast} 1"},
		codes.Internal: {volumes + "failed_total{class=fast} 1"},
	} {
		onRig(t, func(t *testing.T, r *rig) {
			r.Driver.Inject(csitest.Fault{Method: "DeleteVolume", Code: code, Times: 1})
			if _, err := r.reconcile(fixtures.Quiet(t), "pvc-uid-1"); (err != nil) != (code != codes.OK) {
				t.Errorf("error %v after %v", err, code)
			}
			if diff := cmp.Diff(want, r.Counts()); diff != "" {
				t.Errorf("counts after %v (-want +got):\n%s", code, diff)
			}
			if gone := len(r.changed); gone != len(want)-1 {
				t.Errorf("%d volumes are gone after %v", gone, code)
			}
		}, fixtures.ReleasedPV(), fixtures.Class())
	}
}

// TestChanged looks at the volumes of ours about which something is to be done, and forgets those that are gone.
func TestChanged(t *testing.T) {
	foreign := fixtures.ReleasedPV(fixtures.Annotated(volume.AnnProvisionedBy, "other"))
	next := fixtures.ReleasedPV()
	next.UID = "pv-2"
	cases := map[string]struct {
		reason        string
		before, after *corev1.PersistentVolume
		// begun says that the deletion of the volume has begun.
		begun, waits, kept bool
	}{
		"Released":  {reason: "A volume of ours is looked at.", after: fixtures.ReleasedPV(), waits: true},
		"Used":      {reason: "Nothing is to be done about a volume in use, as most are.", after: fixtures.PV()},
		"UsedBegun": {reason: "Something was: the deletion of the volume has begun.", after: fixtures.PV(), begun: true, waits: true, kept: true},
		"Foreign":   {reason: "Volumes of other drivers are dropped at the door.", after: foreign},
		"Changed":   {reason: "What was done to a volume is remembered while it shows.", before: fixtures.PV(), after: fixtures.PV(), begun: true, waits: true, kept: true},
		"Gone":      {reason: "A volume that is gone needs no notes.", before: fixtures.PV(), begun: true},
		"Replaced":  {reason: "The notes about a volume are not about its successor.", before: fixtures.PV(), after: next, begun: true, waits: true},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			onRig(t, func(t *testing.T, r *rig) {
				if tc.begun {
					r.records.Change("pv-1", func(known *record) { known.deleted = true })
				}
				r.Changed(tc.before, tc.after)
				if waits, kept := r.State().Waiting == 1, len(r.records.Matching(func(record) bool { return true })) == 1; waits != tc.waits || kept != tc.kept {
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
			r.Cluster.Inject(kubetest.Fault{Verb: verb, Resource: "persistentvolumes", After: true, Times: 1, Do: r.WatchesCatchUp})
			r.step("pvc-uid-1")
			r.WatchesCatchUp()
			if n := len(r.records.Matching(func(record) bool { return true })); n > 0 {
				t.Errorf("%d records stay after the %s that ends the object", n, verb)
			}
		}, fixtures.ReleasedPV(change))
	}
}

// TestAttachmentChanged looks at a volume of ours that was detached.
func TestAttachmentChanged(t *testing.T) {
	foreign := fixtures.PV()
	foreign.Annotations[volume.AnnProvisionedBy] = "other"
	cases := map[string]struct {
		reason        string
		before, after *storagev1.VolumeAttachment
		pv            *corev1.PersistentVolume
		want          int
	}{
		"Detached":        {reason: "The volume may wait for that.", before: attachmentOf("n"), pv: fixtures.PV(), want: 1},
		"Attached":        {reason: "A new attachment lets nothing go on.", after: attachmentOf("n"), pv: fixtures.PV()},
		"DetachedForeign": {reason: "Attachments of other drivers are none of ours.", before: attachmentOf("n"), pv: foreign},
		"DetachedInline":  {reason: "Attachments of inline volumes have no PersistentVolume.", before: &storagev1.VolumeAttachment{}, pv: fixtures.PV()},
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
