package controller

import (
	"errors"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	grpcstatus "google.golang.org/grpc/status"

	"github.com/longshore-csi/longshore/csikit/snapshotapi"
)

// change changes a record.
type change func(*record)

func deleting(r *record)     { r.deleting = true }
func unprotected(r *record)  { r.finalizers = []string{"someone/else"} }
func beingCreated(r *record) { r.annotations[contentNames().beingCreated] = yes }
func labelled(r *record)     { r.labelled = true }
func abandoned(r *record)    { r.annotations[snapshotapi.AnnAbandon] = yes }
func beingDeleted(r *record) { r.annotations[contentNames().beingDeleted] = yes }
func retained(r *record)     { r.retain = true }
func taken(r *record)        { r.status.handle = "snap" }
func ready(r *record)        { r.status.handle, r.status.ready = "snap", new(true) }
func unready(r *record)      { r.status.ready = new(false) }
func failing(r *record)      { r.status.failed = true }
func member(r *record)       { r.member = true }
func given(r *record)        { r.volumes, r.given = nil, "old" }
func unbound(r *record)      { r.ref.UID = "" }
func membersMissing(r *record) {
	r.membersMissing = true
}
func inGroup(r *record) { r.status.group = "group" }

// testRecord returns a content that asks for a snapshot.
func testRecord(changes ...change) record {
	r := record{name: "c", uid: "uid-c", finalizers: []string{contentNames().finalizer}, annotations: map[string]string{}, volumes: []string{"vol"}, class: "fast"}
	r.ref.Namespace, r.ref.Name, r.ref.UID = "ns", "backup", "u"
	for _, c := range changes {
		c(&r)
	}
	return r
}

func TestPlan(t *testing.T) {
	uncertain, settled := attempt{outcome: outcomeUncertain}, attempt{outcome: outcomeSettled}
	tests := map[string]struct {
		reason  string
		changes []change
		last    attempt
		want    verdict
	}{
		"New":                {reason: "a snapshot is to be taken", want: doCreate},
		"Unprotected":        {reason: "the step adds the finalizer", changes: []change{unprotected}, want: doCreate},
		"Taken":              {reason: "is it ready?", changes: []change{taken}, want: doRead},
		"Unready":            {reason: "is it ready?", changes: []change{taken, unready}, want: doRead},
		"Ready":              {reason: "all is done", changes: []change{ready}, want: doNothing},
		"ReadyWithError":     {reason: "the error is outdated", changes: []change{ready, failing}, want: doRead},
		"Marked":             {reason: "a former life has called the driver, perhaps", changes: []change{beingCreated}, want: doCreate},
		"MarkedTaken":        {reason: "the outcome is known", changes: []change{beingCreated, taken}, want: doRelease},
		"MarkedReady":        {reason: "the outcome is known", changes: []change{beingCreated, ready}, want: doRelease},
		"MarkedSettled":      {reason: "there is no snapshot, says the driver", changes: []change{beingCreated}, last: settled, want: doRelease},
		"Settled":            {reason: "it is tried again", last: settled, want: doCreate},
		"Given":              {reason: "a snapshot that exists is asked for", changes: []change{given}, want: doRead},
		"GivenUnbound":       {reason: "also before it is bound", changes: []change{given, unbound}, want: doRead},
		"Member":             {reason: "S23: the group takes it", changes: []change{member}, want: doNothing},
		"MemberMarked":       {reason: "S23: whatever its annotations say", changes: []change{member, beingCreated}, want: doRelease},
		"MemberTaken":        {reason: "S23: is it ready?", changes: []change{member, taken}, want: doRead},
		"Deleting":           {reason: "S12: its VolumeSnapshot is not deleted", changes: []change{ready, deleting}, want: doNothing},
		"BeingDeleted":       {reason: "the content may be retained", changes: []change{ready, beingDeleted}, want: doNothing},
		"Deleted":            {reason: "both are deleted", changes: []change{ready, deleting, beingDeleted}, want: doDelete},
		"DeletedUnready":     {reason: "it need not be ready for that", changes: []change{taken, deleting, beingDeleted}, want: doDelete},
		"DeletedLoose":       {reason: "others hold it", changes: []change{ready, deleting, beingDeleted, unprotected}, want: doNothing},
		"DeletedRetained":    {reason: "the snapshot stays", changes: []change{ready, deleting, beingDeleted, retained}, want: doFinish},
		"DeletedNew":         {reason: "there is no snapshot", changes: []change{deleting, beingDeleted}, want: doFinish},
		"DeletedSettled":     {reason: "there is no snapshot, says the driver", changes: []change{deleting, beingDeleted}, last: settled, want: doFinish},
		"DeletedMarked":      {reason: "S3: there may be a snapshot", changes: []change{deleting, beingDeleted, beingCreated}, want: doCreate},
		"DeletedErased":      {reason: "S1: there may be a snapshot although the annotation is gone", changes: []change{deleting, beingDeleted}, last: uncertain, want: doCreate},
		"DeletedLabelled":    {reason: "S1: a former life has called the driver, perhaps, and others have erased the annotation", changes: []change{deleting, beingDeleted, labelled}, want: doCreate},
		"LabelledReady":      {reason: "the outcome is known", changes: []change{ready, labelled}, want: doRelease},
		"Abandoned":          {reason: "S8: the admin gives it up", changes: []change{deleting, beingCreated, labelled, abandoned}, last: uncertain, want: doFinish},
		"AbandonedKnown":     {reason: "S13: the admin gives it up", changes: []change{ready, deleting, beingDeleted, abandoned}, want: doFinish},
		"AbandonedEarly":     {reason: "nothing is given up as long as the content is not being deleted", changes: []change{abandoned}, want: doCreate},
		"DeletedMarkedKnown": {reason: "it is found, and deleted next", changes: []change{deleting, beingDeleted, beingCreated, taken}, want: doRelease},
		"RetainedMarked":     {reason: "S3: what stays must have a name", changes: []change{deleting, beingDeleted, beingCreated, retained}, want: doCreate},
		"DeletedMember":      {reason: "the group deletes it", changes: []change{member, ready, deleting, beingDeleted}, want: doFinish},
		"DeletedInGroup":     {reason: "the group deletes it", changes: []change{ready, inGroup, deleting, beingDeleted}, want: doFinish},
		"DeletedGiven":       {reason: "S6: also if the driver was not able to tell about it", changes: []change{given, deleting, beingDeleted}, want: doDelete},
		"GivenDeleting":      {reason: "its VolumeSnapshot is not deleted", changes: []change{given, deleting}, want: doNothing},
		"MembersMissing":     {reason: "S21: an earlier version has recorded them elsewhere", changes: []change{ready, membersMissing}, want: doMembers},
		"MembersUnready":     {reason: "the driver says them as well", changes: []change{taken, membersMissing}, want: doRead},
		"MembersDeleted":     {reason: "S21: they are found, but need not be recorded any more", changes: []change{ready, membersMissing, deleting, beingDeleted}, want: doDelete},
		"UnboundDeleting":    {reason: "it has no VolumeSnapshot", changes: []change{given, unbound, deleting}, want: doDelete},
		"UnboundRetained":    {reason: "the snapshot stays", changes: []change{given, unbound, deleting, retained}, want: doFinish},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			if got := plan(contentNames(), testRecord(tt.changes...), tt.last); got != tt.want {
				t.Errorf("%s: got %v, want %v", tt.reason, got, tt.want)
			}
		})
	}
}

var errPlain = errors.New("no status")

// TestOutcome follows the answers to CreateSnapshot, each a while after the one before.
func TestOutcome(t *testing.T) {
	const timeout = time.Minute
	err := func(code codes.Code) error { return grpcstatus.Error(code, "x") }
	type answer struct {
		err   error
		after time.Duration
		want  knowledge
	}
	tests := map[string]struct {
		reason  string
		former  bool
		answers []answer
	}{
		"Final":      {reason: "nothing was in progress", answers: []answer{{err(codes.Internal), 0, outcomeSettled}}},
		"FinalTwice": {reason: "each attempt is settled", answers: []answer{{err(codes.Internal), 0, outcomeSettled}, {err(codes.NotFound), 0, outcomeSettled}}},
		"Uncertain": {reason: "S3: codes that say nothing", answers: []answer{
			{err(codes.DeadlineExceeded), 0, outcomeUncertain}, {err(codes.Canceled), 0, outcomeUncertain}, {err(codes.Unavailable), 0, outcomeUncertain},
			{err(codes.Aborted), 0, outcomeUncertain}, {err(codes.ResourceExhausted), time.Hour, outcomeUncertain}, {errPlain, time.Hour, outcomeUncertain},
		}},
		"Soon":       {reason: "S3: the former call may still run", answers: []answer{{err(codes.DeadlineExceeded), 0, outcomeUncertain}, {err(codes.NotFound), timeout, outcomeUncertain}, {err(codes.NotFound), timeout, outcomeUncertain}}},
		"Later":      {reason: "S3: it cannot run any more", answers: []answer{{err(codes.DeadlineExceeded), 0, outcomeUncertain}, {err(codes.NotFound), 0, outcomeUncertain}, {err(codes.NotFound), timeout + 1, outcomeSettled}}},
		"Changed":    {reason: "S3: another answer begins anew", answers: []answer{{err(codes.DeadlineExceeded), 0, outcomeUncertain}, {err(codes.NotFound), 0, outcomeUncertain}, {err(codes.Internal), timeout + 1, outcomeUncertain}, {err(codes.Internal), timeout + 1, outcomeSettled}}},
		"Again":      {reason: "S3: so does a timeout", answers: []answer{{err(codes.DeadlineExceeded), 0, outcomeUncertain}, {err(codes.NotFound), 0, outcomeUncertain}, {err(codes.Unavailable), timeout, outcomeUncertain}, {err(codes.NotFound), timeout, outcomeUncertain}}},
		"FormerLife": {reason: "S3: what a former life has begun", former: true, answers: []answer{{err(codes.NotFound), 0, outcomeUncertain}, {err(codes.NotFound), timeout + 1, outcomeSettled}}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			r := testRecord()
			if tt.former {
				beingCreated(&r)
			}
			now, a := time.Unix(1000, 0), attempt{}
			for i, answer := range tt.answers {
				now = now.Add(answer.after)
				open := mayExist(contentNames(), r, a)
				a = a.begin(open)
				if a.outcome != outcomeUncertain {
					t.Errorf("%s: a running call is %v", tt.reason, a.outcome)
				}
				if a = a.end(open, answer.err, now, timeout); a.outcome != answer.want {
					t.Errorf("%s: answer %d: got %v, want %v", tt.reason, i, a.outcome, answer.want)
				}
			}
		})
	}
}

// TestMemory keeps attempts by UID, and pauses by step.
func TestMemory(t *testing.T) {
	now := time.Unix(1000, 0)
	var m memory
	r := testRecord()
	m.put("c", attempt{uid: "uid-c", step: doCreate, failures: 3, due: now.Add(time.Minute), outcome: outcomeUncertain})
	if a := m.of("c", "uid-c"); a.wait(doCreate, r, now) != time.Minute || a.wait(doDelete, r, now) > 0 || a.wait(doCreate, testRecord(deleting), now) > 0 {
		t.Errorf("pauses of %+v", a)
	}
	if a := m.of("c", "uid-c").of(doDelete, r); a.failures != 0 || a.outcome != outcomeUncertain {
		t.Errorf("another step: %+v", a)
	}
	if a := m.of("c", "uid-d"); a.failures != 0 || a.outcome != outcomeForgotten || a.uid != "uid-d" {
		t.Errorf("a content that was created later inherits %+v", a)
	}
	m.retryNow("c")
	if a := m.of("c", "uid-c"); a.wait(doCreate, r, now) > 0 || a.failures != 3 {
		t.Errorf("after retryNow: %+v", a)
	}
	m.forget("c")
	if a := m.of("c", "uid-c"); a.failures != 0 {
		t.Errorf("after forget: %+v", a)
	}
}

func TestVerdictsHaveNames(t *testing.T) {
	for v := doNothing; v <= doFinish; v++ {
		if strings.TrimSpace(v.String()) == "" {
			t.Errorf("verdict %d has no name", v)
		}
	}
}
