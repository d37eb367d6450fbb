package controller

import (
	"context"
	"fmt"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/longshore-csi/longshore/provisioner/internal/intents"
)

func TestPlanAttempt(t *testing.T) {
	good := &csi.Volume{VolumeId: "v", CapacityBytes: 100}
	code := func(c codes.Code) error {
		return fmt.Errorf("wrapped: %w", status.Error(c, "text"))
	}
	cases := map[string]struct {
		reason  string
		state   attemptState
		node    string
		want    attemptVerb
		problem bool
	}{
		"Created":             {reason: "A good volume is saved.", state: attemptState{created: good}, want: attemptSave},
		"CreatedForNobody":    {reason: "A volume whose claim was deleted is deleted.", state: attemptState{created: good, unwanted: "gone"}, want: attemptUndo},
		"TooSmall":            {reason: "A volume that is too small is deleted.", state: attemptState{created: &csi.Volume{VolumeId: "v", CapacityBytes: 1}}, want: attemptUndo},
		"NoID":                {reason: "An answer without an ID settles nothing.", state: attemptState{created: &csi.Volume{}}, want: attemptRepeat, problem: true},
		"NoIDForNobody":       {reason: "An answer without an ID settles nothing, even without a claim.", state: attemptState{created: &csi.Volume{}, unwanted: "gone"}, want: attemptRepeat, problem: true},
		"Canceled":            {reason: "It may still run.", state: attemptState{err: code(codes.Canceled)}, want: attemptRepeat},
		"DeadlineExceeded":    {reason: "It may still run.", state: attemptState{err: code(codes.DeadlineExceeded)}, want: attemptRepeat},
		"Unavailable":         {reason: "It may still run.", state: attemptState{err: code(codes.Unavailable)}, want: attemptRepeat},
		"Aborted":             {reason: "It runs.", state: attemptState{err: code(codes.Aborted)}, want: attemptRepeat},
		"NoStatus":            {reason: "An error that is not the driver's says nothing.", state: attemptState{err: context.DeadlineExceeded}, want: attemptRepeat},
		"UncertainForNobody":  {reason: "What may still run is not dropped with its claim.", state: attemptState{err: code(codes.DeadlineExceeded), unwanted: "gone"}, want: attemptRepeat},
		"Internal":            {reason: "It failed; it may succeed another time.", state: attemptState{err: code(codes.Internal)}, want: attemptRetry},
		"AlreadyExists":       {reason: "It failed; it may succeed another time.", state: attemptState{err: code(codes.AlreadyExists)}, want: attemptRetry},
		"InternalForNobody":   {reason: "It failed, and nobody minds.", state: attemptState{err: code(codes.Internal), unwanted: "gone"}, want: attemptForget},
		"Invalid":             {reason: "It cannot succeed as it stands.", state: attemptState{err: code(codes.InvalidArgument)}, want: attemptRest},
		"OutOfRange":          {reason: "It cannot succeed as it stands.", state: attemptState{err: code(codes.OutOfRange)}, want: attemptRest},
		"InvalidForNobody":    {reason: "Nobody minds.", state: attemptState{err: code(codes.InvalidArgument), unwanted: "gone"}, want: attemptForget},
		"Exhausted":           {reason: "Without a selected node there is no other place.", state: attemptState{err: code(codes.ResourceExhausted), topology: true}, want: attemptRetry},
		"ExhaustedAtNode":     {reason: "The scheduler may find another node.", state: attemptState{err: code(codes.ResourceExhausted), topology: true}, node: "node-1", want: attemptReschedule},
		"ExhaustedNoTopology": {reason: "Another node is no other place for a driver without topology.", state: attemptState{err: code(codes.ResourceExhausted)}, node: "node-1", want: attemptRetry},
		"ExhaustedForNobody":  {reason: "Nobody minds.", state: attemptState{err: code(codes.ResourceExhausted), topology: true, unwanted: "gone"}, node: "node-1", want: attemptForget},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			tc.state.intent = *newIntent(intents.Creating)
			tc.state.intent.Request = &csi.CreateVolumeRequest{CapacityRange: &csi.CapacityRange{RequiredBytes: 100}}
			if tc.node != "" {
				tc.state.intent.Spec.Claim.Annotations[AnnSelectedNode] = tc.node
			}
			got := planAttempt(tc.state)
			if got.verb != tc.want {
				t.Errorf("%s\ngot %d (%s), want %d", tc.reason, got.verb, got.why, tc.want)
			}
			if got.verb == attemptRepeat && (got.problem() != nil) != tc.problem {
				t.Errorf("%s\nproblem %v, want one: %v", tc.reason, got.problem(), tc.problem)
			}
		})
	}
}

// TestUncertainIsNeverDropped goes through all codes: whatever may still run is repeated, with and without
// a claim, and nothing else is.
func TestUncertainIsNeverDropped(t *testing.T) {
	for code := codes.Code(1); code <= codes.Unauthenticated; code++ {
		for _, unwanted := range []string{"", "gone"} {
			intent := *newIntent(intents.Creating)
			got := planAttempt(attemptState{intent: intent, unwanted: unwanted, topology: true, err: status.Error(code, "")})
			uncertain := code == codes.Canceled || code == codes.DeadlineExceeded || code == codes.Unavailable || code == codes.Aborted
			if (got.verb == attemptRepeat) != uncertain {
				t.Errorf("code %s, unwanted %q: plan %d", code, unwanted, got.verb)
			}
		}
	}
}
