package claim

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/longshore-csi/longshore/provisioner/internal/kubeapitest/fixtures"
	"github.com/longshore-csi/longshore/provisioner/internal/view"
)

// onNode returns a claim for which the scheduler has selected a node.
func onNode(node string) *corev1.PersistentVolumeClaim {
	claim := fixtures.Claim()
	claim.Annotations[view.AnnSelectedNode] = node
	claim.Annotations["example.com/note"] = "stays"
	return claim
}

func TestReschedule(t *testing.T) {
	cases := map[string]struct {
		reason string
		live   func(*corev1.PersistentVolumeClaim)
		gone   bool
		want   map[string]string
	}{
		"TakesTheNode": {
			reason: "The node goes, all else stays.",
			want:   map[string]string{view.AnnProvisioner: driver, "example.com/note": "stays"},
		},
		"TakesBothNames": {
			reason: "The old name of the annotation would be read next.",
			live:   func(c *corev1.PersistentVolumeClaim) { c.Annotations[view.AnnAlphaSelectedNode] = "node-0" },
			want:   map[string]string{view.AnnProvisioner: driver, "example.com/note": "stays"},
		},
		"OtherNodeMeanwhile": {
			reason: "The scheduler was faster: its new choice stands.",
			live:   func(c *corev1.PersistentVolumeClaim) { c.Annotations[view.AnnSelectedNode] = "node-2" },
			want:   map[string]string{view.AnnProvisioner: driver, "example.com/note": "stays", view.AnnSelectedNode: "node-2"},
		},
		"TakenMeanwhile": {
			reason: "There is nothing left to take.",
			live:   func(c *corev1.PersistentVolumeClaim) { delete(c.Annotations, view.AnnSelectedNode) },
			want:   map[string]string{view.AnnProvisioner: driver, "example.com/note": "stays"},
		},
		"Successor": {
			reason: "A claim that took the name has a node of its own.",
			live:   func(c *corev1.PersistentVolumeClaim) { c.UID = "uid-2" },
			want:   map[string]string{view.AnnProvisioner: driver, "example.com/note": "stays", view.AnnSelectedNode: "node-1"},
		},
		"Gone": {
			reason: "A claim that is gone needs no node.",
			gone:   true,
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			live := onNode("node-1")
			apply(live, tc.live)
			onRig(t, func(t *testing.T, r *rig) {
				if tc.gone {
					if err := r.Cluster.Remove("persistentvolumeclaims", "team", "data"); err != nil {
						t.Fatal(err)
					}
				}
				if _, err := r.reschedule(fixtures.Quiet(t), onNode("node-1")); err != nil {
					t.Fatalf("%s\n%v", tc.reason, err)
				}
				var got map[string]string
				if claim := r.StoredClaim(); claim != nil {
					got = claim.Annotations
				}
				if diff := cmp.Diff(tc.want, got); diff != "" {
					t.Errorf("%s\nannotations (-want +got):\n%s", tc.reason, diff)
				}
			}, live)
		})
	}
}

// apply changes an object, if there is a function to do so.
func apply[T any](to *T, change func(*T)) {
	if change != nil {
		change(to)
	}
}

// TestRescheduledClaimIsLeftAlone looks at the claim before the watch has brought the missing node: it must
// not be provisioned for the node without capacity.
func TestRescheduledClaimIsLeftAlone(t *testing.T) {
	claim, class := onNode("node-1"), fixtures.Class()
	late(class)
	onRig(t, func(t *testing.T, r *rig) {
		if _, err := r.reschedule(fixtures.Quiet(t), claim); err != nil {
			t.Fatal(err)
		}
		plan := planClaim(r.claimState(fixtures.Quiet(t), keyOf(claim)))
		if plan.verb != claimLeave || !strings.Contains(plan.why, "no node") {
			t.Errorf("plan %d (%s), want to wait for a node", plan.verb, plan.why)
		}
	}, claim, class)
}

func TestRescheduleErrors(t *testing.T) {
	conflict := apierrors.NewConflict(corev1.Resource("persistentvolumeclaims"), "data", errors.New("changed"))
	cases := map[string]struct {
		reason string
		verb   string
		err    error
		want   []string
	}{
		"Get":      {reason: "The error says what was attempted.", verb: "get", err: apierrors.NewServiceUnavailable("away"), want: []string{"get claim", "team/data"}},
		"Update":   {reason: "The error names node and claim.", verb: "update", err: apierrors.NewServiceUnavailable("away"), want: []string{`"node-1"`, "team/data"}},
		"Conflict": {reason: "A conflict stays one, for the queue repeats it soon and in silence.", verb: "update", err: conflict, want: []string{"team/data"}},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			onRig(t, func(t *testing.T, r *rig) {
				r.Cluster.Fail(tc.verb, "persistentvolumeclaims", tc.err, 1)
				_, err := r.reschedule(fixtures.Quiet(t), onNode("node-1"))
				if !errors.Is(err, tc.err) || apierrors.IsConflict(err) != apierrors.IsConflict(tc.err) {
					t.Fatalf("%s\nerror %v, want %v", tc.reason, err, tc.err)
				}
				for _, text := range tc.want {
					if !strings.Contains(err.Error(), text) {
						t.Errorf("%s\nerror %q, want it to contain %s", tc.reason, err, text)
					}
				}
				if got := view.SelectedNode(r.StoredClaim()); got != "node-1" {
					t.Errorf("%s\nnode %q, want it untouched", tc.reason, got)
				}
			}, onNode("node-1"))
		})
	}
}
