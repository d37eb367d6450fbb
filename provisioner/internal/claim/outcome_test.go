package claim

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/longshore-csi/longshore/provisioner/internal/backend"
	"github.com/longshore-csi/longshore/provisioner/internal/journal"
	"github.com/longshore-csi/longshore/provisioner/internal/view"
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
		"Found":                 {reason: "A volume that another process has requested is compared with what the claim asks for.", state: attemptState{intent: journal.Intent{Recovered: true}, created: good}, want: attemptFound},
		"FoundForNobody":        {reason: "So is one that is unwanted: the claim is read from the server.", state: attemptState{intent: journal.Intent{Recovered: true}, created: good, unwanted: "gone"}, want: attemptFound},
		"NotFound":              {reason: "The claim is provisioned as one without a record.", state: attemptState{intent: journal.Intent{Recovered: true}, err: code(codes.Internal)}, want: attemptForget},
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
		"Unknown":               {reason: "Drivers say so by mistake.", state: attemptState{err: code(codes.Unknown)}, want: attemptRepeat},
		"AlreadyExists":         {reason: "Another request has made a volume of that name.", state: attemptState{err: code(codes.AlreadyExists)}, want: attemptRetry},
		"AlreadyExistsUnwanted": {reason: "It is not that of this request.", state: attemptState{err: code(codes.AlreadyExists), unwanted: "gone"}, want: attemptForget},
		"Unsent":                {reason: "The driver has not seen the request.", state: attemptState{err: backend.Error{Err: code(codes.Unavailable), Unsent: true}}, want: attemptRetry},
		"UnsentForNobody":       {reason: "The driver has not seen the request.", state: attemptState{err: backend.Error{Err: code(codes.Unavailable), Unsent: true}, unwanted: "gone"}, want: attemptForget},
		"InternalForNobody":     {reason: "It failed, and nobody minds.", state: attemptState{err: code(codes.Internal), unwanted: "gone"}, want: attemptForget},
		"Invalid":               {reason: "It cannot succeed as it stands.", state: attemptState{err: code(codes.InvalidArgument)}, want: attemptInfeasible},
		"OutOfRange":            {reason: "What sizes the driver supports may change by itself.", state: attemptState{err: code(codes.OutOfRange)}, want: attemptRetry},
		"InvalidForNobody":      {reason: "Nobody minds.", state: attemptState{err: code(codes.InvalidArgument), unwanted: "gone"}, want: attemptForget},
		"Exhausted":             {reason: "Without a selected node there is no other place.", state: attemptState{err: code(codes.ResourceExhausted), topology: true}, want: attemptRetry},
		"ExhaustedAtNode":       {reason: "The scheduler may find another node.", state: attemptState{err: code(codes.ResourceExhausted), topology: true}, node: "node-1", want: attemptReschedule},
		"ExhaustedNoTopology":   {reason: "Another node is no other place for a driver without topology.", state: attemptState{err: code(codes.ResourceExhausted)}, node: "node-1", want: attemptRetry},
		"ExhaustedForNobody":    {reason: "Nobody minds.", state: attemptState{err: code(codes.ResourceExhausted), topology: true, unwanted: "gone"}, node: "node-1", want: attemptForget},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			recovered := tc.state.intent.Recovered
			tc.state.intent = *newIntent(journal.Creating)
			tc.state.intent.Recovered = recovered
			tc.state.intent.Request = &csi.CreateVolumeRequest{CapacityRange: &csi.CapacityRange{RequiredBytes: 100}}
			if tc.node != "" {
				tc.state.intent.Spec.Claim.Annotations[view.AnnSelectedNode] = tc.node
			}
			got := planAttempt(tc.state)
			if got.verb != tc.want {
				t.Errorf("%s\ngot %d (%s), want %d", tc.reason, got.verb, got.why, tc.want)
			}
			if got.verb == attemptRepeat && (got.why != "") != tc.problem {
				t.Errorf("%s\nproblem %q, want one: %v", tc.reason, got.why, tc.problem)
			}
		})
	}
}

// TestDoubtIsSettled goes through all codes: a request is repeated as long as an attempt may be running, be it this one or an earlier one, and no longer.
func TestDoubtIsSettled(t *testing.T) {
	running := []codes.Code{codes.Canceled, codes.DeadlineExceeded, codes.Aborted, codes.Unavailable}
	asked := time.Unix(1000, 0)
	for code := codes.Code(1); code <= codes.Unauthenticated; code++ {
		flags(4, func(on func(int) bool) {
			before, early, sent, wanted := on(0), on(1), on(2), on(3)
			s := attemptState{intent: *newIntent(journal.Creating), settle: time.Hour, topology: true, err: backend.Error{Err: status.Error(code, ""), Unsent: !sent}}
			if s.now = asked.Add(2 * time.Hour); early {
				s.now = asked.Add(time.Minute)
			}
			if before {
				s.intent.Uncertain, s.intent.Settles = asked, asked.Add(time.Hour)
			}
			if !wanted {
				s.unwanted = "gone"
			}
			want := before
			switch {
			case sent && slices.Contains(running, code):
				want = true
			case sent && code == codes.Unknown:
				want = !before || early
			case sent:
				want = before && early
			}
			if got := planAttempt(s); (got.verb == attemptRepeat) != want {
				t.Errorf("code %s, in doubt before %v, early %v, sent %v, wanted %v: plan %d, repeated is to be %v", code, before, early, sent, wanted, got.verb, want)
			}
		})
	}
}

// TestUnknownIsAskedAbout follows UNKNOWN, by which the handler of the driver has returned: a claim that waits goes on with the next answer, and a volume that nobody
// waits for is asked about for the whole period.
func TestUnknownIsAskedAbout(t *testing.T) {
	asked := time.Unix(1000, 0)
	for name, tc := range map[string]struct {
		unwanted string
		at       time.Duration
		want     attemptVerb
	}{
		"Wanted": {at: time.Minute, want: attemptRetry}, "Unwanted": {unwanted: "gone", at: time.Minute, want: attemptRepeat}, "UnwantedLate": {unwanted: "gone", at: 61 * time.Minute, want: attemptForget},
	} {
		s := attemptState{intent: *newIntent(journal.Creating), settle: time.Hour, now: asked, unwanted: tc.unwanted, err: status.Error(codes.Unknown, "")}
		first := planAttempt(s)
		if first.verb != attemptRepeat || first.until != asked {
			t.Fatalf("%s: plan %+v, want one more request, whose answer counts", name, first)
		}
		s.intent.Uncertain, s.intent.Settles, s.now = asked, first.until, asked.Add(tc.at)
		for _, code := range []codes.Code{codes.Unknown, codes.Internal} {
			s.err = status.Error(code, "")
			if got := planAttempt(s); got.verb != tc.want {
				t.Errorf("%s: plan %d after %s, want %d", name, got.verb, code, tc.want)
			}
		}
	}
}
