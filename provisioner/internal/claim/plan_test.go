package claim

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/longshore-csi/longshore/provisioner/internal/capabilities"
	"github.com/longshore-csi/longshore/provisioner/internal/journal"
	"github.com/longshore-csi/longshore/provisioner/internal/kubeapitest/fixtures"
	"github.com/longshore-csi/longshore/provisioner/internal/view"
	"github.com/longshore-csi/longshore/provisioner/internal/volume"
)

func TestPlanClaim(t *testing.T) {
	now, group, gold, wait := metav1.Now(), "snapshot.storage.k8s.io", "gold", storagev1.VolumeBindingWaitForFirstConsumer
	other := "example.com"
	cases := map[string]struct {
		reason string
		change func(*claimState)
		want   claimVerb
		why    string
	}{
		"Create": {
			reason: "A claim that wants a volume gets one.",
			want:   claimCreate,
		},
		"Gone": {
			reason: "A claim that is gone needs nothing.",
			change: func(s *claimState) { s.claim, s.class = nil, nil },
		},
		"GoneWhileCreating": {
			reason: "What may still run is driven to its end, whatever became of the claim.",
			change: func(s *claimState) { s.claim, s.class, s.intent = nil, nil, newIntent(journal.Creating) },
			want:   claimResume,
		},
		"ForeignWhileCreating": {
			reason: "No check may end what may still run.",
			change: func(s *claimState) {
				s.claim.Annotations[view.AnnProvisioner], s.intent = other, newIntent(journal.Creating)
			},
			want: claimResume,
		},
		"UnsupportedWhileCreating": {
			reason: "A driver that lost a capability in between may still be working.",
			change: func(s *claimState) { s.caps, s.intent = capabilities.Set{}, newIntent(journal.Creating) },
			want:   claimResume,
		},
		"Saving": {
			reason: "A volume that is being saved is in progress, too.",
			change: func(s *claimState) { s.intent = newIntent(journal.Saving) },
			want:   claimResume,
		},
		"Undoing": {
			reason: "A volume that is unwanted is deleted.",
			change: func(s *claimState) { s.intent = newIntent(journal.Undoing) },
			want:   claimResume,
		},
		"Marked": {
			reason: "What a former version has put on a claim is removed, whatever it says.",
			change: func(s *claimState) { mark(s.claim) },
			want:   claimStrip,
		},
		"MarkedFirst": {
			reason: "A volume that may exist is asked for, and the answer is not trusted, before anything else.",
			change: func(s *claimState) { mark(s.claim); s.former = true },
			want:   claimCreate,
		},
		"MarkedBound": {
			reason: "Also from a claim that has its volume.",
			change: func(s *claimState) { mark(s.claim); s.claim.Spec.VolumeName = "pvc-uid-1" },
			want:   claimStrip,
		},
		"MarkedDeleting": {
			reason: "The volume of a claim that the finalizer keeps is looked for, as the claim asks for it, before the claim may go.",
			change: func(s *claimState) { mark(s.claim); s.claim.DeletionTimestamp, s.former = &now, true },
			want:   claimCreate,
		},
		"MarkedDeletingInUse": {
			reason: "Kubernetes' own finalizer is there for a moment in any case: the mark must not go before the volume was looked for.",
			change: func(s *claimState) {
				mark(s.claim)
				s.claim.Finalizers = append(s.claim.Finalizers, finalizerInUse)
				s.claim.DeletionTimestamp, s.former = &now, true
			},
			want: claimCreate,
		},
		"MarkedDeletingTwice": {
			reason: "It is looked for once.",
			change: func(s *claimState) { mark(s.claim); s.claim.DeletionTimestamp = &now },
			want:   claimStrip,
		},
		"MarkedDeletingBound": {
			reason: "The volume of a bound claim is known.",
			change: func(s *claimState) {
				mark(s.claim)
				s.claim.DeletionTimestamp, s.former, s.claim.Spec.VolumeName = &now, true, "pvc-uid-1"
			},
			want: claimStrip,
		},
		"MarkedElsewhere": {
			reason: "A claim of another driver is left alone.",
			change: func(s *claimState) { mark(s.claim); s.claim.Annotations[view.AnnProvisioner] = other },
		},
		"Deleting": {
			reason: "Nothing is begun for a claim that is being deleted.",
			change: func(s *claimState) {
				s.claim.DeletionTimestamp, s.claim.Finalizers = &now, []string{view.FinalizerClone}
			},
		},
		"DeletingInUse": {
			reason: "A pod waits for the volume of a claim that is being deleted.",
			change: func(s *claimState) {
				s.claim.DeletionTimestamp, s.claim.Finalizers = &now, []string{view.FinalizerClone, "kubernetes.io/pvc-protection"}
			},
			want: claimCreate,
		},
		"Bound": {
			reason: "A claim with a volume needs none.",
			change: func(s *claimState) { s.claim.Spec.VolumeName = "pv" },
		},
		"OtherDriver": {
			reason: "Other drivers have their own provisioners.",
			change: func(s *claimState) { s.claim.Annotations[view.AnnProvisioner] = other },
		},
		"BetaAnnotation": {
			reason: "The deprecated annotation still counts.",
			change: func(s *claimState) { s.claim.Annotations = map[string]string{view.AnnBetaProvisioner: driver} },
			want:   claimCreate,
		},
		"NoAnnotation": {
			reason: "Until the controller manager has spoken, the claim is nobody's.",
			change: func(s *claimState) { s.claim.Annotations = nil },
		},
		"PVExists": {
			reason: "The volume is there, binding is not our business.",
			change: func(s *claimState) { s.pv = fixtures.PV() },
		},
		"PVOfAnotherClaim": {
			reason: "With cut names two claims may want one name: the second must not get the first one's volume.",
			change: func(s *claimState) {
				s.pv = fixtures.PV()
				s.pv.Spec.ClaimRef.UID = "uid-2"
			},
			want: claimRefuse, why: "pvc-uid-1",
		},
		"NoClass": {
			reason: "The class announces itself when it is created.",
			change: func(s *claimState) { s.class = nil },
		},
		"ClassOfAnotherDriver": {
			reason: "A class that was replaced meanwhile is another provisioner's.",
			change: func(s *claimState) { s.class.Provisioner = other },
		},
		"WaitsForNode": {
			reason: "Late binding waits for the scheduler.",
			change: func(s *claimState) { s.class.VolumeBindingMode = &wait },
		},
		"NodeSelected": {
			reason: "Late binding goes on once a node is selected.",
			change: func(s *claimState) {
				s.class.VolumeBindingMode = &wait
				s.claim.Annotations[view.AnnSelectedNode] = "node-1"
			},
			want: claimCreate,
		},
		"AlphaNodeSelected": {
			reason: "The name that the design gave the annotation is read as well.",
			change: func(s *claimState) {
				s.class.VolumeBindingMode = &wait
				s.claim.Annotations[view.AnnAlphaSelectedNode] = "node-1"
			},
			want: claimCreate,
		},
		"EmptyNode": {
			reason: "An empty annotation selects no node.",
			change: func(s *claimState) {
				s.class.VolumeBindingMode = &wait
				s.claim.Annotations[view.AnnSelectedNode] = ""
			},
		},
		"Populator": {
			reason: "Data sources of other kinds are somebody else's.",
			change: func(s *claimState) {
				s.claim.Spec.DataSourceRef = &corev1.TypedObjectReference{APIGroup: &other, Kind: "Backup"}
			},
			want: claimPopulator, why: `"Backup"`,
		},
		"CannotRestore": {
			reason: "What the driver cannot do is said, and the claim left alone.",
			change: func(s *claimState) {
				s.claim.Spec.DataSource = &corev1.TypedLocalObjectReference{APIGroup: &group, Kind: "VolumeSnapshot", Name: "s"}
			},
			want: claimRefuse, why: "CREATE_DELETE_SNAPSHOT",
		},
		"CannotClone": {
			reason: "What the driver cannot do is said, and the claim left alone.",
			change: func(s *claimState) {
				s.claim.Spec.DataSourceRef = &corev1.TypedObjectReference{Kind: "PersistentVolumeClaim", Name: "c"}
			},
			want: claimRefuse, why: "CLONE_VOLUME",
		},
		"Restore": {
			reason: "A driver that has snapshots makes volumes from them; the newer field says the same.",
			change: func(s *claimState) {
				s.caps.Snapshot = true
				s.claim.Spec.DataSourceRef = &corev1.TypedObjectReference{APIGroup: &group, Kind: "VolumeSnapshot", Name: "s", Namespace: &s.claim.Namespace}
			},
			want: claimCreate,
		},
		"Clone": {
			reason: "A driver that clones does.",
			change: func(s *claimState) {
				s.caps.Clone = true
				s.claim.Spec.DataSource = &corev1.TypedLocalObjectReference{Kind: "PersistentVolumeClaim", Name: "c"}
			},
			want: claimCreate,
		},
		"OtherNamespace": {
			reason: "Whether the claim may use it depends on more than the claim: it is checked when the request is made.",
			change: func(s *claimState) {
				s.caps.Clone = true
				s.claim.Spec.DataSourceRef = &corev1.TypedObjectReference{Kind: "PersistentVolumeClaim", Name: "c", Namespace: &other}
			},
			want: claimCreate,
		},
		"SnapshotOfAnotherGroup": {
			reason: "The kind alone does not make a snapshot.",
			change: func(s *claimState) {
				s.claim.Spec.DataSource = &corev1.TypedLocalObjectReference{APIGroup: &other, Kind: "VolumeSnapshot"}
			},
			want: claimPopulator,
		},
		"CannotCreate": {
			reason: "A driver without the capability cannot serve the claim.",
			change: func(s *claimState) { s.caps.Create = false },
			want:   claimRefuse, why: "CREATE_DELETE_VOLUME",
		},
		"Selector": {
			reason: "Volumes to come have no labels.",
			change: func(s *claimState) { s.claim.Spec.Selector = &metav1.LabelSelector{} },
			want:   claimRefuse, why: "spec.selector",
		},
		"CannotModify": {
			reason: "A VolumeAttributesClass needs a driver that takes its parameters.",
			change: func(s *claimState) { s.claim.Spec.VolumeAttributesClassName = &gold },
			want:   claimRefuse, why: `"gold"`,
		},
		"AttributesOff": {
			reason: "With the feature off, claims are served as if they had no VolumeAttributesClass.",
			change: func(s *claimState) { s.claim.Spec.VolumeAttributesClassName, s.caps.Attributes = &gold, false },
			want:   claimCreate,
		},
		"CanModify": {
			reason: "A VolumeAttributesClass goes to a driver that takes its parameters.",
			change: func(s *claimState) {
				s.claim.Spec.VolumeAttributesClassName, s.caps.Modify = &gold, true
			},
			want: claimCreate,
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			s := claimState{driver: driver, caps: capabilities.Set{Attributes: true, Create: true}, claim: fixtures.Claim(), class: fixtures.Class()}
			if tc.change != nil {
				tc.change(&s)
			}
			got := planClaim(s)
			if got.verb != tc.want || !strings.Contains(got.why, tc.why) {
				t.Errorf("%s\ngot %d (%s), want %d with %q", tc.reason, got.verb, got.why, tc.want, tc.why)
			}
		})
	}
}

// mark puts on a claim what a former version did.
func mark(claim *corev1.PersistentVolumeClaim) {
	claim.Finalizers = append(claim.Finalizers, volume.FinalizerInProgress)
	claim.Annotations[volume.AnnInProgress] = "{}"
}

func TestClassName(t *testing.T) {
	claim := fixtures.Claim()
	if got := view.ClassName(claim); got != "fast" {
		t.Errorf("class %q, want that of the spec", got)
	}
	claim.Annotations[view.AnnBetaClass] = "old"
	if got := view.ClassName(claim); got != "old" {
		t.Errorf("class %q, want that of the annotation, which overrides the spec", got)
	}
	if got := view.ClassName(&corev1.PersistentVolumeClaim{}); got != "" {
		t.Errorf("class %q of a claim without", got)
	}
}

func TestWants(t *testing.T) {
	now := metav1.Now()
	cases := map[string]struct {
		reason string
		change func(*corev1.PersistentVolumeClaim)
		want   bool
	}{
		"Pending": {reason: "It waits for the volume.", change: func(*corev1.PersistentVolumeClaim) {}, want: true},
		"Bound":   {reason: "It has this very volume.", change: func(c *corev1.PersistentVolumeClaim) { c.Spec.VolumeName = "pvc-uid-1" }, want: true},
		"Other":   {reason: "It has another volume.", change: func(c *corev1.PersistentVolumeClaim) { c.Spec.VolumeName = "other" }},
		"InUse": {reason: "A pod waits for it.", change: func(c *corev1.PersistentVolumeClaim) {
			c.DeletionTimestamp, c.Finalizers = &now, []string{"kubernetes.io/pvc-protection"}
		}, want: true},
		"Deleting": {reason: "It will never come back.", change: func(c *corev1.PersistentVolumeClaim) { c.DeletionTimestamp = &now }},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			claim := fixtures.Claim()
			tc.change(claim)
			if got := wants(claim, "pvc-uid-1"); got != tc.want {
				t.Errorf("%s\ngot %v, want %v", tc.reason, got, tc.want)
			}
		})
	}
}
