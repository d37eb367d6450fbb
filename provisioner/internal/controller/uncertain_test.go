package controller

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/longshore-csi/longshore/csikittest/csitest"
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
				other := newClass()
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

// TestAlreadyExistsWasForgotten has the driver answer the first request by ALREADY_EXISTS: there is a volume of that name,
// which an earlier process has made with another request. When the claim goes, so must the volume. While the claim is
// there, the request is made from what is known now, which may be again what it was.
func TestAlreadyExistsWasForgotten(t *testing.T) {
	for _, deleted := range []bool{true, false} {
		t.Run(fmt.Sprintf("ClaimDeleted%v", deleted), func(t *testing.T) {
			onFlow(t, func(t *testing.T, g *chaos) {
				g.driver.Inject(csitest.Fault{Method: "CreateVolume", After: true, Code: codes.AlreadyExists, Times: 2})
				g.claimNamed("data", "u1")
				time.Sleep(100 * time.Millisecond)
				want := 1
				if deleted {
					want = 0
					g.remove("persistentvolumeclaims", "team", "data")
				}
				time.Sleep(10 * time.Minute)
				if got := g.volumes(); len(got) != want {
					t.Errorf("volumes %q, want %d", got, want)
				}
				g.manage()
				g.check()
			})
		})
	}
}
