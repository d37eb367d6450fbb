package volume

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

var (
	keyA = Key{Pod: "a", SpecName: "pv"}
	keyB = Key{Pod: "b", SpecName: "pv"}
	keyD = Key{Pod: "a", SpecName: "pv", Block: true}
)

func wish(v Volume) *Publication { return &Publication{Volume: v, Pod: Pod{UID: "a"}, SpecName: "pv"} }

func TestPlan(t *testing.T) {
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	attachable := Volume{Attachable: true}
	exclusive := Volume{Exclusive: true}
	raw := Volume{Device: "pv"}
	cases := map[string]struct {
		reason string
		state  state
		want   step
	}{
		"Nothing":        {reason: "a volume without users goes", state: state{}, want: step{op: opFinish}},
		"Raise":          {reason: "our flag comes first", state: state{volume: attachable, uses: map[Key]*use{keyA: {want: wish(attachable)}}}, want: step{op: opRaise}},
		"RaiseRecovered": {reason: "a name that may be in volumesInUse must be confirmed", state: state{volume: attachable, device: device{inUse: inUseSent}, uses: map[Key]*use{keyA: {want: wish(attachable)}}}, want: step{op: opRaise}},
		"Verify":         {reason: "then the other's flag is read", state: state{volume: attachable, device: device{inUse: inUseConfirmed}, uses: map[Key]*use{keyA: {want: wish(attachable)}}}, want: step{op: opVerify}},
		"Stage":          {reason: "then it is staged", state: state{volume: attachable, device: device{inUse: inUseConfirmed, attached: &Attachment{}}, uses: map[Key]*use{keyA: {want: wish(attachable)}}}, want: step{op: opStage}},
		"StageAgain":     {reason: "an uncertain stage is staged again", state: state{device: device{stage: uncertain}, uses: map[Key]*use{keyA: {want: wish(Volume{})}}}, want: step{op: opStage}},
		"Publish":        {reason: "then it is published", state: state{device: device{stage: present}, uses: map[Key]*use{keyA: {want: wish(Volume{})}}}, want: step{op: opPublish, key: keyA}},
		"PublishInline":  {reason: "inline volumes are only published", state: state{volume: Volume{Ephemeral: true}, uses: map[Key]*use{keyA: {want: wish(Volume{Ephemeral: true})}}}, want: step{op: opPublish, key: keyA}},
		"Done":           {reason: "all is there", state: state{device: device{stage: present}, uses: map[Key]*use{keyA: {want: wish(Volume{}), mount: present}}}, want: step{op: opWait}},
		"UnpublishFirst": {reason: "taking down comes first", state: state{device: device{stage: present}, uses: map[Key]*use{keyA: {want: wish(Volume{})}, keyB: {mount: present}}}, want: step{op: opUnpublish, key: keyB}},
		"UnpublishUnsure": {
			reason: "what may be published is unpublished",
			state:  state{device: device{stage: present}, uses: map[Key]*use{keyA: {mount: uncertain}}}, want: step{op: opUnpublish, key: keyA},
		},
		"Undo":            {reason: "a use in doubt is undone before it is tried again", state: state{device: device{stage: present}, uses: map[Key]*use{keyA: {want: wish(Volume{}), mount: uncertain, undo: true}}}, want: step{op: opUnpublish, key: keyA}},
		"UndoStage":       {reason: "a stage in doubt as well", state: state{device: device{stage: uncertain, undo: true}, uses: map[Key]*use{keyA: {want: wish(Volume{})}}}, want: step{op: opUnstage}},
		"UndoStageInUse":  {reason: "but never under a pod", state: state{device: device{stage: uncertain, undo: true}, uses: map[Key]*use{keyA: {want: wish(Volume{})}, keyB: {podUnknown: true, mount: uncertain}}}, want: step{op: opStage}},
		"Held":            {reason: "what is not known to be unwanted stays", state: state{device: device{stage: uncertain}, uses: map[Key]*use{keyA: {podUnknown: true, mount: uncertain}}}, want: step{op: opWait}},
		"Unstage":         {reason: "no pod, no stage", state: state{device: device{stage: uncertain, inUse: inUseConfirmed}}, want: step{op: opUnstage}},
		"Pinned":          {reason: "a mount that no record explains may be of this volume", state: state{device: device{stage: uncertain, inUse: inUseSent, pinned: true}}, want: step{op: opWait}},
		"Release":         {reason: "the flag goes last", state: state{device: device{inUse: inUseSent}}, want: step{op: opRelease}},
		"BackingOff":      {reason: "a step that has failed waits", state: state{device: device{retryState: retryState{retryAt: now.Add(time.Minute)}}, uses: map[Key]*use{keyA: {want: wish(Volume{})}}}, want: step{op: opWait, until: now.Add(time.Minute)}},
		"OtherBackingOff": {reason: "one use that has failed does not hold back another", state: state{device: device{stage: present}, uses: map[Key]*use{keyA: {retryState: retryState{retryAt: now.Add(time.Minute)}, mount: uncertain}, keyB: {want: wish(Volume{})}}}, want: step{op: opPublish, key: keyB}},
		"ChangeGroup":     {reason: "then the files get the group", state: state{device: device{stage: present}, uses: map[Key]*use{keyA: {want: wish(Volume{}), mount: present, groupPending: true}}}, want: step{op: opChangeGroup, key: keyA}},
		"ChangeLater":     {reason: "another pod's mount is faster", state: state{device: device{stage: present}, uses: map[Key]*use{keyA: {want: wish(Volume{}), mount: present, groupPending: true}, keyB: {want: wish(Volume{})}}}, want: step{op: opPublish, key: keyB}},
		"LookFirst": {
			reason: "a pod that waits for a look at its claim does not wait for the mounts of all other pods as well",
			state: state{device: device{stage: present}, expansions: map[string]*expansion{"pv": {}}, uses: map[Key]*use{
				keyA: {want: &Publication{Claim: Claim{Name: "c"}}, mount: present, unchecked: true}, keyB: {want: &Publication{Claim: Claim{Name: "c"}}},
			}},
			want: step{op: opExpand, key: keyA},
		},
		"LookLater": {
			reason: "a pod that runs waits for nothing",
			state: state{device: device{stage: present}, expansions: map[string]*expansion{"pv": {}}, uses: map[Key]*use{
				keyA: {want: &Publication{Claim: Claim{Name: "c"}}, mount: present}, keyB: {want: &Publication{Claim: Claim{Name: "c"}}},
			}},
			want: step{op: opPublish, key: keyB},
		},
		"NoGroup":         {reason: "nothing is changed for a pod that is gone", state: state{device: device{stage: present}, uses: map[Key]*use{keyA: {mount: present, groupPending: true}}}, want: step{op: opUnpublish, key: keyA}},
		"Republish":       {reason: "a published volume is published again when it is time", state: state{device: device{stage: present}, uses: map[Key]*use{keyA: {want: &Publication{Republish: true}, mount: present}}}, want: step{op: opRepublish, key: keyA}},
		"RepublishLater":  {reason: "and not before", state: state{device: device{stage: present}, uses: map[Key]*use{keyA: {want: &Publication{Republish: true}, mount: present, republish: retryState{retryAt: now.Add(time.Minute)}}}}, want: step{op: opWait, until: now.Add(time.Minute)}},
		"RepublishStale":  {reason: "nor for another attachment", state: state{device: device{stage: present, stagedFor: "old", attached: &Attachment{UID: "new"}}, uses: map[Key]*use{keyA: {want: &Publication{Republish: true}, mount: present}}}, want: step{op: opWait}},
		"RepublishUnsure": {reason: "a volume in doubt is published", state: state{device: device{stage: present}, uses: map[Key]*use{keyA: {want: &Publication{Republish: true}, mount: uncertain}}}, want: step{op: opPublish, key: keyA}},
		"Block":           {reason: "a raw block volume is published like any other", state: state{volume: raw, device: device{stage: present, stagedAs: form{device: "pv"}}, uses: map[Key]*use{keyD: {want: wish(raw)}}}, want: step{op: opPublish, key: keyD}},
		"OtherForm":       {reason: "it waits for the pods that use it in the present form", state: state{device: device{stage: present}, uses: map[Key]*use{keyD: {want: wish(raw)}, keyB: {want: wish(Volume{}), mount: present}}}, want: step{op: opWait}},
		"FormerForm":      {reason: "what is staged in another form is unstaged first", state: state{volume: raw, device: device{stage: uncertain}, uses: map[Key]*use{keyD: {want: wish(raw)}}}, want: step{op: opUnstage}},
		"FormerTarget":    {reason: "and unpublished before that", state: state{volume: raw, device: device{stage: uncertain}, uses: map[Key]*use{keyD: {want: wish(raw)}, keyB: {want: wish(Volume{}), mount: uncertain}}}, want: step{op: opUnpublish, key: keyB}},
		"FormerUnknown":   {reason: "but not under a pod of which nothing is known", state: state{volume: raw, uses: map[Key]*use{keyD: {want: wish(raw)}, keyB: {podUnknown: true, mount: uncertain}}}, want: step{op: opWait}},
		"Exclusive":       {reason: "ReadWriteOncePod waits for the other pod", state: state{device: device{stage: present}, uses: map[Key]*use{keyA: {want: wish(exclusive)}, keyB: {want: wish(exclusive), mount: present}}}, want: step{op: opWait}},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			if got := plan(&tc.state, now); got != tc.want {
				t.Errorf("%s: got %+v, want %+v", tc.reason, got, tc.want)
			}
		})
	}
}

func TestAfterCall(t *testing.T) {
	refused := status.Error(codes.InvalidArgument, "no")
	unknown := status.Error(codes.DeadlineExceeded, "late")
	cases := map[string]struct {
		reason    string
		makes     bool
		prior     presence
		result    result
		undo      bool
		want      presence
		wantsUndo bool
	}{
		"Made":          {reason: "success", makes: true, prior: absent, result: result{sent: true}, want: present},
		"Removed":       {reason: "success ends all doubt", prior: uncertain, result: result{sent: true}, undo: true, want: absent},
		"NotSent":       {reason: "nothing has changed", makes: true, prior: absent, result: result{err: errors.New("no driver")}, want: absent},
		"NotSentUnsure": {reason: "nor has any doubt ended", makes: true, prior: uncertain, result: result{err: errors.New("no driver")}, undo: true, want: uncertain, wantsUndo: true},
		"NotRemoved":    {reason: "a removal that was not sent", prior: present, result: result{err: errors.New("no driver")}, want: present},
		"Cleaned":       {reason: "refused and cleaned up", makes: true, prior: absent, result: result{err: refused, sent: true, cleaned: true}, want: absent},
		"Refused":       {reason: "an answer after doubt", makes: true, prior: uncertain, result: result{err: refused, sent: true}, want: uncertain, wantsUndo: true},
		"Unanswered":    {reason: "no answer", makes: true, prior: absent, result: result{err: unknown, sent: true}, want: uncertain},
		"RemovalFailed": {reason: "a removal is tried again", prior: present, result: result{err: refused, sent: true}, want: uncertain},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			got, undo := afterCall(tc.makes, tc.prior, tc.result, tc.undo)
			if got != tc.want || undo != tc.wantsUndo {
				t.Errorf("%s: got %v, undo %t, want %v, undo %t", tc.reason, got, undo, tc.want, tc.wantsUndo)
			}
		})
	}
}

func TestErrorClasses(t *testing.T) {
	cases := map[string]struct {
		reason            string
		code              codes.Code
		answered, nothing bool
	}{
		"InvalidArgument":   {reason: "a refusal", code: codes.InvalidArgument, answered: true, nothing: true},
		"NotFound":          {reason: "a refusal", code: codes.NotFound, answered: true, nothing: true},
		"Internal":          {reason: "may have happened half way", code: codes.Internal, answered: true},
		"DataLoss":          {reason: "may have happened half way", code: codes.DataLoss, answered: true},
		"DeadlineExceeded":  {reason: "may still run", code: codes.DeadlineExceeded},
		"Canceled":          {reason: "may still run", code: codes.Canceled},
		"Unavailable":       {reason: "may still run", code: codes.Unavailable},
		"Aborted":           {reason: "another call is running", code: codes.Aborted},
		"ResourceExhausted": {reason: "not final for the kubelet either", code: codes.ResourceExhausted},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			plain := status.Error(tc.code, "text")
			for _, err := range []error{plain, fmt.Errorf("wrapped: %w", plain)} {
				if got := answered(err); got != tc.answered {
					t.Errorf("%s: %v: answered %t, want %t", tc.reason, err, got, tc.answered)
				}
				if got := leavesNothing(err); got != tc.nothing {
					t.Errorf("%s: %v: leaves nothing %t, want %t", tc.reason, err, got, tc.nothing)
				}
			}
		})
	}
	if answered(errors.New("connection refused")) {
		t.Error("an error without a status is no answer")
	}
}

func TestBackoff(t *testing.T) {
	b := backoff{start: 500 * time.Millisecond, quick: 20 * time.Millisecond, limit: 2 * time.Minute, spread: func() float64 { return 1 }}
	cases := map[string]struct {
		reason   string
		failures int
		quick    bool
		want     time.Duration
	}{
		"First":   {reason: "as the kubelet", failures: 1, want: 500 * time.Millisecond},
		"Third":   {reason: "doubles", failures: 3, want: 2 * time.Second},
		"Many":    {reason: "has a limit", failures: 1000, want: 2 * time.Minute},
		"Quick":   {reason: "what goes away by itself", failures: 1, quick: true, want: 20 * time.Millisecond},
		"QuickUp": {reason: "doubles too", failures: 4, quick: true, want: 160 * time.Millisecond},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			if got := b.after(tc.failures, tc.quick); got != tc.want {
				t.Errorf("%s: got %v, want %v", tc.reason, got, tc.want)
			}
		})
	}
	b.spread = func() float64 { return 0 }
	if got := b.after(1, false); got <= 0 || got >= 500*time.Millisecond {
		t.Errorf("the smallest pause is %v, want more than nothing and less than the full one", got)
	}
}
