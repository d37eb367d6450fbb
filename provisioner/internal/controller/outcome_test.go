package controller

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/longshore-csi/longshore/provisioner/internal/intents"
	"github.com/longshore-csi/longshore/provisioner/internal/view"
	"github.com/longshore-csi/longshore/provisioner/internal/volume"
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
		"Created":               {reason: "A good volume is saved.", state: attemptState{created: good}, want: attemptSave},
		"CreatedForNobody":      {reason: "A volume whose claim was deleted is deleted.", state: attemptState{created: good, unwanted: "gone"}, want: attemptUndo},
		"TooSmall":              {reason: "A volume that is too small is deleted.", state: attemptState{created: &csi.Volume{VolumeId: "v", CapacityBytes: 1}}, want: attemptUndo},
		"NoID":                  {reason: "An answer without an ID settles nothing.", state: attemptState{created: &csi.Volume{}}, want: attemptRepeat, problem: true},
		"NoIDForNobody":         {reason: "An answer without an ID settles nothing, even without a claim.", state: attemptState{created: &csi.Volume{}, unwanted: "gone"}, want: attemptRepeat, problem: true},
		"Canceled":              {reason: "It may still run.", state: attemptState{err: code(codes.Canceled)}, want: attemptRepeat},
		"DeadlineExceeded":      {reason: "It may still run.", state: attemptState{err: code(codes.DeadlineExceeded)}, want: attemptRepeat},
		"Unavailable":           {reason: "It may still run.", state: attemptState{err: code(codes.Unavailable)}, want: attemptRepeat},
		"Aborted":               {reason: "It runs.", state: attemptState{err: code(codes.Aborted)}, want: attemptRepeat},
		"NoStatus":              {reason: "An error that is not the driver's says nothing.", state: attemptState{err: context.DeadlineExceeded}, want: attemptRepeat},
		"UncertainForNobody":    {reason: "What may still run is not dropped with its claim.", state: attemptState{err: code(codes.DeadlineExceeded), unwanted: "gone"}, want: attemptRepeat},
		"Internal":              {reason: "It failed; it may succeed another time.", state: attemptState{err: code(codes.Internal)}, want: attemptRetry},
		"Unknown":               {reason: "An error without a code says nothing.", state: attemptState{err: code(codes.Unknown)}, want: attemptRepeat},
		"AlreadyExists":         {reason: "There is a volume of that name.", state: attemptState{err: code(codes.AlreadyExists)}, want: attemptRepeat},
		"AlreadyExistsUnwanted": {reason: "There is a volume of that name.", state: attemptState{err: code(codes.AlreadyExists), unwanted: "gone"}, want: attemptRepeat},
		"Unsent":                {reason: "The driver has not seen the request.", state: attemptState{err: callError{err: code(codes.Unavailable), unsent: true}}, want: attemptRetry},
		"UnsentForNobody":       {reason: "The driver has not seen the request.", state: attemptState{err: callError{err: code(codes.Unavailable), unsent: true}, unwanted: "gone"}, want: attemptForget},
		"InternalForNobody":     {reason: "It failed, and nobody minds.", state: attemptState{err: code(codes.Internal), unwanted: "gone"}, want: attemptForget},
		"Invalid":               {reason: "It cannot succeed as it stands.", state: attemptState{err: code(codes.InvalidArgument)}, want: attemptRest},
		"OutOfRange":            {reason: "What sizes the driver supports may change by itself.", state: attemptState{err: code(codes.OutOfRange)}, want: attemptRetry},
		"InvalidForNobody":      {reason: "Nobody minds.", state: attemptState{err: code(codes.InvalidArgument), unwanted: "gone"}, want: attemptForget},
		"Exhausted":             {reason: "Without a selected node there is no other place.", state: attemptState{err: code(codes.ResourceExhausted), topology: true}, want: attemptRetry},
		"ExhaustedAtNode":       {reason: "The scheduler may find another node.", state: attemptState{err: code(codes.ResourceExhausted), topology: true}, node: "node-1", want: attemptReschedule},
		"ExhaustedNoTopology":   {reason: "Another node is no other place for a driver without topology.", state: attemptState{err: code(codes.ResourceExhausted)}, node: "node-1", want: attemptRetry},
		"ExhaustedForNobody":    {reason: "Nobody minds.", state: attemptState{err: code(codes.ResourceExhausted), topology: true, unwanted: "gone"}, node: "node-1", want: attemptForget},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			tc.state.intent = *newIntent(intents.Creating)
			tc.state.intent.Request = &csi.CreateVolumeRequest{CapacityRange: &csi.CapacityRange{RequiredBytes: 100}}
			if tc.node != "" {
				tc.state.intent.Spec.Claim.Annotations[view.AnnSelectedNode] = tc.node
			}
			got := planAttempt(tc.state)
			if got.verb != tc.want {
				t.Errorf("%s\ngot %d (%s), want %d", tc.reason, got.verb, got.why, tc.want)
			}
			if got.verb == attemptRepeat && (got.problem(nil) != nil) != tc.problem {
				t.Errorf("%s\nproblem %v, want one: %v", tc.reason, got.problem(nil), tc.problem)
			}
		})
	}
}

// TestUncertainIsNeverDropped goes through all codes: a request is repeated whose outcome is unknown, be it that of this
// attempt or that of an earlier one, with and without a claim; no other is.
func TestUncertainIsNeverDropped(t *testing.T) {
	open := []codes.Code{codes.Canceled, codes.Unknown, codes.DeadlineExceeded, codes.AlreadyExists, codes.Aborted, codes.Unavailable}
	for code := codes.Code(1); code <= codes.Unauthenticated; code++ {
		for _, unwanted := range []string{"", "gone"} {
			for _, before := range []bool{false, true} {
				for _, unsent := range []bool{false, true} {
					intent := *newIntent(intents.Creating)
					if before {
						intent.Uncertain = time.Unix(1, 0)
					}
					err := callError{err: status.Error(code, ""), unsent: unsent}
					got := planAttempt(attemptState{intent: intent, unwanted: unwanted, topology: true, err: err})
					want := before || slices.Contains(open, code) && (!unsent || code == codes.AlreadyExists)
					if (got.verb == attemptRepeat) != want {
						t.Errorf("code %s, unwanted %q, unknown before: %v, unsent: %v: plan %d", code, unwanted, before, unsent, got.verb)
					}
				}
			}
		}
	}
}

// TestUncertain follows what is noted about the outcome from one attempt to the next.
func TestUncertain(t *testing.T) {
	first, exists := time.Unix(1, 0), status.Error(codes.AlreadyExists, "")
	cases := map[string]struct {
		reason    string
		errs      []error
		renewable bool
	}{
		"Timeout":       {reason: "The request may be running.", errs: []error{status.Error(codes.DeadlineExceeded, "")}},
		"ThenExists":    {reason: "It is this request's volume that exists.", errs: []error{status.Error(codes.DeadlineExceeded, ""), exists}},
		"Exists":        {reason: "Another request has made the volume.", errs: []error{exists}, renewable: true},
		"ExistsAgain":   {reason: "So it has.", errs: []error{exists, exists}, renewable: true},
		"ExistsFails":   {reason: "An attempt that failed is not running.", errs: []error{exists, status.Error(codes.Internal, "")}, renewable: true},
		"ExistsUnsent":  {reason: "An attempt that was not sent is not running.", errs: []error{exists, callError{err: status.Error(codes.Unavailable, ""), unsent: true}}, renewable: true},
		"ExistsTimeout": {reason: "Now this request may be running.", errs: []error{exists, status.Error(codes.DeadlineExceeded, ""), exists}},
		"NoID":          {reason: "An answer without an ID may be that of a volume.", errs: []error{exists, volume.ErrIncomplete}},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			intent := *newIntent(intents.Creating)
			for i, err := range tc.errs {
				intent = uncertain(intent, err, first.Add(time.Duration(i)*time.Hour))
			}
			if intent.Uncertain != first || intent.Renewable != tc.renewable {
				t.Errorf("%s\nunknown since %v, want %v; renewable %v, want %v", tc.reason, intent.Uncertain, first, intent.Renewable, tc.renewable)
			}
		})
	}
}
