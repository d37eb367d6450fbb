package volume

import (
	"reflect"
	"slices"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	corev1 "k8s.io/api/core/v1"

	"github.com/longshore-csi/longshore/provisioner/internal/params"
)

// fullPV returns the PersistentVolume of a claim and a class that leave nothing open.
func fullPV(t *testing.T) *corev1.PersistentVolume {
	t.Helper()
	ref := &corev1.SecretReference{Namespace: "ns", Name: "s"}
	mode, gold := corev1.PersistentVolumeFilesystem, "gold"
	spec := newSpec()
	spec.Claim.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadOnlyMany}
	spec.Claim.Spec.VolumeMode, spec.AttributesClass = &mode, gold
	spec.Secrets = params.Secrets{
		Provision: ref, ControllerPublish: ref, NodeStage: ref, NodePublish: ref, ControllerExpand: ref, NodeExpand: ref, ControllerModify: ref,
	}
	pv, err := spec.PersistentVolume(&csi.Volume{
		VolumeId: "vol-1", CapacityBytes: 2 << 30, VolumeContext: map[string]string{"a": "b"},
		AccessibleTopology: []*csi.Topology{{Segments: map[string]string{"zone": "a"}}},
	}, Policy{Driver: driver, Identity: "me", PublishReadOnly: true, Topology: true})
	if err != nil {
		t.Fatal(err)
	}
	return pv
}

// TestEveryFieldOfThePersistentVolume goes through the fields that the API has, also those that a later version
// may add: each is either written or left out for a reason.
func TestEveryFieldOfThePersistentVolume(t *testing.T) {
	pv := fullPV(t)
	cases := map[string]struct {
		reason string
		object any
		absent []string
	}{
		"Spec": {
			reason: "All that a volume is, is written; it has one source, which is CSI.",
			object: pv.Spec,
		},
		"Source": {
			reason: "The sources of other kinds are not ours.",
			object: pv.Spec.CSI,
		},
		"ClaimRef": {
			reason: "A claim has no parts to refer to.",
			object: pv.Spec.ClaimRef, absent: []string{"FieldPath"},
		},
		"Metadata": {
			reason: "The server writes the rest; users of a volume find it by its claim and not by labels.",
			object: pv.ObjectMeta,
			absent: []string{
				"CreationTimestamp", "DeletionGracePeriodSeconds", "DeletionTimestamp", "GenerateName", "Generation", "Labels",
				"ManagedFields", "Namespace", "OwnerReferences", "ResourceVersion", "SelfLink", "UID",
			},
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			value := reflect.Indirect(reflect.ValueOf(tc.object))
			for i := range value.NumField() {
				field := value.Type().Field(i)
				if empty := value.Field(i).IsZero(); empty != slices.Contains(tc.absent, field.Name) {
					t.Errorf("%s\nfield %s is empty: %v", tc.reason, field.Name, empty)
				}
			}
		})
	}
	if pv.Status != (corev1.PersistentVolumeStatus{}) {
		t.Errorf("status %+v: it is the controller manager's", pv.Status)
	}
}

// TestNothingIsShared changes what a PersistentVolume was made from, which must not reach it: the claim and the
// class are objects of a cache.
func TestNothingIsShared(t *testing.T) {
	spec := newSpec()
	pv, err := spec.PersistentVolume(&csi.Volume{VolumeId: "v"}, Policy{Driver: driver})
	if err != nil {
		t.Fatal(err)
	}
	before := pv.DeepCopy()
	pv.Spec.AccessModes[0], pv.Spec.MountOptions[0], pv.Spec.ClaimRef.Name = "x", "x", "x"
	again, err := spec.PersistentVolume(&csi.Volume{VolumeId: "v"}, Policy{Driver: driver})
	if err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(before, again) {
		t.Errorf("a change of the PersistentVolume reached the claim or the class:\n%+v\n%+v", before.Spec, again.Spec)
	}
}

// TestReclaimPolicy covers what the API server fills in, and what older classes leave out.
func TestReclaimPolicy(t *testing.T) {
	policy := func(p corev1.PersistentVolumeReclaimPolicy) *corev1.PersistentVolumeReclaimPolicy { return &p }
	cases := map[string]struct {
		reason    string
		policy    *corev1.PersistentVolumeReclaimPolicy
		want      corev1.PersistentVolumeReclaimPolicy
		protected bool
	}{
		"Unset":  {reason: "A class without a policy deletes.", want: corev1.PersistentVolumeReclaimDelete, protected: true},
		"Delete": {reason: "The finalizer sees to it that the volume is deleted.", policy: policy(corev1.PersistentVolumeReclaimDelete), want: corev1.PersistentVolumeReclaimDelete, protected: true},
		"Retain": {reason: "A volume that is kept needs none.", policy: policy(corev1.PersistentVolumeReclaimRetain), want: corev1.PersistentVolumeReclaimRetain},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			spec := newSpec()
			spec.Class.ReclaimPolicy = tc.policy
			pv, err := spec.PersistentVolume(&csi.Volume{VolumeId: "v"}, Policy{Driver: driver})
			if err != nil {
				t.Fatal(err)
			}
			if got := pv.Spec.PersistentVolumeReclaimPolicy; got != tc.want {
				t.Errorf("%s\npolicy %s, want %s", tc.reason, got, tc.want)
			}
			if got := slices.Contains(pv.Finalizers, "external-provisioner.volume.kubernetes.io/finalizer"); got != tc.protected {
				t.Errorf("%s\nprotected: %v, want %v", tc.reason, got, tc.protected)
			}
		})
	}
}
