package expand

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/longshore-csi/longshore/csikittest/kubetest"
)

// TestPatches is what the node writes into the status of a claim, as the API server stores it.
func TestPatches(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	inProgress := allocated(2*gi, corev1.PersistentVolumeClaimNodeResizeInProgress)
	other := condition("Other")
	failed := func(message string, at time.Time) func(*corev1.PersistentVolumeClaim) {
		return func(c *corev1.PersistentVolumeClaim) {
			c.Status.Conditions = append(c.Status.Conditions, corev1.PersistentVolumeClaimCondition{
				Type: corev1.PersistentVolumeClaimNodeResizeError, Status: corev1.ConditionTrue, Message: message, LastTransitionTime: metav1.NewTime(at),
			})
		}
	}
	before := now.Add(-time.Hour)
	size := *resource.NewQuantity(2*gi, resource.BinarySI)
	cases := map[string]struct {
		reason      string
		claim, want *corev1.PersistentVolumeClaim // no want: nothing is written
		patch       func(*corev1.PersistentVolumeClaim) ([]byte, error)
	}{
		"Started": {
			reason: "the resizer waits now", claim: testClaim(allocated(2*gi, corev1.PersistentVolumeClaimNodeResizePending), other),
			patch: Started, want: testClaim(inProgress, other),
		},
		"StartedBefore": {reason: "a crashed process has written it", claim: testClaim(inProgress), patch: Started},
		"Finished": {
			reason: "conditions about the expansion go, others stay",
			claim: testClaim(inProgress, condition(corev1.PersistentVolumeClaimResizing), other, condition(corev1.PersistentVolumeClaimFileSystemResizePending),
				condition(corev1.PersistentVolumeClaimNodeResizeError), condition(corev1.PersistentVolumeClaimControllerResizeError)),
			patch: func(c *corev1.PersistentVolumeClaim) ([]byte, error) { return Finished(c, size) },
			want:  testClaim(allocated(2*gi, ""), have(2*gi), other),
		},
		"FinishedLegacy": {
			reason: "an old resizer has only the condition", claim: testClaim(condition(corev1.PersistentVolumeClaimFileSystemResizePending)),
			patch: func(c *corev1.PersistentVolumeClaim) ([]byte, error) { return Finished(c, size) },
			want:  testClaim(have(2 * gi)),
		},
		"Failed": {
			reason: "the expansion goes on, with a condition", claim: testClaim(inProgress, other),
			patch: func(c *corev1.PersistentVolumeClaim) ([]byte, error) { return Stopped(c, false, "bad", now) },
			want:  testClaim(inProgress, other, failed("bad", now)),
		},
		"FailedAgain": {
			reason: "a failure that lasts is not written again", claim: testClaim(inProgress, failed("bad", before)),
			patch: func(c *corev1.PersistentVolumeClaim) ([]byte, error) { return Stopped(c, false, "worse", now) },
		},
		"Infeasible": {
			reason: "the last error explains why it is given up", claim: testClaim(inProgress, failed("bad", before), other),
			patch: func(c *corev1.PersistentVolumeClaim) ([]byte, error) { return Stopped(c, true, "worse", now) },
			want:  testClaim(allocated(2*gi, corev1.PersistentVolumeClaimNodeResizeInfeasible), other, failed("worse", before)),
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			patch, err := tc.patch(tc.claim)
			if err != nil {
				t.Fatal(err)
			}
			if tc.want == nil {
				if patch != nil {
					t.Errorf("%s: wrote %s, want nothing", tc.reason, patch)
				}
				return
			}
			tc.claim.ResourceVersion = ""
			cluster := kubetest.New(tc.claim)
			claims := cluster.Client().PersistentVolumeClaims("ns")
			stored, err := claims.Get(t.Context(), "data", metav1.GetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			if patch, err = tc.patch(stored); err != nil {
				t.Fatal(err)
			}
			got := stored
			if patch != nil {
				if got, err = claims.Patch(t.Context(), "data", types.MergePatchType, patch, metav1.PatchOptions{}, "status"); err != nil {
					t.Fatal(err)
				}
			}
			want := tc.want.DeepCopy()
			if diff := cmp.Diff(normal(want.Status), normal(got.Status)); diff != "" {
				t.Errorf("%s (-want +got):\n%s", tc.reason, diff)
			}
			if _, err := claims.Patch(t.Context(), "data", types.MergePatchType, patch, metav1.PatchOptions{}, "status"); !apierrors.IsConflict(err) {
				t.Errorf("a claim that has changed was written: %v, want a conflict", err)
			}
		})
	}
}

// normal is the status as JSON has it.
func normal(s corev1.PersistentVolumeClaimStatus) (out map[string]any) {
	data, err := json.Marshal(s)
	if err == nil {
		err = json.Unmarshal(data, &out)
	}
	if err != nil {
		panic(err)
	}
	return out
}
