package claim

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	corev1 "k8s.io/api/core/v1"

	"github.com/longshore-csi/longshore/csikit/reconcile"
	"github.com/longshore-csi/longshore/csikittest/csitest"
	"github.com/longshore-csi/longshore/provisioner/internal/journal"
	"github.com/longshore-csi/longshore/provisioner/internal/kubeapitest/fixtures"
)

// TestMetrics goes through what happens to a claim and its volume, and reads what is counted.
func TestMetrics(t *testing.T) {
	const (
		claims = "controller_persistentvolumeclaim_provision_"
		fast   = "{class=fast,source=} "
	)
	// step looks at the test claim; its error is what the queue would repeat, which is not the matter here.
	step := func(t *testing.T, r *rig) { _, _ = r.reconcileClaim(fixtures.Quiet(t), keyOf(fixtures.Claim())) }
	cases := map[string]struct {
		reason string
		change func(*corev1.PersistentVolumeClaim)
		fault  codes.Code
		run    func(t *testing.T, r *rig)
		want   []string
	}{
		"Provisioned": {
			reason: "A success is counted and timed.",
			run:    step, want: []string{claims + "duration_seconds" + fast + "1", claims + "total" + fast + "1"},
		},
		"Failed": {
			reason: "A failure is counted, and not timed.",
			fault:  codes.Internal, run: step, want: []string{claims + "failed_total" + fast + "1"},
		},
		"Uncertain": {
			reason: "An attempt whose outcome is open is one in vain.",
			fault:  codes.DeadlineExceeded, run: step, want: []string{claims + "failed_total" + fast + "1"},
		},
		"Refused": {
			reason: "So is a claim that cannot be served, with the kind of its source.",
			change: func(c *corev1.PersistentVolumeClaim) {
				c.Spec.DataSource = &corev1.TypedLocalObjectReference{Kind: "PersistentVolumeClaim", Name: "x"}
			},
			run: step, want: []string{claims + "failed_total{class=fast,source=PersistentVolumeClaim} 1"},
		},
		"Populator": {
			reason: "What somebody else does is no failure of ours.",
			change: func(c *corev1.PersistentVolumeClaim) {
				group := "example.com"
				c.Spec.DataSourceRef = &corev1.TypedObjectReference{APIGroup: &group, Kind: "Backup", Name: "x"}
			},
			run: step,
		},
		"SavedLater": {
			reason: "A volume counts once it is saved.",
			run: func(t *testing.T, r *rig) {
				r.Cluster.Fail("create", "persistentvolumes", fmt.Errorf("away"), 3)
				step(t, r)
				if got := r.Counts(); got != nil {
					t.Errorf("counted before the volume was saved: %q", got)
				}
				r.saveOn(time.Minute, func() {})
			},
			want: []string{claims + "duration_seconds" + fast + "1", claims + "total" + fast + "1"},
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			claim := fixtures.Claim()
			apply(claim, tc.change)
			onRig(t, func(t *testing.T, r *rig) {
				if tc.fault != codes.OK {
					r.Driver.Inject(csitest.Fault{Code: tc.fault})
				}
				tc.run(t, r)
				if diff := cmp.Diff(tc.want, r.Counts()); diff != "" {
					t.Errorf("%s\ncounts (-want +got):\n%s", tc.reason, diff)
				}
			}, claim, fixtures.Class())
		})
	}
}

// TestState looks at what /debug/state shows of each stage.
func TestState(t *testing.T) {
	onRig(t, func(t *testing.T, r *rig) {
		if got := r.State(); !got.Synced || got.Driver != driver || got.UnderWay == nil || len(got.UnderWay) != 0 {
			t.Errorf("state %+v, want the synced one of %s with an empty list, which is [] in JSON", got, driver)
		}
		since := time.Now()
		intent := *newIntent(journal.Undoing)
		intent.VolumeID, intent.Reason, intent.Opened = "vol-1", "claim was deleted", since
		if err := r.cfg.Journal.Open(fixtures.Quiet(t), intent); err != nil {
			t.Fatal(err)
		}
		want := State{Driver: driver, Synced: true, CallLimit: 20, Queues: []reconcile.State{{Name: "claims"}, {Name: "volumes"}, {Name: "unsavedpvs"}, {Name: "sources"}}, UnderWay: []VolumeState{{
			Volume: "pvc-uid-1", Claim: "team/data", Stage: "undoing", VolumeID: "vol-1", Reason: "claim was deleted", Since: since,
		}}}
		got := r.State()
		for i := range got.Queues {
			got.Queues[i].Waiting, got.Queues[i].OldestSeconds = 0, 0 // the keys of the first lists
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("state (-want +got):\n%s", diff)
		}
	})
}
