package release

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"github.com/longshore-csi/longshore/provisioner/internal/capabilities"
	"github.com/longshore-csi/longshore/provisioner/internal/kubeapitest/fixtures"
	"github.com/longshore-csi/longshore/provisioner/internal/volume"
)

// phase sets the phase of the volume.
func phase(p corev1.PersistentVolumePhase) func(*volumeState) {
	return func(s *volumeState) { s.pv.Status.Phase = p }
}

// deleting marks the volume as being deleted.
func deleting(s *volumeState) {
	now := metav1.Now()
	s.pv.DeletionTimestamp = &now
}

// unprotected takes the finalizer off.
func unprotected(s *volumeState) {
	s.pv.Finalizers = []string{"kubernetes.io/pv-protection"}
}

// retained sets the policy that keeps volumes.
func retained(s *volumeState) {
	s.pv.Spec.PersistentVolumeReclaimPolicy = corev1.PersistentVolumeReclaimRetain
}

// static makes the volume one that was made by hand.
func static(s *volumeState) {
	s.pv.Annotations = nil
}

// unclaimed takes the claim away, as an administrator does to use a volume again.
func unclaimed(s *volumeState) {
	s.pv.Spec.ClaimRef = nil
}

func TestPlanVolume(t *testing.T) {
	type changes = []func(*volumeState)
	released := phase(corev1.VolumeReleased)
	attached := func(s *volumeState) { s.attachments = 1 }
	cases := map[string]struct {
		reason string
		change changes
		want   volumeVerb
	}{
		"Gone":                {reason: "Nothing is left to do.", change: changes{func(s *volumeState) { s.pv = nil }}},
		"Bound":               {reason: "A volume in use is left alone."},
		"Unprotected":         {reason: "A bound volume gets the finalizer.", change: changes{unprotected}, want: volumeProtect},
		"UnprotectedDeleting": {reason: "The API takes no new finalizer on an object under deletion.", change: changes{unprotected, deleting}},
		"UnprotectedPending":  {reason: "The finalizer waits until the volume is bound.", change: changes{unprotected, phase(corev1.VolumePending)}},
		"Retained":            {reason: "The finalizer goes when the policy keeps the volume.", change: changes{retained}, want: volumeRelease},
		"RetainedReleased":    {reason: "A volume that is kept is not deleted.", change: changes{retained, unprotected, released}},
		"RetainedDeleting":    {reason: "The object may go, the volume stays.", change: changes{retained, deleting, released}, want: volumeRelease},
		"Released":            {reason: "A released volume is deleted.", change: changes{released}, want: volumeDelete},
		"ReleasedUnprotected": {reason: "Volumes from before the finalizer are deleted as well.", change: changes{released, unprotected}, want: volumeDelete},
		"Failed":              {reason: "A failed deletion is tried again.", change: changes{phase(corev1.VolumeFailed)}, want: volumeDelete},
		"FailedStatic":        {reason: "A volume that was made by hand and never protected is not deleted because its recycling has failed.", change: changes{phase(corev1.VolumeFailed), static, unprotected}},
		"FailedUnprotected":   {reason: "A volume of our own is, also from before the finalizer.", change: changes{phase(corev1.VolumeFailed), unprotected}, want: volumeDelete},
		"FailedProtected":     {reason: "So is one that we have protected.", change: changes{phase(corev1.VolumeFailed), static}, want: volumeDelete},
		"ReleasedStatic":      {reason: "A volume that was made by hand and released is deleted, as it has always been.", change: changes{released, static, unprotected}, want: volumeDelete},
		"DeletedFirst":        {reason: "A volume deleted before its claim is deleted once it is released.", change: changes{released, deleting}, want: volumeDelete},
		"DeletedFirstBound":   {reason: "A volume in use is not deleted.", change: changes{deleting}},
		"AlreadyDeleted":      {reason: "Without the finalizer the volume was deleted before.", change: changes{released, deleting, unprotected}},
		"OwnDeletion":         {reason: "Our own deletion is not repeated when the object comes back.", change: changes{released, deleting, func(s *volumeState) { s.deleted = true }}, want: volumeRemove},
		"OwnRemoval":          {reason: "What shows in the cache after our own deletion is only an echo.", change: changes{released, deleting, unprotected, func(s *volumeState) { s.deleted, s.removed = true, true }}},
		"FinalizerIsBack":     {reason: "A finalizer that was put on while the object was deleted must not keep it for good.", change: changes{released, deleting, func(s *volumeState) { s.deleted, s.removed = true, true }}, want: volumeRemove},
		"Attached":            {reason: "Deletion waits for detach.", change: changes{released, attached}, want: volumeWait},
		"AttachedNoPublish":   {reason: "Drivers that attach nothing have no attachments that matter.", change: changes{released, attached, func(s *volumeState) { s.caps.Publish = false }}, want: volumeDelete},
		"CannotDelete":        {reason: "A driver without the capability cannot delete.", change: changes{released, func(s *volumeState) { s.caps.Create = false }}, want: volumeRefuse},
		"NotCSI":              {reason: "A volume without CSI source cannot be deleted by CSI.", change: changes{released, func(s *volumeState) { s.pv.Spec.CSI = nil }}, want: volumeRefuse},
		"Static":              {reason: "Volumes made by hand obey their policy too.", change: changes{static, released}, want: volumeDelete},
		"StaticUnprotected":   {reason: "Volumes made by hand get the finalizer when bound.", change: changes{static, unprotected}, want: volumeProtect},
		"Available":           {reason: "A volume that nobody claimed yet waits.", change: changes{phase(corev1.VolumeAvailable), unclaimed}},
		"AvailableDeleting":   {reason: "The policy is about released volumes: this one is kept, and an event says so.", change: changes{phase(corev1.VolumeAvailable), unclaimed, deleting}, want: volumeRefuse},
		"AvailableRetained":   {reason: "The remedy that the event named.", change: changes{phase(corev1.VolumeAvailable), unclaimed, deleting, retained}, want: volumeRelease},
		"ReservedDeleting":    {reason: "A volume that is reserved for a claim waits until the claim is gone.", change: changes{phase(corev1.VolumeAvailable), deleting}},
		"OtherProvisioner":    {reason: "Other provisioners delete their own.", change: changes{released, func(s *volumeState) { s.pv.Annotations[volume.AnnProvisionedBy] = "other" }}},
		"OtherDriver":         {reason: "Other drivers delete their own.", change: changes{static, released, func(s *volumeState) { s.pv.Spec.CSI.Driver = "other" }}},
		"StaticNotCSI":        {reason: "A volume that is no CSI volume is left unchanged.", change: changes{static, released, func(s *volumeState) { s.pv.Spec.CSI = nil }}},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			s := volumeState{driver: driver, caps: capabilities.Set{Create: true, Publish: true}, pv: fixtures.PV()}
			for _, change := range tc.change {
				change(&s)
			}
			if got := planVolume(s); got.verb != tc.want {
				t.Errorf("%s\ngot %d (%s), want %d", tc.reason, got.verb, got.why, tc.want)
			}
		})
	}
}

func TestDeletionSecret(t *testing.T) {
	const name, namespace = "csi.storage.k8s.io/provisioner-secret-name", "csi.storage.k8s.io/provisioner-secret-namespace"
	cases := map[string]struct {
		reason      string
		annotations map[string]string
		parameters  map[string]string
		want        string
		err         bool
	}{
		"None": {reason: "Most drivers need no secret."},
		"Annotations": {
			reason:      "The secret that the volume was created with is the one that counts.",
			annotations: map[string]string{volume.AnnDeletionSecretName: "s", volume.AnnDeletionSecretNamespace: "ns"},
			parameters:  map[string]string{name: "other", namespace: "other"},
			want:        "ns/s",
		},
		"HalfAnnotation": {
			reason:      "Half a reference is none.",
			annotations: map[string]string{volume.AnnDeletionSecretName: "s", volume.AnnDeletionSecretNamespace: ""},
		},
		"RecordedNone": {
			reason:      "A volume that was created without a secret is deleted without one, whatever the class says now.",
			annotations: map[string]string{volume.AnnDeletionSecretName: "", volume.AnnDeletionSecretNamespace: ""},
			parameters:  map[string]string{name: "${pvc.annotations['x']}", namespace: "ns"},
		},
		"Class": {
			reason:     "Volumes without a record have the secret of their class.",
			parameters: map[string]string{name: "${pvc.name}-${pv.name}", namespace: "${pvc.namespace}"},
			want:       "team/data-pvc-uid-1",
		},
		"ClassNeedsAnnotation": {
			reason:     "The annotations of a claim that is gone cannot be known.",
			parameters: map[string]string{name: "${pvc.annotations['x']}", namespace: "ns"},
			err:        true,
		},
		"OtherSecretsDoNotMatter": {
			reason:     "Only the secret for deletion must be resolvable.",
			parameters: map[string]string{"csi.storage.k8s.io/node-stage-secret-name": "${pvc.annotations['x']}", "csi.storage.k8s.io/node-stage-secret-namespace": "ns"},
		},
		"BadClass": {
			reason:     "A class that makes no sense is an error.",
			parameters: map[string]string{name: "s"},
			err:        true,
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			pv := fixtures.PV()
			pv.Annotations = tc.annotations
			ref, err := deletionSecret(pv, tc.parameters)
			got := ""
			if ref != nil {
				got = ref.Namespace + "/" + ref.Name
			}
			if got != tc.want || (err != nil) != tc.err {
				t.Errorf("%s\ngot %q, %v, want %q, error: %v", tc.reason, got, err, tc.want, tc.err)
			}
		})
	}
}

// TestPlanVolumeFromView compares the decisions about volumes as the API has them and as the view keeps them.
func TestPlanVolumeFromView(t *testing.T) {
	now := metav1.Now()
	var all []*corev1.PersistentVolume
	var objs []runtime.Object
	for _, phase := range []corev1.PersistentVolumePhase{corev1.VolumePending, corev1.VolumeAvailable, corev1.VolumeBound, corev1.VolumeReleased, corev1.VolumeFailed} {
		for _, policy := range []corev1.PersistentVolumeReclaimPolicy{corev1.PersistentVolumeReclaimDelete, corev1.PersistentVolumeReclaimRetain} {
			for _, leaving := range []*metav1.Time{nil, &now} {
				pv := fixtures.PV()
				pv.Name, pv.UID = fmt.Sprint("pv-", len(all)), types.UID(fmt.Sprint("uid-of-pv-", len(all)))
				pv.Status.Phase, pv.Spec.PersistentVolumeReclaimPolicy, pv.DeletionTimestamp = phase, policy, leaving
				all, objs = append(all, pv), append(objs, pv.DeepCopy())
			}
		}
	}
	onRig(t, func(t *testing.T, r *rig) {
		for _, pv := range all {
			kept, ok := r.cfg.View.Volumes.Get("", pv.Name)
			if !ok {
				t.Fatalf("the view has no PersistentVolume %q", pv.Name)
			}
			full := volumeState{driver: driver, caps: capabilities.Set{Create: true}, pv: pv}
			slim := full
			slim.pv = kept
			if a, b := planVolume(full), planVolume(slim); a != b {
				t.Errorf("phase %s, policy %s, leaving %v: full %+v, slim %+v",
					pv.Status.Phase, pv.Spec.PersistentVolumeReclaimPolicy, pv.DeletionTimestamp, a, b)
			}
		}
	}, objs...)
}

// flags goes through all combinations of n switches.
func flags(n int, try func(on func(int) bool)) {
	for bits := range 1 << n {
		try(func(i int) bool { return bits&(1<<i) != 0 })
	}
}

// TestNoVolumeIsDeletedThatIsKept goes through all states of a PersistentVolume: data is deleted only when
// everything says so, and each state with the finalizer on has a way out.
func TestNoVolumeIsDeletedThatIsKept(t *testing.T) {
	now := metav1.Now()
	phases := []corev1.PersistentVolumePhase{"", corev1.VolumePending, corev1.VolumeAvailable, corev1.VolumeBound, corev1.VolumeReleased, corev1.VolumeFailed}
	policies := []corev1.PersistentVolumeReclaimPolicy{corev1.PersistentVolumeReclaimDelete, corev1.PersistentVolumeReclaimRetain, corev1.PersistentVolumeReclaimRecycle}
	for _, phase := range phases {
		for _, policy := range policies {
			flags(7, func(on func(int) bool) {
				pv := fixtures.PV()
				pv.Status.Phase, pv.Spec.PersistentVolumeReclaimPolicy = phase, policy
				if on(0) {
					pv.DeletionTimestamp = &now
				}
				if on(1) {
					pv.Finalizers = nil
				}
				if on(2) {
					pv.Spec.ClaimRef = nil
				}
				if on(3) {
					pv.Annotations[volume.AnnProvisionedBy] = "other"
				}
				s := volumeState{driver: driver, caps: capabilities.Set{Create: !on(4), Publish: true}, pv: pv}
				if on(5) {
					s.attachments = 1
				}
				s.deleted = on(6)
				plan := planVolume(s)
				name := fmt.Sprintf("phase %q, policy %s, deleting %v, unprotected %v, unclaimed %v, foreign %v, unable %v, attached %v, deleted %v: plan %d (%s)",
					phase, policy, on(0), on(1), on(2), on(3), on(4), on(5), on(6), plan.verb, plan.why)
				free := phase == corev1.VolumeReleased || phase == corev1.VolumeFailed
				if plan.verb == volumeDelete && (policy != corev1.PersistentVolumeReclaimDelete || !free || on(3) || on(4) || on(5) || on(6)) {
					t.Errorf("%s: the volume must not be deleted", name)
				}
				if plan.verb == volumeRemove && (!on(6) || on(3) || policy != corev1.PersistentVolumeReclaimDelete) {
					t.Errorf("%s: the object must not be deleted, its volume is there", name)
				}
				if on(3) && plan.verb != volumeLeave {
					t.Errorf("%s: it is another provisioner's", name)
				}
				if !on(3) && !on(1) && policy != corev1.PersistentVolumeReclaimDelete && plan.verb != volumeRelease {
					t.Errorf("%s: the finalizer would stay for good", name)
				}
				if plan.why == "" {
					t.Errorf("%s: no reason", name)
				}
			})
		}
	}
}
