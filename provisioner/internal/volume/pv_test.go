package volume

import (
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/longshore-csi/longshore/provisioner/internal/params"
)

// newPV returns the PersistentVolume of newSpec.
func newPV() *corev1.PersistentVolume {
	return &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{
			Name: "pvc-0a1b2c3d-0000-4000-8000-000000000001",
			Annotations: map[string]string{
				"pv.kubernetes.io/provisioned-by":                            driver,
				"volume.kubernetes.io/provisioner-deletion-secret-name":      "",
				"volume.kubernetes.io/provisioner-deletion-secret-namespace": "",
			},
			Finalizers: []string{"external-provisioner.volume.kubernetes.io/finalizer"},
		},
		Spec: corev1.PersistentVolumeSpec{
			AccessModes:  []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			MountOptions: []string{"noatime"},
			Capacity:     corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("2Gi")},
			ClaimRef: &corev1.ObjectReference{
				APIVersion: "v1", Kind: "PersistentVolumeClaim", Namespace: "team", Name: "data",
				UID: "0a1b2c3d-0000-4000-8000-000000000001", ResourceVersion: "7",
			},
			PersistentVolumeReclaimPolicy: corev1.PersistentVolumeReclaimDelete,
			StorageClassName:              "fast",
			PersistentVolumeSource: corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{
				Driver: driver, VolumeHandle: "vol-1", FSType: "ext4",
				VolumeAttributes: map[string]string{"storage.kubernetes.io/csiProvisionerIdentity": "me", "a": "b"},
			}},
		},
	}
}

func TestPersistentVolume(t *testing.T) {
	secret := func(name string) *corev1.SecretReference {
		return &corev1.SecretReference{Namespace: "ns", Name: name}
	}
	retain, mode, gold := corev1.PersistentVolumeReclaimRetain, corev1.PersistentVolumeFilesystem, "gold"
	cases := map[string]struct {
		reason  string
		spec    func(*Spec)
		created func(*csi.Volume)
		policy  func(*Policy)
		want    func(*corev1.PersistentVolume)
	}{
		"Plain": {
			reason: "A volume gets what claim, class and driver say.",
		},
		"UnknownCapacity": {
			reason:  "A driver that does not know the size made what was asked for.",
			created: func(v *csi.Volume) { v.CapacityBytes = 0 },
			want: func(pv *corev1.PersistentVolume) {
				pv.Spec.Capacity[corev1.ResourceStorage] = resource.MustParse("1Gi")
			},
		},
		"NoContext": {
			reason:  "The identity is written even if the driver has no attributes.",
			created: func(v *csi.Volume) { v.VolumeContext = nil },
			want:    func(pv *corev1.PersistentVolume) { delete(pv.Spec.CSI.VolumeAttributes, "a") },
		},
		"Retain": {
			reason: "Volumes that are kept need no finalizer.",
			spec:   func(s *Spec) { s.Class.ReclaimPolicy = &retain },
			want: func(pv *corev1.PersistentVolume) {
				pv.Finalizers, pv.Spec.PersistentVolumeReclaimPolicy = nil, retain
			},
		},
		"Secrets": {
			reason: "Secrets that have a field go there, the others into annotations.",
			spec: func(s *Spec) {
				s.Secrets = params.Secrets{
					Provision: secret("p"), ControllerPublish: secret("cp"), NodeStage: secret("ns"), NodePublish: secret("np"),
					ControllerExpand: secret("ce"), NodeExpand: secret("ne"), ControllerModify: secret("cm"),
				}
			},
			want: func(pv *corev1.PersistentVolume) {
				pv.Annotations["volume.kubernetes.io/provisioner-deletion-secret-name"] = "p"
				pv.Annotations["volume.kubernetes.io/provisioner-deletion-secret-namespace"] = "ns"
				pv.Annotations["volume.kubernetes.io/controller-modify-secret-name"] = "cm"
				pv.Annotations["volume.kubernetes.io/controller-modify-secret-namespace"] = "ns"
				pv.Spec.CSI.ControllerPublishSecretRef, pv.Spec.CSI.NodeStageSecretRef = secret("cp"), secret("ns")
				pv.Spec.CSI.NodePublishSecretRef, pv.Spec.CSI.ControllerExpandSecretRef = secret("np"), secret("ce")
				pv.Spec.CSI.NodeExpandSecretRef = secret("ne")
			},
		},
		"Topology": {
			reason: "Accessible topology becomes node affinity of one term for each segment.",
			created: func(v *csi.Volume) {
				v.AccessibleTopology = []*csi.Topology{{Segments: map[string]string{"zone": "a"}}}
			},
			policy: func(p *Policy) { p.Topology = true },
			want: func(pv *corev1.PersistentVolume) {
				pv.Spec.NodeAffinity = &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
					MatchExpressions: []corev1.NodeSelectorRequirement{{Key: "zone", Operator: corev1.NodeSelectorOpIn, Values: []string{"a"}}},
				}}}}
			},
		},
		"TopologyOff": {
			reason: "With the feature off, the topology of the answer is neither used nor checked.",
			created: func(v *csi.Volume) {
				v.AccessibleTopology = []*csi.Topology{{Segments: map[string]string{"zone": "not a label"}}}
			},
		},
		"ModeAndAttributesClass": {
			reason: "The volume has the mode of the claim, and the VolumeAttributesClass that it was made with.",
			spec: func(s *Spec) {
				s.Claim.Spec.VolumeMode, s.AttributesClass = &mode, gold
			},
			want: func(pv *corev1.PersistentVolume) {
				pv.Spec.VolumeMode, pv.Spec.VolumeAttributesClassName = &mode, &gold
			},
		},
		"AttributesClassOff": {
			reason: "The class of the claim is left out of a volume that was made without it.",
			spec:   func(s *Spec) { s.Claim.Spec.VolumeAttributesClassName = &gold },
		},
		"ReadOnly": {
			reason: "With the option, volumes for readers only are published read-only.",
			spec:   func(s *Spec) { s.Claim.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadOnlyMany} },
			policy: func(p *Policy) { p.PublishReadOnly = true },
			want: func(pv *corev1.PersistentVolume) {
				pv.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadOnlyMany}
				pv.Spec.CSI.ReadOnly = true
			},
		},
		"ReadOnlyNotOnly": {
			reason: "A volume that may be written is not read-only.",
			spec: func(s *Spec) {
				s.Claim.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadOnlyMany, corev1.ReadWriteMany}
			},
			policy: func(p *Policy) { p.PublishReadOnly = true },
			want: func(pv *corev1.PersistentVolume) {
				pv.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadOnlyMany, corev1.ReadWriteMany}
			},
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			spec, policy, want := newSpec(), Policy{Driver: driver, Identity: "me"}, newPV()
			created := &csi.Volume{VolumeId: "vol-1", CapacityBytes: 2 << 30, VolumeContext: map[string]string{"a": "b"}}
			apply(tc.spec, &spec)
			apply(tc.created, created)
			apply(tc.policy, &policy)
			apply(tc.want, want)
			got, err := spec.PersistentVolume(created, policy)
			if err != nil {
				t.Fatalf("%s\n%v", tc.reason, err)
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("%s\nPersistentVolume (-want +got):\n%s", tc.reason, diff)
			}
		})
	}
}

// apply calls a function if there is one.
func apply[T any](f func(*T), to *T) {
	if f != nil {
		f(to)
	}
}

func TestPersistentVolumeRefusesBadTopology(t *testing.T) {
	created := &csi.Volume{VolumeId: "vol-1", AccessibleTopology: []*csi.Topology{{Segments: map[string]string{"zone": "not a label"}}}}
	if _, err := newSpec().PersistentVolume(created, Policy{Driver: driver, Topology: true}); err == nil {
		t.Error("no error for a topology that the API would refuse")
	}
}

func TestPersistentVolumeSharesNothingWithTheDriver(t *testing.T) {
	created := &csi.Volume{VolumeId: "vol-1", VolumeContext: map[string]string{"a": "b"}}
	if _, err := newSpec().PersistentVolume(created, Policy{Driver: driver, Identity: "me"}); err != nil {
		t.Fatal(err)
	}
	if len(created.VolumeContext) != 1 {
		t.Errorf("the answer of the driver was changed: %v", created.VolumeContext)
	}
}

func TestCompare(t *testing.T) {
	now := metav1.Now()
	cases := map[string]struct {
		reason string
		change func(*corev1.PersistentVolume)
		want   Match
	}{
		"Same":        {reason: "Driver, handle and claim agree.", want: Same},
		"Leaving":     {reason: "It was the one, and is being deleted.", change: func(pv *corev1.PersistentVolume) { pv.DeletionTimestamp = &now }, want: Leaving},
		"OtherClaim":  {reason: "The volume belongs to another claim: it must not be deleted.", change: func(pv *corev1.PersistentVolume) { pv.Spec.ClaimRef.UID = "other" }, want: Taken},
		"NoClaim":     {reason: "A volume whose claim is unknown must not be deleted.", change: func(pv *corev1.PersistentVolume) { pv.Spec.ClaimRef = nil }, want: Taken},
		"OtherHandle": {reason: "A volume of an earlier life of the claim: ours is surplus.", change: func(pv *corev1.PersistentVolume) { pv.Spec.CSI.VolumeHandle = "vol-0" }, want: Foreign},
		"OtherDriver": {reason: "The same handle of another driver is another volume.", change: func(pv *corev1.PersistentVolume) { pv.Spec.CSI.Driver = "x" }, want: Foreign},
		"NotCSI":      {reason: "A volume without CSI is another volume.", change: func(pv *corev1.PersistentVolume) { pv.Spec.CSI = nil }, want: Foreign},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			existing := newPV()
			apply(tc.change, existing)
			if got := Compare(existing, newPV()); got != tc.want {
				t.Errorf("%s\ngot %d, want %d", tc.reason, got, tc.want)
			}
		})
	}
}
