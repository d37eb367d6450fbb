package expand

import (
	"errors"
	"fmt"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

const gi = int64(1) << 30

func storage(bytes int64) corev1.ResourceList {
	if bytes == 0 {
		return nil
	}
	return corev1.ResourceList{corev1.ResourceStorage: *resource.NewQuantity(bytes, resource.BinarySI)}
}

// testClaim is a claim of 1 GiB, of which the user wants 2.
func testClaim(change ...func(*corev1.PersistentVolumeClaim)) *corev1.PersistentVolumeClaim {
	c := &corev1.PersistentVolumeClaim{}
	c.Namespace, c.Name, c.UID, c.ResourceVersion = "ns", "data", "uid-1", "7"
	c.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}
	c.Spec.Resources.Requests = storage(2 * gi)
	c.Status.Capacity = storage(gi)
	for _, f := range change {
		f(c)
	}
	return c
}

func testPV(bytes int64) *corev1.PersistentVolume {
	return &corev1.PersistentVolume{Spec: corev1.PersistentVolumeSpec{Capacity: storage(bytes)}}
}

func allocated(bytes int64, progress corev1.ClaimResourceStatus) func(*corev1.PersistentVolumeClaim) {
	return func(c *corev1.PersistentVolumeClaim) {
		c.Status.AllocatedResources = storage(bytes)
		if progress != "" {
			c.Status.AllocatedResourceStatuses = map[corev1.ResourceName]corev1.ClaimResourceStatus{corev1.ResourceStorage: progress}
		}
	}
}

func condition(kind corev1.PersistentVolumeClaimConditionType) func(*corev1.PersistentVolumeClaim) {
	return func(c *corev1.PersistentVolumeClaim) {
		c.Status.Conditions = append(c.Status.Conditions, corev1.PersistentVolumeClaimCondition{Type: kind, Status: corev1.ConditionTrue, Message: "old"})
	}
}

func have(bytes int64) func(*corev1.PersistentVolumeClaim) {
	return func(c *corev1.PersistentVolumeClaim) { c.Status.Capacity = storage(bytes) }
}

func shared(c *corev1.PersistentVolumeClaim) {
	c.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadWriteMany}
}

func notRequired(c *corev1.PersistentVolumeClaim) {
	c.Annotations = map[string]string{NotRequired: "true"}
}

func TestDecide(t *testing.T) {
	pending := condition(corev1.PersistentVolumeClaimFileSystemResizePending)
	cases := map[string]struct {
		reason string
		claim  *corev1.PersistentVolumeClaim
		pv     int64
		known  Known
		want   Mode
		size   int64
	}{
		"Idle":               {reason: "nothing has grown", claim: testClaim(), pv: gi},
		"NodePending":        {reason: "the controller is done", claim: testClaim(allocated(2*gi, corev1.PersistentVolumeClaimNodeResizePending)), pv: 2 * gi, want: Recovery, size: 2 * gi},
		"NodeInProgress":     {reason: "this node, or one that has crashed, is at it", claim: testClaim(allocated(2*gi, corev1.PersistentVolumeClaimNodeResizeInProgress)), pv: 2 * gi, want: Recovery, size: 2 * gi},
		"AllocatedIsTheSize": {reason: "the PersistentVolume may be larger than asked for", claim: testClaim(allocated(2*gi, corev1.PersistentVolumeClaimNodeResizePending)), pv: 3 * gi, want: Recovery, size: 2 * gi},
		"NotAllocated":       {reason: "without a size the PersistentVolume has it", claim: testClaim(allocated(0, corev1.PersistentVolumeClaimNodeResizePending)), pv: 3 * gi, want: Recovery, size: 3 * gi},
		"NotGrown":           {reason: "the PersistentVolume is not larger than the claim", claim: testClaim(have(2*gi), allocated(2*gi, corev1.PersistentVolumeClaimNodeResizePending)), pv: 2 * gi},
		"NodeInfeasible":     {reason: "given up", claim: testClaim(allocated(2*gi, corev1.PersistentVolumeClaimNodeResizeInfeasible)), pv: 2 * gi},
		"Controller":         {reason: "the controller's turn", claim: testClaim(allocated(2*gi, corev1.PersistentVolumeClaimControllerResizeInProgress)), pv: 2 * gi},
		"ControllerGaveUp":   {reason: "the controller's turn", claim: testClaim(allocated(2*gi, corev1.PersistentVolumeClaimControllerResizeInfeasible), pending), pv: 2 * gi},
		"Done":               {reason: "expanded", claim: testClaim(have(2*gi), allocated(2*gi, "")), pv: 2 * gi, known: Known{Bytes: gi}},
		"AllocatedOnly":      {reason: "a resizer with recovery has not handed over", claim: testClaim(allocated(2*gi, ""), pending), pv: 2 * gi},
		"Legacy":             {reason: "an old resizer leaves the condition", claim: testClaim(pending), pv: 2 * gi, want: Legacy, size: 2 * gi},
		"LegacyByHand":       {reason: "an administrator has enlarged the PersistentVolume", claim: testClaim(), pv: 2 * gi, want: Legacy, size: 2 * gi},
		"LegacyNoCapacity":   {reason: "a claim without capacity is not bound for good", claim: testClaim(have(0), pending), pv: 2 * gi},
		"LegacyDone":         {reason: "the condition alone expands nothing", claim: testClaim(have(2*gi), pending), pv: 2 * gi},
		"Follow":             {reason: "another node has expanded a shared volume", claim: testClaim(shared, have(2*gi), allocated(2*gi, "")), pv: 2 * gi, known: Known{Bytes: gi}, want: Elsewhere, size: 2 * gi},
		"FollowLegacy":       {reason: "with an old resizer", claim: testClaim(shared, have(2*gi)), pv: 2 * gi, known: Known{Bytes: gi}, want: Elsewhere, size: 2 * gi},
		"FollowNot":          {reason: "the resizer says that nodes have nothing to do", claim: testClaim(shared, notRequired, have(2*gi), allocated(2*gi, "")), pv: 2 * gi, known: Known{Bytes: gi}},
		"FollowOldSize":      {reason: "an old resizer has left what another one allocated", claim: testClaim(shared, have(3*gi), allocated(2*gi, "")), pv: 3 * gi, known: Known{Bytes: 2 * gi}, want: Elsewhere, size: 3 * gi},
		"FollowPartly":       {reason: "the capacity is that of an earlier expansion", claim: testClaim(shared, have(2*gi), allocated(3*gi, "")), pv: 3 * gi, known: Known{Bytes: gi}},
		"FollowKnown":        {reason: "this node has the size", claim: testClaim(shared, have(2*gi), allocated(2*gi, "")), pv: 2 * gi, known: Known{Bytes: 2 * gi}},
		"FollowFresh":        {reason: "a volume that was just mounted has its size", claim: testClaim(shared, have(2*gi), allocated(2*gi, "")), pv: 2 * gi},
		"FollowRecovered":    {reason: "the size at the last start is forgotten", claim: testClaim(shared, have(2*gi), allocated(2*gi, "")), pv: 2 * gi, known: Known{Recovered: true}, want: Elsewhere, size: 2 * gi},
		"RecoveredOriginal":  {reason: "a volume that was never expanded has its size", claim: testClaim(shared), pv: gi, known: Known{Recovered: true}},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			got := Decide(tc.claim, testPV(tc.pv), tc.known)
			if got.Mode != tc.want || got.Size.Value() != tc.size {
				t.Errorf("%s: got mode %d for %s, want %d for %d bytes", tc.reason, got.Mode, got.Size.String(), tc.want, tc.size)
			}
		})
	}
}

// TestEveryState goes through the whole space of what a claim, its PersistentVolume and this node may say, and checks rules that
// hold everywhere.
func TestEveryState(t *testing.T) {
	states, acted := 0, map[Mode]int{}
	sizes := []int64{0, gi, 2 * gi, 3 * gi}
	for _, progress := range []corev1.ClaimResourceStatus{
		"", corev1.PersistentVolumeClaimControllerResizeInProgress, corev1.PersistentVolumeClaimControllerResizeInfeasible,
		corev1.PersistentVolumeClaimNodeResizePending, corev1.PersistentVolumeClaimNodeResizeInProgress, corev1.PersistentVolumeClaimNodeResizeInfeasible,
	} {
		for bits := range 1 << 4 {
			for _, sz := range cube(sizes) {
				claim := testClaim(have(sz[0]), allocated(sz[1], progress))
				for i, change := range []func(*corev1.PersistentVolumeClaim){shared, notRequired, condition(corev1.PersistentVolumeClaimFileSystemResizePending)} {
					if bits>>i&1 == 1 {
						change(claim)
					}
				}
				known := Known{Bytes: sz[3], Recovered: bits>>3&1 == 1}
				p := Decide(claim, testPV(sz[2]), known)
				states++
				acted[p.Mode]++
				what := fmt.Sprintf("capacity %d, allocated %d, PV %d, known %+v, progress %q, bits %b: %+v", sz[0], sz[1], sz[2], known, progress, bits, p)
				checkState(t, what, claim, sz[2], known, p)
			}
		}
	}
	t.Logf("%d states: %v", states, acted)
}

// cube lists all quadruples of sizes.
func cube(sizes []int64) (all [][4]int64) {
	for i := range len(sizes) * len(sizes) * len(sizes) * len(sizes) {
		var q [4]int64
		for k := range q {
			q[k] = sizes[i%len(sizes)]
			i /= len(sizes)
		}
		all = append(all, q)
	}
	return all
}

func checkState(t *testing.T, what string, claim *corev1.PersistentVolumeClaim, pv int64, known Known, p Plan) {
	t.Helper()
	nodesTurn := progress(claim) == corev1.PersistentVolumeClaimNodeResizePending || progress(claim) == corev1.PersistentVolumeClaimNodeResizeInProgress
	if (p.Mode == Recovery) != (nodesTurn && pv > capacity(claim).Value()) {
		t.Errorf("the protocol with recovery is followed if, and only if, it is the node's turn and the PersistentVolume is larger: %s", what)
	}
	if (p.Mode == Legacy || p.Mode == Elsewhere) && progress(claim) != "" {
		t.Errorf("a resizer is at work: %s", what)
	}
	if p.Mode == Legacy && claim.Status.AllocatedResources != nil {
		t.Errorf("the resizer is none of the old ones: %s", what)
	}
	_, denied := claim.Annotations[NotRequired]
	if p.Mode == Elsewhere && (denied || claim.Spec.AccessModes[0] != corev1.ReadWriteMany || known.Bytes >= capacity(claim).Value() && !known.Recovered) {
		t.Errorf("this node has nothing to follow: %s", what)
	}
	if p.Mode != None && !Pending(claim, pv, known) {
		t.Errorf("decided although the claim gave no reason to read the PersistentVolume: %s", what)
	}
	// After what the node does there is nothing left to do, here and on any other node that has the size.
	done := claim.DeepCopy()
	if p.Mode != Elsewhere {
		done.Status.Capacity, done.Status.AllocatedResourceStatuses, done.Status.Conditions = storage(p.Size.Value()), nil, nil
	}
	if again := Decide(done, testPV(p.Size.Value()), Known{Bytes: p.Size.Value()}); p.Mode != None && again.Mode != None {
		t.Errorf("expanded again after the end: %s, then %+v", what, again)
	}
}

func TestPending(t *testing.T) {
	cases := map[string]struct {
		reason string
		claim  *corev1.PersistentVolumeClaim
		pv     int64
		want   bool
	}{
		"Idle":          {reason: "most looks find nothing, and read nothing else", claim: testClaim(), pv: gi},
		"UserOnly":      {reason: "the user has asked, the controller has not answered", claim: testClaim()},
		"ByHand":        {reason: "a PersistentVolume that was larger already when the pod was resolved", claim: testClaim(), pv: 2 * gi, want: true},
		"ByHandTracked": {reason: "with recovery the size of the PersistentVolume is no reason", claim: testClaim(allocated(2*gi, "")), pv: 2 * gi},
		"Condition":     {reason: "the PersistentVolume has grown since it was read", claim: testClaim(condition(corev1.PersistentVolumeClaimFileSystemResizePending)), pv: gi, want: true},
		"Node":          {reason: "the node's turn", claim: testClaim(allocated(2*gi, corev1.PersistentVolumeClaimNodeResizePending)), pv: gi, want: true},
		"Infeasible":    {reason: "given up", claim: testClaim(allocated(2*gi, corev1.PersistentVolumeClaimNodeResizeInfeasible)), pv: 2 * gi},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			if got := Pending(tc.claim, tc.pv, Known{}); got != tc.want {
				t.Errorf("%s: got %t, want %t", tc.reason, got, tc.want)
			}
		})
	}
}

func TestClassify(t *testing.T) {
	want := map[codes.Code]Answer{
		codes.OK: Done, codes.InvalidArgument: Infeasible, codes.OutOfRange: Infeasible, codes.NotFound: Infeasible,
		codes.FailedPrecondition: InUse,
		codes.Canceled:           Uncertain, codes.DeadlineExceeded: Uncertain, codes.Unavailable: Uncertain,
		codes.ResourceExhausted: Uncertain, codes.Aborted: Uncertain,
	}
	for code := codes.OK; code <= codes.Unauthenticated; code++ {
		answer, ok := want[code]
		if !ok {
			answer = Failed
		}
		if got := Classify(fmt.Errorf("wrapped: %w", status.Error(code, "text"))); code != codes.OK && got != answer {
			t.Errorf("%s: got %d, want %d", code, got, answer)
		}
	}
	if got := Classify(nil); got != Done {
		t.Errorf("no error: got %d", got)
	}
	if got := Classify(errors.New("connection refused")); got != Uncertain {
		t.Errorf("an error that is not the driver's: got %d, want uncertain", got)
	}
}

func TestGivenUp(t *testing.T) {
	failed := condition(corev1.PersistentVolumeClaimNodeResizeError)
	cases := map[string]struct {
		reason string
		claim  *corev1.PersistentVolumeClaim
		size   int64
		want   bool
	}{
		"First":     {reason: "one failure is none", claim: testClaim(), size: 3 * gi},
		"SameSize":  {reason: "the user still wants it", claim: testClaim(failed), size: 2 * gi},
		"Lowered":   {reason: "the user asks for less since it has failed", claim: testClaim(failed), size: 3 * gi, want: true},
		"Increased": {reason: "or for more", claim: testClaim(failed), size: gi, want: true},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			if got := GivenUp(tc.claim, *resource.NewQuantity(tc.size, resource.BinarySI)); got != tc.want {
				t.Errorf("%s: got %t, want %t", tc.reason, got, tc.want)
			}
		})
	}
}
