package claim

import (
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	corev1 "k8s.io/api/core/v1"

	"github.com/longshore-csi/longshore/csikittest/csitest"
	"github.com/longshore-csi/longshore/provisioner/internal/kubeapitest/fixtures"
)

// finals are the codes that end a first attempt, because the driver says that it has failed.
var finals = []codes.Code{
	codes.InvalidArgument, codes.NotFound, codes.AlreadyExists, codes.PermissionDenied, codes.ResourceExhausted, codes.FailedPrecondition,
	codes.OutOfRange, codes.Unimplemented, codes.Internal, codes.DataLoss, codes.Unauthenticated,
}

// TestFinalAnswerEndedAnUncertainCreation lets the driver make a volume in an attempt that runs into its deadline, and then
// report a failure. The claim is deleted meanwhile. The second answer says nothing about the first attempt: the volume must
// be found and deleted. It used to be forgotten.
func TestFinalAnswerEndedAnUncertainCreation(t *testing.T) {
	for _, code := range finals {
		for _, unknown := range []codes.Code{codes.DeadlineExceeded, codes.Unknown} {
			t.Run(unknown.String()+code.String(), func(t *testing.T) {
				onFlow(t, func(t *testing.T, g *chaos) {
					g.driver.Inject(csitest.Fault{Method: "CreateVolume", After: true, Code: unknown, Times: 1})
					g.driver.Inject(csitest.Fault{Method: "CreateVolume", Code: code, Times: 3})
					g.claimNamed("data", "u1")
					time.Sleep(100 * time.Millisecond)
					g.remove("persistentvolumeclaims", "team", "data")
					time.Sleep(10 * time.Minute)
					if left := g.volumes(); len(left) > 0 {
						t.Errorf("%s, then %s, and the claim is deleted: volumes %q are leaked", unknown, code, left)
					}
				})
			})
		}
	}
}

// TestFinalAnswerChangedAnUncertainRequest does the same with a claim that stays, and a class that changes its parameters:
// the request must stay the same until the driver confirms the volume. A new one used to be made, which the driver answered
// by ALREADY_EXISTS from then on.
func TestFinalAnswerChangedAnUncertainRequest(t *testing.T) {
	for _, code := range finals {
		t.Run(code.String(), func(t *testing.T) {
			onFlow(t, func(t *testing.T, g *chaos) {
				g.driver.Inject(csitest.Fault{Method: "CreateVolume", After: true, Code: codes.Unavailable, Times: 1})
				g.driver.Inject(csitest.Fault{Method: "CreateVolume", Code: code, Times: 3})
				g.claimNamed("data", "u1")
				time.Sleep(100 * time.Millisecond)
				g.remove("storageclasses", "", "fast")
				other := fixtures.Class()
				other.UID, other.ResourceVersion, other.Parameters = "class-2", "", map[string]string{"tier": "other"}
				g.apply(other)
				time.Sleep(10 * time.Minute)
				requests := g.calls("CreateVolume")
				if len(requests) != 5 || len(slices.Compact(requests)) != 1 {
					t.Errorf("UNAVAILABLE, then %s: %d requests, want 5 times the same:\n%s", code, len(requests), strings.Join(requests, "\n"))
				}
				g.manage()
				g.check()
			})
		})
	}
}

// TestAlreadyExistsIsReported has the driver confirm no volume of a claim that is gone, but that one of its name exists: an administrator has to look for it.
func TestAlreadyExistsIsReported(t *testing.T) {
	onFlow(t, func(t *testing.T, g *chaos) {
		g.driver.Inject(csitest.Fault{Method: "CreateVolume", After: true, Code: codes.DeadlineExceeded, Times: 1})
		g.driver.Inject(csitest.Fault{Method: "CreateVolume", Code: codes.AlreadyExists})
		g.claimNamed("data", "u1")
		time.Sleep(100 * time.Millisecond)
		g.remove("persistentvolumeclaims", "team", "data")
		time.Sleep(2 * time.Hour)
		calls := len(g.calls("CreateVolume"))
		fixtures.Contains(t, "The administrator learns which volume it is.", g.eventsOn("CSIDriver"), "VolumeLeft", `"pvc-u1"`, "team/data", "AlreadyExists")
		time.Sleep(24 * time.Hour)
		if more := len(g.calls("CreateVolume")); more != calls || len(g.volumes()) != 1 || len(g.calls("DeleteVolume")) != 0 {
			t.Errorf("%d calls of CreateVolume after the report, and volumes %q, want none, and the one that was left", more-calls, g.volumes())
		}
	})
}

// eventsOn returns the events about objects of a kind, as lines of text.
func (g *chaos) eventsOn(kind string) []string {
	var lines []string
	for _, obj := range g.cluster.Objects("events") {
		if e, ok := obj.(*corev1.Event); ok && e.InvolvedObject.Kind == kind {
			lines = append(lines, e.Reason+": "+e.Message)
		}
	}
	return lines
}
