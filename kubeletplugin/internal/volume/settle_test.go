package volume

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"k8s.io/apimachinery/pkg/types"
)

var (
	settleTime = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	steady     = backoff{start: time.Second, quick: time.Millisecond, limit: time.Minute, spread: func() float64 { return 1 }}
)

// do passes one step with a result through a state, as an actor does.
func do(s *state, st step, r result) {
	prior := begin(s, st)
	settle(s, st, prior, r, settleTime, steady)
}

// TestBegin: what is about to be made or removed is unsure, and nothing else changes.
func TestBegin(t *testing.T) {
	cases := map[string]struct {
		reason        string
		op            op
		device, mount stage
		inUse         claim
	}{
		"Raise":     {reason: "the answer may get lost", op: opRaise, device: confirmed, mount: confirmed, inUse: claimed},
		"Verify":    {reason: "only looks", op: opVerify, device: confirmed, mount: confirmed},
		"Release":   {reason: "makes nothing on the node", op: opRelease, device: confirmed, mount: confirmed},
		"Stage":     {reason: "the call may get lost", op: opStage, device: unsure, mount: confirmed},
		"Unstage":   {reason: "the call may get lost", op: opUnstage, device: unsure, mount: confirmed},
		"Publish":   {reason: "the call may get lost", op: opPublish, device: confirmed, mount: unsure},
		"Unpublish": {reason: "the call may get lost", op: opUnpublish, device: confirmed, mount: unsure},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			s := state{device: device{stage: confirmed}, uses: map[Key]*use{keyA: {mount: confirmed}}}
			begin(&s, step{op: tc.op, key: keyA})
			if s.device.stage != tc.device || s.uses[keyA].mount != tc.mount || s.device.inUse != tc.inUse {
				t.Errorf("%s: device %+v, mount %v, want %v, %v in use %v", tc.reason, s.device, s.uses[keyA].mount, tc.device, tc.mount, tc.inUse)
			}
		})
	}
}

// TestSettleDevice is what each step makes of what is known about the volume.
func TestSettleDevice(t *testing.T) {
	late := status.Error(codes.DeadlineExceeded, "late")
	broken := status.Error(codes.Internal, "broken")
	one, two := &Attachment{UID: "1"}, &Attachment{UID: "2"}
	wanted := func(d device) state {
		return state{device: d, uses: map[Key]*use{keyA: {want: wish(Volume{})}}}
	}
	cases := map[string]struct {
		reason string
		state  state
		op     op
		result result
		check  func(*device) bool
	}{
		"Raised":          {reason: "the flag is confirmed", state: wanted(device{}), op: opRaise, check: func(d *device) bool { return d.inUse == raised && d.err == nil }},
		"NotRaised":       {reason: "it may be there all the same, which does no harm", state: wanted(device{inUse: claimed}), op: opRaise, result: result{err: late}, check: func(d *device) bool { return d.inUse == claimed && d.failures == 1 && d.retryAt.After(settleTime) }},
		"Verified":        {reason: "the attachment is known", state: wanted(device{inUse: raised}), op: opVerify, result: result{attachment: one}, check: func(d *device) bool { return d.attached == one && d.stage == absent }},
		"VerifiedAgain":   {reason: "the stage belongs to it", state: wanted(device{stage: confirmed, stagedFor: one}), op: opVerify, result: result{attachment: &Attachment{UID: "1"}}, check: func(d *device) bool { return d.stage == confirmed && !d.undo }},
		"OtherAttachment": {reason: "the stage is of a device that is gone", state: wanted(device{stage: confirmed, stagedFor: one}), op: opVerify, result: result{attachment: two}, check: func(d *device) bool { return d.stage == unsure && d.undo }},
		"NotAttached":     {reason: "no failure, but a wait", state: wanted(device{attached: one}), op: opVerify, result: result{err: fmt.Errorf("%w: v", ErrNotAttached)}, check: func(d *device) bool { return d.waiting && d.failures == 0 && d.attached == nil }},
		"Lag":             {reason: "tried again soon", state: wanted(device{}), op: opVerify, result: result{err: fmt.Errorf("%w: v", ErrLag)}, check: func(d *device) bool { return d.retryAt.Sub(settleTime) == time.Millisecond }},
		"Staged":          {reason: "all failures are forgotten", state: wanted(device{attached: one, slot: slot{failures: 3}}), op: opStage, result: result{sent: true}, check: func(d *device) bool { return d.stage == confirmed && d.stagedFor == one && d.failures == 0 }},
		"StageLate":       {reason: "in doubt, and the attachment is read anew", state: wanted(device{attached: one}), op: opStage, result: result{err: late, sent: true}, check: func(d *device) bool { return d.stage == unsure && !d.undo && d.attached == nil }},
		"StageBroken":     {reason: "to be undone", state: wanted(device{}), op: opStage, result: result{err: broken, sent: true}, check: func(d *device) bool { return d.stage == unsure && d.undo }},
		"StageNotSent":    {reason: "nothing has happened", state: wanted(device{}), op: opStage, result: result{err: errors.New("no driver")}, check: func(d *device) bool { return d.stage == absent && d.failures == 1 }},
		"Unstaged": {reason: "nobody wants it, so nothing is left to remember", state: state{device: device{stage: confirmed, attached: one, stagedFor: one, slot: slot{failures: 2}}}, op: opUnstage, result: result{sent: true}, check: func(d *device) bool {
			return d.stage == absent && d.stagedFor == nil && d.attached == nil && d.failures == 0
		}},
		"Undone":        {reason: "the failure that made it necessary still counts", state: wanted(device{stage: unsure, undo: true, slot: slot{failures: 2}}), op: opUnstage, result: result{sent: true}, check: func(d *device) bool { return d.stage == absent && !d.undo && d.failures == 2 }},
		"UnstageBroken": {reason: "tried again, the flag stays", state: state{device: device{stage: confirmed, inUse: raised}}, op: opUnstage, result: result{err: broken, sent: true}, check: func(d *device) bool { return d.stage == unsure && d.inUse == raised }},
		"Released":      {reason: "the flag is down", state: state{device: device{inUse: raised}}, op: opRelease, check: func(d *device) bool { return d.inUse == unclaimed }},
		"NotReleased":   {reason: "the flag may be up", state: state{device: device{inUse: raised}}, op: opRelease, result: result{err: late}, check: func(d *device) bool { return d.inUse == raised }},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			s := tc.state
			do(&s, step{op: tc.op}, tc.result)
			if !tc.check(&s.device) {
				t.Errorf("%s: device is %+v", tc.reason, s.device)
			}
		})
	}
}

// TestSettleUse is what each call makes of what is known about a target path.
func TestSettleUse(t *testing.T) {
	late := status.Error(codes.DeadlineExceeded, "late")
	broken := status.Error(codes.Internal, "broken")
	w := wish(Volume{})
	cases := map[string]struct {
		reason string
		use    use
		op     op
		result result
		check  func(*use) bool // nil: the use is forgotten
	}{
		"Published":         {reason: "well", use: use{want: w, slot: slot{failures: 4}}, op: opPublish, result: result{sent: true}, check: func(u *use) bool { return u.mount == confirmed && u.failures == 0 }},
		"PublishedUnwanted": {reason: "the wish went while the call ran; it is to be taken down", use: use{}, op: opPublish, result: result{sent: true}, check: func(u *use) bool { return u.mount == confirmed && u.unwanted() }},
		"PublishLate":       {reason: "in doubt", use: use{want: w}, op: opPublish, result: result{err: late, sent: true}, check: func(u *use) bool { return u.mount == unsure && !u.undo && u.failures == 1 }},
		"PublishBroken":     {reason: "to be undone", use: use{want: w}, op: opPublish, result: result{err: broken, sent: true}, check: func(u *use) bool { return u.mount == unsure && u.undo }},
		"RecoveredBroken":   {reason: "a pod may be running on it, so it is never undone", use: use{want: w, recovered: true, mount: unsure}, op: opPublish, result: result{err: broken, sent: true}, check: func(u *use) bool { return u.mount == unsure && !u.undo && u.recovered }},
		"RecoveredWell":     {reason: "now it is ours", use: use{want: w, recovered: true, mount: unsure}, op: opPublish, result: result{sent: true}, check: func(u *use) bool { return u.mount == confirmed && !u.recovered }},
		"Cleaned":           {reason: "nothing is left of a refused call", use: use{want: w}, op: opPublish, result: result{err: broken, sent: true, cleaned: true}, check: func(u *use) bool { return u.mount == absent && !u.undo && u.failures == 1 }},
		"CleanedUnwanted":   {reason: "neither wanted nor there", use: use{}, op: opPublish, result: result{err: broken, sent: true, cleaned: true}},
		"Unpublished":       {reason: "neither wanted nor there", use: use{mount: confirmed}, op: opUnpublish, result: result{sent: true}},
		"UnpublishedHeld":   {reason: "wanted again meanwhile", use: use{mount: confirmed, want: w, slot: slot{failures: 2}}, op: opUnpublish, result: result{sent: true}, check: func(u *use) bool { return u.mount == absent && u.failures == 0 }},
		"Undone":            {reason: "the failure that made it necessary still counts", use: use{mount: unsure, undo: true, want: w, slot: slot{failures: 2, err: broken}}, op: opUnpublish, result: result{sent: true}, check: func(u *use) bool { return u.mount == absent && !u.undo && u.failures == 2 && u.err == nil }},
		"UnpublishLate":     {reason: "tried again", use: use{mount: confirmed}, op: opUnpublish, result: result{err: late, sent: true}, check: func(u *use) bool { return u.mount == unsure && u.failures == 1 }},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			u := tc.use
			s := state{device: device{stage: confirmed, attached: &Attachment{}}, uses: map[Key]*use{keyA: &u}}
			do(&s, step{op: tc.op, key: keyA}, tc.result)
			got := s.uses[keyA]
			if (got == nil) != (tc.check == nil) || got != nil && !tc.check(got) {
				t.Errorf("%s: use is %+v", tc.reason, got)
			}
			if (s.device.attached == nil) != (tc.result.err != nil) {
				t.Errorf("%s: the attachment must be read anew after a failure, and only then", tc.reason)
			}
		})
	}
}

// TestStatus is what a pod is told about its volume: the error that is nearest to it.
func TestStatus(t *testing.T) {
	own, shared := errors.New("own"), errors.New("shared")
	exclusive := &Publication{Volume: Volume{Exclusive: true}}
	cases := map[string]struct {
		reason    string
		device    device
		use       use
		other     *use
		published bool
		text      string
	}{
		"New":       {reason: "nothing has failed", use: use{want: wish(Volume{})}},
		"Published": {reason: "errors of before do not matter", use: use{want: wish(Volume{}), mount: confirmed}, device: device{slot: slot{err: shared}}, published: true},
		"Own":       {reason: "its own error is the nearest", use: use{want: wish(Volume{}), slot: slot{err: own}}, device: device{slot: slot{err: shared}}, text: "own"},
		"Shared":    {reason: "that of the volume is the next", use: use{want: wish(Volume{})}, device: device{slot: slot{err: shared}}, text: "shared"},
		"Blocked":   {reason: "the other pod is named", use: use{want: exclusive}, other: &use{mount: confirmed}, text: `already in use by pod "b"`},
		"Unwanted":  {reason: "what is being taken down is not there for the pod", use: use{mount: confirmed}},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			s := state{volume: Volume{Name: "v"}, device: tc.device, uses: map[Key]*use{keyA: &tc.use}}
			if tc.other != nil {
				s.uses[keyB] = tc.other
			}
			got := s.status(keyA)
			if got.Published != tc.published || !strings.Contains(got.Reason, tc.text) || (got.Reason == "") != (tc.text == "") || got.Key != keyA || got.Volume != "v" {
				t.Errorf("%s: got %+v", tc.reason, got)
			}
		})
	}
}

// TestReports is who is told about a failure, and when.
func TestReports(t *testing.T) {
	lag := fmt.Errorf("%w: driver", ErrLag)
	failed := errors.New("disk on fire")
	cases := map[string]struct {
		reason   string
		op       op
		key      Key
		err      error
		failures int
		want     []string
	}{
		"Success":     {reason: "nothing to tell", op: opStage},
		"Stage":       {reason: "all pods wait for it", op: opStage, err: failed, want: []string{"a FailedMount MountVolume.MountDevice", "b FailedMount MountVolume.MountDevice"}},
		"Publish":     {reason: "one pod waits", op: opPublish, key: keyA, err: failed, want: []string{"a FailedMount MountVolume.SetUp"}},
		"Unpublish":   {reason: "a pod that leaves is known as well", op: opUnpublish, key: Key{Pod: "c", SpecName: "pv"}, err: failed, want: []string{"c FailedUnMount UnmountVolume.TearDown"}},
		"Stranger":    {reason: "nobody knows the pod's name", op: opUnpublish, key: Key{Pod: "d", SpecName: "pv"}, err: failed},
		"Unstage":     {reason: "no pod is concerned any more", op: opUnstage, err: failed},
		"NotAttached": {reason: "a wait is no failure", op: opVerify, err: fmt.Errorf("%w: v", ErrNotAttached)},
		"ShortLag":    {reason: "passes by itself", op: opPublish, key: keyA, err: lag, failures: quietFailures - 1},
		"LongLag":     {reason: "does not pass after all", op: opPublish, key: keyA, err: lag, failures: quietFailures, want: []string{"a FailedMount MountVolume.SetUp"}},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			pub := func(pod string) *Publication {
				return &Publication{Pod: Pod{Name: pod, UID: types.UID(pod)}, SpecName: "pv"}
			}
			a := &actor{state: state{uses: map[Key]*use{
				keyA: {want: pub("a"), slot: slot{failures: tc.failures}}, keyB: {want: pub("b")},
				{Pod: "c", SpecName: "pv"}: {mount: confirmed}, {Pod: "d", SpecName: "pv"}: {mount: confirmed},
			}}}
			if tc.op != opUnpublish {
				delete(a.state.uses, Key{Pod: "c", SpecName: "pv"})
			}
			m := &Manager{leaving: map[types.UID]Pod{"c": {Name: "c", UID: "c"}}}
			var got []string
			for _, r := range m.reports(a, job{step: step{op: tc.op, key: tc.key}}, result{err: tc.err}) {
				what, rest, _ := strings.Cut(r.message, " failed for volume ")
				got = append(got, r.pod.Name+" "+r.reason+" "+what)
				if !strings.HasPrefix(rest, `"pv" : `) {
					t.Errorf("%s: message %q does not have the kubelet's form", tc.reason, r.message)
				}
			}
			if fmt.Sprint(got) != fmt.Sprint(tc.want) {
				t.Errorf("%s: got %q, want %q", tc.reason, got, tc.want)
			}
		})
	}
}

// TestNewManagerRefuses names all that is missing at once.
func TestNewManagerRefuses(t *testing.T) {
	_, err := New(Config{Timeout: -time.Second})
	if err == nil {
		t.Fatal("no error")
	}
	for _, part := range []string{"node name", "drivers", "-1s"} {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("error %q does not tell about %q", err, part)
		}
	}
}
