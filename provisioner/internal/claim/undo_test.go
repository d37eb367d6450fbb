package claim

import (
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/longshore-csi/longshore/csikittest/csitest"
	"github.com/longshore-csi/longshore/provisioner/internal/journal"
	"github.com/longshore-csi/longshore/provisioner/internal/kubeapitest/fixtures"
	"github.com/longshore-csi/longshore/provisioner/internal/volume"
)

// TestUndo deletes a volume that nobody wants.
func TestUndo(t *testing.T) {
	cases := map[string]struct {
		reason string
		// holder is a PersistentVolume that has the volume.
		holder *corev1.PersistentVolume
		// secret reports whether the secret of the volume is still there.
		secret, gone bool
		fail         codes.Code
		calls        int
		stage        string
		err          string
	}{
		"Wanted":     {reason: "The claim starts over after a pause, which an error asks for.", secret: true, calls: 1, stage: "closed", err: "too small"},
		"Unwanted":   {reason: "Without the claim nothing is left to do.", secret: true, gone: true, calls: 1, stage: "closed"},
		"NoSecret":   {reason: "A secret that went with the namespace of the claim does not keep the volume.", gone: true, calls: 1, stage: "closed"},
		"Fails":      {reason: "A volume that is not deleted is not forgotten, even without a claim.", secret: true, gone: true, fail: codes.Internal, calls: 1, stage: "undoing", err: "Internal"},
		"HasAHolder": {reason: "A volume for which there is a PersistentVolume is never deleted.", secret: true, gone: true, holder: fixtures.PV(), stage: "closed"},
		"HeldByAnother": {
			reason: "A PersistentVolume of the same volume counts, also one that an administrator has made.", secret: true, gone: true, stage: "closed",
			holder: fixtures.ReleasedPV(fixtures.Annotated(volume.AnnProvisionedBy, "other")),
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			objs := []runtime.Object{fixtures.SecretClass("plain"), fixtures.Claim()}
			if tc.secret {
				objs = append(objs, fixtures.Secret("team", "plain", "ann"))
			}
			if tc.holder != nil {
				objs = append(objs, tc.holder)
			}
			onRig(t, func(t *testing.T, r *rig) {
				r.Driver.Inject(csitest.Fault{Method: "DeleteVolume", Code: tc.fail})
				intent := *newIntent(journal.Undoing)
				intent.VolumeID, intent.Reason = "vol-1", "too small"
				intent.Spec.Secrets.Provision = &corev1.SecretReference{Namespace: "team", Name: "plain"}
				if err := r.cfg.Journal.Open(fixtures.Quiet(t), intent); err != nil {
					t.Fatal(err)
				}
				if tc.gone {
					r.dropClaim()
				}
				_, err := r.undo(fixtures.Quiet(t), intent)
				if (err == nil) != (tc.err == "") || err != nil && !strings.Contains(err.Error(), tc.err) {
					t.Errorf("%s\nerror %v, want %q", tc.reason, err, tc.err)
				}
				if got := len(r.Calls()); got != tc.calls {
					t.Errorf("%s\n%d calls, want %d", tc.reason, got, tc.calls)
				}
				if got := r.stage(); got != tc.stage {
					t.Errorf("%s\nstage %s, want %s", tc.reason, got, tc.stage)
				}
				if tc.calls > 0 && tc.secret && r.deleteRequest().GetSecrets()["user"] != "ann" {
					t.Errorf("%s\nDeleteVolume was called without the secret that CreateVolume had", tc.reason)
				}
			}, objs...)
		})
	}
}
