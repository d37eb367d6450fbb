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
	"k8s.io/utils/clock"
)

var (
	settleTime = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	steady     = backoff{start: time.Second, quick: time.Millisecond, limit: time.Minute, spread: func() float64 { return 1 }}
)

// do passes one step with a result through a state, as an actor does.
func do(s *state, st step, r result) {
	j := job{step: st, attachment: s.device.attached, attachChanges: s.device.attachChanges}
	j.prior = begin(s, st)
	settle(s, j, r, settleTime, steady)
}

// TestBegin: what is about to be made or removed is uncertain, and nothing else changes.
func TestBegin(t *testing.T) {
	cases := map[string]struct {
		reason        string
		op            op
		device, mount presence
		inUse         inUseState
	}{
		"Raise":     {reason: "the answer may get lost", op: opRaise, device: present, mount: present, inUse: inUseSent},
		"Verify":    {reason: "only looks", op: opVerify, device: present, mount: present},
		"Release":   {reason: "makes nothing on the node", op: opRelease, device: present, mount: present},
		"Stage":     {reason: "the call may get lost", op: opStage, device: uncertain, mount: present},
		"Unstage":   {reason: "the call may get lost", op: opUnstage, device: uncertain, mount: present},
		"Publish":   {reason: "the call may get lost", op: opPublish, device: present, mount: uncertain},
		"Unpublish": {reason: "the call may get lost", op: opUnpublish, device: present, mount: uncertain},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			s := state{device: device{stage: present}, uses: map[Key]*use{keyA: {mount: present}}}
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
		"Raised":          {reason: "the name is confirmed", state: wanted(device{}), op: opRaise, check: func(d *device) bool { return d.inUse == inUseConfirmed && d.err == nil }},
		"NotRaised":       {reason: "it may be there all the same, which does no harm", state: wanted(device{inUse: inUseSent}), op: opRaise, result: result{err: late}, check: func(d *device) bool { return d.inUse == inUseSent && d.failures == 1 && d.retryAt.After(settleTime) }},
		"Verified":        {reason: "the attachment is known", state: wanted(device{inUse: inUseConfirmed}), op: opVerify, result: result{attachment: one}, check: func(d *device) bool { return d.attached == one && d.stage == absent }},
		"VerifiedAgain":   {reason: "the stage belongs to it", state: wanted(device{stage: present, stagedFor: "1"}), op: opVerify, result: result{attachment: &Attachment{UID: "1"}}, check: func(d *device) bool { return d.stage == present && !d.stale() }},
		"OtherAttachment": {reason: "the stage is of a device that is gone", state: wanted(device{stage: present, stagedFor: "1"}), op: opVerify, result: result{attachment: two}, check: func(d *device) bool { return d.stage == present && d.stale() }},
		"NotAttached":     {reason: "no failure, but a wait", state: wanted(device{attached: one}), op: opVerify, result: result{err: fmt.Errorf("%w: v", ErrNotAttached)}, check: func(d *device) bool { return d.waiting && d.failures == 0 && d.attached == nil }},
		"Lag":             {reason: "tried again soon", state: wanted(device{}), op: opVerify, result: result{err: fmt.Errorf("%w: v", ErrTransient)}, check: func(d *device) bool { return d.retryAt.Sub(settleTime) == time.Millisecond }},
		"Staged":          {reason: "all failures are forgotten", state: wanted(device{attached: one, retryState: retryState{failures: 3}}), op: opStage, result: result{sent: true}, check: func(d *device) bool { return d.stage == present && d.stagedFor == "1" && d.failures == 0 }},
		"StageLate":       {reason: "in doubt, and the attachment is read again", state: wanted(device{attached: one}), op: opStage, result: result{err: late, sent: true}, check: func(d *device) bool { return d.stage == uncertain && !d.undo && d.attached == nil }},
		"StageBroken":     {reason: "to be undone", state: wanted(device{}), op: opStage, result: result{err: broken, sent: true}, check: func(d *device) bool { return d.stage == uncertain && d.undo }},
		"StageNotSent":    {reason: "nothing has happened", state: wanted(device{}), op: opStage, result: result{err: errors.New("no driver")}, check: func(d *device) bool { return d.stage == absent && d.failures == 1 }},
		"Unstaged": {reason: "nobody wants it, so nothing is left to remember", state: state{device: device{stage: present, attached: one, stagedFor: "1", retryState: retryState{failures: 2}}}, op: opUnstage, result: result{sent: true}, check: func(d *device) bool {
			return d.stage == absent && d.stagedFor == "" && d.attached == nil && d.failures == 0
		}},
		"Undone":        {reason: "the failure that made it necessary still counts", state: wanted(device{stage: uncertain, undo: true, retryState: retryState{failures: 2}}), op: opUnstage, result: result{sent: true}, check: func(d *device) bool { return d.stage == absent && !d.undo && d.failures == 2 }},
		"UnstageBroken": {reason: "tried again, the name stays", state: state{device: device{stage: present, inUse: inUseConfirmed}}, op: opUnstage, result: result{err: broken, sent: true}, check: func(d *device) bool { return d.stage == uncertain && d.inUse == inUseConfirmed }},
		"Released":      {reason: "the name is dropped", state: state{device: device{inUse: inUseConfirmed}}, op: opRelease, check: func(d *device) bool { return d.inUse == inUseNone }},
		"NotReleased":   {reason: "the name may still be there", state: state{device: device{inUse: inUseConfirmed}}, op: opRelease, result: result{err: late}, check: func(d *device) bool { return d.inUse == inUseConfirmed }},
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
		"Published":         {reason: "well", use: use{want: w, retryState: retryState{failures: 4}}, op: opPublish, result: result{sent: true}, check: func(u *use) bool { return u.mount == present && u.failures == 0 }},
		"PublishedUnwanted": {reason: "the wish went while the call ran; it is to be taken down", use: use{}, op: opPublish, result: result{sent: true}, check: func(u *use) bool { return u.mount == present && u.unwanted() }},
		"PublishLate":       {reason: "in doubt", use: use{want: w}, op: opPublish, result: result{err: late, sent: true}, check: func(u *use) bool { return u.mount == uncertain && !u.undo && u.failures == 1 }},
		"PublishBroken":     {reason: "to be undone", use: use{want: w}, op: opPublish, result: result{err: broken, sent: true}, check: func(u *use) bool { return u.mount == uncertain && u.undo }},
		"RecoveredBroken":   {reason: "a pod may be running on it, so it is never undone", use: use{want: w, recovered: true, mount: uncertain}, op: opPublish, result: result{err: broken, sent: true}, check: func(u *use) bool { return u.mount == uncertain && !u.undo && u.recovered }},
		"RecoveredWell":     {reason: "now it is ours", use: use{want: w, recovered: true, mount: uncertain}, op: opPublish, result: result{sent: true}, check: func(u *use) bool { return u.mount == present && !u.recovered }},
		"Cleaned":           {reason: "nothing is left of a refused call", use: use{want: w}, op: opPublish, result: result{err: broken, sent: true, cleaned: true}, check: func(u *use) bool { return u.mount == absent && !u.undo && u.failures == 1 }},
		"CleanedUnwanted":   {reason: "neither wanted nor there", use: use{}, op: opPublish, result: result{err: broken, sent: true, cleaned: true}},
		"Unpublished":       {reason: "neither wanted nor there", use: use{mount: present}, op: opUnpublish, result: result{sent: true}},
		"UnpublishedHeld":   {reason: "wanted again meanwhile", use: use{mount: present, want: w, retryState: retryState{failures: 2}}, op: opUnpublish, result: result{sent: true}, check: func(u *use) bool { return u.mount == absent && u.failures == 0 }},
		"Undone":            {reason: "the failure that made it necessary still counts", use: use{mount: uncertain, undo: true, want: w, retryState: retryState{failures: 2, err: broken}}, op: opUnpublish, result: result{sent: true}, check: func(u *use) bool { return u.mount == absent && !u.undo && u.failures == 2 && u.err == nil }},
		"UnpublishLate":     {reason: "tried again", use: use{mount: present}, op: opUnpublish, result: result{err: late, sent: true}, check: func(u *use) bool { return u.mount == uncertain && u.failures == 1 }},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			u := tc.use
			s := state{device: device{stage: present, attached: &Attachment{}}, uses: map[Key]*use{keyA: &u}}
			do(&s, step{op: tc.op, key: keyA}, tc.result)
			got := s.uses[keyA]
			if (got == nil) != (tc.check == nil) || got != nil && !tc.check(got) {
				t.Errorf("%s: use is %+v", tc.reason, got)
			}
			if (s.device.attached == nil) != (tc.result.err != nil) {
				t.Errorf("%s: the attachment must be read again after a failure, and only then", tc.reason)
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
		"Published": {reason: "errors of before do not matter", use: use{want: wish(Volume{}), mount: present}, device: device{retryState: retryState{err: shared}}, published: true},
		"Own":       {reason: "its own error is the nearest", use: use{want: wish(Volume{}), retryState: retryState{err: own}}, device: device{retryState: retryState{err: shared}}, text: "own"},
		"Shared":    {reason: "that of the volume is the next", use: use{want: wish(Volume{})}, device: device{retryState: retryState{err: shared}}, text: "shared"},
		"Blocked":   {reason: "the other pod is named", use: use{want: exclusive}, other: &use{mount: present}, text: `already in use by pod "b"`},
		"Unwanted":  {reason: "what is being taken down is not there for the pod", use: use{mount: present}},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			s := state{volume: Volume{Name: "v"}, device: tc.device, uses: map[Key]*use{keyA: &tc.use}}
			if tc.other != nil {
				s.uses[keyB] = tc.other
			}
			got := s.status(keyA)
			if got.Published != tc.published || !strings.Contains(text(got.Err), tc.text) || (got.Err == nil) != (tc.text == "") || got.Key != keyA || got.Volume != "v" {
				t.Errorf("%s: got %+v", tc.reason, got)
			}
		})
	}
}

// TestReports is who is told about a failure, and when.
func TestReports(t *testing.T) {
	lag := fmt.Errorf("%w: driver", ErrTransient)
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
		"Unstage":     {reason: "the pods wait for it to be staged again", op: opUnstage, err: failed, want: []string{"a FailedMount UnmountDevice", "b FailedMount UnmountDevice"}},
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
				keyA: {want: pub("a"), retryState: retryState{failures: tc.failures}}, keyB: {want: pub("b")},
				{Pod: "c", SpecName: "pv"}: {mount: present}, {Pod: "d", SpecName: "pv"}: {mount: present},
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

// TestAttachedAtAnyMoment attaches a volume at each moment of a look at volumesAttached: the next step is another look, or
// the use of what was found, but never a wait.
func TestAttachedAtAnyMoment(t *testing.T) {
	moments := []string{"before the look", "after the look", "after its record"}
	for attached, moment := range moments {
		v := Volume{Name: "v", Attachable: true}
		a := newActor(v)
		a.state = state{volume: v, device: device{inUse: inUseConfirmed}, uses: map[Key]*use{keyA: {want: wish(v)}}}
		m := &Manager{cfg: Config{Clock: clock.RealClock{}}, actors: map[string]*actor{"v": a}, backoff: steady}
		world := false
		at := func(now int) {
			if now == attached {
				world = true
				m.Attached("v")
			}
		}
		j, _, _ := m.next(a)
		if j.op != opVerify {
			t.Fatalf("first step is %s, want a look", j.op)
		}
		at(0)
		r := result{err: ErrNotAttached}
		if world {
			r = result{attachment: &Attachment{UID: "1"}}
		}
		at(1)
		settle(&a.state, j, r, time.Now(), steady)
		at(2)
		if st := plan(&a.state, time.Now()); st.op == opWait {
			t.Errorf("attached %s: the volume waits until %v", moment, st.until)
		}
	}
}
