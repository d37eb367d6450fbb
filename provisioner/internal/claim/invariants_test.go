package claim

import (
	"cmp"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/longshore-csi/longshore/provisioner/internal/capabilities"
	"github.com/longshore-csi/longshore/provisioner/internal/journal"
	"github.com/longshore-csi/longshore/provisioner/internal/kubeapitest/fixtures"
	"github.com/longshore-csi/longshore/provisioner/internal/view"
)

// flags goes through all combinations of n switches.
func flags(n int, try func(on func(int) bool)) {
	for bits := range 1 << n {
		try(func(i int) bool { return bits&(1<<i) != 0 })
	}
}

// TestNoClaimIsServedTwice goes through all states of a claim: a volume is asked for the first time only when
// nothing is open, nothing exists, and the claim wants one.
func TestNoClaimIsServedTwice(t *testing.T) {
	now := metav1.Now()
	flags(9, func(on func(int) bool) {
		s := claimState{driver: driver, caps: capabilities.Set{Create: !on(0)}, claim: fixtures.Claim(), class: fixtures.Class()}
		if on(1) {
			s.claim.DeletionTimestamp = &now
		}
		if on(2) {
			s.claim.Spec.VolumeName = "pv"
		}
		if on(3) {
			s.claim.Annotations[view.AnnProvisioner] = "other"
		}
		if on(4) {
			s.class = nil
		}
		if on(5) {
			s.pv = fixtures.PV()
		}
		if on(6) {
			s.intent = newIntent(journal.Creating)
		}
		if on(7) {
			s.claim.Spec.Selector = &metav1.LabelSelector{}
		}
		if on(8) && s.class != nil {
			late(s.class)
		}
		plan := planClaim(s)
		clean := true
		for i := range 8 {
			clean = clean && !on(i)
		}
		clean = clean && (!on(8) || s.class == nil)
		if (plan.verb == claimCreate) != clean {
			t.Errorf("state %+v: plan %d (%s), a volume may be asked for: %v", s, plan.verb, plan.why, clean)
		}
		if (plan.verb == claimResume) != on(6) {
			t.Errorf("state %+v: plan %d (%s), what is open must be resumed, and nothing else", s, plan.verb, plan.why)
		}
		if plan.why == "" {
			t.Errorf("state %+v: no reason", s)
		}
		if (plan.verb == claimRefuse) && (on(1) || on(2) || on(3)) {
			t.Errorf("state %+v: an event on a claim that is not ours to serve", s)
		}
	})
}

// TestNoVolumeIsForgotten goes through the ends of CreateVolume: as long as there is or may be a volume, it is
// saved, undone or asked for again, whatever became of the claim.
func TestNoVolumeIsForgotten(t *testing.T) {
	answers := map[string]*csi.Volume{
		"Good": {VolumeId: "v", CapacityBytes: 100}, "Small": {VolumeId: "v", CapacityBytes: 1}, "NoID": {CapacityBytes: 100}, "Nothing": nil,
	}
	for name, answer := range answers {
		for code := codes.OK; code <= codes.Unauthenticated; code++ {
			flags(3, func(on func(int) bool) {
				s := attemptState{intent: *newIntent(journal.Creating), topology: on(1)}
				if !on(0) {
					s.unwanted = "gone"
				}
				s.intent.Request = &csi.CreateVolumeRequest{CapacityRange: &csi.CapacityRange{RequiredBytes: 100}}
				if on(2) {
					s.intent.Spec.Claim.Annotations[view.AnnSelectedNode] = "n"
				}
				if code == codes.OK {
					s.created = answer
				} else {
					s.err = status.Error(code, "")
				}
				plan := planAttempt(s)
				drops := plan.verb == attemptForget || plan.verb == attemptRetry || plan.verb == attemptInfeasible || plan.verb == attemptReschedule
				if code == codes.OK && drops {
					t.Errorf("answer %s: plan %d forgets a volume", name, plan.verb)
				}
				if plan.verb == attemptSave && (s.unwanted != "" || name != "Good") {
					t.Errorf("answer %s, unwanted %q: plan %d saves a volume that is no good", name, s.unwanted, plan.verb)
				}
				if plan.verb == attemptForget && s.unwanted == "" {
					t.Errorf("code %s: a claim that wants a volume is forgotten", code)
				}
				if plan.verb == attemptReschedule && (code != codes.ResourceExhausted || !on(1) || !on(2)) {
					t.Errorf("code %s, topology %v, node %v: nothing to reschedule", code, on(1), on(2))
				}
			})
		}
	}
}

func TestWhatObjectsSay(t *testing.T) {
	group := "example.com"
	cases := map[string]struct {
		reason      string
		annotations map[string]string
		spec        corev1.PersistentVolumeClaimSpec
		driver      string
		node        string
		source      string
	}{
		"Nothing": {reason: "A bare claim says nothing."},
		"Present": {
			reason:      "The present names are read.",
			annotations: map[string]string{view.AnnProvisioner: "d", view.AnnSelectedNode: "n"}, driver: "d", node: "n",
		},
		"Deprecated": {
			reason:      "So are the deprecated ones.",
			annotations: map[string]string{view.AnnBetaProvisioner: "d", view.AnnAlphaSelectedNode: "n"}, driver: "d", node: "n",
		},
		"Both": {
			reason: "The present names win.",
			annotations: map[string]string{
				view.AnnProvisioner: "d", view.AnnBetaProvisioner: "old", view.AnnSelectedNode: "n", view.AnnAlphaSelectedNode: "old",
			},
			driver: "d", node: "n",
		},
		"PresentEmpty": {
			reason:      "A present name wins even when it is empty: the deprecated one is older.",
			annotations: map[string]string{view.AnnProvisioner: "", view.AnnBetaProvisioner: "old", view.AnnSelectedNode: "", view.AnnAlphaSelectedNode: "old"},
		},
		"DataSource": {
			reason: "The older field of the data source wins: the API keeps both the same where it knows the kind.",
			spec: corev1.PersistentVolumeClaimSpec{
				DataSource:    &corev1.TypedLocalObjectReference{Kind: "PersistentVolumeClaim"},
				DataSourceRef: &corev1.TypedObjectReference{APIGroup: &group, Kind: "Backup"},
			},
			source: "/PersistentVolumeClaim",
		},
		"DataSourceRef": {
			reason: "The group is part of the kind.",
			spec:   corev1.PersistentVolumeClaimSpec{DataSourceRef: &corev1.TypedObjectReference{APIGroup: &group, Kind: "Backup"}},
			source: "example.com/Backup",
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			claim := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Annotations: tc.annotations}, Spec: tc.spec}
			source := ""
			if s, ok := view.DataSource(claim); ok {
				source = *cmp.Or(s.APIGroup, new(string)) + "/" + s.Kind
			}
			if got := view.DriverOf(claim); got != tc.driver {
				t.Errorf("%s\ndriver %q, want %q", tc.reason, got, tc.driver)
			}
			if got := view.SelectedNode(claim); got != tc.node {
				t.Errorf("%s\nnode %q, want %q", tc.reason, got, tc.node)
			}
			if source != tc.source {
				t.Errorf("%s\nsource %q, want %q", tc.reason, source, tc.source)
			}
		})
	}
}
